"""Sets of sub-layers to leave out: the first one, and files of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken.drafters.draft_verify import DraftVerify
from foretoken.errors import ForetokenError
from foretoken.models import layer_set
from foretoken.models.target import ModelTarget
from foretoken.testing import native
from foretoken.testing.models import Pair, tiny_pair, tiny_transformers
from partial_target import LAYERS


def test_every_second_layer() -> None:
    """SWIFT's start: the first and the last layer stay, and short models keep all."""
    assert layer_set.every_second(7) == (2, 3, 6, 7, 10, 11)
    assert layer_set.every_second(4) == (2, 3)
    assert layer_set.every_second(2) == ()
    assert layer_set.kept((1, 2), 2) == [0, 3]


def test_files_of_layer_sets(deep: Pair, tmp_path: Path) -> None:
    """A set is found again by the model it was made for, in any dtype, and by no other."""
    path = tmp_path / "set.npz"
    layer_set.save(path, (2, 5), ModelTarget(deep.target, 1, 8))
    half = native(tiny_transformers(layers=LAYERS).float())
    assert layer_set.load(path, ModelTarget(half, 1, 8)) == (2, 5)
    drafter = DraftVerify(path)
    drafter.bind(ModelTarget(half, 1, 8))
    assert drafter._lm.sublayers == (0, 1, 3, 4, 6, 7)
    for other in (tiny_pair(layers=LAYERS, seed=1), tiny_pair(layers=LAYERS + 1)):
        with pytest.raises(ForetokenError, match="use a layer set of this target's"):
            layer_set.load(path, ModelTarget(other.target, 1, 8))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ForetokenError, match="damaged"):
        layer_set.load(path, ModelTarget(half, 1, 8))
