"""Files of arrays: what was written comes back, and everything else is one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretoken import ForetokenError
from foretoken.arrays import read_arrays, write_arrays

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
