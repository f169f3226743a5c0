"""Computes the numbers of results.json from measured answers; docs/metrics.md defines them.

Prompts served together are one unit of the statistics: the turns of a conversation count as one,
so does a batch, and the bootstrap draws groups, each with its measurements of both methods.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq

import numpy as np

from foretoken.bench.measure.bootstrap import Floats, interval
from foretoken.bench.measure.ideal import nodes_per_step
from foretoken.bench.measure.scores import corpus
from foretoken.bench.record import BASELINE, LATENCIES, Answer, Identity, Measured, Run, SpecBench
from foretoken.repetition import DISTINCT_4, distinct_4

RESAMPLES = 2_000
References = Mapping[tuple[str, int], tuple[str, ...]]
"""(prompt, turn) -> the answers taken as right."""

_WORST = ("identical", "near_tie", "different")


def looping(plain: Iterable[Answer], threshold: float = DISTINCT_4) -> list[str]:
    """Prompts of which plain decoding answered some turn with a loop.

    For a server, which doesn't send its token ids, words are counted instead.
    """
    ids = {a.id for a in plain if distinct_4(a.token_ids or a.text.split()) < threshold}
    return sorted(ids)


def group_by(key: Callable[[Answer], str], answers: Iterable[Answer]) -> dict[str, list[Answer]]:
    """The answers under their keys, in the order in which these first occur."""
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(key(answer), []).append(answer)
    return groups


def without_failures(answers: Iterable[Answer]) -> list[Answer]:
    """The answers of prompts of which no turn failed."""
    all_answers = list(answers)
    failed = {a.id for a in all_answers if a.error is not None}
    return [a for a in all_answers if a.id not in failed]


def bootstrap(
    tokens: Seq[float],
    seconds: Seq[float],
    plain_tokens: Seq[float],
    plain_seconds: Seq[float],
    *,
    tail: float = 0.025,
) -> list[float] | None:
    """95 % interval of the speedup over groups: None where there are fewer than two, or where a
    resample has no speedup.

    One number a group in each list; tail: the share beyond either end. The speedup is computed
    again from each resample's totals.
    """
    groups = np.array([tokens, seconds, plain_tokens, plain_seconds], dtype=float).T
    ends = interval(groups, _speedups, tail=tail, resamples=RESAMPLES)
    return None if ends is None else list(ends)


def joint_interval(
    answers: Seq[Answer], plain: Seq[Answer], methods: int
) -> tuple[float, float] | None:
    """The interval of a speedup that is one of so many: with 95 % all of them hold together
    (Bonferroni), so that the best of several isn't taken for more than chance explains."""
    totals = _totals(without_failures(answers), without_failures(plain))
    ends = bootstrap(*totals, tail=0.025 / methods)
    return None if ends is None else (ends[0], ends[1])


def _speedups(totals: Floats) -> Floats:
    """[resamples, 4] -> [resamples]; NaN where so little was written that there is none."""
    tokens, seconds, plain_tokens, plain_seconds = np.moveaxis(totals, -1, 0)
    speedups: Floats = (tokens / seconds) / (plain_tokens / plain_seconds)
    return np.where((totals[..., 1:] > 0).all(-1), speedups, np.nan)


def measure(
    answers: Seq[Answer], plain: Seq[Answer], references: References | None = None
) -> Measured:
    """One method's numbers over the prompts of `answers`; `plain` answered the same prompts.

    references: for the corpus BLEU; without them `scores` has the mean of the answers' own.
    """
    answers, plain = without_failures(answers), without_failures(plain)
    totals = _totals(answers, plain)
    tokens, seconds, plain_tokens, plain_seconds = map(sum, totals)
    speedup = None
    if seconds and plain_seconds and plain_tokens:
        speedup = (tokens / seconds) / (plain_tokens / plain_seconds)
    written = sum(a.tokens for a in answers)
    measured: Measured = {
        "tokens_per_second": _ratio(written, sum(a.decoding for a in answers)),
        "speedup": speedup,
        "speedup_ci95": bootstrap(*totals),
        "mean_acceptance_length": _acceptance_length(answers),
        "draft_acceptance_rate": _ratio(
            sum(sum(a.accepted_at) for a in answers), sum(a.drafted for a in answers)
        ),
        "acceptance_rate_per_position": _per_position(answers),
        "ms_per_step": _per_step(answers),
        "nodes_per_step": nodes_per_step(answers),
        "target_passes": sum(a.passes for a in answers),
        "tokens": written,
        "latency_ms": _latency(answers),
        "peak_memory_mib": max((a.peak_memory_mib or 0.0 for a in answers), default=0.0) or None,
        "identical_to_autoregressive": _identity(answers),
        "spec_bench": spec_bench(answers, plain),
        "scores": _scores(answers, references or {}),
        "log_likelihood_per_token": _log_likelihood(answers),
        "stray_rate": _stray_rate(answers),
        "energy_j_per_token": _energy(answers),
        "ideal": None,
    }
    if cached := max((a.kv_cache_mib or 0.0 for a in answers), default=0.0):
        measured["kv_cache_mib"] = cached
    if chosen := sum((Counter(a.chosen) for a in answers), Counter[str]()):
        measured["chosen"] = dict(chosen)
    return measured


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _with_passes(answers: Iterable[Answer]) -> list[Answer]:
    """The answers whose passes are known: a server's counters may be there for some turns of some
    groups and not for others. Those of a group are shared out, so that one of it may have none."""
    given = list(answers)
    known = {(a.group, a.turn) for a in given if a.passes}
    return [a for a in given if (a.group, a.turn) in known]


def _acceptance_length(answers: Iterable[Answer]) -> float | None:
    known = _with_passes(answers)
    return _ratio(sum(a.tokens for a in known), sum(a.passes for a in known))


def _totals(answers: Seq[Answer], plain: Seq[Answer]) -> tuple[list[float], ...]:
    """(tokens, seconds, plain tokens, plain seconds) of each group of which both have the same
    prompts: a batch is faster with one less, and its time is shared by those that it had."""
    of_method, of_plain = (group_by(lambda a: a.group, x) for x in (answers, plain))
    totals: tuple[list[float], ...] = ([], [], [], [])
    for group, served in of_method.items():
        other = of_plain.get(group, [])
        if {a.id for a in served} != {a.id for a in other}:
            continue
        for at, members in ((0, served), (2, other)):
            totals[at].append(sum(a.tokens for a in members))
            totals[at + 1].append(sum(a.decoding for a in members))
    return totals


def spec_bench(answers: Seq[Answer], plain: Seq[Answer]) -> SpecBench:
    """The numbers as Spec-Bench defines them: prefill counts, and questions weigh alike.

    One departure: theirs counts the baseline's tokens by tokenizing its text again. The speedup is
    over the prompts that both have answered.
    """
    answers, plain = without_failures(answers), without_failures(plain)
    shared = {a.id for a in answers} & {a.id for a in plain}
    rate = _per_question(answers)
    both = [_per_question([a for a in of if a.id in shared]) for of in (answers, plain)]
    speedup = both[0] / both[1] if both[0] is not None and both[1] else None
    return {
        "mean_accepted_tokens": _acceptance_length(answers),
        "tokens_per_second": rate,
        "speedup": speedup,
    }


def _per_question(answers: Seq[Answer]) -> float | None:
    """Mean over prompts of tokens ÷ the time that a user waits for them."""
    rates = [
        sum(a.tokens for a in turns) / sum(a.seconds["total"] for a in turns)
        for turns in group_by(lambda a: a.id, answers).values()
        if sum(a.seconds["total"] for a in turns)
    ]
    return sum(rates) / len(rates) if rates else None


def _per_position(answers: Seq[Answer]) -> list[float]:
    depth = max((len(a.drafted_at) for a in answers), default=0)
    drafted, accepted = [0] * depth, [0] * depth
    for answer in answers:
        for i, (tried, kept) in enumerate(zip(answer.drafted_at, answer.accepted_at, strict=True)):
            drafted[i] += tried
            accepted[i] += kept
    return [kept / tried for kept, tried in zip(accepted, drafted, strict=True)]


def _per_step(answers: Seq[Answer]) -> dict[str, float]:
    known, parts = _with_passes(answers), ("draft", "verify", "other")
    steps = sum(a.engine_steps for a in known) or 1
    return {part: 1000 * sum(a.seconds[part] for a in known) / steps for part in parts}


def _latency(answers: Seq[Answer]) -> dict[str, float | None]:
    first = [1000 * a.seconds["ttft"] for a in answers if a.tokens]
    rest = [
        1000 * (a.seconds["total"] - a.seconds["ttft"]) / (a.tokens - 1)
        for a in answers
        if a.tokens > 1
    ]
    values = [
        float(np.percentile(times, share)) if times else None
        for times in (first, rest)
        for share in (50, 99)
    ]
    return dict(zip(LATENCIES, values, strict=True))


def _identity(answers: Seq[Answer]) -> Identity | None:
    """Each prompt by its worst turn; None where equal tokens are not claimed."""
    worst: list[str] = []
    for turns in group_by(lambda a: a.id, answers).values():
        outcomes = [a.sameness for a in turns if a.sameness is not None]
        if len(outcomes) < len(turns):
            return None
        worst.append(max(outcomes, key=_WORST.index))
    if not worst:
        return None
    return {
        "prompts": len(worst),
        "identical": worst.count("identical"),
        "near_tie": worst.count("near_tie"),
        "different": worst.count("different"),
    }


def _scores(answers: Seq[Answer], references: References) -> dict[str, float]:
    """Means by name; the BLEU is of all translations together where they have references."""
    names = dict.fromkeys(name for a in answers for name in a.scores)
    scores = {}
    for name in names:
        values = [a.scores[name] for a in answers if name in a.scores]
        scores[name] = sum(values) / len(values)
    translations = [a for a in answers if "bleu" in a.scores and (a.id, a.turn) in references]
    if translations:
        rights = [references[a.id, a.turn] for a in translations]
        scores |= corpus("translation", [a.text for a in translations], rights)
    return scores


def _log_likelihood(answers: Seq[Answer]) -> float | None:
    scored = [a for a in answers if a.log_likelihood is not None]
    tokens = sum(a.tokens for a in scored)
    return _ratio(sum(a.log_likelihood or 0.0 for a in scored), tokens)


def _stray_rate(answers: Seq[Answer]) -> float | None:
    """Of approximate methods: those, plain decoding apart, that have a log-likelihood."""
    approximate = [a for a in answers if a.log_likelihood is not None and a.method != BASELINE]
    return _ratio(sum(a.strayed for a in approximate), sum(a.tokens for a in approximate))


def _energy(answers: Seq[Answer]) -> float | None:
    joules = [a.energy_j for a in answers if a.energy_j is not None]
    if len(joules) < len(answers):
        return None
    return _ratio(sum(joules), sum(a.tokens for a in answers))


def runs(
    answers: Seq[Answer], left_out: Seq[str], *, repeats: int, references: References | None = None
) -> list[Run]:
    """Every method at every batch size and temperature, in the order in which they first occur."""
    keys = dict.fromkeys((a.batch_size, a.temperature, a.method) for a in answers)
    measured_runs = []
    for size, temperature, method in sorted(keys, key=lambda key: key[:2]):
        at_setting = [a for a in answers if (a.batch_size, a.temperature) == (size, temperature)]
        of_method = [a for a in at_setting if a.method == method]
        plain = [a for a in at_setting if a.method == BASELINE]
        measured_runs.append(_run(of_method, plain, frozenset(left_out), repeats, references))
    return measured_runs


def _run(
    of_method: Seq[Answer],
    plain: Seq[Answer],
    left_out: frozenset[str],
    repeats: int,
    references: References | None,
) -> Run:
    """The columns by Spec-Bench's definitions leave no prompt out, as it leaves none out."""

    def measured(selected: Seq[Answer], plain_answers: Seq[Answer]) -> Measured:
        kept, plainly = ([a for a in x if a.id not in left_out] for x in (selected, plain_answers))
        numbers = measure(kept, plainly, references)
        return {**numbers, "spec_bench": spec_bench(selected, plain_answers)}

    tasks, plain_tasks = group_by(lambda a: a.task, of_method), group_by(lambda a: a.task, plain)
    kept = {a.id for a in without_failures(of_method)} - left_out
    return {
        "method": of_method[0].method,
        "temperature": of_method[0].temperature,
        "batch_size": of_method[0].batch_size,
        "repeats": repeats,
        "prompts": len(kept),
        "failed": len({a.id for a in of_method if a.error is not None}),
        **measured(of_method, plain),
        "by_task": {task: measured(own, plain_tasks.get(task, [])) for task, own in tasks.items()},
    }
