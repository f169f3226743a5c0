"""Which prompts go on from what the caches still have of earlier texts, and how far.

What is in the caches is theirs to know (`models.cache`). Here it is decided who may use it: texts
of the same salt, up to the token before the root, and no further than the drafter allows, which may
need the target's states of a prompt. Nothing of this changes what is written.
"""

from __future__ import annotations

from foretoken.engine.request import Sample
from foretoken.engine.stats import EngineStats
from foretoken.protocols import Drafter, Target


class Prefixes:
    """Lets samples go on from each other's texts, unless it is told not to."""

    def __init__(self, target: Target, drafter: Drafter, enabled: bool) -> None:
        """An encoder–decoder's texts begin alike and mean something else with another source."""
        self._target, self._drafter = target, drafter
        self._enabled = enabled and not target.opening

    def offer(self, sample: Sample) -> None:
        """Before a sample begins: say how much of its prompt need not be read. A later sample of a
        request waits for the first one and copies its prompt."""
        sequence, params = sample.sequence, sample.request.params
        if not self._enabled:
            return
        first = not any(
            other.sequence.salt is not None and not other.ended for other in sample.request.samples
        )
        sequence.salt = params.cache_salt or ""
        if first and params.prompt_logprobs is None:
            sequence.reusable = max(0, len(sequence.tokens) - 1 - self._kept_back())

    def count(self, sample: Sample, total: EngineStats) -> None:
        """After it has begun: count the tokens that were looked up, and those that were there, once
        a request."""
        sequence, request = sample.sequence, sample.request
        if not sequence.reusable or request.stats.prefix_cache_queries:
            return
        read = len(sequence.tokens) - 1 - self._target.pending(sequence)
        for stats in (request.stats, total):
            stats.prefix_cache_queries += len(sequence.tokens)
            stats.prefix_cache_hits += read

    def reset(self) -> None:
        """Forget what caches have of earlier texts, and keep nothing of those that run now."""
        self._target.budget.forget()

    def _kept_back(self) -> int:
        """How many of the prompt's tokens before the root have to be read for the drafter."""
        wants = self._drafter.wants
        if not wants.hidden:
            return 0
        return self._target.max_length if wants.last is None else wants.last
