"""A small language model that is trained as a drafter, from and to an ordinary checkpoint.

It reads the text alone, so it learns at every place of a text: from the target's distribution, or
from the token itself. Source: Zhou et al. 2024 (DistillSpec), section 3; with "nll" on what
the target wrote it is sequence-level distillation (Kim and Rush 2016).

Legend: B rows, T places, D width, V vocabulary, P tokens to predict.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from foretoken.errors import ForetokenError, unknown
from foretoken.models.load import find, read_config
from foretoken.models.model import CausalLM, eos_ids
from foretoken.models.native.build import build_native
from foretoken.models.native.transformer import unsupported
from foretoken.trainable.checkpoint import Facts, Trained, VocabularyLayers
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective, chunked, drawn_chance
from foretoken.trainable.packed_attention import Packed, attending

_CHUNK = 256  # places whose logits exist at once


class TrainedLM(Trained):
    """model: a checkpoint to begin with (folder, hub id or bundled name). Without one, `numbers`
    are fields of a Llama configuration, e.g. hidden_size, and the embedding begins as the target's,
    projected on its principal directions. `save` writes an ordinary checkpoint."""

    method: ClassVar[str] = "sps"

    def __init__(self, facts: Facts, model: str | None = None, **numbers: Any) -> None:
        super().__init__(facts, model=model, **numbers)
        if model is not None and numbers:
            raise ValueError("give a model to begin with or the numbers of a new one")
        lm = self.lm = _new(facts, numbers) if model is None else _loaded(model)
        if lm.config.vocab_size != facts.vocab_size:
            raise ForetokenError(
                f"{model} has a vocabulary of {lm.config.vocab_size} tokens and the target of "
                f"{facts.vocab_size}, and training needs as many; begin with one of the target's "
                "size, or give numbers, e.g. --set 'shape={hidden_size: 96, num_hidden_layers: 2}'."
            )

    @property
    def checkpoint_module(self) -> nn.Module:
        return self.lm  # type: ignore[no-any-return]

    def checkpoint_config(self, extra: Mapping[str, Any]) -> dict[str, Any]:
        """With the ends of text, which the model that it began as may have in another file."""
        model: dict[str, Any] = {"architectures": [type(self.lm).__name__]}
        model["dtype"] = str(self.lm.dtype)[6:]
        ends = sorted(eos_ids(self.lm.generation_config))
        model |= {"eos_token_id": ends[0] if len(ends) == 1 else ends} if ends else {}
        return {**self.lm.config.to_diff_dict(), **model}

    def save_tokenizer(self, folder: Path, tokenizer: Any) -> None:
        tokenizer.save_pretrained(folder)

    def copy_from(self, target: VocabularyLayers) -> None:
        """A new model's embedding is the target's, centred, on its principal directions."""
        if self.shape["model"] is not None:
            return
        weight = self.lm.get_input_embeddings().weight
        with torch.no_grad():
            table = target.embed(torch.arange(len(weight), device=weight.device)).float()
            table = table - table.mean(0)
            directions = torch.linalg.svd(table, full_matrices=False)[2][: weight.shape[1]]
            small = table @ directions.T
            scale = self.lm.config.initializer_range / small.std()
            weight[:, : small.shape[1]] = (small * scale).to(weight.dtype)

    def forward(self, lesson: Lesson, objective: Objective) -> Tensor:
        return self.loss(self.states(lesson), lesson, objective)

    def loss(self, states: Tensor, lesson: Lesson, objective: Objective) -> Tensor:
        """The training loss; states: this model's, [B, T, D] along the text."""
        counts = (lesson.weight > 0) & (lesson.positions > 0)
        row, token = counts.nonzero(as_tuple=True)  # [P]
        before, goal = states[row, token - 1], lesson.tokens[row, token]
        share = lesson.weight[row, token]
        self.total = share.sum()
        share = share / self.total.clamp(min=1e-9)
        target_states = lesson.hidden[-1][row, token - 1] if objective.reads_target else None

        def measure(at: slice, part: Tensor) -> Tensor:
            target = None if target_states is None else lesson.head(target_states[at])
            return (objective(self.head(part), target, goal[at]) * share[at]).sum()

        parameters = list(self.lm.get_output_embeddings().parameters())
        return chunked(measure, [before], parameters, lesson.places_at_once(_CHUNK, 2))

    def head(self, states: Tensor) -> Tensor:
        """Normed states [..., D] -> logits [..., V]."""
        logits: Tensor = self.lm.get_output_embeddings()(states)
        cap = getattr(self.lm.config, "final_logit_softcapping", None)
        return logits if cap is None else (logits / cap).tanh() * cap

    def states(self, lesson: Lesson) -> Tensor:
        """[B, T, D] its normed last states."""
        with attending(self.lm):
            out = self.lm.base_model(
                input_ids=lesson.tokens,
                position_ids=lesson.positions,
                use_cache=False,
                among=Packed(lesson).attend,
            )
        states: Tensor = out.last_hidden_state
        return states

    def token_acceptance(self, lesson: Lesson, at: Tensor) -> Tensor:
        """[B, T] the chance that its draft after each place is accepted and is the text's token:
        0 or 1 at temperature 0, above it min(1, q / p); 0 where the record ends there, and but at
        these places [B, T]."""
        states = self.states(lesson)
        chances = states.new_zeros(lesson.tokens.shape)
        same = lesson.records[:, 1:] == lesson.records[:, :-1]
        row, place = (same & (lesson.records[:, 1:] >= 0) & at[:, :-1]).nonzero(as_tuple=True)
        for r, t in zip(row.split(_CHUNK), place.split(_CHUNK), strict=True):
            logits, goal = self.head(states[r, t]), lesson.tokens[r, t + 1]
            if lesson.temperature:
                target = lesson.head(lesson.hidden[-1][r, t])
                chance = drawn_chance(logits, target, goal, lesson.temperature)
            else:
                chance = (logits.argmax(-1) == goal).to(chances.dtype)
            chances[r, t] = chance.to(chances.dtype)
        return chances

    def native(self) -> CausalLM:
        """A copy as a native model, which serves."""
        weights = self.lm.state_dict()
        config, place = self.lm.config, self.lm.device
        return build_native(config, lambda name: weights[name], self.lm.dtype, place, "plain")


def _loaded(model: str) -> Any:
    """A checkpoint's model in float32; without its weights where modules are made without memory.
    Raises `ForetokenError` as `native_config`."""
    from transformers import AutoModelForCausalLM

    from foretoken.models.hf import adapter

    config = native_config(model)
    if torch.get_default_device().type == "meta":
        return AutoModelForCausalLM.from_config(config)
    return adapter.load(find(model), torch.float32, torch.device("cpu"), False).model


def native_config(model: str) -> Any:
    """The configuration of a checkpoint that can be trained. Raises `ForetokenError` for a family
    that the native model doesn't serve: what is trained has to be what is served."""
    try:
        config = read_config(find(model))
        reason = unsupported(config)
    except ForetokenError as error:
        if "trust_remote_code" not in str(error):
            raise
        reason = "it is read by code that comes with it, and doesn't run natively"
    if reason:
        raise ForetokenError(
            f"{model} can't be trained as a drafter: {reason}; begin with another model."
        )
    return config


def _new(facts: Facts, numbers: Mapping[str, Any]) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    fields = LlamaConfig().to_dict()
    for name in numbers:
        if name not in fields:
            raise unknown("number of a new drafter", name, fields)
    settings = {"tie_word_embeddings": True, "bos_token_id": None, "eos_token_id": None, **numbers}
    return LlamaForCausalLM(LlamaConfig(**settings, vocab_size=facts.vocab_size))
