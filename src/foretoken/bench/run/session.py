"""Measures one target, from its prompts to its results, on our engine or a remote server."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from time import perf_counter

from foretoken.bench.measure.costs import Costs
from foretoken.bench.measure.library import library
from foretoken.bench.plan import Unit, blocks, units
from foretoken.bench.record import Results
from foretoken.bench.run.resume import Samples, answer_keys
from foretoken.bench.run.server import Server
from foretoken.bench.run.summary import summarize
from foretoken.bench.suites.suite import LEAST_ROOM, Prompt, Suite
from foretoken.errors import ForetokenError
from foretoken.progress import track

_ROUNDS = 6
"""In which costs are measured; the first of them warms up and doesn't count."""


def measure(
    server: Server,
    suite: Suite,
    prompts: Seq[Prompt],
    samples: Samples,
    *,
    shard: tuple[int, int] = (1, 1),
    until: float | None = None,
) -> Results:
    """Serve the units that the samples don't have yet; the results of all of them.

    shard (i, n): of the blocks of prompts only the i-th, the (i + n)-th and so on.
    until: a `perf_counter` time; after the first, a block starts only if the longest one so far
    would still fit, so how many are measured doesn't depend on a result.

    Raises `ForetokenError` where no prompt leaves room for an answer, where the samples are
    of another run, for a warm run that would have to be resumed, and where scipy is missing.
    """
    library("scipy")  # for the intervals: fail now rather than after measuring
    plan, target = server.plan, server.target
    kept, skipped = server.fitting(prompts)
    if not kept:
        raise ForetokenError(
            f"None of the {len(prompts)} prompts leaves {LEAST_ROOM} tokens of the context of "
            f"{plan.name}; raise --max-model-len or choose other prompts."
        )
    at, shards = shard
    todo = [list(units(b, plan)) for b in blocks(kept, plan.batch_sizes)[at - 1 :: shards]]
    answered = _answered(server, [unit for block in todo for unit in block], samples)
    if answered and plan.warm:
        raise ForetokenError(
            "A warm run can't be resumed, as what its drafters had learned is lost; give another "
            "--out."
        )
    methods = (
        ", ".join(server.labels) if len(server.labels) < 5 else f"{len(server.labels)} methods"
    )
    total = sum(map(len, todo)) - answered
    with track(f"{plan.name} {target['dtype']}: {methods}", total, True) as advance:
        server.warm_up(kept[0])
        costs = _serve(server, _remaining(todo, answered), samples, until, advance)
    answers = samples.of(target["name"], target["dtype"])
    return summarize(
        answers,
        plan=plan,
        suite=suite,
        target=target,
        skipped=skipped,
        costs=costs,
        not_run=server.not_run,
    )


def _answered(server: Server, todo: Seq[Unit], samples: Samples) -> int:
    """How many units are answered; the file has answers of other targets before this target's."""
    name, dtype = server.target["name"], server.target["dtype"]
    places = (i for i, a in enumerate(samples.answers) if (a.target, a.dtype) == (name, dtype))
    first = next(places, len(samples.answers))
    return samples.resume(first, [answer_keys(u, server.labels, name, dtype) for u in todo])


def _remaining(todo: Seq[Seq[Unit]], answered: int) -> list[list[Unit]]:
    remaining = []
    for block in todo:
        remaining.append(list(block[answered:]))
        answered = max(0, answered - len(block))
    return [block for block in remaining if block]


def _serve(
    server: Server,
    todo: Seq[Seq[Unit]],
    samples: Samples,
    until: float | None,
    advance: Callable[[], None],
) -> Costs | None:
    """Serve the blocks; between them, spread over the run, costs are measured."""
    meter, rounds, longest = server.meter(), 0, 0.0
    for number, block in enumerate(todo):
        while meter is not None and rounds * len(todo) <= number * _ROUNDS:
            meter.round()
            rounds += 1
        start = perf_counter()
        if until is not None and number and start + longest > until:
            break
        for unit in block:
            samples.add(server.serve(unit))
            advance()
        longest = max(longest, perf_counter() - start)
    if meter is None:
        return None
    for _ in range(_ROUNDS - rounds):
        meter.round()
    return meter.costs()
