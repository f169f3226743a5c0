"""IBM's MLP speculators ("accelerators"), as vLLM's `mlp_speculator` and TGI read them: a
configuration of model_type mlp_speculator with n_predict, emb_dim, inner_dim (0 for emb_dim),
tie_weights and scale_input. Names are ours, at times after "speculator.". Where weights are tied a
file has them once, or once for each stage. Snowflake's Arctic has other networks under the same
model_type, and says which in `method`.
"""

from __future__ import annotations

import re

import torch

from foretoken.trainable.formats.published import Published, Source, Tensors

_STAGE = re.compile(r"(emb|proj|ln|head)\.(\d+)\.(weight|bias)")


def read(source: Source) -> Published | None:
    """A checkpoint as IBM publishes it."""
    config = source.config
    if config.get("model_type") != "mlp_speculator":
        return None
    if config.get("method") is not None:
        raise source.refusal(f"its method is {config['method']!r}, and only IBM's network is")
    width = config.get("emb_dim") or config["hidden_size"]
    tied = bool(config.get("tie_weights"))
    shape = {
        "num_heads": config["n_predict"],
        "inner_width": config.get("inner_dim") or width,
        "tied": tied,
        "scaled": bool(config.get("scale_input")),
    }
    target = {"hidden_size": width, "vocab_size": config["vocab_size"]}
    return Published("mlp_speculator", target, shape, lambda: _tensors(source, tied))


def _tensors(source: Source, tied: bool) -> Tensors:
    """Raises `ForetokenError` where tied weights differ."""
    tensors = {name.removeprefix("speculator."): t for name, t in source.tensors.items()}
    if not tied:
        return tensors
    kept: Tensors = {}
    for name, tensor in sorted(tensors.items()):
        first = _STAGE.sub(_first, name)
        if first in kept and not torch.equal(tensor, kept[first]):
            raise source.refusal(f"its tie_weights is true, and {name} differs from {first}")
        kept[first] = tensor
    return kept


def _first(found: re.Match[str]) -> str:
    """The name of the first stage that has the same weights."""
    return f"{found[1]}.{min(int(found[2]), int(found[1] == 'proj'))}.{found[3]}"
