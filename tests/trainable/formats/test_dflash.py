"""DFlash as z-lab and speculators publish it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from foreign import FOREIGN, check_drafts_as_ours, check_refused, made, of_module, target_of, write
from foretoken import ForetokenError
from foretoken.testing import Pair
from foretoken.trainable.block_layers import BlockModule
from foretoken.trainable.formats import recognise
from foretoken.trainable.formats.dflash import SELECTING


@pytest.mark.parametrize("name", of_module(BlockModule))
def test_it_drafts_what_our_own_checkpoint_does(name: str, small: Pair, tmp_path: Path) -> None:
    """The same trees and acceptances, and the same tensors."""
    check_drafts_as_ours(name, small, tmp_path)


@pytest.mark.parametrize(
    "name",
    [
        "depth",
        "vocabulary of DFlash",
        "windows of more layers",
        "no window",
        "logits",
        "projector",
        "labels",
        "labels beside the settings",
        "a scale beside the settings",
        "neighbouring places",
        "relative",
        "rotation of each kind",
    ],
)
def test_what_does_not_fit_is_refused(name: str, small: Pair, tmp_path: Path) -> None:
    """One sentence, with both values where there are two."""
    check_refused(name, small, tmp_path)


@pytest.mark.parametrize("token", [23, -1, "22"])
def test_a_mask_that_is_no_token(token: object, small: Pair, tmp_path: Path) -> None:
    """It has no embedding, which would be missed only while drafting."""
    foreign = FOREIGN["dflash"]
    folder = write(tmp_path / "theirs", foreign, made(foreign, small), small)
    config = json.loads((folder / "config.json").read_text())
    config["dflash_config"]["mask_token_id"] = token
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ForetokenError, match=f"mask_token_id is {token!r}, and tokens are 0 to 22"):
        BlockModule.load(folder, target_of(small))


@pytest.mark.parametrize("form", ["alone", "with its token"])
def test_a_mask_in_a_file_of_its_own(form: str, small: Pair, tmp_path: Path) -> None:
    """As MiMo publishes it: it takes the place of the token's embedding."""
    foreign = FOREIGN["dflash"]
    folder = write(tmp_path / "theirs", foreign, made(foreign, small), small)
    mask = torch.linspace(-1, 1, 32)
    whole = {"mask_token_id": 22, "embedding": mask}
    torch.save(whole if form == "with its token" else mask[None], folder / "mask_embedding.pt")
    found = recognise(folder)
    assert found is not None and found.shape["mask_token_id"] is None
    assert torch.equal(found.tensors()["mask_embedding"], mask)


@pytest.mark.parametrize(
    ("held", "said"),
    [
        ({"mask_token_id": 7, "embedding": torch.zeros(32)}, "of token 7, and its mask is 22"),
        ({"mask_token_id": 22}, "holds no embedding"),
        ({"per_position": True, "embedding": torch.zeros(2, 32)}, "an embedding for each place"),
    ],
)
def test_a_mask_that_is_none(held: object, said: str, small: Pair, tmp_path: Path) -> None:
    foreign = FOREIGN["dflash"]
    folder = write(tmp_path / "theirs", foreign, made(foreign, small), small)
    torch.save(held, folder / "mask_embedding.pt")
    with pytest.raises(ForetokenError, match=said):
        recognise(folder)


@pytest.mark.parametrize("name", ["target_layer_ids", "mask_token_id"])
def test_settings_beside_the_others(name: str, small: Pair, tmp_path: Path) -> None:
    """As vLLM and SGLang find them there too."""
    foreign = FOREIGN["dflash"]
    folder = write(tmp_path / "theirs", foreign, made(foreign, small), small)
    usual = recognise(folder)
    config = json.loads((folder / "config.json").read_text())
    value = config["dflash_config"].pop(name)
    config[name] = [2, 0] if name == "target_layer_ids" else value - 1
    (folder / "config.json").write_text(json.dumps(config))
    found = recognise(folder)
    assert found is not None and usual is not None
    assert found.shape == {**usual.shape, name: config[name]} != usual.shape


def test_dflash2_as_modelopt_names_it(small: Pair, tmp_path: Path) -> None:
    """By a `projector_type`, which DFlash itself can't have."""
    foreign = FOREIGN["dflash2"]
    folder = write(tmp_path / "theirs", foreign, made(foreign, small), small)
    config = json.loads((folder / "config.json").read_text())
    config["dflash_config"]["projector_type"] = "dflash2"
    (folder / "config.json").write_text(json.dumps(config))
    found = recognise(folder)
    assert found is not None and found.method == "dflash2"
    for setting in SELECTING:
        config["dflash_config"].pop(setting)
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ForetokenError, match="projector_type is 'dflash2', and DFlash has none"):
        recognise(folder)
