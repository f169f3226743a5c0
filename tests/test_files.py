"""Files: written whole or not at all, and JSON that is read back or refused in one sentence."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from foretoken import ForetokenError, files
from foretoken.files import (
    check_new_folder,
    check_writable,
    fingerprint,
    held,
    read_arrays,
    read_json,
    read_json_lines,
    replacing,
    whole_or_nothing,
    write_arrays,
    write_file,
    write_json,
)


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    """The old content stays readable until the new one is complete, and nothing else remains."""
    path = tmp_path / "kept"
    write_file(path, "old")
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_text() == "old"
        raise KeyboardInterrupt
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


_HOLD = """
import sys, time
from pathlib import Path
from foretoken.files import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_for_one_process(tmp_path: Path) -> None:
    """Another one is told whose it is; a process that is killed holds nothing, and nothing stays
    in the folder."""
    folder = tmp_path / "new"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", _HOLD, str(folder)], **pipes) as child:  # type: ignore[call-overload]
        assert child.stdout.readline() == b"held\n"
        said = f"{folder} is in use by process {child.pid};"
        with pytest.raises(ForetokenError, match=said), held(folder):
            pass
        child.kill()
    with held(folder):
        assert [path.name for path in folder.iterdir()] == [".lock"]
    assert list(folder.iterdir()) == []
    (tmp_path / "file").write_text("")
    with pytest.raises(ForetokenError, match="can't be written to"), held(tmp_path / "file" / "x"):
        pass


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSPC])
def test_a_folder_that_cannot_be_locked(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's reason, and not that another process has it; a full disk is one too."""

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(
        *{errno.ENOLCK: (fcntl, "flock"), errno.ENOSPC: (os, "write")}[number], fail
    )
    said = f"{tmp_path} can't be locked: {os.strerror(number)}; give another folder."
    with pytest.raises(ForetokenError, match=said), held(tmp_path):
        pass
    monkeypatch.undo()
    with held(tmp_path):
        pass


def test_write_file(tmp_path: Path) -> None:
    """Text as UTF-8 and bytes, in a folder that need not exist, over what was there."""
    path = tmp_path / "a" / "b" / "file"
    write_file(path, "lettre à écrire\n")
    assert path.read_bytes() == "lettre à écrire\n".encode()
    write_file(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    with pytest.raises(ForetokenError, match="can't be written"):
        write_file(path / "under a file", "")
    with pytest.raises(ForetokenError, match="can't be written"), replacing(tmp_path / "no" / "x"):
        pass


def test_json(tmp_path: Path) -> None:
    """What was written comes back; a file that is missing or something else is one sentence."""
    path = tmp_path / "plan.json"
    write_json(path, {"schema": 2, "name": "é"})
    assert read_json(path, "a plan", schema=2) == {"schema": 2, "name": "é"}
    with pytest.raises(ForetokenError, match="can't be read as a plan: it has schema 2"):
        read_json(path, "a plan", schema=3)
    for content, reason in ((b"{", "not JSON"), (b"\xff", "not JSON"), (b"[1]", "no JSON object")):
        path.write_bytes(content)
        with pytest.raises(ForetokenError, match=f"can't be read as a plan: it .*{reason}"):
            read_json(path, "a plan")
    with pytest.raises(ForetokenError, match="can't be read as a plan: No such file"):
        read_json(tmp_path / "none", "a plan")
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(path, {"x": float("nan")})


def test_json_lines() -> None:
    """Each value with its line's number; empty lines count and are left out."""
    assert list(read_json_lines(["1", "", "[2]\n"], "some")) == [(1, 1), (3, [2])]
    lines = read_json_lines([b"{}", b"  ", b"{"], "some.jsonl")
    assert next(lines) == (1, {})
    with pytest.raises(ForetokenError, match=r"some\.jsonl, line 3: not JSON"):
        next(lines)


MADE = {"vocab_size": 7, "model": "x"}


def test_round_trip(tmp_path: Path) -> None:
    """Under any file name, over an older file, and with nothing left beside it."""
    path = tmp_path / "thing"
    for values in (np.arange(3), np.arange(5, dtype=np.int16)):
        write_arrays(path, "table", MADE, {"a": values, "b": values[:0]})
        found = read_arrays(path, "table", {"vocab_size": 7}, ("a", "b"))
        np.testing.assert_array_equal(found["a"], values)
        assert found["a"].dtype == values.dtype and not len(found["b"])
    assert [p.name for p in tmp_path.iterdir()] == ["thing"]


def test_refusals(tmp_path: Path) -> None:
    """A file that is missing, of another kind, version or use, or damaged anywhere."""
    path = tmp_path / "thing"
    write_arrays(path, "table", MADE, {"a": np.arange(100)}, version=2)

    def refused(kind: str = "table", names: tuple[str, ...] = ("a",), version: int = 2) -> str:
        with pytest.raises(ForetokenError) as error:
            read_arrays(path, kind, {"vocab_size": 8}, names, version=version)
        return str(error.value)

    assert "made for vocab_size 7 and this target has 8" in refused()
    assert "holds a table; expected is a matrix" in refused("matrix")
    assert "version 2 and this foretoken reads version 3" in refused(version=3)
    assert "damaged or not a table" in refused(names=("a", "missing"))
    whole = path.read_bytes()
    for at in (len(whole) // 3, len(whole) // 2, len(whole) - 30):
        path.write_bytes(whole[:at])
        assert "damaged or not a table" in refused()
    broken = bytearray(whole)
    broken[whole.index(bytes(range(1, 2)) + bytes(7) + bytes([2]))] ^= 1  # inside the numbers
    path.write_bytes(broken)
    assert "damaged or not a table" in refused()
    for other in (b"", b"text", b"\x93NUMPY"):
        path.write_bytes(other)
        assert "damaged or not a table" in refused()
    np.save(path.open("wb"), np.arange(3))
    assert "damaged or not a table" in refused()
    path.unlink()
    assert "can't be read as a table: No such file" in refused()
    with pytest.raises(ForetokenError, match="can't be written"):
        write_arrays(tmp_path / "no" / "folder", "table", MADE, {})


def test_halves_of_surrogate_pairs(tmp_path: Path) -> None:
    """They are written as escapes, which JSON reads as what they were; all else as it is."""
    text = 'é 漢 😀 \ud83d "\\ud83d" \\\udc80 \x00'
    path = tmp_path / "new"
    write_json(path, {text: [text]})
    assert read_json(path, "a test") == {text: [text]}
    assert "é 漢 😀".encode() in path.read_bytes() and b"\\ud83d" in path.read_bytes()
    write_file(path, "a \ude00 b é")
    assert path.read_text(encoding="utf-8") == "a \\ude00 b é"


def _folder(path: Path, values: torch.Tensor) -> Path:
    path.mkdir()
    save_file({"weight": values}, path / "model.safetensors")
    (path / "config.json").write_text("{}")
    return path


def test_a_retrained_drafter_is_another(tmp_path: Path) -> None:
    """By its weights alone, not by its place, its dates or what else lies beside them."""
    first = _folder(tmp_path / "first", torch.zeros(300))
    copy = shutil.copytree(first, tmp_path / "copy", copy_function=shutil.copyfile)
    (copy / "metrics.jsonl").write_text("{}\n")
    (copy / "more.json").mkdir()
    other = _folder(tmp_path / "other", torch.ones(300))
    assert fingerprint(first) == fingerprint(copy) != fingerprint(other)
    (copy / "config.json").write_text('{"window": 5}')
    assert fingerprint(first) != fingerprint(copy)


@pytest.mark.parametrize("place", [0, 5, 69, 70, 499, 990, 999])
def test_pieces_of_large_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: int) -> None:
    """The ends are among them, and of a small file everything; the size counts as well."""
    monkeypatch.setattr(files, "_PIECES", 10)
    monkeypatch.setattr(files, "_PIECE", 7)
    for name, size in (("small", 70), ("large", 1000)):
        (tmp_path / name).write_bytes(bytes(size))
    small, large = fingerprint(tmp_path / "small"), fingerprint(tmp_path / "large")
    (tmp_path / "large").write_bytes(bytes(1001))
    assert fingerprint(tmp_path / "large") != large
    data = bytearray(1000)
    data[place] = 1
    (tmp_path / "large").write_bytes(data)
    read = any(start <= place < start + 7 for start in files._starts(1000))
    assert (fingerprint(tmp_path / "large") != large) is read
    assert read or place not in (0, 5, 999)
    if place < 70:
        (tmp_path / "small").write_bytes(data[:70])
        assert fingerprint(tmp_path / "small") != small


@pytest.mark.parametrize("there", [False, True])
def test_a_folder_whole_or_not_at_all(tmp_path: Path, there: bool) -> None:
    """What was there stays, whatever ends the writing."""
    folder = tmp_path / "new"
    if there:
        write_file(folder / "mine", "kept")
    with pytest.raises(KeyboardInterrupt), whole_or_nothing(folder):
        write_file(folder / "file", "half")
        write_file(folder / "part" / "file", "half")
        raise KeyboardInterrupt
    assert [path.name for path in tmp_path.rglob("*")] == (["new", "mine"] if there else [])
    with whole_or_nothing(folder):
        write_file(folder / "file", "whole")
    assert (folder / "file").read_text() == "whole"


def test_a_lock_that_is_gone_or_old(tmp_path: Path) -> None:
    """The number in it is the present holder's, whatever an ended one left; and who locked a file
    that has been removed meanwhile holds nothing."""
    path = tmp_path / ".lock"
    path.write_text("123456789012")
    with held(tmp_path):
        assert path.read_text() == str(os.getpid())
    with path.open("a+") as file:
        path.unlink()
        path.touch()
        with pytest.raises(FileNotFoundError):
            files._lock(file, path)


def test_nothing_in_a_file_of_arrays_is_run(tmp_path: Path) -> None:
    """Pickled objects are refused, not read."""
    path = tmp_path / "thing"
    objects = np.array([{"a": 1}], dtype=object)
    header = np.frombuffer(b'{"kind": "table", "version": 1, "made_for": {}}', np.uint8)
    with path.open("wb") as file:
        np.savez(file, header=header, a=objects)
    with pytest.raises(ForetokenError, match="damaged or not a table"):
        read_arrays(path, "table", {}, ("a",))


def test_parts_of_a_model_count(tmp_path: Path) -> None:
    """Of a model in several files each; the first one's own name doesn't."""
    first, second, other = (tmp_path / name for name in ("a", "b", "c"))
    for path, content in ((first, b"1"), (second, b"2"), (other, b"3")):
        path.write_bytes(content)
    alone, both = fingerprint(first), fingerprint(first, second)
    assert len({alone, both, fingerprint(first, other)}) == 3
    moved = shutil.copy(first, tmp_path / "moved")
    assert fingerprint(Path(moved)) == alone
    second.write_bytes(b"4")
    assert fingerprint(first, second) != both


def test_a_folder_is_no_file_to_write(tmp_path: Path) -> None:
    """Its folder is made; what stands in the way is named."""
    check_writable(tmp_path / "new" / "file")
    assert [*(tmp_path / "new").iterdir()] == []
    with pytest.raises(ForetokenError, match="new is a folder; name a file"):
        check_writable(tmp_path / "new")
    (tmp_path / "text").touch()
    with pytest.raises(ForetokenError, match="can't be written"):
        check_writable(tmp_path / "text" / "file")


def test_folders_to_write(tmp_path: Path) -> None:
    """One that is empty or new; a file is none."""
    for place in (tmp_path, tmp_path / "new"):
        check_new_folder(place)
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "file"):
        with pytest.raises(ForetokenError, match=f"{place.name} exists and is not an empty folder"):
            check_new_folder(place)
