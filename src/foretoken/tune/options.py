"""Searches the options of a method that decide its speed: draft length, thresholds, tree widths.

First on the cost model: each candidate serves the prompts, and its tokens a second follow from what
was accepted and from measured pass costs, so that a noisy machine misleads no one. Then the best
few, the method's own defaults and plain decoding are timed in turn, round after round, and the
fastest by median is the answer. Candidates come from Optuna's tree-structured Parzen estimator
(Bergstra et al. 2011; Akiba et al. 2019); the defaults are the first.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from operator import truediv
from typing import Any

from foretoken.bench.measure.costs import draft_model, measure_costs
from foretoken.bench.measure.environment import environment
from foretoken.bench.measure.ideal import machine, nodes_per_step
from foretoken.bench.measure.simulate import measured_drafting, predict
from foretoken.config import options_of
from foretoken.engine.stats import EngineStats
from foretoken.errors import ForetokenError
from foretoken.errors.extras import imported
from foretoken.length import SCHEDULES
from foretoken.llm import LLM
from foretoken.models.model import CausalLM
from foretoken.registry import LOADED_AS, option_name
from foretoken.sampling.params import SamplingParams
from foretoken.tuned import SCHEMA, from_anywhere

_SCHEDULE, _THRESHOLD = "num_assistant_tokens_schedule", "assistant_confidence_threshold"

_TUNED = "tuned"  # the method's label among measured costs

Config = dict[str, Any]


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, whole ones if these are."""

    low: float
    high: float

    def ask(self, trial: Any, name: str) -> float:
        whole = isinstance(self.low, int) and isinstance(self.high, int)
        suggest = trial.suggest_int if whole else trial.suggest_float
        chosen: float = suggest(name, self.low, self.high)
        return chosen


@dataclass(frozen=True)
class OneOf:
    """Choices by their names."""

    choices: Mapping[str, Any]

    def ask(self, trial: Any, name: str) -> Any:
        return self.choices[trial.suggest_categorical(name, list(self.choices))]


def _trees(*shapes: Seq[int]) -> OneOf:
    return OneOf({"-".join(map(str, shape)): list(shape) for shape in shapes})


SPACE: dict[str, Range | OneOf] = {
    "num_speculative_tokens": Range(1, 16),
    # What the others' drafts cost is counted by their tokens.
    _SCHEDULE: OneOf({name: name for name, rule in SCHEDULES.items() if not rule.stops_before}),
    _THRESHOLD: Range(0.05, 0.95),
    "prompt_lookup_max": Range(2, 6),
    "prompt_lookup_min": Range(1, 2),
    "max_spec_factor": Range(0.5, 4.0),
    "min_token_prob": Range(0.02, 0.5),
    "widths": _trees(
        (2,),
        (4,),
        (2, 1),
        (2, 2),
        (4, 2),
        (4, 2, 2),
        (2, 2, 1, 1),
        (3, 2, 1, 1),
        (8, 1, 1, 1),
        (4, 2, 1, 1, 1),
        (1, 1, 3, 1, 1, 1, 1, 1),
    ),
}
"""Options that change a method's speed and never its distribution, and the values to try."""


@dataclass(frozen=True)
class Candidate:
    """A config, and the speed predicted from its acceptance and pass costs."""

    config: Config
    tokens_per_second: float
    mean_acceptance_length: float


class Tuner:
    """One target, method and list of prompts.

    config: the method and the options that stay. prompts: token ids. interrupted: whether Ctrl-C
    has ended the search or the timing, whose results so far count. Raises `ForetokenError` for a
    method without options to search, and for one whose drafting costs can't be measured.
    """

    def __init__(
        self, llm: LLM, config: Mapping[str, Any], prompts: Seq[Seq[int]], params: SamplingParams
    ) -> None:
        self._llm, self._prompts, self._params = llm, [list(p) for p in prompts], params
        self._config, self.interrupted = dict(config), False
        self._draft: CausalLM | None = None  # read once, where the config names it
        self._every = options_of(str(config["method"]))
        given = {self._own_name(key): value for key, value in config.items()}
        free = self._every - given.keys()
        if _SCHEDULE in given and not _has_threshold(given[_SCHEDULE]):
            free -= {_THRESHOLD}
        self.space = {name: SPACE[name] for name in SPACE if name in free}
        if not self.space:
            raise ForetokenError(f"Method {config['method']!r} has no option that can be tuned.")
        first = self._make(self._config)
        self._draft = draft_model(first.engine.drafter)
        self._costs = measure_costs(llm, {_TUNED: first})
        if _TUNED not in self._costs["drafts"]:
            raise ForetokenError(
                f"What drafting costs method {config['method']!r} is not known, so its options "
                "can't be searched; choose one that copies or drafts with a single model."
            )
        self._plain = _measured(self._serve(llm))

    def search(self, trials: int, seed: int, advance: Callable[[], None]) -> list[Candidate]:
        """`trials` candidates, the best first; fewer where an interrupt ends the search. Raises
        `ForetokenError` without Optuna."""
        optuna = imported("optuna", "tune", "Tuning needs")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=seed)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        candidates = [self.predicted(self._config)]
        advance()

        def objective(trial: Any) -> float:
            config = self._config | self._asked(trial)
            try:
                candidates.append(self.predicted(config))
            except ForetokenError as error:  # options that don't go together
                raise optuna.TrialPruned(str(error)) from error
            finally:
                advance()
            return candidates[-1].tokens_per_second

        try:
            study.optimize(objective, n_trials=trials - 1)
        except KeyboardInterrupt:
            self.interrupted = True
        return sorted(candidates, key=lambda one: -one.tokens_per_second)

    def _asked(self, trial: Any) -> Config:
        """A point of the space; a threshold only for a schedule that has one, as one that is given
        has."""
        config: Config = {}
        for name, space in self.space.items():
            if name != _THRESHOLD or _has_threshold(config.get(_SCHEDULE, "confidence")):
                config[name] = space.ask(trial, name)
        return config

    def predicted(self, config: Config) -> Candidate:
        """The speed that follows from a config's acceptance on the prompts and from pass costs."""
        part = _measured(self._serve(self._make(config)))
        steps = measured_drafting(part)
        costs = machine(self._costs, _TUNED, self._plain)
        row = predict(steps, costs, 1, 0)
        return Candidate(config, row.tokens_per_second, steps.tokens)

    def clocked(
        self, configs: Seq[Config], rounds: int, advance: Callable[[], None]
    ) -> list[list[float]]:
        """Tokens a second of plain decoding and of each config, by round: of the whole ones where
        an interrupt ends the timing; nothing where there is none."""
        timed: list[list[float]] = []
        try:
            llms = [self._llm, *map(self._make, configs)]
            for turn in range(rounds + 1):
                timed.append(self._round(llms, turn))
                advance()
        except KeyboardInterrupt:
            self.interrupted = True
        return timed[1:]  # the warm ones

    def _round(self, llms: Seq[LLM], turn: int) -> list[float]:
        """Tokens a second of each; another one is the first in each turn."""
        speeds = [0.0] * len(llms)
        for place in range(len(llms)):
            place = (place + turn) % len(llms)
            stats = self._serve(llms[place])
            speeds[place] = stats.tokens / stats.decode_time
        return speeds

    def _make(self, config: Config) -> LLM:
        return LLM(
            self._llm.model,
            tokenizer=self._llm.tokenizer,
            max_model_len=self._llm.engine.target.max_length,
            max_num_seqs=1,
            enable_prefix_caching=False,  # every answer is to take its whole time
            trust_remote_code=self._llm.trust_remote_code,
            eos_ids=self._llm.engine.eos_ids,
            speculative_config=self._with_loaded(config),
        )

    def _own_name(self, key: str) -> str:
        """foretoken's name of an option, which others may call otherwise."""
        return option_name(key, self._every)

    def _with_loaded(self, config: Config) -> Config:
        """The config with the draft model that is loaded already, where it names one; others are
        made of the target, for each candidate again."""
        if self._draft is None or "model" not in map(self._own_name, config):
            return config
        loaded = {"model", *LOADED_AS}
        others = {key: value for key, value in config.items() if self._own_name(key) not in loaded}
        return {**others, "model": self._draft}

    def _serve(self, llm: LLM) -> EngineStats:
        """All prompts one by one, the drafter starting from nothing with each. Raises
        `ForetokenError` for one that can't be answered, as one that the context hasn't room for."""
        llm.reset_stats()
        for prompt in self._prompts:
            if (shared := llm.engine.drafter.shared) is not None:
                shared.reset()
            llm.generate([prompt], self._params, raise_on_error=True)
        return llm.stats


def tune(
    tuner: Tuner,
    config: Config,
    *,
    trials: int,
    finalists: int,
    rounds: int,
    seed: int,
    advance: Callable[[], None],
) -> dict[str, Any]:
    """Search, time the best, and return what the tuned method's file holds.

    `advance` is called trials + rounds + 1 times. Ctrl-C ends it early, with the best so far: the
    fastest of the whole rounds, or by prediction where there is none.
    """
    candidates = tuner.search(trials, seed, advance)
    best = _different(candidates)[:finalists]
    configs = [config, *(one.config for one in best if one.config != config)]
    clocked = [] if tuner.interrupted else tuner.clocked(configs, rounds, advance)
    plain, *speeds = zip(*clocked, strict=True) if clocked else [()]
    timed: list[dict[str, Any]] = [
        {
            "options": options,
            "tokens_per_second": statistics.median(own),
            "speedup": statistics.median(map(truediv, own, plain)),  # within each round
        }
        for options, own in zip(configs, speeds, strict=bool(clocked))
    ]
    untimed: dict[str, Any] = {
        "options": best[0].config,
        "tokens_per_second": None,
        "speedup": None,
    }
    fastest = max(timed, key=lambda row: float(row["tokens_per_second"]), default=untimed)
    return {
        "schema": SCHEMA,
        "method": config["method"],
        "speculative_config": from_anywhere(fastest["options"]),
        "finished": not tuner.interrupted,
        "tokens_per_second": fastest["tokens_per_second"],
        "speedup": fastest["speedup"],
        "plain_tokens_per_second": statistics.median(plain) if plain else None,
        "timed": timed,
        "predicted": [dataclasses.asdict(one) for one in best],
        "trials": len(candidates),
        "environment": environment(),
    }


def _different(candidates: Seq[Candidate]) -> list[Candidate]:
    """The configs without duplicates, in order."""
    different: list[Candidate] = []
    for one in candidates:
        if all(one.config != other.config for other in different):
            different.append(one)
    return different


def _has_threshold(schedule: object) -> bool:
    """Whether it is the name of a schedule with one; a rule itself has all of its options."""
    rule = SCHEDULES.get(schedule) if isinstance(schedule, str) else None
    return rule is not None and _THRESHOLD in {field.name for field in dataclasses.fields(rule)}


def _measured(stats: EngineStats) -> Any:
    """The numbers of a run that a prediction reads, under the names of results.json."""
    return {
        "target_passes": stats.passes,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "acceptance_rate_per_position": stats.acceptance_rate_per_position,
        "nodes_per_step": nodes_per_step([stats]),
        "ms_per_step": stats.ms_per_step,
    }
