"""Ways in which a file gets damaged, or was made by somebody with bad intentions."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

Damage = Callable[[Path, Random], None]

LEAVES: list[Any] = [
    None,
    True,
    False,
    0,
    -1,
    1,
    2,
    7,
    1.5,
    -0.5,
    1e-320,
    1e308,
    10**9,
    2**31,
    2**63,
    10**30,
    -(10**9),
    "",
    "four",
    "1",
    "\ud800",
    "\x00",
    "a\nb\x1b[31m",
    "x" * 5000,
    "../../etc/passwd",
    "__class__",
    [],
    [1],
    [-1],
    [None],
    ["a"],
    [[]],
    {},
    {"a": 1},
    {"type": "x"},
    [10**30],
    float("nan"),
    float("inf"),
    float("-inf"),
]
"""Values for a leaf of a JSON file. NaN and infinity are written as Python writes them."""


def truncated(path: Path, random: Random) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: random.randrange(max(1, len(data)))])


def emptied(path: Path, random: Random) -> None:
    path.write_bytes(b"")


def flipped(path: Path, random: Random) -> None:
    """Some bytes changed anywhere."""
    data = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 4, 64))):
        if data:
            data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    path.write_bytes(bytes(data))


def flipped_ahead(path: Path, random: Random) -> None:
    """Some bytes changed at the beginning, where headers are."""
    data = bytearray(path.read_bytes())
    for _ in range(random.choice((1, 2, 8))):
        if data:
            data[random.randrange(min(len(data), 256))] = random.randrange(256)
    path.write_bytes(bytes(data))


def garbage(path: Path, random: Random) -> None:
    path.write_bytes(random.randbytes(random.choice((1, 8, 100, 5000))))


def zeros(path: Path, random: Random) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def appended(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes() + random.randbytes(50))


def doubled(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes() * 2)


def missing(path: Path, random: Random) -> None:
    path.unlink()


def a_folder(path: Path, random: Random) -> None:
    path.unlink()
    path.mkdir()


def a_loop(path: Path, random: Random) -> None:
    """A link to itself."""
    path.unlink()
    path.symlink_to(path)


def utf16(path: Path, random: Random) -> None:
    path.write_bytes(path.read_bytes().decode("utf-8", "replace").encode("utf-16"))


def leaf(path: Path, random: Random) -> None:
    """One value of a JSON file replaced, whatever it was."""
    _edit(path, random, _replace)


def removed(path: Path, random: Random) -> None:
    """One key or entry of a JSON file removed."""
    _edit(path, random, _remove)


def whole(path: Path, random: Random) -> None:
    """Good JSON, of another kind."""
    path.write_text(json.dumps(random.choice(LEAVES)))


def nested(path: Path, random: Random) -> None:
    path.write_text("[" * 100_000)


def _replace(container: Any, key: Any, random: Random) -> None:
    container[key] = random.choice(LEAVES)


def _remove(container: Any, key: Any, random: Random) -> None:
    del container[key]


def _edit(path: Path, random: Random, change: Callable[[Any, Any, Random], None]) -> None:
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    at = random.randrange(len(lines))
    data = json.loads(lines[at])
    places = list(_places(data))
    if not places:
        return whole(path, random)
    change(*random.choice(places), random)
    lines[at] = json.dumps(data)
    path.write_text("\n".join(lines) + "\n")


def _places(data: Any) -> Any:
    """(container, key) of every value in a JSON value."""
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from _places(data[key])


ANY: dict[str, Damage] = {
    damage.__name__: damage
    for damage in (
        truncated,
        emptied,
        flipped,
        flipped_ahead,
        garbage,
        zeros,
        appended,
        doubled,
        missing,
        a_folder,
        a_loop,
    )
}
"""Damages of any file."""

OF_JSON: dict[str, Damage] = {
    damage.__name__: damage for damage in (utf16, leaf, removed, whole, nested)
}
"""Damages of JSON files besides."""


def some(path: Path, random: Random) -> tuple[str, Damage]:
    """A damage that fits the file; of JSON, most often a leaf."""
    if path.suffix not in (".json", ".jsonl"):
        return random.choice(list(ANY.items()))
    if random.random() < 0.6:
        return "leaf", leaf
    return random.choice([*ANY.items(), *OF_JSON.items()])


def copy(source: Path, folder: Path) -> Path:
    """A copy of a file or folder, to be damaged."""
    target = folder / source.name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return target
