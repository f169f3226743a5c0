"""A small model with another tokenizer drafts by the tokens that both vocabularies have.

Source: Timor et al. 2025, "Accelerating LLM Inference with Lossless Speculative Decoding Algorithms
for Heterogeneous Vocabularies", token-level intersection (TLI): the proposal is the small model's
distribution over the shared tokens, renormalised, so that any rule for drawn tokens is exact. The
request's sampling parameters are folded in after tokens have got the target's ids. Tokens are the
same where they write the same text; ends and beginnings of a text are, too, whatever they are
called."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import ScheduledChain
from foretoken.errors import ForetokenError
from foretoken.models.drafting.foreign import ForeignOptions, SharedTokensModel
from foretoken.models.model import CausalLM


@dataclass(eq=False)
class Tli(ForeignOptions, ScheduledChain):
    """model: folder, hub id or loaded model; tokenizer: its own, where the folder has none;
    target_tokenizer: where the target was loaded without; draft_backend: how the model's linear
    layers run, by default as the target's do; num_speculative_tokens: draft length;
    num_assistant_tokens_schedule, assistant_confidence_threshold: when a draft ends before it;
    max_cached_words: words whose tokens are remembered, about 0.4 KB each."""

    num_speculative_tokens: int = 4

    wants = Wants("a")

    def __post_init__(self) -> None:
        if self.model is None:
            raise ForetokenError(
                "This method drafts with a small model of any tokenizer; name it, e.g. "
                'speculative_config={"method": "tli", "model": "folder-or-hub-id"}.'
            )
        self.length = self.rule(self.num_speculative_tokens)

    def bind(self, access: Access) -> None:
        self._lm: SharedTokensModel = SharedTokensModel(self, access, self.nodes)

    @property
    def small_models(self) -> Seq[CausalLM]:
        return (self._lm.lm,)
