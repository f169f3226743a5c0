"""What a folder tells: its layer's shape and its tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from foreign import FOREIGN, LLAMA, check_refused, drafts, made, write, written
from foretoken import ForetokenError
from foretoken.testing import Pair


@pytest.mark.parametrize("name", ["activation", "rotation"])
def test_layers_that_cannot_be_served(name: str, small: Pair, tmp_path: Path) -> None:
    """One sentence names what the layer has."""
    check_refused(name, small, tmp_path)


def test_only_tensors_are_read(small: Pair, tmp_path: Path) -> None:
    """A file of torch's that would run something, a damaged one, and a folder of nobody's."""
    foreign = FOREIGN["medusa"]
    folder = write(tmp_path / "a", foreign, made(foreign, small), small)
    torch.save({"0.0.linear.weight": tmp_path}, folder / foreign.file)
    with pytest.raises(ForetokenError, match="more than tensors"):
        drafts("medusa", folder, small.target)
    (folder / foreign.file).write_bytes(b"PK")
    with pytest.raises(ForetokenError, match="damaged"):
        drafts("medusa", folder, small.target)
    folder = write(tmp_path / "b", FOREIGN["eagle"], made(FOREIGN["eagle"], small), small)
    with pytest.raises(ForetokenError, match="'eagle' and not of 'medusa'"):
        drafts("medusa", folder, small.target)
    written(tmp_path / "c", LLAMA, {"model.norm.weight": torch.ones(3)})
    with pytest.raises(ForetokenError, match="no checkpoint of a trained drafter"):
        drafts("eagle", tmp_path / "c", small.target)
