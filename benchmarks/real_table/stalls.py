"""Answers during which the machine stood still, which no speed counts.

A machine that others share may stand still for seconds. Rows answer each prompt in turn, so that
one of them gets all of it, and the ratio of two rows would be the machine's and not the method's.

An answer, or in a batch a group's turn, is stalled if its passes took more than `SLOWER` times as
long as in the median of its row in the cell and round, and it took more than `LONGER` seconds
longer than at that median. A prompt's turn in which any row stalled, ours or another engine's, is
left out of that round's speeds, ideals and intervals for every row alike; tokens, lengths and
sameness count it.

Other engines don't tell their passes. Of them a token after the first counts as a pass, and the
seconds are those of decoding from outside. In these a draft model reads the prompt, so there an
answer may also take as much longer as the same engine plainly takes for the first token.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from foretoken.bench.record import Answer
from real_table.lineup import PLAIN

SLOWER, LONGER = 3.0, 1.0

Place = tuple[str, int]
"""(what is served together, turn)."""


@dataclass(frozen=True)
class Taken:
    """What a row took for a turn. spared: seconds that it may take longer beside `LONGER`."""

    row: str
    place: Place
    seconds: float
    passes: float
    spared: float = 0.0


def stalled(taken: Iterable[Taken]) -> dict[Place, dict[str, float]]:
    """Turn -> the rows that stalled in it, each with the seconds beyond its median."""
    rows: dict[str, list[Taken]] = {}
    for one in taken:
        rows.setdefault(one.row, []).append(one)
    found: dict[Place, dict[str, float]] = {}
    for row, own in rows.items():
        usual = statistics.median(one.seconds / one.passes for one in own)
        for one in own:
            over = one.seconds - usual * one.passes
            if one.seconds > SLOWER * usual * one.passes and over > LONGER + one.spared:
                found.setdefault(one.place, {})[row] = over
    return found


def of_answers(answers: Iterable[Answer]) -> Iterator[Taken]:
    """Ours: decoding, by the engine's own clock. A batch's seconds and passes, of which each member
    has an equal share, are added up again."""
    served: dict[tuple[str, Place], list[Answer]] = {}
    for answer in answers:
        served.setdefault((answer.method, (answer.group, answer.turn)), []).append(answer)
    for (row, place), members in served.items():
        if passes := sum(a.engine_steps for a in members):
            yield Taken(row, place, sum(a.decoding for a in members), passes)


def of_peers(lines: Sequence[Mapping[str, Any]]) -> Iterator[Taken]:
    """Other engines', of the answers whose first token was timed."""
    good = [line for line in lines if line["error"] is None]
    first = {
        (line["engine"], line["group"], line["turn"]): line["first"]
        for line in good
        if line["method"] == PLAIN
    }
    for line in (line for line in good if line["whole"] is not None):
        reading = first.get((line["engine"], line["group"], line["turn"]))
        if reading is not None and len(line["token_ids"]) > 1:
            row, place = f"{line['engine']}: {line['method']}", (line["group"], line["turn"])
            passes = len(line["token_ids"]) - 1
            yield Taken(row, place, line["whole"] - reading, passes, reading)


def timeless(answer: Answer) -> Answer:
    """What is left of a stalled turn in sums of tokens, passes and seconds: nothing."""
    nothing = dict.fromkeys(answer.seconds, 0.0)
    counts: dict[str, Any] = {"token_ids": [], "passes": 0, "engine_steps": 0.0, "drafted": 0}
    return replace(answer, **counts, drafted_at=[], accepted_at=[], seconds=nothing, decodings=[])
