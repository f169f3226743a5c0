"""How one request is sampled and when it ends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any, get_type_hints

from torch import Tensor

from foretoken.errors import ForetokenError, shown
from foretoken.errors.names import check_names
from foretoken.errors.values import typed
from foretoken.grammar.constraint import CompiledGrammar
from foretoken.grammar.params import StructuredOutputsParams, structured

LogitsProcessor = Callable[[Tensor, Tensor], Tensor]
"""As in transformers: (input_ids [rows, length], scores [rows, V]) -> scores [rows, V]."""

MOST_SAMPLES = 16_384
"""The most samples of a request; each is kept from its arrival on."""

_FAR = 1e6  # of numbers beyond it, products with logits overflow
_BOUNDED = f"from {-_FAR:g} to {_FAR:g}"
_POSITIVE = f"above 0, from {1 / _FAR:g} to {_FAR:g} (1 is off)"


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it ends; names and defaults are vLLM's.

    Attributes:
        n: how many samples; they share the prompt's cache.
        temperature: 0 is greedy.
        top_k: keep the k likeliest tokens; 0 or -1 keeps all.
        top_p: keep the smallest set with at least this probability.
        min_p: keep tokens at least this share of the likeliest one's probability.
        repetition_penalty: divides (multiplies) positive (negative) logits of tokens in the prompt
            or output; 1 is off.
        presence_penalty, frequency_penalty: subtracted once, or per occurrence, for output tokens.
        logit_bias: token id -> number added to its logit.
        allowed_token_ids: only these may be written.
        bad_token_ids: these are never written.
        bad_words: texts or lists of token ids that the output never holds: the last token is not
            written after the others.
        logits_processors: callables (input_ids [1, length], scores [1, V]) -> scores. They are
            called for drafted tokens too, and must depend on nothing else.
        logits_processor_factories: callables without arguments that each make a processor for every
            sample, which may keep a state: it is called once for each token of a text, in order,
            and copied (copy.deepcopy) where drafts branch, or, if it is a closure, made anew and
            called for all of the text. Its state must not depend on the scores, nor be global.
        seed: makes the request repeatable; None, or -1, takes a new one from the system.
        stop: the text ends before the first of these strings.
        include_stop_str_in_output: keep the stop string in the text.
        stop_token_ids: end the sequence like end-of-text.
        ignore_eos: write on after end-of-text.
        max_tokens, min_tokens: bounds on the number of output tokens; None is up to the context.
        logprobs: how many log-probabilities per token to return (of the raw logits), or None.
        prompt_logprobs: the same for the prompt's tokens, after the first; None for none.
        skip_special_tokens: leave them out of the text.
        references: texts or token ids that the output may repeat, for methods that copy (documents,
            the sentence to correct, a predicted output). They change the speed only.
        prediction: a text or token ids that the output is likely to be, with a few changes (as in
            OpenAI's Predicted Outputs). It is drafted for this request, whatever the method, whose
            rule must be exact, and changes neither a greedy text nor a distribution.
        cache_salt: only requests of the same salt go on from each other's cached prompts, and
            nothing that others wrote is copied into the drafts for one with a salt.
        structured_outputs: what the text must be: `StructuredOutputsParams`, or a mapping with its
            names; inside an engine a compiled grammar.
        max_draft_tokens: the most tokens drafted for a sample in a step, beside the method's own
            bound; 0 is plain decoding, None leaves it to the method.
        return_drafts: keep each step's draft in `CompletionOutput.drafts`.
        timeout: seconds from arrival after which the request ends with what it has; None is never.

    None in place of a list is an empty one. Raises `ForetokenError` for a name that there isn't,
    and for a value of another type or out of range.
    """

    n: int = 1
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Seq[int] | None = None
    bad_token_ids: Seq[int] | None = None
    bad_words: Seq[str | Seq[int]] = ()
    logits_processors: Seq[LogitsProcessor] = ()
    logits_processor_factories: Seq[Callable[[], LogitsProcessor]] = ()
    seed: int | None = None
    stop: str | Seq[str] | None = ()
    include_stop_str_in_output: bool = False
    stop_token_ids: Seq[int] = ()
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    skip_special_tokens: bool = True
    references: Seq[str | Seq[int]] = ()
    prediction: str | Seq[int] | None = None
    cache_salt: str | None = None
    max_draft_tokens: int | None = None
    return_drafts: bool = False
    timeout: float | None = None
    structured_outputs: StructuredOutputsParams | CompiledGrammar | Mapping[str, Any] | None = None

    def __new__(cls, *given: Any, **options: Any) -> SamplingParams:
        check_names(given, options, [field.name for field in fields(cls)])
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for name, default in [(field.name, field.default) for field in fields(self)]:
            value = getattr(self, name)
            listed = value is None and default == ()  # as in vLLM, None is no list
            value = () if listed else typed(name, value, _hints()[name])  # and a seed of -1 is none
            object.__setattr__(self, name, None if (name, value) == ("seed", -1) else value)
        if isinstance(self.structured_outputs, Mapping):
            object.__setattr__(self, "structured_outputs", structured(self.structured_outputs))
        self._check_ranges()

    def _check_ranges(self) -> None:
        allowed, most = self.allowed_token_ids, self.max_tokens or self.min_tokens
        checks = {
            "n": (1 <= self.n <= MOST_SAMPLES, f"from 1 to {MOST_SAMPLES}"),
            "temperature": (0 <= self.temperature <= _FAR, f"from 0, which is greedy, to {_FAR:g}"),
            "top_k": (self.top_k >= -1, "at least 1, or 0 to keep all"),
            "top_p": (0 < self.top_p <= 1, "in (0, 1]"),
            "min_p": (0 <= self.min_p <= 1, "in [0, 1]"),
            "repetition_penalty": (1 / _FAR <= self.repetition_penalty <= _FAR, _POSITIVE),
            "presence_penalty": (abs(self.presence_penalty) <= _FAR, _BOUNDED),
            "frequency_penalty": (abs(self.frequency_penalty) <= _FAR, _BOUNDED),
            "logit_bias": (
                all(abs(value) <= _FAR for value in (self.logit_bias or {}).values()),
                f"numbers {_BOUNDED} (bad_token_ids forbids tokens)",
            ),
            "max_tokens": (self.max_tokens is None or self.max_tokens >= 1, "at least 1, or None"),
            "min_tokens": (0 <= self.min_tokens <= most, "between 0 and max_tokens"),
            "logprobs": ((self.logprobs or 0) >= 0, "at least 0, or None"),
            "prompt_logprobs": ((self.prompt_logprobs or 0) >= 0, "at least 0, or None"),
            "cache_salt": (self.cache_salt != "", "a text that is not empty, or None"),
            "max_draft_tokens": ((self.max_draft_tokens or 0) >= 0, "at least 0, or None"),
            "timeout": (self.timeout is None or self.timeout > 0, "above 0 seconds, or None"),
            "allowed_token_ids": (allowed is None or len(allowed) > 0, "None or at least one id"),
            "bad_words": (all(map(len, self.bad_words)), "texts or lists of ids, none empty"),
            "stop": (all(map(_is_text, self.stops)), "texts that are not empty, of valid Unicode"),
        }
        for name, (holds, expected) in checks.items():
            if not holds:
                given = shown(getattr(self, name))
                raise ForetokenError(f"{name} is {given}; it must be {expected}.")

    @cached_property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @cached_property
    def penalises(self) -> bool:
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @cached_property
    def reads_context(self) -> bool:
        """Whether the distribution at a place depends on which tokens stand before it."""
        processed = self.logits_processors or self.logits_processor_factories
        bound = self.min_tokens > 0 or self.structured_outputs is not None
        return self.penalises or bool(processed or self.bad_words) or bound

    @cached_property
    def edits(self) -> bool:
        """Whether logits are changed before temperature."""
        lists = (self.logit_bias, self.allowed_token_ids, self.bad_token_ids)
        return self.reads_context or any(lists)


@cache
def _hints() -> dict[str, Any]:
    """The declared types."""
    return get_type_hints(SamplingParams)


def _is_text(text: str) -> bool:
    """Whether a tokenizer could write it: not empty, and no half of a surrogate pair."""
    return text != "" and text.encode("utf-8", "ignore").decode("utf-8") == text
