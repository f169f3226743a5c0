"""transformers' own `generate`, decoded by our loop.

    model.generate(**inputs, custom_generate=foretoken.assisted(draft_model=small))

transformers prepares everything (generation config, logits processors, stopping criteria) and hands
it over; `models/hf/generate.py` reads that row by row. `assisted` carries what transformers keeps
to itself when `custom_generate` is callable: draft model, tokenizer and stop strings.

Departures from plain `generate`: logits processors are called for drafted places too and must
depend on (input_ids, scores) alone; criteria are called after every token that is kept, row by row,
with scores=None; a row that one of them ended is padded, also where there is no end-of-text token
(plain `generate` then lets it go on until all rows end); no padding is seen by built-in processors
that look back at tokens; and a row ends where the model's context does.

Legend: B rows, P width of the padded prompts, T new tokens.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Mapping
from collections.abc import Sequence as Seq
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
import transformers as tf
from torch import Tensor

from foretoken.config import (
    AUTO,
    ONLINE,
    build,
    guessed_method,
    needs_of,
    options_of,
    parse,
    row_of,
)
from foretoken.engine.engine import Engine
from foretoken.engine.outputs import CompletionOutput
from foretoken.engine.stats import EngineStats
from foretoken.engine.worker import check_unserved
from foretoken.errors import ForetokenError, shown
from foretoken.grammar.params import StructuredOutputsParams, structured
from foretoken.methods import Need
from foretoken.models.drafting.draft_model import as_causal_lm
from foretoken.models.hf.adapter import HFModel
from foretoken.models.hf.generate import Prepared
from foretoken.models.load import tokenizer_of
from foretoken.models.model import CausalLM
from foretoken.models.target import ModelTarget
from foretoken.registry import LOADED_AS, OPTION_ALIASES
from foretoken.speculative_config import AnyConfig
from foretoken.tuned import resolve_tuned

_log = logging.getLogger(__name__)

_LENGTH, _SCHEDULE = "num_speculative_tokens", "num_assistant_tokens_schedule"
_THRESHOLD = "assistant_confidence_threshold"
_CONFIDENCE = "confidence"
"""The schedule that transformers calls "constant" with a threshold."""


@runtime_checkable
class Streamer(Protocol):
    """As in transformers."""

    def put(self, value: Tensor) -> None: ...

    def end(self) -> None: ...


def assisted(
    method: Any = None,
    *,
    draft_model: Any = None,
    streamer: Any = None,
    tokenizer: Any = None,
    stop_strings: str | Seq[str] | None = None,
    prompt_lookup_num_tokens: int | None = None,
    speculative_config: AnyConfig | None = None,
    structured_outputs: StructuredOutputsParams | Mapping[str, Any] | None = None,
    **options: Any,
) -> Assisted:
    """What to give to `model.generate(..., custom_generate=...)` for speculative decoding.

    Works for any batch size, with left padding and with `num_return_sequences`. Greedy output is
    plain decoding's; sampled output follows the same distribution and is repeatable by
    `torch.manual_seed`.

    Args:
        method: a name from `foretoken methods`, or a drafter. By default that of the trained
            drafter that `draft_model` names, "sps" with another draft model, and otherwise "pld"
            (prompt lookup), which needs nothing.
        draft_model: a small model with the same vocabulary: loaded, a folder, or a hub id; or a
            trained drafter's, which is read at each call. What a loaded one's `generation_config`
            holds as `num_assistant_tokens`, `…_schedule` and `assistant_confidence_threshold`
            counts.
        streamer: as for `generate`, which takes it as well.
        tokenizer, stop_strings: as for `generate`, which refuses them with `custom_generate`; a
            tokenizer can also be where to find one.
        prompt_lookup_num_tokens: "pld" with drafts of this length.
        speculative_config: all of this in one mapping, as `foretoken.LLM` takes it.
        structured_outputs: what each row's new text must be, as `SamplingParams` takes it; needs
            `tokenizer`, and has no `output_scores`.
        options: the method's other options, e.g. `num_speculative_tokens=5`.

    Raises:
        ForetokenError: for an unknown method or option; from `generate`, for what can't be served.

    Example:
        hook = foretoken.assisted(draft_model=small, tokenizer=tok, stop_strings=["\\n\\n"])
        ids = model.generate(**inputs, max_new_tokens=64, custom_generate=hook)
        print(hook.stats.mean_acceptance_length)
    """
    if streamer is not None and not isinstance(streamer, Streamer):
        raise ForetokenError(
            f"streamer is {shown(streamer)}; give one as transformers has them, with put and end."
        )
    if draft_model is not None and prompt_lookup_num_tokens is not None:
        raise ForetokenError("Give draft_model or prompt_lookup_num_tokens, not both.")
    given = {
        "method": method,
        "draft_model": draft_model,
        "prompt_lookup_num_tokens": prompt_lookup_num_tokens,
    }
    given = {key: value for key, value in given.items() if value is not None}
    config = _of_method(speculative_config, {**options, **given})
    if tokenizer is not None:
        tokenizer = tokenizer_of(tokenizer, None, False)
    if stop_strings and tokenizer is None:
        raise ForetokenError("stop_strings need a tokenizer; pass assisted(tokenizer=…) as well.")
    strings = [tf.StopStringCriteria(tokenizer, stop_strings)] if stop_strings else []
    if isinstance(structured_outputs, Mapping):
        structured_outputs = structured(structured_outputs)
    if structured_outputs is not None and tokenizer is None:
        raise ForetokenError("structured_outputs need a tokenizer; pass assisted(tokenizer=…) too.")
    return Assisted(config, streamer, strings, tokenizer, structured_outputs)


def _of_method(speculative_config: AnyConfig | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """The method and its options, which win over `speculative_config`'s, by their names here.
    Raises `ForetokenError` for what can't be served."""
    if speculative_config is not None and not isinstance(speculative_config, Mapping):
        raise ForetokenError(
            f"speculative_config is {shown(speculative_config)}; give a mapping, e.g. "
            '{"method": "pld"}.'
        )
    config = resolve_tuned({**(speculative_config or {}), **options})
    models = [
        key
        for key, value in config.items()  # but for a part's options
        if OPTION_ALIASES.get(key, key) == "model" and not isinstance(value, Mapping)
    ]
    if config.get("method") is None:
        config["method"] = guessed_method({"model": config[models[0]]}) if models else "pld"
    if _takes_schedules(config["method"]):
        named = _schedule(config.get(_SCHEDULE), config.get(_THRESHOLD))
        config |= {} if named is None else {_SCHEDULE: named}
    if isinstance(config["method"], str) and parse(config["method"]).combiner == ONLINE:
        raise ForetokenError(
            "assisted keeps no drafter between calls, so 'online' would forget what it learned; "
            "use foretoken.LLM(model, …), which takes a loaded model, too."
        )
    build(config)  # an unknown name, or two of one option, fails here, not at the first call
    for key in models:
        config["model"] = config.pop(key)
    if "prompt_lookup_num_tokens" in options:
        config[_LENGTH] = config.pop("prompt_lookup_num_tokens")
    return config


class Assisted:
    """A decoding method for `generate`. `stats`: what the last call drafted and accepted."""

    def __init__(
        self,
        config: Mapping[str, Any],
        streamer: Any,
        criteria: Seq[Any],
        tokenizer: Any = None,
        structured_outputs: StructuredOutputsParams | None = None,
    ) -> None:
        """`assisted` makes these."""
        self.config, self.streamer, self.criteria = config, streamer, criteria
        self.tokenizer, self.structured_outputs = tokenizer, structured_outputs
        self.stats = EngineStats()
        self._wrapped: dict[Any, tuple[Any, CausalLM]] = {}

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        *,
        logits_processor: Seq[Any],
        stopping_criteria: Seq[Any],
        generation_config: Any,
        **model_kwargs: Any,
    ) -> Any:
        """Called by `generate`: [B, P] -> [B, P + T], or its output class with that in it."""
        streamer = self._streamer(_given_to_generate())
        criteria = [*stopping_criteria, *self.criteria]
        batch = Prepared(
            model, input_ids, logits_processor, criteria, generation_config, model_kwargs
        )
        form = self.structured_outputs
        if form is not None:
            _refuse_scores(generation_config)
        engine = self._engine(batch)
        self.stats = engine.stats
        requests = [
            engine.add(
                batch.prompt(row),
                replace(params, structured_outputs=form),
                criterion=batch.criterion(row),
            )
            for row, params in enumerate(batch.params())
        ]
        outputs = [request.samples[0].output for request in requests]
        if streamer is not None and streamer is self.streamer:
            streamer.put(input_ids.cpu())  # one that `generate` was given has the prompts already
        _run(engine, batch, outputs, streamer)
        for request in requests:
            if request.error is not None:
                raise request.cause or ForetokenError(request.error)  # a processor's, as it is
        sequences = _joined(batch, outputs)
        if not generation_config.return_dict_in_generate:
            return sequences
        traced = batch.traced(sequences)
        return tf.generation.GenerateDecoderOnlyOutput(sequences=sequences, **traced)

    def _streamer(self, given: Mapping[str, Any]) -> Any:
        """The streamer of this call, whether `generate` was given it or `assisted`."""
        if given.get("assistant_model") is not None:
            raise ForetokenError(
                "generate(assistant_model=…) isn't read with custom_generate; pass "
                "assisted(draft_model=…)."
            )
        streamer = given.get("streamer")
        if streamer is not None and self.streamer is not None:
            raise ForetokenError("Give a streamer to generate or to assisted, not to both.")
        return self.streamer if streamer is None else streamer

    def _engine(self, batch: Prepared) -> Engine:
        model = self._wrap(batch.model)
        longest = batch.width - min(batch.starts) + batch.limit
        most = min(longest, model.max_length)
        target = ModelTarget(model, batch.rows, most, tokenizer=self.tokenizer)
        method = build(self._configured(batch.config, target))
        check_unserved(method.drafter)
        wrapped = method.wrapped(target)
        return Engine(wrapped, method.drafter, method.verifier, eos_ids=batch.eos_ids)

    def _wrap(self, model: Any) -> CausalLM:
        """Wrapped once for as long as it stays as it is: the check at wrapping takes passes."""
        attention = getattr(model.config, "_attn_implementation", None)
        embedding = model.get_input_embeddings()
        shapes = [p.shape for p in embedding.parameters()]  # a resized one is the same module
        state = (model.dtype, model.device, attention, embedding, shapes)
        if model not in self._wrapped or self._wrapped[model][0] != state:
            self._wrapped[model] = state, HFModel(model)
        return self._wrapped[model][1]

    def _configured(self, generation_config: Any, target: ModelTarget) -> dict[str, Any]:
        """The method's options, with those that transformers keeps in generation configs."""
        config = dict(self.config)
        taken = {OPTION_ALIASES.get(key, key) for key in config}
        kept = _kept(config, generation_config)
        if _drafts_with_models(config["method"]):
            self._load(config, taken, target)
        return config | {k: v for k, v in kept.items() if v and k not in taken}

    def _load(self, config: dict[str, Any], taken: Collection[str], target: ModelTarget) -> None:
        """Put models where they are named, with the tokenizer that was beside one that reads by its
        own. taken: the options that are given."""
        if "model" in config:
            named = isinstance(config["model"], (str, Path))
            if named and "tokenizer" in options_of(config["method"]) and "tokenizer" not in taken:
                config["tokenizer"] = config["model"]
            loaded_as = [config.pop(key, None) for key in LOADED_AS] if named else []
            config["model"] = self._drafting(config["model"], target, *loaded_as)
        if "models" in config:
            config["models"] = [self._drafting(model, target) for model in config["models"]]

    def _drafting(self, draft: Any, target: ModelTarget, *loaded_as: Any) -> Any:
        """The draft model, loaded or wrapped once."""
        if isinstance(draft, tf.PreTrainedModel):
            return self._wrap(draft)
        if not isinstance(draft, (str, Path)):
            return draft
        if draft not in self._wrapped:
            self._wrapped[draft] = None, as_causal_lm(draft, target, *loaded_as)
        return self._wrapped[draft][1]


def _takes_schedules(method: Any) -> bool:
    """Whether it drafts by a small model, as transformers' assistance does, and leaves open when a
    draft ends."""
    row = row_of(method) if isinstance(method, str) else None
    drafter = row.drafter if row else method
    return drafter in ("small_lm", "tli") and (row is None or _SCHEDULE not in row.options)


def _schedule(named: Any, threshold: float | None) -> Any:
    """Our name for transformers' schedule, or the rule that is given; None for none."""
    if isinstance(named, str):
        named = named.removesuffix("_transient")  # what that forgets ours never keeps
    return _CONFIDENCE if threshold is not None and named in (None, "constant") else named


def _drafts_with_models(method: Any) -> bool:
    """Whether its models are language models, as those of drafters that aren't ours are taken for.
    A trained drafter's folder is the drafter's to read, which knows the target."""
    if not isinstance(method, str):
        return False
    needs = needs_of(method)
    return method == AUTO or not needs or (Need.DRAFT_MODEL in needs and Need.WEIGHTS not in needs)


def _kept(config: Mapping[str, Any], generation_config: Any) -> dict[str, Any]:
    """The options that transformers keeps in the call's generation config, or the draft model's."""
    method = config["method"]
    row = row_of(method) if isinstance(method, str) else None
    length = generation_config.prompt_lookup_num_tokens
    if length and (row.drafter if row else method) == "prompt_lookup":
        return {_LENGTH: length, "prompt_lookup_max": generation_config.max_matching_ngram_size}
    by_name = isinstance(config.get(_SCHEDULE, ""), str)  # else it has its own length
    if not by_name or not _takes_schedules(method):
        return {}
    drafts = getattr(config["model"], "generation_config", None)
    threshold = getattr(drafts, _THRESHOLD, None) or None  # 0 is none
    schedule = _schedule(getattr(drafts, _SCHEDULE, None), threshold) or "constant"
    if config.get(_SCHEDULE, schedule) != _CONFIDENCE:
        threshold = None  # of other schedules it has no meaning, or another one
    tokens = getattr(drafts, "num_assistant_tokens", None)
    return {_LENGTH: tokens, _SCHEDULE: schedule, _THRESHOLD: threshold}


def _refuse_scores(generation_config: Any) -> None:
    """Raise `ForetokenError` for what would lack what a grammar forbids."""
    if generation_config.return_dict_in_generate and generation_config.output_scores:
        raise ForetokenError(
            "output_scores would lack what structured_outputs forbid; leave one of them out, or "
            "ask for output_logits."
        )


def _given_to_generate() -> Mapping[str, Any]:
    """The arguments of the `generate` that called the hook. It keeps some of them to itself where
    `custom_generate` is callable, so they are read where it has them; empty for another caller."""
    caller = sys._getframe(2)
    transformers = caller.f_globals.get("__name__") == "transformers.generation.utils"
    return caller.f_locals if transformers else {}


def _run(engine: Engine, batch: Prepared, outputs: Seq[CompletionOutput], streamer: Any) -> None:
    """Decode to the end. A streamer that has the prompts gets what plain decoding gives it: one
    token of every row at a time, padding for rows that have ended."""
    if streamer is None:
        while engine.busy:
            engine.step()
        return
    sent = 0
    try:
        while engine.busy:
            engine.step()
            running = [len(o.token_ids) for o in outputs if o.finish_reason is None]
            ready = min(running) if running else _longest(outputs)
            for place in range(sent, ready):
                streamer.put(_column(batch, outputs, place))
            sent = max(sent, ready)
    finally:
        streamer.end()


def _longest(outputs: Seq[CompletionOutput]) -> int:
    return max(len(o.token_ids) for o in outputs)


def _column(batch: Prepared, outputs: Seq[CompletionOutput], place: int) -> Tensor:
    """[B] the new tokens at one place."""
    rows = [o.token_ids for o in outputs]
    return torch.tensor([ids[place] if place < len(ids) else batch.pad for ids in rows])


def _joined(batch: Prepared, outputs: Seq[CompletionOutput]) -> Tensor:
    """[B, P + T] the prompts as they were given, the new tokens, padding on the right."""
    if any(o.finish_reason == "length" and len(o.token_ids) < batch.limit for o in outputs):
        _log.warning("The model's context ended before max_length was reached.")
    columns = [_column(batch, outputs, place) for place in range(_longest(outputs))]
    return torch.cat((batch.input_ids, torch.stack(columns, 1).to(batch.input_ids.device)), 1)
