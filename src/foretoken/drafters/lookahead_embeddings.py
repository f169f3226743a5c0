"""PaSS: look-ahead embeddings after the text let the target draft several tokens in one pass.

Source: Monea, Joulin, Grave 2023 (PaSS: Parallel Speculative Sampling), section 3. A pass over the
root and L trained embeddings gives L + 1 distributions at once: the root's own, which is the
target's distribution and so is always accepted, and one at each embedding. From each a token is
drawn; the next pass verifies them by speculative sampling. A step is two passes of the target and
writes at least two tokens. Only the embeddings are trained. Departure: training draws places of the
text at random, many for one pass.

Legend: B sequences, L embeddings, C = L + 1 distributions, T places, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import AllAtOnce
from foretoken.drafters.shared.placed_chain import PlacedChain
from foretoken.models.drafting.self_model import OnTarget
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.checkpoint import Trained
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.prompt_tokens import PromptTokens
from foretoken.tree import DraftTree, Kind


class PassTokens(PromptTokens):
    """The look-ahead embeddings; L = num_tokens."""

    method: ClassVar[str] = "pass"

    @property
    def places(self) -> int:
        """How many places are predicted: the text's end is one."""
        return len(self.embeddings) + 1

    def ahead(self, lesson: Lesson, places: Tensor) -> Tensor:
        """[B, R, C, D] the states that predict what follows the places [B, R]."""
        rows = torch.arange(len(places), device=places.device)[:, None]
        roots = lesson.hidden[-1][rows, places]
        return torch.cat((roots[:, :, None], self.states(lesson, places)), 2)

    def head_logits(self, states: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., V] by the target's head."""
        return head(states)


class LookaheadModel(AllAtOnce, OnTarget):
    """A `ChainModel`: the target, read at as many look-ahead embeddings as `places` take, at least
    one. An embedding doesn't see those after it."""

    def __init__(self, tokens: PassTokens, access: Access, places: int) -> None:
        used = tokens.embeddings[: max(1, places - 1)]
        self.device = access.device
        self._access, self._embeddings = access, len(used)
        self._first = access.extra_tokens(used)

    def room(self, sequence: Sequence) -> int:
        """As many tokens as there are distributions, and no more than the context holds."""
        return max(0, min(self._embeddings + 1, self._access.max_length + 1 - len(sequence.tokens)))

    def ahead(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, C, V] logits of the root and of the embeddings after each text."""
        shape = len(sequences), self._embeddings
        numbers = torch.arange(self._embeddings, device=self.device) + self._first
        blocks = DraftTree(
            torch.zeros(shape, dtype=torch.int64, device=self.device),
            [self._embeddings] * shape[0],
            kind=Kind.AUXILIARY,
            extras=numbers.expand(shape),
        )
        return self._access.draft_logits(sequences, blocks)


@dataclass(eq=False)
class LookaheadEmbeddings(PlacedChain):
    """model: a checkpoint's folder, hub id or bundled name; num_speculative_tokens: draft length,
    at most, and by default, one more than the checkpoint has embeddings;
    num_assistant_tokens_schedule, assistant_confidence_threshold: when a draft ends before it."""

    module: ClassVar[type[Trained]] = PassTokens
    wants = Wants("ad")

    def bind(self, access: Access) -> None:
        tokens = PassTokens.load(self.model, access)
        places = self.depth(tokens)
        self.length = self.rule(places)
        self._lm = LookaheadModel(tokens, access, places)
