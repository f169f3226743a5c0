"""Files: written whole or not at all, and JSON that is read back or refused in one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken import ForetokenError
from foretoken.files import read_json, read_json_lines, replacing, write_file, write_json


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
