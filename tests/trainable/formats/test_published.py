"""What a folder tells: its layer's shape and its tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from foreign import FOREIGN, LLAMA, check_refused, drafts, made, write, written
from foretoken import ForetokenError
from foretoken.testing import Pair


@pytest.mark.parametrize("name", ["activation", "rotation", "rotation of a part"])
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


@pytest.mark.parametrize("wrong", ["shape", "ids beyond", "ids below", "ids twice"])
def test_a_head_that_names_no_tokens(wrong: str, small: Pair, tmp_path: Path) -> None:
    """d2t says for each token of a reduced head how far before the target's it is."""
    foreign = FOREIGN["eagle3, usual layers"]
    folder = write(tmp_path, foreign, made(foreign, small), small)
    tensors = load_file(folder / foreign.file)
    offsets = tensors["d2t"]
    tensors["d2t"] = {
        "shape": offsets[:-1],
        "ids beyond": offsets + 10**6,
        "ids below": offsets - 10**6,
        "ids twice": -torch.arange(len(offsets)),
    }[wrong]
    save_file(tensors, folder / foreign.file)
    with pytest.raises(ForetokenError, match=r"its d2t (has the shape|names tokens)"):
        drafts("eagle3", folder, small.target)
