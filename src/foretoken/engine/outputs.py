"""What a user gets back, under vLLM's names."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from functools import partial

from foretoken.engine.stats import RequestStats
from foretoken.errors import ForetokenError


@dataclass(slots=True)
class Logprob:
    """Log-probability of a token under the raw logits, and its rank (1 is the likeliest).
    decoded_token: its text alone; None without a tokenizer, and for an id that it doesn't know."""

    logprob: float
    rank: int
    decoded_token: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """What one step drafted for a sample. A slot is a place in its tree: 0 is the text so far and
    i + 1 the drafted token i.

    tokens: the drafted ones, those that could not be accepted left out. parents: the slot after
    which each was drafted. path: the slots of those that were written, in order. written: how many
    tokens the step wrote. seconds: from the request's arrival to the step's end.
    """

    tokens: list[int]
    parents: list[int]
    path: list[int]
    written: int
    seconds: float


@dataclass(slots=True)
class CompletionOutput:
    """One sample. finish_reason: "stop", "length", "cancelled", "timeout", "error", or None while
    running.

    stop_reason: the stop string or stop token id that ended it, None for end-of-text.
    accepted: per token, whether it was drafted and accepted (else it is a bonus token).
    logprobs: per token, id -> Logprob of the token written and the likeliest others, if asked for.
    drafts: per step, what it drafted and how much it wrote, if asked for.
    """

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    accepted: list[bool] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    cumulative_logprob: float | None = None
    drafts: list[Draft] | None = None

    def first(self, tokens: int, drafts: int) -> CompletionOutput:
        """A copy with so many tokens, and the drafts of so many steps."""
        return replace(
            self,
            token_ids=self.token_ids[:tokens],
            accepted=self.accepted[:tokens],
            logprobs=None if self.logprobs is None else self.logprobs[:tokens],
            drafts=None if self.drafts is None else self.drafts[:drafts],
        )


@dataclass(slots=True)
class RequestOutput:
    """One request: its samples, its statistics, and what went wrong, if anything did. cause: what
    a processor, tokenizer or drafter raised then. wrong_grammar: whether it was the grammar of
    structured_outputs, which couldn't be compiled. overloaded: whether it was what others asked
    for, so that the request may be sent again.

    prompt_logprobs: if asked for, for each token of the prompt that was read, id -> Logprob of the
    token and of the likeliest others in its place; None for the first, which nothing predicts.
    before: the last tokens of a prompt that came as a text, which the outputs' texts go on from.
    """

    request_id: int
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    stats: RequestStats
    error: str | None = None
    cause: BaseException | None = field(default=None, repr=False)
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    before: tuple[int, ...] = field(default=(), repr=False)
    wrong_grammar: bool = False
    overloaded: bool = False

    @classmethod
    def refused(
        cls,
        error: ForetokenError,
        prompt: Iterable[int] = (),
        text: str | None = None,
        request_id: int = -1,
    ) -> RequestOutput:
        """The output of a request that ends by an error before it has written anything."""
        empty = CompletionOutput(0, finish_reason="error")
        told, cause = str(error), error.__cause__
        return cls(request_id, text, list(prompt), [empty], RequestStats(), told, cause=cause)

    @property
    def finished(self) -> bool:
        """Whether every sample has ended; a refused request has one, which is empty."""
        return all(o.finish_reason for o in self.outputs)

    def copy(self) -> RequestOutput:
        """The output as it stands now; the samples of this one go on growing."""
        return self.standing()()

    def standing(self) -> Callable[[], RequestOutput]:
        """What gives a copy of the output as it stands now, whenever it is called: lists only grow,
        so that until then their lengths are all that has to be kept."""
        lengths = [(len(sample.token_ids), len(sample.drafts or ())) for sample in self.outputs]
        samples, stats = [replace(sample) for sample in self.outputs], self.stats.copy()
        now = replace(self, outputs=samples, stats=stats)
        return partial(now._first, lengths, len(self.prompt_logprobs or ()))

    def _first(self, lengths: Seq[tuple[int, int]], read: int) -> RequestOutput:
        """A copy with so many tokens and drafts of each sample, and places of the prompt."""
        known, pairs = self.prompt_logprobs, zip(self.outputs, lengths, strict=True)
        return replace(
            self,
            prompt_token_ids=list(self.prompt_token_ids),
            outputs=[sample.first(tokens, drafts) for sample, (tokens, drafts) in pairs],
            prompt_logprobs=None if known is None else known[:read],
        )

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that were not read, as the caches had them of earlier texts."""
        return self.stats.prefix_cache_hits

    @property
    def text(self) -> str:
        """The text, where one sample was asked for. Raises the request's error, if it has one."""
        return self._single().text

    @property
    def token_ids(self) -> list[int]:
        """The token ids, where one sample was asked for."""
        return self._single().token_ids

    def raise_error(self) -> None:
        """Raise the request's error as a `ForetokenError`, if it has one."""
        if self.error is not None:
            raise ForetokenError(self.error) from self.cause

    def _single(self) -> CompletionOutput:
        self.raise_error()
        if len(self.outputs) != 1:
            raise ForetokenError(
                f"This request has {len(self.outputs)} samples; read .outputs[i] instead."
            )
        return self.outputs[0]
