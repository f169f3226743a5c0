"""SpecDec: a small model drafts a block in one pass, with a mask for each place.

Source: Xia et al. 2023 (SpecDec), sections 3.1 (Spec-Drafter) and 3.2 (Spec-Verification, which is
the rule `top_beta`). A non-autoregressive model reads the text and k masks after it and guesses
all their places at once. Departures, as the target here is a decoder: so is the drafter, a small
language model whose masks see the text and the masks before them, and which may begin as an
existing one; the root and each mask predict the next place, so k masks give k + 1 tokens; training
is by any objective at random places, without the paper's glancing.

Legend: B rows, T places, R blocks of a row, k masks, C = k + 1 guesses, D width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from foretoken.access import Access, Wants
from foretoken.drafters.shared.chain import AllAtOnce
from foretoken.drafters.shared.placed_chain import PlacedChain
from foretoken.errors import ForetokenError
from foretoken.models.drafting.draft_model import DraftModel
from foretoken.models.model import CausalLM
from foretoken.models.native import backends
from foretoken.models.native.build import build_native
from foretoken.sampling.sequence import Sequence
from foretoken.trainable.appended import block_positions, blocks_loss, draw_places
from foretoken.trainable.checkpoint import Facts, Trained, VocabularyLayers
from foretoken.trainable.layer import heads_for
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective
from foretoken.trainable.packed_attention import attending, masked
from foretoken.trainable.small_lm import TrainedLM

_NUMBERS = (
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_parameters",
    "tie_word_embeddings",
)
"""Fields of the language model's configuration that a checkpoint stores."""


class SpecDecModel(Trained):
    """A language model and k trained mask embeddings. masks: k; blocks: places of each row after
    which a training step puts them. model, numbers: what the language model begins as, as in
    `TrainedLM`; by default two layers of the target's width."""

    method: ClassVar[str] = "specdec"
    serves_itself: ClassVar[bool] = False

    def __init__(
        self,
        facts: Facts,
        masks: int = 4,
        blocks: int = 64,
        model: str | None = None,
        **numbers: Any,
    ) -> None:
        super().__init__(facts, masks=masks, blocks=blocks, model=model, **numbers)
        self.base = TrainedLM(
            facts, model, **(numbers if model else {**_default_numbers(facts), **numbers})
        )
        kind = self.base.lm.config.model_type
        if kind != "llama":
            raise ForetokenError(
                f"{model} is of the family {kind!r} and a block drafter begins as a 'llama'; name "
                "another model, or give the numbers of a new one."
            )
        self.masks = nn.Parameter(0.02 * torch.randn(masks, self.base.lm.config.hidden_size))

    def checkpoint_config(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        config = self.base.lm.config
        numbers = {name: getattr(config, name) for name in _NUMBERS}
        shape = {"masks": self.shape["masks"], "blocks": self.shape["blocks"], **numbers}
        return {**super().checkpoint_config(extra), "shape": shape}

    def of_vocabulary(self) -> list[Tensor]:
        return [*super().of_vocabulary(), self.masks]

    def copy_from(self, target: VocabularyLayers) -> None:
        self.base.copy_from(target)

    @property
    def places(self) -> int:
        """How many places are predicted: the text's end is one."""
        return len(self.masks) + 1

    def ahead(self, lesson: Lesson, places: Tensor) -> Tensor:
        """[B, R, C, D] at the places [B, R] and at the masks after each."""
        lm, (batch, length) = self.base.lm, lesson.tokens.shape
        positions, mask = block_positions(lesson, places, len(self.masks))
        masks = self.masks.repeat(places.shape[1], 1).expand(batch, -1, -1)
        with attending(lm):
            out = lm.base_model(
                inputs_embeds=torch.cat((lm.get_input_embeddings()(lesson.tokens), masks), 1),
                position_ids=torch.cat((lesson.positions, positions), 1),
                use_cache=False,
                among=partial(masked, mask),
            ).last_hidden_state
        roots = out[torch.arange(batch, device=out.device)[:, None], places]
        masks = out[:, length:].unflatten(1, (places.shape[1], -1))
        return torch.cat((roots[:, :, None], masks), 2)

    def head_logits(self, states: Tensor, head: Callable[[Tensor], Tensor]) -> Tensor:
        """[..., V] by its own head."""
        logits: Tensor = self.base.lm.get_output_embeddings()(states)
        return logits

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        places = draw_places(lesson, self.shape["blocks"], 1)
        head = self.base.lm.get_output_embeddings()
        states = self.ahead(lesson, places)
        return blocks_loss(lesson, places, states, 1, head, list(head.parameters()), objective)


def _default_numbers(facts: Facts) -> dict[str, Any]:
    width = max(16, facts.hidden_size)
    return {
        "hidden_size": width,
        "intermediate_size": 8 * width // 3,
        "num_hidden_layers": 2,
        "num_attention_heads": heads_for(width),
        "num_key_value_heads": heads_for(width),
        "max_position_embeddings": 8192,
    }


class BlockModel(AllAtOnce, DraftModel):
    """A `ChainModel`: the language model, and as many of its masks after the text as `places` take,
    at least one. A mask doesn't see those after it."""

    def __init__(self, module: SpecDecModel, access: Access, places: int) -> None:
        lm, self._masks = module.base.lm, module.masks[: max(1, places - 1)]
        weights = lm.state_dict()
        backend = access.backend if backends.known(access.backend) else "auto"
        native = build_native(lm.config, weights.__getitem__, access.dtype, access.device, backend)
        super().__init__(native, access, len(self._masks))

    def room(self, sequence: Sequence) -> int:
        """As many tokens as there are guesses, and no more than the context holds."""
        return min(super().room(sequence), len(self._masks) + 1)

    def ahead(self, sequences: Seq[Sequence]) -> Tensor:
        """[B, C, V] logits of the block after each text."""
        return self.block(sequences, self._masks)


@dataclass(eq=False)
class SpecDec(PlacedChain):
    """model: a checkpoint's folder, hub id or bundled name; num_speculative_tokens: draft length,
    at most, and by default, one more than the checkpoint has masks; num_assistant_tokens_schedule,
    assistant_confidence_threshold: when a draft ends before it."""

    module: ClassVar[type[Trained]] = SpecDecModel
    wants = Wants("a")
    follows = True

    def bind(self, access: Access) -> None:
        module = SpecDecModel.load(self.model, access)
        places = self.depth(module)
        self.length = self.rule(places)
        self._lm: BlockModel = BlockModel(module, access, places)

    @property
    def small_models(self) -> Seq[CausalLM]:
        return (self._lm.lm,)
