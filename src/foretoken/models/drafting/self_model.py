"""The target's sub-layers, or some of them, as a model that drafts on the target's cache.

It reads the target's keys and values, computed with all layers (as in Zhang et al. 2024; for a
prefix of the layers they are exactly what the prefix alone would compute). Drafted tokens are
written after the committed length, where the next scoring pass overwrites them in every layer. So
nothing has to be rolled back, and layers that were left out get their cells from verification.

Legend: B sequences, T tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from foretoken.access import Access
from foretoken.models.model import CausalLM
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence


class OnTarget:
    """A `ChainModel` on the target's cache, which has nothing to do as sequences come and go."""

    def begin(self, sequence: Sequence) -> None:
        pass

    def follow(self, sequences: Seq[Sequence], steps: Seq[Step]) -> None:
        pass

    def fork(self, sequence: Sequence, copy: Sequence) -> None:
        pass

    def end(self, sequence: Sequence) -> None:
        pass


class TokenByToken(OnTarget):
    """One whose passes take a token of each sequence, after those that this draft has run."""

    def __init__(self, access: Access) -> None:
        self.device = access.device
        self._access = access
        self._ahead = 0  # tokens after the committed length that this draft has run

    def room(self, sequence: Sequence) -> int:
        """How many tokens may be drafted before the context ends."""
        return max(0, self._access.max_length + 1 - len(sequence.tokens))

    def root_logits(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, 1, V] logits after each text, whose last token alone is not in the cache."""
        self._ahead = 0
        roots = torch.tensor([s.tokens[-1] for s in sequences], device=self.device)
        return self.next_logits(sequences, roots)

    def next_logits(self, sequences: Seq[Sequence], tokens: Tensor) -> Tensor:
        """[B, 1, V] logits after one more token [B] of each chain."""
        logits = self._run(sequences, tokens[:, None], self._ahead)
        self._ahead += 1
        return logits

    def _run(self, sequences: Seq[Sequence], tokens: Tensor, ahead: int) -> Tensor:
        """[B, 1, V] logits after tokens [B, 1] that follow `ahead` others."""
        raise NotImplementedError


class SubstituteModel(TokenByToken):
    """A `ChainModel` of another model, of the target's shape, on the target's cache; needs its
    level f."""

    def __init__(self, access: Access, lm: CausalLM) -> None:
        super().__init__(access)
        self.lm = lm

    def _run(self, sequences: Seq[Sequence], tokens: Tensor, ahead: int) -> Tensor:
        return self._access.substitute_logits(self.lm, sequences, tokens, ahead)


class SelfModel(TokenByToken):
    """A `ChainModel` of the named ones of the target's 2L sub-layers; needs its levels c and e."""

    def __init__(self, access: Access, sublayers: Iterable[int]) -> None:
        super().__init__(access)
        self.sublayers = tuple(sublayers)

    def _run(self, sequences: Seq[Sequence], tokens: Tensor, ahead: int) -> Tensor:
        access = self._access
        return access.head(
            access.norm(access.draft_states(sequences, tokens, ahead, self.sublayers))
        )

    def again(self, sequences: Seq[Sequence], count: int) -> Tensor:
        """[B, T, V] logits after each of the T = `count` tokens before the last one, at least 2.

        Keys and values before them are the target's, theirs those of this run.
        """
        states = self._access.rerun_states(sequences, count, self.sublayers)
        return self._access.head(self._access.norm(states))
