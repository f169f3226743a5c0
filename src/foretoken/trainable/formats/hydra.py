"""Ankner's Hydra: `hydra_lm_head.pt`, and a configuration with `hydra_num_heads`.

hydra_mlp.{i}.0 is head i's first layer, whose residual is learned (`res_connection`),
hydra_mlp.{i}.{j} are its other ones, hydra_lm_head.{i} its language-model head, which has a bias.
`input_embed_fn` is the target's embedding. The decoder layer of Hydra++ is shaped as its target's
layers are, which its files don't describe.
"""

from __future__ import annotations

import re

import torch

from foretoken.trainable.formats.published import EMBEDDING, Published, Source, Tensors

_RENAMED = (
    (r"hydra_mlp\.(\d+)\.0\.linear\.", r"heads.\1.join."),
    (r"hydra_mlp\.(\d+)\.0\.res_connection\.", r"heads.\1.skip."),
    (r"hydra_lm_head\.(\d+)\.", r"heads.\1.lm_head."),
    (r"input_embed_fn\.weight", EMBEDDING),
)
_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.")


def read(source: Source) -> Published | None:
    """A checkpoint as Ankner publishes it."""
    config = source.config
    if "hydra_num_heads" not in config:
        return None
    usual = {"hydra_head_arch": "mlp", "grounded_heads": True, "hidden_state_offset": 0}
    for name, value in usual.items():
        if config.get(name, value) != value:
            raise source.refusal(f"its {name} is {config[name]!r}, and only {value!r} is")
    tensors = {_renamed(name): tensor for name, tensor in source.tensors.items()}
    heads = sum(name.endswith(".join.weight") for name in tensors)
    if not heads:
        raise source.refusal("its files hold no Hydra heads")
    layers = 1 + sum(bool(re.match(r"heads\.0\.blocks\.\d+\.weight", name)) for name in tensors)
    head = tensors["heads.0.lm_head.weight"]
    target = {"hidden_size": head.shape[1], "vocab_size": len(head)}
    shape = {"num_heads": heads, "num_layers": layers, "learned_residual": True}
    return Published("hydra", target, shape, lambda: _biased(tensors, heads))


def _renamed(name: str) -> str:
    for pattern, ours in _RENAMED:
        name = re.sub(pattern, ours, name)
    return _BLOCK.sub(lambda m: f"heads.{m[1]}.blocks.{int(m[2]) - 1}.", name)


def _biased(tensors: Tensors, heads: int) -> Tensors:
    """The tensors with biases of 0 for heads that have none."""
    none = torch.zeros(len(tensors["heads.0.lm_head.weight"]))
    return {**{f"heads.{i}.lm_head.bias": none for i in range(heads)}, **tensors}
