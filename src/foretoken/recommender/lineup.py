"""The methods that a runner serves: loaded once, with one copy of each draft model."""

from __future__ import annotations

from collections.abc import Callable, Collection
from collections.abc import Sequence as Seq
from typing import Any

from foretoken.bench.measure.costs import draft_model
from foretoken.bench.plan import Unit
from foretoken.bench.record import Answer
from foretoken.bench.run.runner import Runner
from foretoken.errors import ForetokenError
from foretoken.models.model import CausalLM
from foretoken.recommender.candidates import Candidate, with_auto
from foretoken.recommender.prediction import Prediction, most_promising
from foretoken.recommender.race import SCREENING, Allowance
from foretoken.registry import LOADED_AS

_SHARING = ("sps", "auto")
"""Methods whose draft model may be one that is loaded already."""


class Lineup:
    """left_out: label -> why a candidate was not loaded."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner
        self.left_out: dict[str, str] = {}
        self._models: dict[tuple[Any, ...], CausalLM] = {}

    def load(
        self, candidates: Seq[Candidate], allowance: Allowance, advance: Callable[[], None]
    ) -> list[Candidate]:
        """Those that can be served, loaded; as many as half of the screening's time suffices for.

        Raises `ForetokenError` for one that was given and can't be served.
        """
        loaded = []
        for candidate in candidates:
            if allowance.spent > SCREENING / 2 * allowance.seconds:
                self.left_out[candidate.label] = "No time was left to load it; give more seconds."
            elif self._add(candidate):
                loaded.append(candidate)
            advance()
        return loaded

    def check(self, candidate: Candidate) -> None:
        """Load one and free it: where it was given and can't be served, that is an error now, and
        not when all others have been screened. Its draft model is remembered."""
        self._add(candidate)
        self.keep(())

    def finalists(
        self, predictions: Seq[Prediction], many: int, extra: Seq[Candidate]
    ) -> list[Candidate]:
        """The most promising, at their best draft lengths, with `auto` and the extra ones; loaded,
        and all others freed."""
        chosen = [one.best for one in most_promising(predictions, many)]
        drafts = [
            p.best for p in predictions if p.best.config["method"] == "sps" and not p.hopeless
        ]
        chosen += [with_auto(drafts[0] if drafts else None), *extra]
        found = [one for one in chosen if one.label in self.runner.llms or self._add(one)]
        self.keep([one.label for one in found])
        return found

    def serve(self, unit: Unit) -> list[Answer]:
        """A unit's answers, by plain decoding and all methods that are left."""
        return self.runner.serve(unit)

    def keep(self, labels: Collection[str]) -> None:
        self.runner.keep(labels)

    def _add(self, candidate: Candidate) -> bool:
        """Load one; False where the target can't serve it. Its draft model is remembered."""
        runner, config = self.runner, candidate.config
        sharing = config.get("method") in _SHARING and "model" in config
        key = (str(config["model"]), *map(config.get, LOADED_AS)) if sharing else ()
        if key in self._models:
            as_loaded = {name: value for name, value in config.items() if name not in LOADED_AS}
            config = {**as_loaded, "model": self._models[key]}
        runner.add(candidate.label, config)
        if candidate.label in runner.not_run:
            if candidate.given:
                raise ForetokenError(runner.not_run[candidate.label])
            return False
        lent = draft_model(runner.llms[candidate.label].engine.drafter)
        if sharing and lent is not None:
            self._models[key] = lent
        return True
