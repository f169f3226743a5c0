"""Prompts to measure on, by name or by path; docs/suites.md shows every way to give them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from foretoken.bench.suites.description import Description, read_description
from foretoken.bench.suites.source import FILES, Rows, check_sha256, read_file, read_source
from foretoken.errors import ForetokenError, unknown

LEAST_ROOM = 256
"""Tokens of context that a prompt must leave; one that leaves fewer is skipped, never cut."""

_PACKAGED = Path(__file__).parent


@dataclass(frozen=True)
class Prompt:
    """One conversation's user turns.

    category: the suite's finer name of the task; the task where it has none.
    reference: for each turn the answers taken as right; () where no turn has any.
    stop, max_tokens: the suite's stop strings and the most tokens of an answer.
    system: what stands before the first turn.
    """

    id: str
    task: str
    turns: tuple[str, ...]
    category: str = ""
    reference: tuple[tuple[str, ...], ...] = ()
    stop: tuple[str, ...] = ()
    max_tokens: int | None = None
    system: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "category", self.category or self.task)


@dataclass(frozen=True)
class Suite:
    """sha256 is the file's, whether or not all of its prompts are used."""

    name: str
    sha256: str
    prompts: tuple[Prompt, ...]

    def round_robin(self, limit: int | None = None) -> list[Prompt]:
        """The first prompt of every task, then the second of every task, and so on.

        So a run that stops early has measured all tasks equally. `limit`: prompts per task.
        """
        tasks: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            tasks.setdefault(prompt.task, []).append(prompt)
        deepest = max(map(len, tasks.values()), default=0)
        count = deepest if limit is None else min(limit, deepest)
        return [prompts[i] for i in range(count) for prompts in tasks.values() if i < len(prompts)]


def room_left(prompt_tokens: int, context: int) -> int:
    """Tokens of a context that a prompt leaves free; see `LEAST_ROOM`."""
    return max(0, context - prompt_tokens)


def packaged() -> list[str]:
    """The names that `find_suite` knows."""
    return sorted(path.stem for path in _PACKAGED.glob("*.yaml"))


def packaged_path(name: str) -> Path:
    """The description of a packaged suite."""
    return _PACKAGED / f"{name}.yaml"


def load_suite(path: Path, name: str) -> Suite:
    """Read a file of prompts, as `foretoken bench --suite` does.

    Raises `ForetokenError`, with the line, where it is missing or malformed.
    """
    return _suite(Description(name=name), read_file(path))


def find_suite(name: str | Path, *, cache: Path | None = None, download: bool = True) -> Suite:
    """A suite by packaged name, by the path of its prompts, or by the path of its description.

    NAME=PATH reads the packaged suite NAME from the file PATH. cache: where downloaded files stay,
    else the cache (see `foretoken.machine.cache_folder`).

    Raises `ForetokenError` for an unknown name, and for a suite that can't be read or is malformed.
    """
    text = str(name)
    label, _, file = text.partition("=")
    if file and label in packaged():
        return _suite(read_description(packaged_path(label)), read_file(Path(file).expanduser()))
    path = Path(text)
    if text in packaged():
        path = packaged_path(text)
    elif text.endswith(FILES):
        return load_suite(path, path.name.partition(".")[0])
    elif path.suffix not in (".yaml", ".yml"):
        error = unknown("suite", text, packaged())
        raise ForetokenError(f"{error} Or give a path that ends in {', '.join(FILES)} or .yaml.")
    description = read_description(path)
    assert description.source is not None
    return _suite(description, read_source(description.source, path.parent, cache, download))


def _suite(description: Description, rows: Rows) -> Suite:
    """Every row as a prompt. The sha256 comes last, so that a broken line is named as such."""
    prompts: list[Prompt] = []
    lines: dict[str, int] = {}
    for line, row in rows.numbered:
        try:
            prompt = Prompt(**description.prompt(row, line))
            if prompt.id in lines:
                raise ForetokenError(
                    f"the id {prompt.id!r} is that of line {lines[prompt.id]} too."
                )
        except ForetokenError as error:
            raise ForetokenError(f"{rows.where}, line {line}: {error}") from error
        lines[prompt.id] = line
        prompts.append(prompt)
    _check_complete(description, prompts, rows.where)
    if description.source is not None:
        check_sha256(rows.where, rows.sha256, description.source.sha256)
    return Suite(description.name, rows.sha256, tuple(prompts))


def _check_complete(description: Description, prompts: list[Prompt], where: str) -> None:
    """Refuse rows without their text, and a field for references that no row has."""
    if (start := description.placeholder) is not None:
        empty = sum(any(turn.startswith(start) for turn in p.turns) for p in prompts)
        if empty:
            raise ForetokenError(
                f"{empty} of the {len(prompts)} rows of {where} have a placeholder for their text; "
                f"complete them with the publisher's script and give {description.name}=PATH."
            )
    named = description.reference != Description.reference
    if named and not any(p.reference for p in prompts):
        raise ForetokenError(f"No row of {where} has a {description.reference!r}.")
