"""Mistakes with the logits that a contrastive target's amateur hands over; each with its test."""

from __future__ import annotations

from mutation import Mutant

CONTRASTIVE = "models/test_contrastive_drafts.py::test_{}"
CHAIN_DRAFTER = "foretoken.drafters.shared.chain:ChainDrafter"
PAIRED = "foretoken.models.contrastive:PairedCache"

HANDED_OVER: dict[str, Mutant] = {
    "the bonus token's logits are the last token's": Mutant(
        f"{CHAIN_DRAFTER}._chain",
        "handed.append(self._logits(sequences, tokens))",
        "handed.append(handed[-1] if handed else self._logits(sequences, tokens))",
        (CONTRASTIVE.format("distribution"),),
    ),
    "a root that drafts nothing has no logits": Mutant(
        f"{CHAIN_DRAFTER}.draft",
        "len(rows) == len(limits) or self.hands_over",
        "len(rows) == len(limits)",
        (CONTRASTIVE.format("a_row_that_drafts_nothing"),),
    ),
    "any small model's logits are taken": Mutant(
        "foretoken.drafters.small_lm:SmallLM.hands_over",
        "self._lm.lm is self._amateur",
        "self._amateur is not None",
        (CONTRASTIVE.format("only_the_amateur_hands_over"),),
    ),
    "the amateur never catches up": Mutant(
        "foretoken.models.contrastive:Contrastive._amateur_logits",
        "cache.unread(feed.slots)",
        "{}",
        (CONTRASTIVE.format("steps_without_logits"),),
    ),
    "of a path the amateur reads the root": Mutant(
        f"{PAIRED}.keep",
        "(0, *path)",
        "(0,)",
        (CONTRASTIVE.format("steps_without_logits"),),
    ),
    "what is unread is forgotten by a move": Mutant(
        f"{PAIRED}.release",
        "self._unread[hole], self._unread[last] = self._unread[last], []",
        "self._unread[hole] = self._unread[last] = []",
        (CONTRASTIVE.format("steps_without_logits"),),
    ),
}
"""The logits that an amateur hands over."""
