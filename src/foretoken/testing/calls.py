"""Counts the calls of objects, and raises at the one that is to fail.

Where an object is watched it gets a subclass of its class for that time, so it stays what it is to
all who hold it. What its methods call of their own object is part of the call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass
from threading import local
from typing import Any, NamedTuple

from foretoken.sampling.sequence import Sequence

_CHANGE_NOTHING = {
    *("holds", "pending", "embed", "norm", "head", "kv", "decode", "__call__"),
    *("processor", "criterion", "groups", "text", "starting", "continuing"),
}
"""Calls after which nothing is other than before."""

Prompts = frozenset[tuple[int, ...]]
"""Which requests take part in a call, by their prompts."""


class Fault(Exception):
    """What is raised here."""


class Call(NamedTuple):
    """One place in a run. path: the watched calls that it is made in, and itself. after: whether it
    has done its work. prompts: of the requests that it serves. number: how many equal ones came
    before it in the run."""

    path: tuple[str, ...]
    after: bool
    prompts: Prompts
    number: int = 0

    def __str__(self) -> str:
        when = "after" if self.after else "before"
        return f"{when} {' > '.join(self.path)} (number {self.number + 1} of its kind)"


@dataclass(frozen=True)
class Once:
    """Raise at one call of the run."""

    call: Call

    def due(self, call: Call) -> bool:
        return call == self.call


@dataclass(frozen=True)
class For:
    """Raise at every such call that serves the request with this prompt."""

    name: str
    after: bool
    prompt: tuple[int, ...]

    def due(self, call: Call) -> bool:
        return (call.path[-1], call.after) == (self.name, self.after) and (
            self.prompt in call.prompts
        )


class Calls:
    """Counts the calls of what it watches, and raises where `fault` is due."""

    def __init__(self) -> None:
        self.fault: Once | For | None = None
        self.raised = 0
        self.made: dict[Call, int] = {}  # kind of call (number 0) -> how many
        self._inside = local()

    def begin(self, fault: Once | For | None) -> None:
        """Count from zero, for a new run."""
        self.fault, self.raised, self.made = fault, 0, {}

    def watched(
        self, name: str, function: Callable[..., Any], prompts: Prompts = frozenset()
    ) -> Callable[..., Any]:
        """The function, each call of which is counted under this name and may raise. prompts: of
        the request that it belongs to, where sequences aren't among its arguments."""
        label, _, verb = name.rpartition(".")

        def call(*args: Any, **options: Any) -> Any:
            around = getattr(self._inside, "call", Call((), False, frozenset()))
            if around.path and label and around.path[-1].rpartition(".")[0] == label:
                return function(*args, **options)  # a method of its own
            here = Call((*around.path, name), False, _prompts(args) or prompts or around.prompts)
            self._pass(here)
            self._inside.call = here
            try:
                result = function(*args, **options)
            finally:
                self._inside.call = around
            if verb not in _CHANGE_NOTHING:
                self._pass(here._replace(after=True))
            return result

        return call

    def _pass(self, kind: Call) -> None:
        number = self.made.get(kind, 0)
        self.made[kind] = number + 1
        if self.fault is not None and self.fault.due(kind._replace(number=number)):
            self.raised += 1
            raise Fault(f"{kind._replace(number=number)}")

    @contextmanager
    def watching(self, thing: Any, label: str, names: Seq[str]) -> Iterator[None]:
        """Watch these methods of an object, as far as it has them, until the context is left."""
        own = type(thing)
        methods = {
            name: self.watched(f"{label}.{name}", getattr(own, name))
            for name in names
            if hasattr(own, name)
        }
        double = type(own.__name__, (own,), {"__slots__": (), **methods})
        object.__setattr__(thing, "__class__", double)
        try:
            yield
        finally:
            object.__setattr__(thing, "__class__", own)


def _prompts(args: Seq[Any]) -> Prompts:
    """The requests whose sequences are among these arguments."""
    each = [one for arg in args for one in (arg if isinstance(arg, (list, tuple)) else [arg])]
    return frozenset(
        tuple(one.tokens[: one.prompt_length]) for one in each if isinstance(one, Sequence)
    )
