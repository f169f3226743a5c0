"""Shapes of Llamas, which decide what a pass costs: known ones, and a drafter's for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from foretoken.errors import ForetokenError

__all__ = ["SHAPES", "Shape", "parameters_read", "proportional"]

_NUMBERS = (
    "num_attention_heads",
    "hidden_size",
    "num_hidden_layers",
    "intermediate_size",
    "vocab_size",
)


@dataclass(frozen=True)
class Shape:
    """The dimensions that decide a Llama's cost."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int
    vocab: int
    head_width: int = 0  # 0: hidden // heads

    @property
    def head_dim(self) -> int:
        return self.head_width or self.hidden // self.heads

    @staticmethod
    def of(config: Mapping[str, Any]) -> Shape:
        """The shape that a Hugging Face config.json describes. Raises `ForetokenError` where it
        isn't in Llama's words."""
        missing = [name for name in _NUMBERS if type(config.get(name)) is not int]
        if missing:
            raise ForetokenError(
                f"A config.json of a {config.get('model_type')} model has no {missing[0]}, as "
                "Llama's has; give a model like Llama."
            )
        heads = config["num_attention_heads"]
        return Shape(
            hidden=config["hidden_size"],
            layers=config["num_hidden_layers"],
            heads=heads,
            kv_heads=config.get("num_key_value_heads") or heads,
            intermediate=config["intermediate_size"],
            vocab=config["vocab_size"],
            head_width=config.get("head_dim") or config["hidden_size"] // heads,
        )


SHAPES = {
    "135m": Shape(576, 30, 9, 3, 1_536, 49_152),
    "1.1b": Shape(2_048, 22, 32, 4, 5_632, 32_000),
    "7b": Shape(4_096, 32, 32, 32, 11_008, 32_000),
}


def parameters_read(shape: Shape) -> int:
    """Parameters a decoding step reads: the layers and the head; of the embedding only a row."""
    attention = 2 * shape.hidden * shape.head_dim * (shape.heads + shape.kv_heads)
    feed_forward = 3 * shape.hidden * shape.intermediate
    norms = 2 * shape.hidden
    return shape.layers * (attention + feed_forward + norms) + shape.hidden * (shape.vocab + 1)


def proportional(draft: Mapping[str, Any], target: Mapping[str, Any], shape: Shape) -> Shape:
    """A drafter's shape that reads the same share of `shape` as `draft` reads of `target`.

    `draft` and `target` are the contents of the two small models' config.json. Depth keeps its
    ratio; then the width, in steps of 64, and the feed-forward width are chosen to fit. Raises
    `ForetokenError` for a drafter that is wider than `shape`, or has more heads.
    """
    small, large = Shape.of(draft), Shape.of(target)
    wanted = parameters_read(shape) * parameters_read(small) / parameters_read(large)
    layers = max(small.layers, round(shape.layers * small.layers / large.layers))
    group = small.heads // small.kv_heads
    fits = []
    for hidden in range((small.hidden // 64 + 1) * 64, shape.hidden + 64, 64):  # room to spare
        heads = hidden // 64
        if heads < small.heads:
            continue
        kv_heads = heads // group if heads % group == 0 else heads
        bare = Shape(hidden, layers, heads, kv_heads, 0, shape.vocab, 64)
        room = (wanted - parameters_read(bare)) / (3 * hidden * layers)
        feed = min(max(round(room / 32) * 32, small.intermediate, hidden), 4 * hidden)
        full = Shape(**{**asdict(bare), "intermediate": feed})
        # Among shapes that fit equally well, the one nearest the usual feed-forward ratio of 8/3.
        miss = abs(parameters_read(full) / wanted - 1)
        fits.append((round(miss, 1), abs(feed / hidden - 8 / 3), hidden, full))
    if not fits:
        raise ForetokenError(
            f"A drafter of width {small.hidden} with {small.heads} heads has no room in a shape of "
            f"width {shape.hidden}; give a larger shape, or a smaller drafter."
        )
    return min(fits)[-1]
