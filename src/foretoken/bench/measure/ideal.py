"""The speedups that a method's acceptance allows; the measured one is lower by what code costs.

Two ideals of a speedup, both for the tokens per step that the run really wrote:

- from pass costs: the passes of the target and of the draft model at their measured costs, and
  the engine's work in plain decoding for every step, also a plain one. Drafting in Python, wider
  verdicts and padding are free.
- from bytes: both sides read memory at the same bandwidth and do nothing else. A pass reads the
  weights and the context once, whatever its width; a draft model reads its weights once per token.

And the crossover: the batch size at which a method stops paying.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Seq
from itertools import pairwise
from typing import Protocol

from foretoken.bench.measure.costs import Costs, ModelCosts, pass_cost
from foretoken.bench.measure.simulate import Drafting, Machine, measured_drafting, speedup
from foretoken.bench.record import BASELINE, Crossover, Ideal, Measured, Results, Run

UP_TO = 64
"""The largest batch size that a crossover is looked for at, where none were measured."""


class Counts(Protocol):
    """An `Answer`'s counts, or those of `AcceptanceStats`."""

    passes: int
    drafted: int
    drafted_at: list[int]


def nodes_per_step(answers: Iterable[Counts]) -> dict[str, int]:
    """Number of nodes -> how many steps drafted as many; a step without a draft is under "0".

    Exact for chains. For trees only the mean is known: each answer's drafts count as equal.
    """
    counts: Counter[int] = Counter()
    for answer in answers:
        drafts = answer.drafted_at[0] if answer.drafted_at else 0
        counts[0] += answer.passes - drafts
        if answer.drafted == sum(answer.drafted_at):
            reached = [*answer.drafted_at, 0]
            for length, (here, further) in enumerate(pairwise(reached), 1):
                counts[length] += here - further
        elif drafts:
            nodes, rest = divmod(answer.drafted, drafts)
            counts[nodes] += drafts - rest
            counts[nodes + 1] += rest
    return {str(nodes): counts[nodes] for nodes in sorted(counts) if counts[nodes]}


def add_ideals(results: Results) -> None:
    """Fill in `ideal` of every run and task, where costs were measured, and `crossover`."""
    costs: Costs | None = results["costs"]  # type: ignore[assignment]
    for run in results["runs"]:
        plain = _baseline(results["runs"], run)
        if costs is not None and plain is not None and run["method"] in costs["drafts"]:
            _fill(run, plain, costs)
    results.pop("crossover", None)  # of a part of what is merged
    crossing_points = crossovers(results["runs"], costs)
    if crossing_points:
        results["crossover"] = crossing_points


def _fill(run: Run, plain: Run, costs: Costs) -> None:
    method, batch = run["method"], run["batch_size"]
    run["ideal"] = ideal(run, plain, costs, method, batch)
    for task, part in run["by_task"].items():
        if task in plain["by_task"]:
            part["ideal"] = ideal(part, plain["by_task"][task], costs, method, batch)


def ideal(part: Measured, plain: Measured, costs: Costs, method: str, batch: int) -> Ideal:
    """Both ideals of one method; `plain` is plain decoding of the same prompts."""
    if not part["target_passes"]:
        return {"from_pass_costs": None, "from_bytes": None}
    steps = measured_drafting(part)
    if batch > 1:  # rows differ, and a good implementation needs no padding
        steps = Drafting(steps.tokens, {steps.mean_nodes: 1.0}, steps.levels)
    return {
        "from_pass_costs": speedup(steps, machine(costs, method, plain), batch),
        "from_bytes": steps.tokens * _bytes_ratio(steps, costs, method, batch),
    }


def machine(costs: Costs, method: str, plain: Measured) -> Machine:
    """The measured costs for one method; the engine's work in a step is plain decoding's."""
    draft = costs["drafts"].get(method)
    ms = plain["ms_per_step"]
    other = (ms["draft"] + ms["other"]) / ms["verify"] if ms["verify"] else 0.0
    return Machine(pass_cost(costs["target"]), draft and pass_cost(draft), other)


def _bytes_ratio(steps: Drafting, costs: Costs, method: str, batch: int) -> float:
    """Bytes of a plain step over those of the method's."""
    target = _bytes(costs["target"], batch)
    draft = costs["drafts"].get(method)
    passes = steps.mean_nodes if steps.levels is None else steps.levels
    return target / (target + (passes * _bytes(draft, batch) if draft else 0.0))


def _bytes(model: ModelCosts, batch: int) -> int:
    return model["weight_bytes"] + batch * model["kv_bytes"]


def _baseline(runs: Seq[Run], run: Run) -> Run | None:
    """Plain decoding at the same temperature and batch size."""
    return next(
        (
            other
            for other in runs
            if other["method"] == BASELINE
            and other["temperature"] == run["temperature"]
            and other["batch_size"] == run["batch_size"]
        ),
        None,
    )


def crossovers(runs: Seq[Run], costs: Costs | None) -> list[Crossover]:
    """The batch size from which each method is slower than plain decoding, by temperature.

    Between two measured batch sizes the speedup is interpolated linearly. Where only one was
    measured, the speedup at others is predicted from what passes cost: see `_predicted`.
    """
    points: list[Crossover] = []
    groups: dict[tuple[str, float], list[Run]] = {}
    for run in runs:
        if run["method"] != BASELINE and run["speedup"] is not None:
            groups.setdefault((run["method"], run["temperature"]), []).append(run)
    for (method, temperature), own in groups.items():
        by_size = {run["batch_size"]: run["speedup"] or 0.0 for run in own}
        plain = _baseline(runs, own[0])
        predicted = len(by_size) == 1 and min(by_size.values()) >= 1
        if predicted:
            if costs is None or method not in costs["drafts"] or plain is None:
                continue
            by_size |= _predicted(own[0], machine(costs, method, plain))
        points.append(
            {
                "method": method,
                "temperature": temperature,
                "batch_size": crossing(by_size),
                "up_to": max(by_size),
                "predicted": predicted,
            }
        )
    return points


def _predicted(run: Run, costs: Machine) -> dict[int, float]:
    """The speedup at larger batch sizes: the measured one times the simulated change.

    So what the implementation loses at the measured size is lost at every size.
    """
    measured_size, steps = run["batch_size"], measured_drafting(run)
    scale = (run["speedup"] or 0.0) / speedup(steps, costs, measured_size)
    sizes = range(measured_size + 1, UP_TO + 1)
    return {size: scale * speedup(steps, costs, size) for size in sizes}


def crossing(speedups: Mapping[int, float]) -> float | None:
    """Where the speedup falls below 1: the least batch size where it never pays, None where it
    always does."""
    sizes = sorted(speedups)
    if speedups[sizes[0]] < 1:
        return float(sizes[0])
    for small, large in pairwise(sizes):
        above, below = speedups[small] - 1, 1 - speedups[large]
        if below > 0:
            return small + (large - small) * above / (above + below)
    return None
