"""`recommend`: finds out by measuring which method, if any, makes a model faster here."""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

from foretoken.bench.measure.costs import Costs, pass_cost
from foretoken.bench.measure.library import library
from foretoken.bench.plan import Plan
from foretoken.bench.run.runner import Runner
from foretoken.bench.suites.suite import LEAST_ROOM, Prompt
from foretoken.config import build
from foretoken.errors import ForetokenError
from foretoken.models.load import find
from foretoken.progress import track
from foretoken.recommender import texts
from foretoken.recommender.candidates import Candidate, find_candidates
from foretoken.recommender.lineup import Lineup
from foretoken.recommender.race import Allowance, Screening, Timing, affordable
from foretoken.recommender.recommendation import Recommendation
from foretoken.recommender.served import Cell
from foretoken.recommender.verdict import LEAST, rows, verdict

YOURS = "yours"
"""The label of a config that was given."""

_RUNS = ("dtype", "device", "backend", "max_model_len", "kv_cache_memory", "trust_remote_code")
"""Fields of a plan that are keywords of `LLM`."""

_WIDE = 2.0  # times a plain pass: what one over 64 tokens may cost where large trees are tried
_ROUNDS = 3  # in which passes are timed; the first warms up

_log = logging.getLogger(__name__)


def recommend(
    model: str | Path,
    *,
    draft_models: Seq[str | Path] = (),
    prompts: str | Path | Seq[str] | Seq[Prompt] | None = None,
    batch_sizes: Seq[int] = (1,),
    temperatures: Seq[float] = (0.0, 1.0),
    seconds: float = 300.0,
    max_tokens: int = 64,
    seed: int = 0,
    speculative_config: Mapping[str, Any] | None = None,
    dtype: str = "auto",
    device: str = "auto",
    backend: str = "auto",
    max_model_len: int | None = None,
    kv_cache_memory: str | None = None,
    trust_remote_code: bool = False,
    show: bool = False,
    tell: Callable[[str], None] = _log.info,
) -> Recommendation:
    """Measure which decoding method is fastest for a model, prompts, batches and temperatures.

    What applies is screened by acceptance and measured costs on a few prompts; the best few are
    timed in turn with plain decoding. An interrupt (Ctrl-C) ends the measuring, and the conclusion
    is drawn from what is known.

    Args:
        model: checkpoint folder, GGUF file, hub id or bundled name.
        draft_models: small models, and drafters trained for this one, to try beside those found.
        prompts: a file of text or JSON lines, texts, or None for the bundled ones.
        batch_sizes: sequences served together.
        temperatures: 0 is greedy.
        seconds: for loading and measuring together; downloads don't count.
        max_tokens: most tokens of an answer.
        seed: of everything random.
        speculative_config: one more method to time; it is loaded before anything is measured.
        dtype, device, backend, max_model_len, kv_cache_memory, trust_remote_code: as for `LLM`.
        show: whether a progress bar is drawn.
        tell: called with a line now and then, on what is being done.

    Raises:
        ForetokenError: for a model, prompts or options that can't be served, and where the prompts
            are too few for an interval.
    """
    library("scipy")  # for the intervals: fail now rather than after measuring
    cells = _cells(batch_sizes, temperatures, seconds)
    own: list[Candidate] = []
    if speculative_config is not None:
        build(speculative_config)
        own = [Candidate(YOURS, dict(speculative_config), given=True)]
    asked = _prompts(prompts, seed)
    _check_many(len(asked), cells)
    target = find(model)
    given = [str(draft) for draft in draft_models]
    for draft in given:  # downloads don't count
        find(draft)
    allowance = Allowance.starting(seconds)
    plan = Plan(
        model=model,
        name=str(model),
        methods={},
        dtype=dtype,
        temperatures=tuple(dict.fromkeys(temperatures)),
        batch_sizes=tuple(dict.fromkeys(batch_sizes)),
        max_tokens=max_tokens,
        seed=seed,
        max_model_len=max_model_len or Plan.max_model_len,
        kv_cache_memory=kv_cache_memory,
        device=device,
        backend=backend,
        trust_remote_code=trust_remote_code,
        lenient=True,
    )
    with track(f"Measuring {target.name}", round(seconds), show) as advance:
        run = _Run(Runner(plan), asked, cells, allowance, _by_seconds(allowance, advance), tell)
        screening = run.prepare(target, given, own)
        run.measure(screening, own)
    return run.conclusion(screening)


class _Run:
    """One call of `recommend`, from the loaded target on."""

    def __init__(
        self,
        runner: Runner,
        asked: Seq[Prompt],
        cells: Seq[Cell],
        allowance: Allowance,
        advance: Callable[[], None],
        tell: Callable[[str], None],
    ) -> None:
        self._lineup, self._cells = Lineup(runner), cells
        self._allowance, self._advance, self._tell = allowance, advance, tell
        self._prompts, skipped = runner.fitting(asked)
        self._notes: list[str] = []
        if skipped:
            self._notes.append(
                f"{len(skipped)} of {len(asked)} prompts leave less than {LEAST_ROOM} tokens of "
                "the context and were left out."
            )
            _check_many(len(self._prompts), cells)
        self._finalists: list[Candidate] = []
        self._many = 0  # finalists, beside `auto` and a config that was given
        self._timing = Timing(self._prompts, cells)
        self._interrupted = False

    def prepare(self, target: Path, given: Seq[str], own: Seq[Candidate]) -> Screening:
        """Measure what passes cost, find what applies and load it."""
        runner = self._lineup.runner
        for candidate in own:
            self._lineup.check(candidate)
        costs = self._costs()
        cost = pass_cost(costs["target"])
        wide = cost(1, 64) <= _WIDE * cost(1, 1)
        found = find_candidates(runner.plain, target, given, wide=wide)
        if found.untried:
            names = ", ".join(place.name for place in found.untried)
            self._notes.append(f"Found and not tried: {names}; name one as a draft model.")
        self._tell(f"Loading {len(found.candidates)} methods.")
        loaded = self._lineup.load(found.candidates, self._allowance, self._advance)
        longest = runner.plan.max_tokens
        self._many = affordable(costs, self._cells, longest, self._allowance.seconds)
        short = texts.shortened(self._prompts, max(1, longest // 2))
        return Screening(loaded, short, self._cells, costs)

    def _costs(self) -> Costs:
        meter = self._lineup.runner.meter()
        for _ in range(_ROUNDS):
            meter.round()
            self._advance()
        return meter.costs()

    def measure(self, screening: Screening, own: Seq[Candidate]) -> None:
        """Screen, then time the best; an interrupt ends it early."""
        lineup = self._lineup
        try:
            self._tell(f"Screening {len(screening.left)} methods.")
            screening.run(lineup.serve, lineup.keep, self._allowance, self._many, self._advance)
            self._finalists = lineup.finalists(screening.predictions(), self._many, own)
            self._tell(f"Timing {', '.join(one.label for one in self._finalists)}.")
            used = screening.used
            self._timing = Timing([*self._prompts[used:], *self._prompts[:used]], self._cells)
            self._timing.run(lineup.serve, self._allowance, self._advance)
        except KeyboardInterrupt:
            self._interrupted = True

    def conclusion(self, screening: Screening) -> Recommendation:
        """What follows from what is known by now."""
        served = self._timing.served
        timed = rows(self._finalists, served, self._cells)
        predictions = screening.predictions()
        found = verdict(timed, self._cells, predictions)
        finalists = {one.label for one in self._finalists}
        left_out = [p for p in predictions if p.best.label not in finalists]
        runner = self._lineup.runner
        runner.keep(())
        return Recommendation(
            str(runner.plan.model),
            found.sentence,
            found.chosen[0].config if found.chosen else None,
            tuple(timed),
            found.chosen,
            (*left_out, *screening.dropped()),
            {**runner.not_run, **self._lineup.left_out, **screening.failures()},
            (*self._notes, *self._remarks(served.loops)),
            self._interrupted,
            _options(runner.plan),
        )

    def _remarks(self, loops: int) -> Iterator[str]:
        """What was left out of the measurements, and why."""
        if loops:
            yield (
                "Prompts that don't count, as plain decoding answers them with a loop, which is "
                f"easily copied: {loops}."
            )
        if self._timing.disturbed:
            yield (
                "Timings that don't count, as they took far longer than usual and no time was left "
                f"to repeat them: {self._timing.disturbed}."
            )
        if self._interrupted:
            yield "Interrupted: this is concluded from what was measured until then."


def _options(plan: Plan) -> dict[str, Any]:
    """How the target ran, as keywords of `LLM`, where that isn't the default."""
    default = {field.name: field.default for field in dataclasses.fields(Plan)}
    given = {name: value for name, value in vars(plan).items() if value != default[name]}
    return {name: given[name] for name in _RUNS if name in given}


def _cells(batch_sizes: Seq[int], temperatures: Seq[float], seconds: float) -> list[Cell]:
    if not batch_sizes or min(batch_sizes) < 1 or not temperatures or min(temperatures) < 0:
        raise ForetokenError(
            f"The batch sizes are {list(batch_sizes)} and the temperatures {list(temperatures)}; "
            "give at least one of each, from 1 and from 0 on."
        )
    if not 0 < seconds < math.inf:
        raise ForetokenError(
            f"seconds is {seconds:g}; give a number above 0, a large one for as long as you like, "
            "which Ctrl-C ends early."
        )
    sizes, heats = dict.fromkeys(batch_sizes), dict.fromkeys(map(float, temperatures))
    return [Cell(size, temperature) for size in sizes for temperature in heats]


def _prompts(given: Any, seed: int) -> Seq[Prompt]:
    if given is None:
        return texts.bundled()
    if isinstance(given, (str, Path)):
        return texts.read_texts(Path(given), seed)
    found = list(given)
    if all(isinstance(prompt, Prompt) for prompt in found):
        return found
    if not all(isinstance(prompt, str) and prompt for prompt in found):
        raise ForetokenError("prompts holds something else than texts; give texts, or a file.")
    return texts.numbered(found)


def _check_many(prompts: int, cells: Seq[Cell]) -> None:
    largest = max(cell.batch_size for cell in cells)
    if prompts < LEAST * largest:
        raise ForetokenError(
            f"There are {prompts} prompts, and an interval at batch {largest} needs at least "
            f"{LEAST * largest}; give more prompts or a smaller batch."
        )


def _by_seconds(allowance: Allowance, advance: Callable[[], None]) -> Callable[[], None]:
    """Advances a bar of seconds to the time that is spent."""
    shown = 0

    def step() -> None:
        nonlocal shown
        while shown < min(allowance.spent, allowance.seconds):
            advance()
            shown += 1

    return step
