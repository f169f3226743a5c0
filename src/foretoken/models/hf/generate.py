"""What transformers' `generate` has prepared by the time it decodes, row by row.

`generate` hands over one padded batch and lists of logits processors and stopping criteria that
look at whole batches. Here every row gets its own prompt, sampling parameters and criterion, such
that a row's result is that of running the row alone.

Processors and criteria see a row as plain decoding shows it, its left padding included, so lengths
and prompt offsets mean what they always do; the built-in ones that look back at tokens
(`_LOOK_BACK`) don't see the padding. Where one may tell rows apart by their place, it gets a batch
of copies of the row.

Legend: B rows, P width of the padded prompts, T new tokens, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from copy import copy
from dataclasses import dataclass
from math import inf
from typing import Any

import torch
import transformers as tf
from torch import Tensor

from foretoken.errors import ForetokenError
from foretoken.models.hf.cache import evaluating
from foretoken.sampling.params import LogitsProcessor, SamplingParams

_LOOK_BACK = (
    tf.RepetitionPenaltyLogitsProcessor,
    tf.NoRepeatNGramLogitsProcessor,
    tf.SequenceBiasLogitsProcessor,
)
_ROW_BOUND = (
    tf.PrefixConstrainedLogitsProcessor,
    tf.EncoderRepetitionPenaltyLogitsProcessor,
    tf.EncoderNoRepeatNGramLogitsProcessor,
)
_STATEFUL = (
    tf.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    tf.SynthIDTextWatermarkLogitsProcessor,
)
_OWN = {
    tf.RepetitionPenaltyLogitsProcessor: ("penalty", "repetition_penalty"),
    tf.TemperatureLogitsWarper: ("temperature", "temperature"),
    tf.TopKLogitsWarper: ("top_k", "top_k"),
    tf.TopPLogitsWarper: ("top_p", "top_p"),
    tf.MinPLogitsWarper: ("min_p", "min_p"),
}
"""Processors that are sampling parameters of ours: (their attribute, our name), in our order."""

_INPUTS = {"attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep"}


class Prepared:
    """The batch that `generate` hands over, checked.

    starts [B]: where each row's left padding ends. limit: new tokens at most. pad: what fills
    short rows. criteria: those that are neither a length nor an end-of-text token.
    """

    def __init__(
        self,
        model: Any,
        input_ids: Tensor,
        processors: Seq[Any],
        criteria: Iterable[Any],
        config: Any,
        model_kwargs: Mapping[str, Any],
    ) -> None:
        """`config`: the generation config. Raises `ForetokenError` for what can't be served."""
        _refuse(model, config, processors, model_kwargs)
        self.model, self.config, self.model_kwargs = model, config, model_kwargs
        self.input_ids, self.processors = input_ids, list(processors)
        self.rows, self.width = input_ids.shape
        self.starts = _starts(input_ids, model_kwargs)
        every = list(criteria)
        lengths = [c.max_length for c in every if type(c) is tf.MaxLengthCriteria]
        self.limit: int = max(1, min(lengths) - self.width)
        ends = [c.eos_token_id for c in every if type(c) is tf.EosTokenCriteria]
        self.eos_ids = frozenset(int(i) for ids in ends for i in ids.flatten())
        known = (tf.MaxLengthCriteria, tf.EosTokenCriteria)
        self.criteria = [c for c in every if type(c) not in known]
        pad = _pad_id(config)
        if self.criteria and self.rows > 1 and pad is None:
            raise ForetokenError(
                "Stopping criteria end rows at different lengths; pass pad_token_id to fill them."
            )
        self.pad = pad or 0

    def prompt(self, row: int) -> list[int]:
        """A row's tokens without its padding."""
        ids: list[int] = self.input_ids[row, self.starts[row] :].tolist()
        return ids

    def params(self) -> list[SamplingParams]:
        """Each row's; seeds come from torch's global generator, and only where one samples."""
        sampled = bool(self.config.do_sample)
        own, rest = self._own(sampled)
        seeds = torch.randint(2**62, (self.rows,)).tolist() if sampled else [0] * self.rows
        return [
            SamplingParams(
                max_tokens=self.limit,
                seed=seed,
                **own,
                logits_processors=tuple(self.processor(process, row) for process in rest),
            )
            for row, seed in enumerate(seeds)
        ]

    def _own(self, sampled: bool) -> tuple[dict[str, Any], list[Any]]:
        """The last processors as sampling parameters, for as long as the distribution is the same;
        the rest.

        Ours fold a whole pass at once; a processor is called at every drafted place.
        """
        own: dict[str, Any] = {"temperature": 1.0 if sampled else 0.0}
        rest, order = list(self.processors), list(_OWN)
        order = order if sampled else order[:1]
        while rest and type(rest[-1]) in order and self._same_distribution(rest[-1], own):
            process = rest.pop()
            attribute, parameter = _OWN[type(process)]
            own[parameter] = getattr(process, attribute)
            order = order[: order.index(type(process))]
        return own, rest

    def _same_distribution(self, process: Any, own: Mapping[str, Any]) -> bool:
        if isinstance(process, tf.RepetitionPenaltyLogitsProcessor):
            return self._only_padding(process)
        # Ours cuts by min_p first, and top_p then counts what is left of the mass.
        tops = isinstance(process, tf.TopPLogitsWarper)
        if tops and ("min_p" in own or not 0 < process.top_p <= 1):
            return False
        settings = (
            getattr(process, "filter_value", -inf),
            getattr(process, "min_tokens_to_keep", 1),
        )
        return settings == (-inf, 1)

    def _only_padding(self, process: Any) -> bool:
        """Whether a processor that may ignore part of the prompt ignores the padding at most."""
        ignored = getattr(process, "prompt_ignore_length", None)
        return ignored is None or (isinstance(ignored, Tensor) and ignored.tolist() == self.starts)

    def processor(self, process: Any, row: int) -> LogitsProcessor:
        """A processor for one unpadded row, which does what `process` does to it within the
        batch."""
        ids = self.input_ids[row : row + 1]
        padding = ids[:, : self.starts[row]]
        stock = type(process).__module__ == tf.LogitsProcessor.__module__
        if stock and isinstance(process, _LOOK_BACK) and self._only_padding(process):
            process = copy(process)
            process.prompt_ignore_length = None
            return _InBatch(process, ids[:, :0], 0, 1)
        ignored = getattr(process, "prompt_ignore_length", None)
        if stock and not isinstance(process, _ROW_BOUND) and not isinstance(ignored, Tensor):
            return _InBatch(process, padding, 0, 1)
        return _InBatch(process, padding, row, self.rows)

    def criterion(self, row: int) -> Callable[[Seq[int]], bool] | None:
        """Whether one of the criteria ends the row after the new tokens so far; None without."""
        prompt = self.input_ids[row : row + 1]

        def met(output: Seq[int]) -> bool:
            new = torch.tensor([list(output)], device=prompt.device)
            ids = torch.cat((prompt, new), 1).repeat(self.rows, 1)
            answers = [torch.as_tensor(criterion(ids, None)) for criterion in self.criteria]
            return any(
                bool(a.flatten()[row] if a.numel() == self.rows else a.any()) for a in answers
            )

        return met if self.criteria else None

    def traced(self, sequences: Tensor) -> dict[str, Any]:
        """`logits` and `scores` as asked for: T tensors [B, V], by one pass over [B, P + T]."""
        if not (self.config.output_scores or self.config.output_logits):
            return {}
        logits = self._logits(sequences)
        extras: dict[str, Any] = {}
        if self.config.output_logits:
            extras["logits"] = logits.unbind(1)
        if self.config.output_scores:
            extras["scores"] = tuple(
                torch.cat([self._scores(sequences, logits, t, row) for row in range(self.rows)])
                for t in range(logits.shape[1])
            )
        return extras

    def _logits(self, sequences: Tensor) -> Tensor:
        """[B, T, V] the model's own, in float32 like transformers'."""
        new, device = sequences.shape[1] - self.width, self.model.device
        starts = torch.tensor(self.starts, device=device)[:, None]
        places = torch.arange(sequences.shape[1], device=device) - starts
        inputs = {
            "input_ids": sequences.to(device),
            "attention_mask": (places >= 0).long(),
            "position_ids": places.clamp(min=0),
            "use_cache": False,
            "return_dict": True,
        }
        if "logits_to_keep" in self.model_kwargs:
            inputs["logits_to_keep"] = new + 1
        with evaluating(self.model):
            logits: Tensor = self.model(**inputs).logits[:, -new - 1 : -1]
        return logits.to(sequences.device, torch.float32)

    def _scores(self, sequences: Tensor, logits: Tensor, t: int, row: int) -> Tensor:
        """[1, V] what new token t of a row was chosen by."""
        ids = sequences[row : row + 1, self.starts[row] : self.width + t]
        scores = logits[row : row + 1, t]
        for process in self.processors:
            scores = self.processor(process, row)(ids, scores)
        return scores


@dataclass(frozen=True)
class _InBatch:
    """Calls a processor on its own device with copies of a row, and takes the row at its place."""

    process: Callable[[Tensor, Tensor], Tensor]
    padding: Tensor
    row: int
    rows: int

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        device = self.padding.device
        ids = torch.cat((self.padding, input_ids.to(device)), 1)
        done = self.process(ids.repeat(self.rows, 1), scores.to(device).repeat(self.rows, 1))
        return done[self.row : self.row + 1].to(scores.device)


def _refuse(model: Any, config: Any, processors: Seq[Any], model_kwargs: Mapping[str, Any]) -> None:
    """Everything that would otherwise be silently wrong."""

    def asks(*names: str) -> bool:
        return any(getattr(config, name, None) for name in names)

    shown = bool(config.return_dict_in_generate)
    cache = model_kwargs.get("past_key_values")
    refused = {
        "an encoder-decoder model": model.config.is_encoder_decoder,
        "beam search (num_beams > 1)": (config.num_beams or 1) > 1,
        "constraints or force_words_ids": asks("constraints", "force_words_ids"),
        "contrastive search (penalty_alpha)": asks("penalty_alpha"),
        "DoLa (dola_layers)": asks("dola_layers"),
        "assistant_early_exit or use_mtp": asks("assistant_early_exit", "use_mtp"),
        "output_attentions or output_hidden_states": (
            shown and asks("output_attentions", "output_hidden_states")
        ),
        "inputs that a wrapper adds (prompt or prefix tuning)": (
            "prepare_inputs_for_generation" in vars(model)
        ),
        "a cache that already holds tokens (past_key_values)": (
            cache is not None and cache.get_seq_length() > 0
        ),
    }
    for process in processors:
        refused[f"{type(process).__name__}, which keeps a state"] = isinstance(process, _STATEFUL)
    for name, value in model_kwargs.items():
        refused[f"the model input {name}"] = name not in _INPUTS and value is not None
    for what, is_asked in refused.items():
        if is_asked:
            raise ForetokenError(
                f"foretoken.assisted does not support {what}; leave it out, or call generate "
                "without custom_generate."
            )


def _starts(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> list[int]:
    """Where each row's left padding ends. Raises for any other mask, or other positions."""
    rows, width = input_ids.shape
    mask, positions = model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
    if mask is None:
        mask = torch.ones_like(input_ids)
    fits = isinstance(mask, Tensor) and mask.shape == input_ids.shape
    seen = mask != 0 if fits else torch.zeros_like(input_ids, dtype=torch.bool)  # refused below
    starts = seen.int().argmax(1)  # [B]
    places = torch.arange(width, device=seen.device) - starts[:, None]  # [B, P]
    if not torch.equal(seen, places >= 0):
        raise ForetokenError(
            "attention_mask must be zeros for left padding and then ones in every row; use "
            "padding_side='left' in the tokenizer, and no empty prompts."
        )
    if positions is not None:
        expanded = positions.expand(rows, width) if positions.dim() == 2 else None
        if expanded is None or not bool(((expanded == places) | (places < 0)).all()):
            raise ForetokenError(
                "position_ids must count each row's tokens from 0; leave them out of generate."
            )
    return [int(start) for start in starts]


def _pad_id(config: Any) -> int | None:
    """The padding token, as transformers chooses it: without one, the first end-of-text token."""
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    ends = config.eos_token_id
    ends = [ends] if isinstance(ends, int) else ends
    return int(ends[0]) if ends else None
