"""What the packaged suites hold, without downloading any."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foretoken.bench.suites.description import Description, read_description
from foretoken.bench.suites.source import at_hand
from foretoken.bench.suites.suite import find_suite, packaged, packaged_path


@dataclass(frozen=True)
class Listed:
    """A packaged suite. prompts: counted where it is at hand, else as published; tasks: () where
    only the rows tell. source: the file's or dataset's home, None for a file of the package.
    path: the file, None where it is not on this machine. dataset: whether the datasets library
    reads it, which keeps files of its own."""

    name: str
    prompts: int | None
    tasks: tuple[str, ...]
    source: str | None
    path: Path | None
    dataset: bool


def listing(cache: Path | None = None) -> list[Listed]:
    """The packaged suites, by name. cache: as in `find_suite`.

    Raises `ForetokenError` for a file on this machine that is not the published one.
    """
    return [_listed(name, cache) for name in packaged()]


def _listed(name: str, cache: Path | None) -> Listed:
    description = read_description(packaged_path(name))
    source = description.source
    assert source is not None
    path = at_hand(source, packaged_path(name).parent, cache)
    prompts, tasks = description.prompts, _known_tasks(description)
    if path is not None:
        found = find_suite(name, cache=cache, download=False)
        prompts, tasks = len(found.prompts), tuple(dict.fromkeys(p.task for p in found.prompts))
    home = source.url or source.dataset
    return Listed(name, prompts, tasks, home, path, source.dataset is not None)


def _known_tasks(description: Description) -> tuple[str, ...]:
    """The tasks that the description itself names."""
    if description.tasks is not None:
        return tuple(description.tasks)
    named = description.task is not None and "{" not in description.task
    return (str(description.task),) if named else ()
