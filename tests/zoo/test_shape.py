"""Shapes: what a pass reads of them, and the drafter's that goes with one."""

from __future__ import annotations

import json

import pytest

from foretoken import ForetokenError, zoo
from foretoken.zoo.shape import SHAPES, Shape, parameters_read, proportional


def test_named_shapes_have_their_names_sizes() -> None:
    """A pass reads as many parameters as the name promises."""
    sizes = {"135m": 134.5e6, "1.1b": 1.1e9 - 32_000 * 2_048, "7b": 6.74e9 - 32_000 * 4_096}
    for name, size in sizes.items():
        assert parameters_read(SHAPES[name]) == pytest.approx(size, rel=0.01)


@pytest.mark.parametrize("name", sorted(SHAPES))
def test_drafter_keeps_its_share(name: str) -> None:
    """The drafter's shape reads the same share of the target's as the bundled pair's."""
    draft, target = (
        json.loads((zoo.path(n) / "config.json").read_text()) for n in ("mini-draft", "mini")
    )
    share = parameters_read(Shape.of(draft)) / parameters_read(Shape.of(target))
    shape = proportional(draft, target, SHAPES[name])
    assert parameters_read(shape) / parameters_read(SHAPES[name]) == pytest.approx(share, rel=0.1)
    assert shape.vocab == SHAPES[name].vocab
    assert shape.hidden > Shape.of(draft).hidden
    assert shape.hidden % shape.heads == 0 == shape.heads % shape.kv_heads  # transformers insists


def test_drafters_that_have_no_shape() -> None:
    """Wider than the shape, with more heads, and not in Llama's words."""
    draft, target = (
        json.loads((zoo.path(n) / "config.json").read_text()) for n in ("mini-draft", "mini")
    )
    for change in ({"hidden_size": 576}, {"num_attention_heads": 64}):
        with pytest.raises(ForetokenError, match="has no room in a shape of width 576"):
            proportional(draft | change, target, SHAPES["135m"])
    with pytest.raises(ForetokenError, match="of a gpt2 model has no num_attention_heads"):
        proportional(draft, {"model_type": "gpt2", "n_embd": 64}, SHAPES["135m"])


def test_a_drafter_has_no_fewer_layers_than_before() -> None:
    """Also where the shape has fewer than its target."""
    draft, target = (
        json.loads((zoo.path(n) / "config.json").read_text()) for n in ("mini-draft", "mini")
    )
    deep, shape = target | {"num_hidden_layers": 60}, SHAPES["1.1b"]
    assert proportional(draft, deep, shape).layers == Shape.of(draft).layers
    assert (
        Shape.of({k: v for k, v in target.items() if k != "num_key_value_heads"}).kv_heads
        == (target["num_attention_heads"])
    )
