"""Models on this machine that may draft for a target: smaller ones of its tokenizer, and drafters
that were trained for it.

Searched are the places where models are kept: beside the target, what foretoken fetched, the hub's
cache, and the bundled models. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from huggingface_hub import constants

from foretoken import zoo
from foretoken.errors import ForetokenError
from foretoken.llm import LLM
from foretoken.machine import cache_folder
from foretoken.models import gguf
from foretoken.models.drafting.draft_model import UNUSED
from foretoken.models.load import load_tokenizer, read_config, weights

SMALLER = 0.6
"""A model drafts if it has at most this share of the target's numbers."""


@dataclass(frozen=True)
class Place:
    """A checkpoint on disk, and the name by which a `speculative_config` has it."""

    name: str
    path: Path


def nearby(target: Path) -> list[Place]:
    """The folders and GGUF files where models are kept, the target's own not among them."""
    found = [*_in_folder(target.parent), *_in_folder(cache_folder() / "models"), *_in_hub_cache()]
    found += [Place(name, zoo.path(name)) for name in zoo.names()]
    places = {place.path.resolve(): place for place in found}  # the last has the shortest name
    return [place for path, place in sorted(places.items()) if path != target.resolve()]


def _in_folder(folder: Path) -> Iterator[Place]:
    if folder.is_dir():
        paths = [*folder.glob(f"*{gguf.SUFFIX}"), *(f.parent for f in folder.glob("*/config.json"))]
        yield from (Place(str(path), path) for path in paths)


def _in_hub_cache() -> Iterator[Place]:
    """Whole repositories by their ids, files of a repository by their paths."""
    for snapshot in Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*/"):
        if (snapshot / "config.json").is_file():
            name = snapshot.parents[1].name.removeprefix("models--").replace("--", "/")
            yield Place(name, snapshot)
        yield from (Place(str(path), path) for path in snapshot.glob(f"*{gguf.SUFFIX}"))


def smaller_models(plain: LLM, target: Path, places: Iterable[Place]) -> list[Place]:
    """Those with the target's tokenizer and at most `SMALLER` of its numbers, the smallest first.

    Empty where the target has no tokenizer.
    """
    if plain.tokenizer is None:
        return []
    most = SMALLER * numbers_in(target)
    vocabulary = plain.model.vocab_size
    sized = [(_size_of_fitting(place.path, vocabulary), place) for place in places]
    small = sorted(
        ((size, place) for size, place in sized if size and size <= most), key=lambda pair: pair[0]
    )
    return [place for _, place in small if same_tokenizer(plain.tokenizer, place.path)]


def numbers_in(path: Path) -> int:
    """How many numbers a checkpoint's tensors have together, by their headers."""
    if gguf.is_named(path):
        return gguf.numbers_in(path)
    return sum(prod(header.shape) for header in weights(path).headers.values())


def same_tokenizer(tokenizer: Any, path: Path) -> bool:
    """Whether the tokens of a checkpoint's tokenizer that the target's has too have its ids.

    A drafted token of another id would be another text: it would be rejected, and time lost.
    """
    try:
        theirs = load_tokenizer(path).get_vocab()
    except ForetokenError:
        return False
    ours: dict[str, int] = tokenizer.get_vocab()
    both = ours.keys() & theirs.keys()
    return 2 * len(both) > len(ours) and all(ours[text] == theirs[text] for text in both)


def _size_of_fitting(path: Path, vocabulary: int) -> int | None:
    """A model's numbers; None for one of another vocabulary, and for what can't be served."""
    try:
        if gguf.is_named(path) and not gguf.is_read_here(path):
            return None
        own = read_config(path).to_dict().get("vocab_size")
        fits = isinstance(own, int) and abs(own - vocabulary) <= UNUSED
        return numbers_in(path) if fits else None
    except ForetokenError:
        return None


def folders(places: Iterable[Place]) -> Seq[Path]:
    """The folders among them, which may hold trained drafters."""
    return [place.path for place in places if place.path.is_dir()]
