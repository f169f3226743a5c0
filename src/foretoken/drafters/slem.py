"""A small model with another tokenizer drafts text, which the target's tokenizer cuts into tokens.

Source: Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
for Heterogeneous Vocabularies", string-level exact match (SLEM); transformers' "universal assisted
generation". A token is accepted where the target writes it, so the drafts are chosen tokens and the
text is plain decoding's own. Departures: the look-back reaches to the start of the last word
instead of a fixed number of tokens; and the small model proposes its likeliest text at any
temperature, since a distribution over texts has no use for an exact match.

Legend: B sequences, W the small model's vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

import torch

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import WithModel
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.errors.values import check_tokens
from foretoken.models.drafting.foreign import ForeignModel, ForeignOptions
from foretoken.models.model import CausalLM
from foretoken.sampling.sequence import Sequence
from foretoken.tree import MOST_NODES, DraftTree, chains


@dataclass(eq=False)
class Slem(ForeignOptions, WithModel):
    """model: folder, hub id or loaded model; tokenizer: its own, where the folder has none;
    target_tokenizer: where the target was loaded without; draft_backend: how the model's linear
    layers run, by default as the target's do; num_speculative_tokens: how many tokens
    of its own the small model writes; max_cached_words: words whose tokens are remembered, about
    0.4 KB each."""

    num_speculative_tokens: int = 5

    wants = Wants("a")

    def __post_init__(self) -> None:
        if self.model is None:
            raise ForetokenError(
                "This method drafts with a small model of any tokenizer; name it, e.g. "
                'speculative_config={"method": "slem", "model": "folder-or-hub-id"}.'
            )
        check_tokens(self.num_speculative_tokens, MOST_NODES)

    def bind(self, access: Access) -> None:
        self._lm: ForeignModel = ForeignModel(self, access, self.num_speculative_tokens)

    @property
    def nodes(self) -> int:
        """A token of the small model may be many of the target's; a longer draft is cut."""
        return max(64, 16 * self.num_speculative_tokens)

    @property
    def small_models(self) -> Seq[CausalLM]:
        return (self._lm.lm,)

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        drafts: list[list[int]] = [[] for _ in sequences]
        limits = [
            min(self._lm.room(s), budget) for s, budget in zip(sequences, budgets, strict=True)
        ]
        rows = [row for row, limit in enumerate(limits) if limit > 0]
        written = self._written([sequences[row] for row in rows])
        for row, tokens in zip(rows, written, strict=True):
            drafts[row] = self._retokenized(sequences[row], tokens)[: budgets[row]]
        return chains(drafts, self._lm.device)

    def _written(self, sequences: Seq[Sequence]) -> list[list[int]]:
        """The likeliest text after each, in the small model's tokens."""
        if not sequences:
            return []
        tokens = [self._lm.root_logits(sequences)[:, 0].argmax(-1)]
        while len(tokens) < self.num_speculative_tokens:
            tokens.append(self._lm.next_logits(sequences, tokens[-1])[:, 0].argmax(-1))
        written: list[list[int]] = torch.stack(tokens, 1).tolist()
        return written

    def _retokenized(self, sequence: Sequence, written: list[int]) -> list[int]:
        """The target's tokens for a continuation in the small model's, up to its end."""
        specials, end = self._lm.own.special, self._lm.theirs.ids.get("<eos>")
        stop = next((i for i, token in enumerate(written) if token in specials), len(written))
        draft = self._joined(self._lm.unfinished(sequence), self._lm.own.text(written[:stop]))
        if end is not None and stop < len(written) and specials[written[stop]] == "<eos>":
            draft.append(end)
        return draft

    def _joined(self, word: list[int], text: str) -> list[int]:
        """The target's tokens of a text after an unfinished word: cut from the tokens of both
        together, if these begin with the word's; else those of the text alone."""
        theirs = self._lm.theirs
        if word[0] in theirs.special:
            return theirs.starting(text)
        whole = theirs.continuing(theirs.text(word) + text)
        return whole[len(word) :] if whole[: len(word)] == word else theirs.continuing(text)
