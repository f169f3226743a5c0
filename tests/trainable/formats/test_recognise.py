"""Whose checkpoint a folder is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foreign import FOREIGN, made, write
from foretoken import ForetokenError
from foretoken.testing import Pair
from foretoken.trainable.formats import recognise


@pytest.mark.parametrize("name", FOREIGN)
def test_each_is_of_one_method(name: str, small: Pair, tmp_path: Path) -> None:
    """The first format that knows a folder names its method; EAGLE-2's weights are EAGLE's."""
    foreign = FOREIGN[name]
    found = recognise(write(tmp_path, foreign, made(foreign, small), small))
    assert found is not None and found.method == foreign.method.replace("eagle2", "eagle")


def test_folders_that_are_nobodys(tmp_path: Path) -> None:
    """No config, one of ours, and one that lacks what its format needs."""
    assert recognise(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({"foretoken_method": "medusa"}))
    assert recognise(tmp_path) is None
    (tmp_path / "config.json").write_text(json.dumps({"dflash_config": {}}))
    with pytest.raises(ForetokenError, match="it lacks 'num_hidden_layers'"):
        recognise(tmp_path)
    (tmp_path / "config.json").write_text(
        json.dumps({"dflash_config": {}, "num_hidden_layers": [1], "hidden_size": "a"})
    )
    with pytest.raises(ForetokenError, match=r"can't be served: its config.json has a value|lacks"):
        recognise(tmp_path)
