"""A smaller language model drafts a chain by its own sampling.

Source: Leviathan et al. 2023; Chen et al. 2023. The proposal is the small model's distribution
under the request's own sampling parameters (temperature, truncation, penalties), as those papers'
section on sampling settings asks; a rule of `length.py` ends the draft. The rule "fallback"
makes it the small model of Big Little Decoder (Kim et al. 2023; see `length.Fallback`). The model
may be trained for its target (Zhou et al. 2024, DistillSpec; see `trainable/small_lm.py`). If it is
a contrastive target's amateur, its logits serve the target too (Yuan et al. 2024).
"""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import ScheduledChain
from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.models.drafting.draft_model import DraftModel, is_of
from foretoken.models.model import CausalLM
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.lesson import Lesson, chain_acceptance
from foretoken.trainable.small_lm import TrainedLM
from foretoken.tree import DraftTree


@dataclass(eq=False)
class SmallLM(ScheduledChain):
    """model: folder, hub id, bundled name or loaded model; num_speculative_tokens: draft length;
    num_assistant_tokens_schedule: when a draft ends before it, a name in `length.SCHEDULES` or a
    rule; assistant_confidence_threshold, draft_cost: options of that rule, where it has them;
    draft_backend: how the model's linear layers run, e.g. "q4", by default as the target's do;
    draft_vocab_size: how many tokens the model may draft, the first ids and the ends of text, None
    for all."""

    model: Any = None
    num_speculative_tokens: int = 4
    draft_cost: float | None = None
    draft_backend: str | None = None
    draft_vocab_size: int | None = None

    module: ClassVar[type[TrainedLM]] = TrainedLM
    wants = Wants("a")
    follows = True
    pass_per_token = True

    def __post_init__(self) -> None:
        if self.model is None:
            raise ForetokenError(
                "This method drafts with a small model; name it, e.g. "
                'speculative_config={"method": "sps", "model": "folder-or-hub-id"}.'
            )
        self.length = self.rule(self.num_speculative_tokens, draft_cost=self.draft_cost)

    def bind(self, access: Access) -> None:
        self._amateur, model = access.amateur, self.model
        as_given = self.draft_backend is None and self.draft_vocab_size is None
        if self._amateur is not None and as_given:
            model = self._amateur if is_of(self._amateur, model) else model
        # A row that drafts little follows the others, and the logits after a whole draft are one
        # place further on.
        self._lm: DraftModel = DraftModel(
            model, access, self.nodes + 1, self.draft_backend, self.draft_vocab_size
        )
        self._declare_cost()

    def _declare_cost(self) -> None:
        # A rule that ends a draft before a token has taken that token's pass, too.
        self.pass_per_token = not (self.length.stops_before or self.hands_over)

    @property
    def hands_over(self) -> bool:
        """Whether the model that drafts is a contrastive target's amateur."""
        return self._lm.lm is self._amateur

    def draft(self, sequences: Seq[Sequence], budgets: Seq[int], draws: Draws) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        if self.hands_over:  # of a sequence that drafts nothing only the root's logits are wanted
            for sequence, budget in zip(sequences, budgets, strict=True):
                if not budget:
                    self._lm.keep(sequence, len(sequence.tokens))
        return tree

    def replace_model(self, lm: CausalLM) -> None:
        """Draft with another model of the same shape from now on."""
        self._lm.replace(lm)
        self._declare_cost()

    @property
    def small_models(self) -> Seq[CausalLM]:
        return (self._lm.lm,)

    def acceptance(self, module: TrainedLM, lesson: Lesson) -> Tensor:
        """[B, T, N] the probability that a step with its root at t accepts more than n tokens."""
        chances = module.token_acceptance(lesson, lesson.max_nodes > 0)
        return chain_acceptance(chances, lesson.max_nodes, self.num_speculative_tokens)
