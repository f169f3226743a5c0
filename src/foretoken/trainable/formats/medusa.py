"""FasterDecoding's Medusa: `medusa_lm_head.pt` or `.safetensors`, and a configuration with
`medusa_num_heads`. Names are ours: {i}.{j}.linear.* and {i}.{layers}.weight, at times after
"medusa_head.". Configurations in the wild name fewer heads than there are; the tensors count.
"""

from __future__ import annotations

import re

from foretoken.trainable.formats.published import Published, Source

_NAME = re.compile(r"(?:.*medusa_heads?\.)?(\d+\.\d+\.(?:linear\.)?(?:weight|bias))$")


def read(source: Source) -> Published | None:
    """A checkpoint as FasterDecoding publishes it."""
    if "medusa_num_heads" not in source.config:
        return None
    tensors = {m[1]: t for name, t in source.tensors.items() if (m := _NAME.match(name))}
    heads = len({name.partition(".")[0] for name in tensors})
    if not heads:
        raise source.refusal("its files hold no Medusa heads")
    layers = sum(name.startswith("0.") and name.endswith(".linear.weight") for name in tensors)
    head = tensors.get(f"0.{layers}.weight")
    width = next(iter(tensors.values())).shape[-1]
    target = {"hidden_size": width} | ({} if head is None else {"vocab_size": len(head)})
    shape = {"num_heads": heads, "num_layers": layers, "own_lm_heads": head is not None}
    return Published("medusa", target, shape, lambda: tensors)
