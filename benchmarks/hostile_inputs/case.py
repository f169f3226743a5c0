"""A hostile input, what came of it, and what a good error looks like."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from foretoken import ForetokenError

if TYPE_CHECKING:
    from hostile_inputs.stand import Stand

LONGEST = 400
"""Characters of an error's message."""

DUMPS = re.compile(
    r"<[\w.]+ object|<class '|<function |<built-in| at 0x|tensor\(|array\(|Traceback"
)
"""Python's own representations, which say nothing to a reader."""

FAULTS = ("raw", "harmed", "unusable", "crashed", "unclear", "wrong")
"""What may be wrong with an outcome: an exception that is no `ForetokenError`; a neighbour that got
another text; an LLM that serves no more; a process that died or never came back; an error that is
no sentence or doesn't name the thing; an answer to what makes no sense, or not the answer."""


@dataclass
class Outcome:
    """What came of a case. errors: the sentences by which it was refused. The other fields say
    what was wrong, by the names of `FAULTS`."""

    served: bool = False
    errors: list[str] = field(default_factory=list)
    faults: dict[str, str] = field(default_factory=dict)

    def blame(self, fault: str, why: object) -> None:
        """Note a fault; the first of its kind is kept."""
        self.faults.setdefault(fault, shown(why, 300))

    def attempt(self, work: Callable[[], Any]) -> Any:
        """What `work` returns; an error of ours is a refusal, any other exception a fault."""
        try:
            return work()
        except ForetokenError as error:
            self.errors.append(str(error))
        except BaseException as error:
            self.blame("raw", f"{type(error).__name__}: {error}")
        return None

    def data(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Case:
    """One input. names: an error must contain one of these, in any case; without any, any sentence
    will do. must: "refuse" what makes no sense, "serve" what is good; else either will do."""

    label: str
    run: Callable[[Stand, Outcome], None]
    names: tuple[str, ...] = ()
    must: str = ""

    def judge(self, outcome: Outcome) -> None:
        """Add what is wrong with the errors, or with there being none."""
        for message in outcome.errors:
            if why := unclear(message, self.names):
                outcome.blame("unclear", f"{why}: {message}")
        if outcome.faults:
            return
        if self.must == "refuse" and not outcome.errors:
            outcome.blame("wrong", "it was taken, and must be refused")
        if self.must == "serve" and outcome.errors:
            outcome.blame("wrong", f"it is good, and was refused: {outcome.errors[0]}")


def unclear(message: str, names: Iterable[str]) -> str:
    """Why a message isn't one sentence that names the thing; "" where it is."""
    if not message.strip():
        return "it says nothing"
    if not message.isprintable():
        return "it has line breaks or control characters"
    if len(message) > LONGEST:
        return f"it has {len(message)} characters"
    if dump := DUMPS.search(message):
        return f"it shows {dump.group()!r}"
    wanted = [name.lower() for name in names if name]
    if wanted and not any(name in message.lower() for name in wanted):
        return f"it names none of {', '.join(wanted[:4])}"
    return ""


def shown(value: object, most: int = 60) -> str:
    """A value in printable ASCII, cut to `most` characters."""
    try:
        text = value if isinstance(value, str) else repr(value)
    except BaseException as error:
        text = f"(repr raises {type(error).__name__})"
    text = re.sub(r" at 0x[0-9a-f]+", "", text).encode("ascii", "backslashreplace").decode()
    text = "".join(c if c.isprintable() else " " for c in text)
    return text if len(text) <= most else f"{text[: most - 1]}~"


def sampled(random: Random, cases: Iterable[Case], count: int) -> list[Case]:
    """At most `count` of them, in their order."""
    everything = list(cases)
    places = sorted(random.sample(range(len(everything)), min(count, len(everything))))
    return [everything[place] for place in places]
