"""The files of weights in a folder: which are read, under which names, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from foretoken.errors import ForetokenError
from foretoken.models.checkpoint import (
    INDEX,
    WHOLE,
    Checkpoint,
    Header,
    check_layers,
    has_safetensors,
    warn_of_unread,
)

ONES, ZEROS = torch.ones(2, 3), torch.zeros(2, 3)


def shards(folder: Path, weight_map: Any) -> Path:
    save_file({"model.a": ONES}, folder / "one.safetensors")
    save_file({"model.b": ZEROS}, folder / "two.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    return folder


def test_headers_and_tensors(tmp_path: Path) -> None:
    """Shape, dtype and file without reading a weight; all tensors of all files that are named."""
    stored = Checkpoint(
        shards(tmp_path, {"model.a": "one.safetensors", "model.b": "two.safetensors"})
    )
    header = stored.header("model.b")
    assert header == ((2, 3), "F32", tmp_path / "two.safetensors")
    assert torch.equal(stored("model.a"), ONES) and sorted(stored.headers) == ["model.a", "model.b"]
    with pytest.raises(KeyError, match=r"model\.c"):
        stored("model.c")


def test_the_one_file_is_read_before_an_index(tmp_path: Path) -> None:
    """As in transformers; without either, the only file is read."""
    assert not has_safetensors(tmp_path)
    shards(tmp_path, {"model.a": "one.safetensors"})
    save_file({"model.a": ZEROS}, tmp_path / WHOLE)
    assert list(Checkpoint(tmp_path).headers) == ["model.a"] and has_safetensors(tmp_path)
    assert torch.equal(Checkpoint(tmp_path)("model.a"), ZEROS)
    (tmp_path / WHOLE).unlink()
    (tmp_path / INDEX).unlink()
    with pytest.raises(
        ForetokenError, match=r"2 \*\.safetensors files and no model\.safetensors\.ind"
    ):
        Checkpoint(tmp_path)
    (tmp_path / "one.safetensors").unlink()
    assert list(Checkpoint(tmp_path).headers) == ["model.b"]


def test_an_index_is_read_before_torch_s_own_file(tmp_path: Path) -> None:
    """As in transformers."""
    torch.save({"model.a": ZEROS}, tmp_path / "pytorch_model.bin")
    assert torch.equal(Checkpoint(tmp_path)("model.a"), ZEROS)
    shards(tmp_path, {"model.a": "one.safetensors"})
    assert torch.equal(Checkpoint(tmp_path)("model.a"), ONES)


def test_the_prefix_may_be_missing_or_be_one_too_many(tmp_path: Path) -> None:
    """A base model's names lack "model."; some files have it before the head's as well."""
    save_file({"norm.weight": ONES, "model.lm_head.weight": ZEROS}, tmp_path / WHOLE)
    stored = Checkpoint(tmp_path)
    assert torch.equal(stored("model.norm.weight"), ONES)
    assert torch.equal(stored("lm_head.weight"), ZEROS)
    assert stored.header("model.norm.weight").shape == (2, 3)


def test_two_tensors_for_one_place_are_refused(tmp_path: Path) -> None:
    """With and without the prefix, and in two files."""
    save_file({"norm.weight": ONES, "model.norm.weight": ZEROS}, tmp_path / WHOLE)
    with pytest.raises(ForetokenError, match="stand for the same weights"):
        Checkpoint(tmp_path)
    (tmp_path / WHOLE).unlink()
    shards(tmp_path, {"model.a": "one.safetensors", "model.b": "two.safetensors"})
    save_file({"model.a": ZEROS}, tmp_path / "two.safetensors")
    with pytest.raises(ForetokenError, match=r"in one\.safetensors and in two\.safetensors"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize("weight_map", [None, [], {}, "x", 3])
def test_an_index_without_a_map(tmp_path: Path, weight_map: Any) -> None:
    with pytest.raises(ForetokenError, match=r"index\.json .* has no 'weight_map'; fetch it again"):
        Checkpoint(shards(tmp_path, weight_map))


@pytest.mark.parametrize("name", ["../one.safetensors", "/etc/passwd", "a/b", "", ".", 3, None, []])
def test_an_index_that_names_no_file_of_the_folder(tmp_path: Path, name: Any) -> None:
    """Nothing outside of the folder is opened."""
    with pytest.raises(ForetokenError, match="is not the name of a file in the folder"):
        Checkpoint(shards(tmp_path, {"model.a": name}))


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"weight_map"', "[" * 100_000])
def test_an_index_that_is_no_json_object(tmp_path: Path, text: str) -> None:
    (shards(tmp_path, {}) / INDEX).write_text(text)
    with pytest.raises(ForetokenError, match=r"index\.json can't be read as an index of weights"):
        Checkpoint(tmp_path)


def test_layers_that_a_configuration_leaves_out() -> None:
    """Those after the last; what merely has a number in its name is none."""
    names = ["model.layers.1.mlp.up_proj.weight", "vision.layers.9.x", "model.norm.3"]
    check_layers(names, 2)
    for more in ("model.layers.2.x", "layers.2.x", "transformer.h.2.x"):
        with pytest.raises(ForetokenError, match="hold weights of layer 2, and num_hidden_layers"):
            check_layers([*names, more], 2)
        check_layers([*names, more], 2, ahead=1)


def test_tensors_that_are_not_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The log names one; rotary frequencies follow from a configuration, and a prefix may lack."""
    names = ("layers.0.q.weight", "model.layers.0.rotary_emb.inv_freq")
    headers = dict.fromkeys(names, Header((2,), "F32", tmp_path / "model.safetensors"))
    warn_of_unread(headers, {"model.layers.0.q.weight": (2,)})
    assert not caplog.text
    for name in ("model.layers.0.q.bias", "lm_head.bias"):  # a layer's and the head's
        more = headers | {name: headers["layers.0.q.weight"]}
        caplog.clear()
        warn_of_unread(more, {"model.layers.0.q.weight": (2,)})
        assert "has 1 tensors" in caplog.text and f"'{name}'" in caplog.text


@pytest.mark.parametrize("old", [False, True])
def test_torch_s_own_files(tmp_path: Path, old: bool) -> None:
    """In one file or in shards, as torch has written them since 1.6 and before; other things than
    tensors are refused, and not run."""
    halves = {"one.bin": {"model.a": ONES}, "two.bin": {"b": ZEROS.bfloat16()}}
    for name, tensors in halves.items():
        torch.save(tensors, tmp_path / name, _use_new_zipfile_serialization=not old)
    places = {"model.a": "one.bin", "b": "two.bin"}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": places}))
    stored = Checkpoint(tmp_path)
    assert torch.equal(stored("model.a"), ONES) and torch.equal(stored("model.b"), ZEROS.bfloat16())
    assert stored.header("b") == ((2, 3), "BF16", tmp_path / "two.bin")
    whole = tmp_path / "pytorch_model.bin"
    torch.save({"c": torch.nn.Parameter(ONES)}, whole)  # which is read before an index
    assert not Checkpoint(tmp_path)("c").requires_grad
    for wrong in ({"c": [1]}, [ONES], {"c": Path}, {"c": ONES.to_sparse()}, {"c": ONES.to("meta")}):
        torch.save(wrong, whole)
        with pytest.raises(ForetokenError, match=r"pytorch_model\.bin can't be read as a model's"):
            Checkpoint(tmp_path)
    torch.save({"c": ONES}, whole)
    save_file({"d": ONES}, tmp_path / "other.safetensors")  # which transformers doesn't look for
    assert [*Checkpoint(tmp_path).headers] == ["c"]
    whole.unlink()
    assert [*Checkpoint(tmp_path).headers] == ["model.a", "b"]
    index.unlink()
    assert [*Checkpoint(tmp_path).headers] == ["d"]
