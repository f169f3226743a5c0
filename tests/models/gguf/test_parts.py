"""A GGUF file in parts is the model that was split, wherever a file can be given."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

import gguf_files
import stored_models
from foretoken import LLM, SamplingParams
from foretoken.bench.run.contents import contents
from foretoken.cli.measuring import AS_IT_IS, target_name
from foretoken.errors import ForetokenError
from foretoken.models import gguf
from foretoken.models.gguf import parts
from foretoken.models.load import find, load_model, load_tokenizer, weights
from foretoken.recommender.models_nearby import numbers_in
from foretoken.testing import logits_after

IDS = stored_models.IDS


def test_names() -> None:
    assert parts.names("x/a-00001-of-00002.gguf") == [
        "x/a-00001-of-00002.gguf",
        "x/a-00002-of-00002.gguf",
    ]
    for alone in ("a.gguf", "a-00001-of-00001.gguf", "a-1-of-2.gguf", "a-00003-of-00002.gguf"):
        assert parts.names(alone) == [alone]
    with pytest.raises(
        ForetokenError, match=r"is part 2 of 3 .*give the first, x/a-00001-of-00003"
    ):
        parts.names("x/a-00002-of-00003.gguf")


def test_models_are_called_as_if_they_were_whole() -> None:
    for place in ("x/a.gguf", "x/a-00001-of-00002.gguf", "a-00002-of-00002.gguf", Path("x") / "a"):
        assert parts.model_name(place) == "a"
    assert parts.model_name("org/a-1.5B") == "a-1.5B"


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file, with its parts beside it."""
    path = gguf_files.written(tmp_path_factory.mktemp("gguf") / "a.gguf", kind=Kind.Q8_0)
    assert len(gguf_files.split(path, 8)) == 3
    return path


@pytest.fixture
def first(whole: Path) -> Path:
    return whole.with_name("a-00001-of-00003.gguf")


def ids(model: Path, draft: Path | None = None) -> list[int]:
    config = None if draft is None else {"model": str(draft)}
    llm = LLM(model, max_num_seqs=1, device="cpu", speculative_config=config)
    [out] = llm.generate(["the cat in"], SamplingParams(temperature=0, max_tokens=12))
    return list(out.outputs[0].token_ids)


def test_texts_and_what_is_said_of_the_file(whole: Path, first: Path) -> None:
    """As target and as draft model; its size and its name are the whole model's."""
    assert ids(first) == ids(whole) == ids(whole, draft=first)
    assert load_tokenizer(first).encode("the cat") == load_tokenizer(whole).encode("the cat")
    assert load_model(first).bytes_read == load_model(whole).bytes_read
    assert numbers_in(first) == numbers_in(whole)
    assert target_name(str(first), AS_IT_IS) == "a"


@pytest.mark.parametrize("backend", ["auto", "plain", "half", "q4"])
def test_logits_have_the_same_bits(backend: str, whole: Path, first: Path) -> None:
    """As blocks that lie in several files, dequantised, and quantised once more."""
    ours, expected = (load_model(path, device="cpu", backend=backend) for path in (first, whole))
    assert ours.backend == expected.backend
    assert torch.equal(logits_after(ours, IDS), logits_after(expected, IDS))


def test_through_transformers_where_the_family_is_read_here(whole: Path, first: Path) -> None:
    models = (load_model(path, device="cpu", model_impl="transformers") for path in (first, whole))
    ours, expected = (logits_after(model, IDS) for model in models)
    assert torch.equal(ours, expected)


def test_where_tensors_lie(first: Path) -> None:
    stored = weights(first, whole=True)
    files = {stored.place(name).file.name for name in stored.headers}
    assert files == {f"a-0000{number}-of-00003.gguf" for number in (1, 2, 3)}


def test_a_first_part_without_tensors(tmp_path: Path) -> None:
    """As gguf-split writes it where it is told to."""
    whole = gguf_files.written(tmp_path / "a.gguf", "qwen2")
    first, *others = gguf_files.split(whole, 20, small_first=True)
    assert len(others) > 1 and first in gguf.opened(first).files
    assert first not in {stored.file for stored in gguf.opened(first).tensors.values()}
    ours, expected = (load_model(path, device="cpu") for path in (first, whole))
    assert torch.equal(logits_after(ours, IDS), logits_after(expected, IDS))


def test_exports(whole: Path, first: Path, tmp_path: Path) -> None:
    """A folder, and one file again, whose metadata tells of no parts."""
    for path in (first, whole):
        gguf.write_folder(path, tmp_path / path.stem)
        gguf.write_file(gguf.FileSource(path), tmp_path / f"{path.stem}-again.gguf", "Q8_0")
    name = "model.safetensors"
    ours, expected = ((tmp_path / path.stem / name).read_bytes() for path in (first, whole))
    assert ours == expected
    ours, expected = (
        (tmp_path / f"{path.stem}-again.gguf").read_bytes() for path in (first, whole)
    )
    assert ours == expected


def test_a_part_that_changes_is_another_model(whole: Path, tmp_path: Path) -> None:
    """For what goes on with the same weights only, as a benchmark does."""
    for path in whole.parent.glob("a-*"):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    first, _, last = sorted(tmp_path.glob("a-*"))
    before = contents(first, [])
    data = bytearray(last.read_bytes())
    data[-1] ^= 1
    last.write_bytes(data)
    assert contents(first, []).keys() == before.keys() and contents(first, []) != before


def test_all_parts_come_from_the_hub(
    whole: Path, first: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one commit, whatever the repository becomes meanwhile."""
    asked: list[tuple[str, str | None]] = []
    place = whole.parent / "snapshots" / "abc" / "x"
    place.parent.mkdir(parents=True)
    place.symlink_to(first.parent)

    def download(repository: str, file: str, revision: str | None = None) -> str:
        asked.append((file, revision))
        return str(place / file.removeprefix("x/"))

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    assert find(f"org/name/x/{first.name}") == place / first.name
    assert asked == [
        (f"x/a-0000{number}-of-00003.gguf", None if number == 1 else "abc") for number in (1, 2, 3)
    ]
    with pytest.raises(ForetokenError, match=r"x/a-00002-of-00003\.gguf is part 2 of 3"):
        find("org/name/x/a-00002-of-00003.gguf")
    assert len(asked) == 3


def test_parts_that_transformers_would_read_are_refused(tmp_path: Path) -> None:
    """It reads one file, and would find tensors missing."""
    writer = gguf_files.gguf.GGUFWriter(tmp_path / "a.gguf", "gpt2", split_max_tensors=1)
    for name in ("token_embd.weight", "output.weight"):
        gguf_files.put(writer, name, torch.zeros(8, 8).numpy(), Kind.F32)
    gguf_files.finish(writer)
    with pytest.raises(ForetokenError, match=r"gpt2 models are read by transformers, .* --merge\."):
        load_model(tmp_path / "a-00001-of-00002.gguf", device="cpu")
