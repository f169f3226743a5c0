"""A text that is written piece by piece, each piece after the document that was retrieved for it.

A piece is a function of the tokens before it and of its document: its noise is keyed by the
request's seed and by how many tokens stand before it. So a piece that was taken back and is written
again with the right document is the one that would have been written at once.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence as Seq
from dataclasses import dataclass, fields, replace
from typing import Any

from foretoken.draws import stream_key
from foretoken.engine.prompts import ids_after, text_ids
from foretoken.engine.stats import AcceptanceStats
from foretoken.engine.stopping import LEAD, Ending, StopChecker, decoded, decoded_after
from foretoken.errors import ForetokenError, described, shown
from foretoken.llm import LLM
from foretoken.sampling.params import SamplingParams

DOCUMENT, PROMPT = "{document}", "{prompt}"
_ANCHORS = "\n", "a"
"""What stands for the text before another one: the first whose tokens the other leaves as they are.
A letter would become one token with the beginning of a word."""

_WHOLE = (
    "n",
    "presence_penalty",
    "frequency_penalty",
    "bad_words",
    "min_tokens",
    "structured_outputs",
    "logits_processor_factories",
    "logprobs",
    "prompt_logprobs",
    "return_drafts",
    "prediction",
    "timeout",
)
"""Parameters that speak of an output as a whole, which a piece doesn't see."""


@dataclass(frozen=True)
class Layout:
    """How a piece's prompt is made. template: a text with "{document}" and "{prompt}", each once.
    document_tokens: how much of a document is read. piece_tokens: how much is written after it."""

    template: str
    document_tokens: int
    piece_tokens: int

    def __post_init__(self) -> None:
        if any(self.template.count(name) != 1 for name in (DOCUMENT, PROMPT)):
            raise ForetokenError(
                f"template is {shown(self.template)}; it must have {DOCUMENT} and {PROMPT}, each "
                "once."
            )

    def around(self, prompt: str) -> tuple[str, str]:
        """What stands before and after the document."""
        before, _, after = self.template.partition(DOCUMENT)
        return before.replace(PROMPT, prompt), after.replace(PROMPT, prompt)


class Text:
    """One request's text so far.

    Raises `ForetokenError` for a prompt that can't be read, for parameters that pieces can't serve,
    for an encoder–decoder, and where prompt, document and `max_tokens` are longer than the context
    or than the caches' memory holds.
    """

    def __init__(
        self, llm: LLM, documents: Seq[str], prompt: str, params: SamplingParams, layout: Layout
    ) -> None:
        _check(llm, params)
        self._llm, self._documents, self._layout = llm, documents, layout
        self._params, self._tokenizer = params, llm.tokenizer
        before, after = layout.around(prompt)
        self._before = text_ids(before, self._tokenizer)
        self._after = _ids(after, self._tokenizer, goes_on=True)
        self._begun = before != ""  # whether a document goes on from something
        self._prompt = text_ids(prompt, self._tokenizer, special=False)
        self._read: dict[int, list[int]] = {}  # document -> its tokens
        self._limit = self._room()
        self._seed = secrets.randbits(62) if params.seed is None else params.seed
        self._starts: list[int] = []
        self.output: list[int] = []
        self.documents: list[int] = []  # of each piece
        self.ending: Ending | None = None
        self.decoding = AcceptanceStats()

    @property
    def ended(self) -> bool:
        return self.ending is not None

    @property
    def pieces(self) -> int:
        return len(self._starts)

    @property
    def pieces_left(self) -> int:
        """How many pieces can still follow."""
        return -(-(self._limit - len(self.output)) // self._layout.piece_tokens)

    def query(self, tokens: int | None) -> str:
        """The text of the last `tokens` of prompt and output, or of all of them."""
        ids = [*self._prompt, *self.output]
        return self._decoded(ids if tokens is None else ids[-tokens:])

    def write(self, document: int) -> None:
        """Write one piece after this document."""
        place = len(self.output)
        params = replace(
            self._params,
            max_tokens=min(self._layout.piece_tokens, self._limit - place),
            seed=stream_key(self._seed, place) & ((1 << 63) - 1),
            stop=(),
            include_stop_str_in_output=False,
        )
        ids = [*self._before, *self._tokens_of(document), *self._after, *self.output]
        [written] = self._llm.generate({"prompt_token_ids": ids}, params)
        self.decoding.add(written.stats)
        self._starts.append(place)
        self.documents.append(document)
        self.output += written.token_ids
        ending = self._checker().check(self.output)
        if ending.finish_reason is not None:
            self.ending = ending
            del self.output[ending.emitted :]

    def take_back(self, pieces: int) -> None:
        """Keep the first `pieces` only."""
        del self.output[self._starts[pieces] :]
        del self._starts[pieces:], self.documents[pieces:]
        self.ending = None

    def final(self) -> str:
        """The text as it is shown."""
        if self.ending is not None and self.ending.text is not None:
            return self.ending.text
        without_last = self.ending is not None and self.ending.without_last
        shown = self.output[:-1] if without_last else self.output
        try:
            skip = self._params.skip_special_tokens
            return decoded_after(self._tokenizer, self._lead(), shown, skip)
        except Exception as error:
            raise described("The tokenizer", error) from error

    def _checker(self) -> StopChecker:
        eos, before = self._llm.engine.eos_ids, self._lead()
        return StopChecker(self._params, eos, self._limit, self._tokenizer, before=before)

    def _lead(self) -> tuple[int, ...]:
        """The last tokens of what the output goes on from, as the first piece had it: that one is
        never taken back."""
        shown = self._tokens_of(self.documents[0]) if self.documents else []
        return tuple([*self._before, *shown, *self._after][-LEAD:])

    def _tokens_of(self, document: int) -> list[int]:
        if document not in self._read:
            ids = _ids(self._documents[document], self._tokenizer, self._begun)
            self._read[document] = ids[: self._layout.document_tokens]
        return self._read[document]

    def _room(self) -> int:
        """How many tokens may be written at most: after any document, as a guess that doesn't fit
        would fail where the right document does."""
        fixed = len(self._before) + len(self._after) + self._layout.document_tokens
        target = self._llm.engine.target
        longest = target.budget.longest(target.max_length)
        room = longest - fixed
        if room < (self._params.max_tokens or 1):
            bounded = longest < target.max_length
            place = "the caches hold" if bounded else "the context is"
            raise ForetokenError(
                f"The prompt and a document take up to {fixed} tokens, max_tokens is "
                f"{self._params.max_tokens} and {place} {longest}; lower max_document_tokens or "
                f"max_tokens, {'raise kv_cache_memory, ' if bounded else ''}or shorten the prompt."
            )
        return self._params.max_tokens or room

    def _decoded(self, ids: list[int]) -> str:
        try:
            return decoded(self._tokenizer, ids, self._params.skip_special_tokens)
        except Exception as error:
            raise described("The tokenizer", error) from error


def _ids(text: str, tokenizer: Any, goes_on: bool) -> list[int]:
    """A text's token ids; where it goes on from another one, without the space that some tokenizers
    put before a text."""
    for said in _ANCHORS if goes_on else ():
        anchor = text_ids(said, tokenizer, special=False)
        ids = ids_after(anchor, said, text, tokenizer, special=False)
        if anchor and ids is not None:
            return ids
    return text_ids(text, tokenizer, special=False)


def _check(llm: LLM, params: SamplingParams) -> None:
    """Raise `ForetokenError` for what a text that is written in pieces can't have."""
    if llm.engine.target.opening:
        raise ForetokenError(
            "A text with retrieval goes on piece by piece after its prompt, and an encoder–decoder "
            "begins its text anew for each; use a decoder-only model."
        )
    for field in fields(params):
        value = getattr(params, field.name)
        if field.name in _WHOLE and value != field.default:
            raise ForetokenError(
                f"{field.name} is {shown(value)}, and a text with retrieval is written in pieces "
                "which don't see it whole; leave it out."
            )
