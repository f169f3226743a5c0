"""Parts of files are read as they are, also across the pages and pieces that they are read in."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken.errors import ForetokenError
from foretoken.models import reads
from foretoken.models.reads import Place, Reads, buffer


def test_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "_AT_ONCE", 1000)
    one, two = (tmp_path / name for name in ("one", "two"))
    one.write_bytes(bytes(i % 251 for i in range(9000)))
    two.write_bytes(b"abc" * 5)
    places = {"a": Place(one, 7, 4100), "b": Place(two, 1, 4), "c": Place(one, 8000, 1000)}
    into = buffer([places, {"d": Place(two, 0, 15)}])
    found = Reads([one, two]).read(places, into)
    assert found.keys() == places.keys()
    for name, (file, start, size) in places.items():
        assert bytes(found[name]) == file.read_bytes()[start : start + size]


def test_files_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(ForetokenError, match="can't be read \\(No such file or directory\\)"):
        Reads([tmp_path / "none"])
    short = tmp_path / "short"
    short.write_bytes(b"1234")
    place = {"a": Place(short, 2, 3)}
    with pytest.raises(ForetokenError, match="shorter than when it was opened"):
        Reads([short]).read(place, buffer([place]))


def test_other_files_do_not_take_its_place(tmp_path: Path) -> None:
    """What was opened is read, whatever the name stands for later."""
    file, other = tmp_path / "file", tmp_path / "other"
    file.write_bytes(b"right")
    other.write_bytes(b"wrong")
    opened, place = Reads([file]), {"a": Place(file, 0, 5)}
    other.replace(file)
    assert bytes(opened.read(place, buffer([place]))["a"]) == b"right"
