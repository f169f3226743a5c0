"""The protocol of what serves a measurement's prompts: our engine, or a remote server."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import Protocol

from foretoken.bench.measure.costs import Meter
from foretoken.bench.plan import Plan, Unit
from foretoken.bench.record import Answer, Target
from foretoken.bench.suites.suite import Prompt


class Server(Protocol):
    """What serves units: our own `Runner`, or a server with the same methods."""

    @property
    def plan(self) -> Plan: ...

    @property
    def not_run(self) -> Mapping[str, str]:
        """Methods that can't be served, with the reason."""
        ...

    @property
    def labels(self) -> Seq[str]:
        """The methods that will answer every unit, plain decoding first."""
        ...

    @property
    def target(self) -> Target: ...

    def fitting(self, prompts: Seq[Prompt]) -> tuple[list[Prompt], list[str]]:
        """The prompts that leave `LEAST_ROOM` for the last answer, and the ids of the others."""
        ...

    def meter(self) -> Meter | None:
        """What measures the costs of passes in rounds, where that can be done."""
        ...

    def warm_up(self, prompt: Prompt) -> None:
        """Serve something that isn't measured."""
        ...

    def serve(self, unit: Unit) -> list[Answer]:
        """All turns of a unit by all methods: turn by turn, method by method."""
        ...
