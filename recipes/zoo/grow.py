"""Makes a trained Llama wider and deeper without changing what it computes.

New residual dimensions stay zero because nothing writes them at first: zero columns in the
embedding, zero rows in every o_proj and down_proj. What reads them (q, k, v, gate, up) starts
random, so gradients reach the zeros at once. Added heads, feed-forward units and layers are
silenced the same way, by zeros in o_proj and down_proj. RMSNorm divides by the mean square over
all dimensions, new ones included, so its weights shrink by sqrt(old width / new width).
"""

from __future__ import annotations

import torch
from model import Config, Llama
from torch import Tensor


def check(old: Config, new: Config) -> None:
    for field in ("hidden", "layers", "heads", "kv_heads", "intermediate"):
        if getattr(new, field) < getattr(old, field):
            raise ValueError(f"{field} shrinks from {getattr(old, field)} to {getattr(new, field)}")
    if old.heads // old.kv_heads != new.heads // new.kv_heads or old.head_dim != new.head_dim:
        raise ValueError("the queries per key/value head and the head width must stay the same")
    wanted = old.eps * old.hidden / new.hidden
    if abs(new.eps - wanted) > 1e-6 * wanted:
        raise ValueError(f"the epsilon of the norms must be {wanted}, not {new.eps}")


def place(old: Tensor, new: Tensor, scale: float = 1.0) -> None:
    """Copy `old` into the top left corner of `new`."""
    new[tuple(slice(0, n) for n in old.shape)] = old * scale


def layer_order(old: int, new: int) -> list[int | None]:
    """Old layers spread evenly through the new depth; None marks an added one."""
    places = {round((i + 1) * new / old) - 1: i for i in range(old)}
    return [places.get(i) for i in range(new)]


@torch.no_grad()
def grow(old: Llama, config: Config) -> Llama:
    check(old.config, config)
    new = Llama(config)  # o_proj and down_proj start at zero, the rest random
    shrink = (old.config.hidden / config.hidden) ** 0.5
    weights = dict(old.named_parameters())
    new.embed_tokens.weight.zero_()
    place(weights["embed_tokens.weight"], new.embed_tokens.weight)
    place(weights["norm.weight"], new.norm.weight, shrink)
    for at, source in enumerate(layer_order(old.config.layers, config.layers)):
        if source is None:
            continue
        for name, p in new.layers[at].named_parameters():
            before = weights[f"layers.{source}.{name}"]
            if p.dim() == 1:
                p.fill_(float(before.mean()) * shrink)
                place(before, p, shrink)
            else:
                place(before, p)
    return new
