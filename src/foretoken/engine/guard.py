"""A drafter and a rule as the engine calls them: errors name them, and what they do is checked."""

from __future__ import annotations

import logging
from collections.abc import Callable
from collections.abc import Sequence as Seq
from contextlib import suppress
from typing import Any, TypeVar

from foretoken.access import Access
from foretoken.draws import Draws
from foretoken.engine.checks import check_draft
from foretoken.errors import ForetokenError, caught, described, shown
from foretoken.protocols import BaseDrafter, Drafter, Scores, Step, Target, Verdict, Verifier
from foretoken.sampling.sequence import Sequence
from foretoken.tree import DraftTree, Kind

_log = logging.getLogger("foretoken")

T = TypeVar("T")


class GuardedDrafter(BaseDrafter):
    """Calls a drafter. Whatever it raises becomes a `ForetokenError` that names it, and so does a
    draft that is none, or a text that it has changed."""

    def __init__(self, drafter: Drafter, target: Target) -> None:
        self._drafter, self._target = drafter, target
        self._name = type(drafter).__name__

    def call(self, work: Callable[..., T], *given: object) -> T:
        """What `work` returns; an error in it is the drafter's."""
        try:
            return work(*given)
        except caught() as error:
            raise described(f"The drafter {self._name}", error) from error

    def bind(self, access: Access) -> None:
        self.call(self._drafter.bind, access)

    def begin(self, sequence: Sequence) -> None:
        self.call(self._drafter.begin, sequence)

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        self.call(self._drafter.fork, sequence, copy)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        return self.call(self._draft, sequences, budgets, draws)

    def observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        self.call(self._observe, sequences, steps)

    def end(self, sequences: Seq[Sequence]) -> None:
        self.call(self._drafter.end, sequences)

    def _draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        before = _ends(sequences)
        tree = self._drafter.draft(sequences, budgets, draws)
        self._check_texts(before, sequences)
        check_draft(self._drafter, tree, len(sequences), self._target)
        return tree

    def _observe(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        before = _ends(sequences)
        self._drafter.observe(sequences, steps)
        self._check_texts(before, sequences)
        chose = self._drafter.chose
        if chose and len(chose) != len(sequences) and not steps[0].read:
            raise ForetokenError(
                f"The drafter {self._name} has {len(chose)} names in `chose` after a step of "
                f"{len(sequences)} sequences; give one for each, or none."
            )

    def _check_texts(self, before: object, sequences: Seq[Sequence]) -> None:
        if _ends(sequences) != before:
            raise ForetokenError(
                f"The drafter {self._name} changed a sequence's tokens, which are the engine's; "
                "work on a copy of them."
            )


def guarded(verifier: Verifier, vocab_size: int) -> Verifier:
    """A rule as the engine calls it. Ours are as they are: tests follow each of their outcomes, and
    looking at a verdict takes 11 µs."""
    ours = type(verifier).__module__.startswith("foretoken.verify.")
    return verifier if ours else GuardedVerifier(verifier, vocab_size)


class GuardedVerifier(Verifier):
    """Calls an acceptance rule. A verdict that is none becomes a `ForetokenError` that names it;
    numbers are read on a CPU only, as on a GPU that would be a transfer."""

    exact, trees, sampling, kinds, source = False, True, True, frozenset(Kind), ""  # not asked for

    def __init__(self, verifier: Verifier, vocab_size: int) -> None:
        self._verifier, self._vocab_size = verifier, vocab_size
        self.draws = verifier.draws  # type: ignore[misc]

    def __call__(self, trees: DraftTree, scores: Scores, draws: Draws) -> Verdict:
        verdict = self._verifier(trees, scores, draws)
        if wrong := self._fault(verdict, trees):
            raise ForetokenError(
                f"The verifier {type(self._verifier).__name__} {wrong}; it must return a "
                "foretoken.protocols.Verdict with slots of the tree and ids of the vocabulary."
            )
        return verdict

    def _fault(self, verdict: Any, trees: DraftTree) -> str:
        if not isinstance(verdict, Verdict):
            return f"returned {shown(verdict)}"
        path, lengths, token, _ = verdict
        device = trees.tokens.device.type
        if any(x.is_floating_point() or x.device.type != device for x in (path, lengths, token)):
            return "returned numbers that are no ids, or on another device"
        if path.ndim != 2 or not len(path) == len(lengths) == len(token) == trees.batch:
            return f"returned {len(token)} tokens for {trees.batch} sequences"
        return "" if device != "cpu" else self._wrong_number(verdict, trees.nodes)

    def _wrong_number(self, verdict: Verdict, nodes: int) -> str:
        path, lengths = verdict.path.tolist(), verdict.lengths.tolist()
        if not all(0 <= token < self._vocab_size for token in verdict.token.tolist()):
            return f"wrote ids outside the vocabulary of {self._vocab_size}"
        for slots, count in zip(path, lengths, strict=True):
            if not 0 <= count <= len(slots) or not all(0 < s <= nodes for s in slots[:count]):
                return f"accepted nodes that the tree of {nodes} doesn't have"
        return ""


def _ends(sequences: Seq[Sequence]) -> list[tuple[int, list[int]]]:
    """How long the texts are, and their last tokens: what a pass reads of them."""
    return [(len(sequence.tokens), sequence.tokens[-1:]) for sequence in sequences]


def insist(end: Callable[[], None], sequence: Sequence) -> None:
    """Call `end`, and once more if it raises: it may have stopped before it gave a slot back. From
    the second call a drafter learns nothing, since it may have learned from the first."""
    try:
        end()
    except caught() as error:
        _log.debug("The end of a sequence", exc_info=error)
        _log.warning("%s; it is called once more.", described("The end of a sequence", error))
        sequence.cut(0)
        with suppress(caught()):
            end()
