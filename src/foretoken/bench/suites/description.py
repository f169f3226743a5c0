"""A suite described in YAML: where its rows are, and what each field of a row means.

    name: my-questions
    source: {file: questions.jsonl}
    id: "q-{line}"                    # text with {field}s; {line} is the line's number
    task: qa
    template: "Answer in a word: {question}"
    reference: answers.text           # a field; answers.0 is the first of a list

With all keys at their defaults a row is read in any of the spellings of `foretoken.spellings`, so
one reader serves described files and others. docs/suites.md lists the keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from itertools import takewhile
from pathlib import Path
from string import Formatter
from typing import Any

import yaml

from foretoken.bench.suites.source import Source
from foretoken.errors import ForetokenError, shown, unknown
from foretoken.spellings import ASSISTANT, USER, conversation

_MISSING = object()
_IDS, _TASKS = ("id", "question_id"), ("task", "category")
"""Fields that name a row and its task, where the description doesn't say."""
_RULES = ("system", "developer")


@dataclass(frozen=True, kw_only=True)
class Description:
    """The keys of a description.

    id, task, template, system: text with {field} placeholders. turns, category, reference: fields.
    id: else the row's `id` or `question_id`, else the line's number. task: else the row's `task` or
    `category`, else the suite's name. template: one turn made of a row's fields, instead of
    `turns`. system: instead of the row's own system message.
    tasks: the categories of each task, instead of `task`; any other category is an error.
    placeholder: how turns begin that the publisher left out; such rows are an error. prompts: how
    many the published file has, for lists.
    """

    name: str
    source: Source | None = None
    id: str | None = None
    task: str | None = None
    tasks: Mapping[str, Seq[str]] | None = None
    category: str = "category"
    turns: str | None = None
    template: str | None = None
    reference: str = "reference"
    system: str | None = None
    stop: Seq[str] = ()
    max_tokens: int | None = None
    placeholder: str | None = None
    prompts: int | None = None

    def __post_init__(self) -> None:
        if self.task is not None and self.tasks is not None:
            raise ForetokenError("give either task or tasks.")
        if self.template is not None and self.turns is not None:
            raise ForetokenError("give either template or turns.")
        for text in (self.id, self.task, self.template, self.system):
            _parts(text or "")

    def prompt(self, row: Mapping[str, Any], line: int) -> dict[str, Any]:
        """A row as the fields of a `Prompt`. Raises `ForetokenError` for a row of other shape."""
        turns, system = self._said(row, line)
        row = {"line": line, **row}
        category = _field(row, self.category, None)
        if category is not None and not isinstance(category, str):
            raise ForetokenError(f"{self.category} is {category!r}; it must be text.")
        return {
            "id": _fill(self.id or _first(_IDS, row) or "{line}", row),
            "task": self._task(row, category),
            "turns": turns,
            "category": category or "",
            "reference": _reference(_field(row, self.reference, None), len(turns)),
            "stop": tuple(self.stop),
            "max_tokens": self.max_tokens,
            "system": system if self.system is None else _fill(self.system, row),
        }

    def _said(self, row: Mapping[str, Any], line: int) -> tuple[tuple[str, ...], str | None]:
        """The user's turns, and the system message where the row has one."""
        if self.template is not None:
            return (_fill(self.template, {"line": line, **row}),), None
        return _asked(row if self.turns is None else {"turns": _field(row, self.turns)})

    def _task(self, row: Mapping[str, Any], category: str | None) -> str:
        if self.tasks is None:
            named = self.task or _first(_TASKS, row)
            return self.name if named is None else _fill(named, row)
        task_of = {name: task for task, names in self.tasks.items() for name in names}
        if category is None:
            raise ForetokenError(f"there is no {self.category!r}.")
        if category not in task_of:
            raise unknown("category", category, task_of)
        return task_of[category]


def read_description(path: Path) -> Description:
    """A YAML file's description. Raises `ForetokenError` where it is missing or malformed."""
    try:
        content = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise ForetokenError(f"{path} can't be read: {error.strerror}.") from error
    except yaml.YAMLError as error:
        raise ForetokenError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    try:
        keys = _keys(Description, content)
        source = _keys(Source, keys.pop("source", None), "source")
        return Description(**keys, source=Source(**source))
    except ForetokenError as error:
        raise ForetokenError(f"{path}: {error}") from error


def _keys(kind: type, given: object, name: str = "a description") -> dict[str, Any]:
    """The mapping itself, if `kind` has all of its keys as fields and their types fit."""
    if not isinstance(given, dict):
        raise ForetokenError(f"{name} must be given as keys with values.")
    types = {f.name: str(f.type) for f in fields(kind)}
    for key, value in given.items():
        if key not in types:
            raise unknown("key", str(key), types)
        if not _fits(value, types[key]):
            raise ForetokenError(f"{key} is {value!r}; it must be {_TYPE_NAMES[types[key]]}.")
    if "name" in types and "name" not in given:
        raise ForetokenError("it needs a name.")
    return dict(given)


_TYPE_NAMES = {
    "str": "text",
    "str | None": "text",
    "int | None": "a number of 1 or more",
    "Seq[str]": "a list of texts",
    "Mapping[str, Seq[str]] | None": "tasks, each with a list of its categories",
}


def _fits(value: object, kind: str) -> bool:
    match kind:
        case "str" | "str | None":
            return isinstance(value, str)
        case "int | None":
            return isinstance(value, int) and value >= 1 and value is not True
        case "Seq[str]":
            return isinstance(value, list) and all(isinstance(x, str) for x in value)
        case "Mapping[str, Seq[str]] | None":
            return isinstance(value, dict) and all(_fits(x, "Seq[str]") for x in value.values())
    return True


def _field(row: Mapping[str, Any], path: str, default: object = _MISSING) -> Any:
    """row["a"]["b"][0] for "a.b.0"."""
    value: Any = row
    for part in path.split("."):
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (LookupError, TypeError, ValueError):
            if default is not _MISSING:
                return default
            raise ForetokenError(f"there is no {path!r}.") from None
    return value


def _parts(text: str) -> list[tuple[str, str | None]]:
    """(literal text, field after it or None); {{ and }} are braces."""
    try:
        parts = list(Formatter().parse(text))
        if any(field == "" or spec or how for _, field, spec, how in parts):
            raise ValueError
    except ValueError:
        raise ForetokenError(
            f"{text!r} has braces that hold no field; write a brace itself as {{{{ or }}}}."
        ) from None
    return [(before, field) for before, field, _, _ in parts]


def _fill(text: str, row: Mapping[str, Any]) -> str:
    return "".join(
        before + ("" if field is None else _text(_field(row, field), field))
        for before, field in _parts(text)
    )


def _text(value: object, name: str) -> str:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise ForetokenError(f"{name} is {value!r}; it must be text or a number.")
    return str(value)


def _first(names: Seq[str], row: Mapping[str, Any]) -> str | None:
    """The first of the fields that the row has, as a placeholder."""
    return next((f"{{{name}}}" for name in names if name in row), None)


def _asked(row: Mapping[str, Any]) -> tuple[tuple[str, ...], str | None]:
    """The user's turns of a conversation, and what stands before them as a system message; the
    assistant's are left to the target."""
    found = conversation(row)
    if found.tools:
        raise ForetokenError("it declares tools, which are not offered here; leave it out.")
    rules = list(takewhile(lambda turn: turn["role"] in _RULES, found.messages))
    turns = found.messages[len(rules) :]
    for turn in turns:
        if turn["role"] not in (USER, ASSISTANT):
            raise ForetokenError(
                f"a turn is of role {shown(turn['role'])}, which can't be repeated where the "
                "target's own answers stand between; leave such conversations out."
            )
    asked = [turn["content"] for turn in turns if turn["role"] == USER] + [*found.later]
    if not asked:
        raise ForetokenError("nobody asks anything in it; give it a user's turn, or leave it out.")
    return tuple(asked), "\n".join(rule["content"] for rule in rules) or None


def _reference(value: object, turns: int) -> tuple[tuple[str, ...], ...]:
    """For each turn the answers taken as right, or () where no turn has any.

    A list has an entry a turn, a text or a list of texts; in a single turn's a list of several
    texts is several right answers.
    """
    entries = value if isinstance(value, list) else [] if value is None else [value]
    if turns == 1 and len(entries) > 1:
        entries = [entries]
    if len(entries) > turns:
        raise ForetokenError(f"the reference has {len(entries)} entries for {turns} turns.")
    answers = [_answers(entry) for entry in entries]
    answers += [()] * (turns - len(answers))
    return tuple(answers) if any(answers) else ()


def _answers(entry: object) -> tuple[str, ...]:
    texts = entry if isinstance(entry, list) else [] if entry is None else [entry]
    return tuple(text for text in (_text(x, "reference") for x in texts) if text.strip())
