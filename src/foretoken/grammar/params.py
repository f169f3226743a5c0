"""What a text must be: a JSON value, a match of a regular expression, a choice, a grammar."""

from __future__ import annotations

import json as json_text
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from functools import cache, cached_property
from hashlib import sha256
from typing import Any, get_type_hints

from foretoken.errors import ForetokenError, one_line, shown, unknown
from foretoken.errors.values import typed

FORMS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
"""The forms of which a request gives one."""


@dataclass(frozen=True, kw_only=True)
class StructuredOutputsParams:
    """What the text of a request must be. Exactly one of the first six is given; the names are
    vLLM's.

    Attributes:
        json: a JSON schema, as a mapping or as text.
        regex: a regular expression that the whole text matches.
        choice: the texts of which one is written.
        grammar: a grammar in Lark's notation with the rule `start`, or in GBNF (`::=`) with `root`.
        json_object: True for any JSON object.
        structural_tag: free text with structured parts in it, as xgrammar describes them.
        disable_any_whitespace: whether JSON is written without spaces and line breaks between its
            parts. A model that may write any number of them may write nothing else any more.
        whitespace_pattern: a regular expression of what may stand there instead.
        reasoning_end: where what is asked for begins: after this text or token id, or these ids,
            have been written (or stand at the prompt's end). None is at once.

    Raises `ForetokenError` for none and for two of the forms, and for a value of another type.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Seq[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | Mapping[str, Any] | None = None
    disable_any_whitespace: bool = True
    whitespace_pattern: str | None = None
    reasoning_end: str | int | Seq[int] | None = None

    def __new__(cls, **options: Any) -> StructuredOutputsParams:
        names = [field.name for field in fields(cls)]
        for name in options:
            if name not in names:
                raise unknown("field of structured_outputs", name, names)
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for field in fields(self):
            name = f"{field.name} of structured_outputs"
            value = typed(name, getattr(self, field.name), _hints()[field.name])
            object.__setattr__(self, field.name, value)
        if len(self._given) != 1:
            said = " and ".join(self._given) or "none of its forms"
            raise ForetokenError(
                f"structured_outputs has {said}; give exactly one of {', '.join(FORMS)}."
            )
        if not all(self.choice or ["–"]) or self.choice == ():
            raise ForetokenError(
                f"choice of structured_outputs is {shown(self.choice)}; give at least one text, "
                "none of them empty."
            )
        if self.reasoning_end in ("", ()):
            raise ForetokenError("reasoning_end of structured_outputs is empty; leave it out.")

    @property
    def form(self) -> str:
        """Which of `FORMS` is given."""
        return self._given[0]

    @cached_property
    def _given(self) -> list[str]:
        return [form for form in FORMS if getattr(self, form) not in (None, False)]

    @cached_property
    def text(self) -> str:
        """What is asked for, as text: JSON for a schema, a tag and a choice. Raises
        `ForetokenError` for a schema that is no JSON."""
        value = {"type": "object"} if self.json_object else getattr(self, self.form)
        if self.form in ("regex", "grammar"):
            return str(value)
        try:
            read = json_text.loads(value) if isinstance(value, str) else value
            return json_text.dumps(read, ensure_ascii=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ForetokenError(
                f"{self.form} of structured_outputs is no JSON ({one_line(error)}); give a mapping "
                "or JSON as text."
            ) from error

    @cached_property
    def key(self) -> str:
        """Equal for all that compile to the same grammar, and short. Raises what `text` raises."""
        spaces = self.disable_any_whitespace, self.whitespace_pattern
        whole = "json" if self.json_object else self.form, self.text, *spaces
        return sha256(repr(whole).encode()).hexdigest()


def structured(given: Mapping[Any, Any]) -> StructuredOutputsParams:
    """Those of a mapping with their names."""
    wrong = [name for name in given if not isinstance(name, str)]
    if wrong:
        raise ForetokenError(
            f"structured_outputs has the name {shown(wrong[0])}; give a mapping such as "
            '{"regex": "[0-9]+"}.'
        )
    return StructuredOutputsParams(**given)


@cache
def _hints() -> dict[str, Any]:
    """The declared types."""
    return get_type_hints(StructuredOutputsParams)
