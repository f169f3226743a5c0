"""Searches the sub-layers that a model drafts best without: Bayesian optimisation of the time per
token.

Source: Zhang et al. 2024 (Draft & Verify), section 3.3: 2L yes-or-no variables, and as objective
the average time for a token of self-speculative decoding on a few prompts, 32 tokens each. The
optimiser is Optuna's tree-structured Parzen estimator, theirs is a Gaussian process; the search
starts from every second layer. Times are measured, so two searches may end differently.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from statistics import median
from typing import Any

from foretoken.drafters.draft_verify import DraftVerify
from foretoken.drafters.nothing import Nothing
from foretoken.engine.engine import Engine
from foretoken.errors import ForetokenError
from foretoken.errors.extras import imported
from foretoken.models.layer_set import every_second
from foretoken.models.model import CausalLM
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.sampling.params import SamplingParams
from foretoken.verify.speculative import Speculative

_TIMINGS = 5  # of the set that is found, and of plain decoding


@dataclass(frozen=True)
class LayerSet:
    """skipped: the sub-layers to leave out. seconds, plain: for a token with them, and without
    drafting, timed anew. rate: share of the drafted tokens that was accepted. trials: sets that
    were timed."""

    skipped: tuple[int, ...]
    seconds: float
    plain: float
    rate: float
    trials: int


class Search:
    """Candidates are timed on one target, one prompt after the other, greedily."""

    def __init__(self, model: CausalLM, prompts: Seq[Seq[int]], tokens: int = 32) -> None:
        """`tokens` are written after each prompt."""
        if "e" not in model.levels:
            raise ForetokenError("Only the native model runs single sub-layers.")
        if not prompts:
            raise ForetokenError("There are no prompts to search on; give at least one.")
        self._target = ModelTarget(model, 1, model.max_length)
        self._prompts = prompts
        self._params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)

    def run(
        self, trials: int = 1000, seed: int = 0, advance: Callable[[], None] = lambda: None
    ) -> LayerSet:
        """The best of `trials` candidates; of those that were timed, where an interrupt (Ctrl-C)
        ends the search. Raises `ForetokenError` where Optuna isn't installed."""
        optuna = imported("optuna", "tune", "The search for layers needs")
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sublayers = 2 * self._target.layers
        self.time(Nothing())  # the first pass allocates and compiles

        def objective(trial: Any) -> float:
            skipped = [s for s in range(sublayers) if trial.suggest_categorical(str(s), [0, 1])]
            seconds, rate = self.time(DraftVerify(skip=skipped))
            trial.set_user_attr("drafting", (skipped, rate))
            advance()
            return seconds

        study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=seed))
        start = every_second(self._target.layers)
        study.enqueue_trial({str(s): int(s in start) for s in range(sublayers)})
        try:
            study.optimize(objective, n_trials=trials)
        except KeyboardInterrupt:
            if not _timed(study):
                raise
        best, rate = study.best_trial.user_attrs["drafting"]
        seconds, plain = self._anew(best)
        return LayerSet(tuple(best), seconds, plain, rate, _timed(study))

    def _anew(self, skipped: Seq[int]) -> tuple[float, float]:
        """Seconds for a token with this set and plainly: medians of some timings in turn. The least
        of many times is also one that was short by luck."""
        seconds, plain = [], []
        for _ in range(_TIMINGS):
            seconds.append(self.time(DraftVerify(skip=skipped))[0])
            plain.append(self.time(Nothing())[0])
        return median(seconds), median(plain)

    def time(self, drafter: Drafter) -> tuple[float, float]:
        """Seconds for a token, prompts not counted, and the share of drafted tokens accepted."""
        engine = Engine(self._target, drafter, Speculative())
        for prompt in self._prompts:
            engine.add(prompt, self._params)
            while engine.busy:
                engine.step()
        stats = engine.stats
        return stats.decode_time / stats.tokens, stats.draft_acceptance_rate


def _timed(study: Any) -> int:
    """How many candidates have a time; one that was interrupted has none."""
    return sum(trial.value is not None for trial in study.trials)
