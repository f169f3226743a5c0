"""The grammars of requests: compiled before admission, and then part of a sample's parameters."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from foretoken.engine.stopping import decoded
from foretoken.errors import ForetokenError, shown
from foretoken.grammar.compiling import Compiler, Pending, check_backend, found_backend
from foretoken.grammar.constraint import CompiledGrammar, Ids, Marker
from foretoken.grammar.params import StructuredOutputsParams
from foretoken.protocols import Target
from foretoken.sampling.params import SamplingParams

_BLANK = 64  # tokens of white space after a marker at a prompt's end


class Grammars:
    """Compiles what the requests of one engine ask for."""

    def __init__(self, target: Target, eos_ids: frozenset[int], backend: str) -> None:
        """backend: a name of `grammar.compiling.BACKENDS`, or "auto"."""
        self._target, self._eos_ids, self._name = target, eos_ids, check_backend(backend)
        self._compiler: Compiler | None = None

    def requested(self, prompt: Seq[int], params: SamplingParams) -> Requested | None:
        """What a request's samples wait for; None where it asks for no grammar. Raises
        `ForetokenError` for what can't be compiled, as far as that is seen at once."""
        form, target = params.structured_outputs, self._target
        if not isinstance(form, StructuredOutputsParams):
            return None
        if target.tokenizer is None:
            raise ForetokenError("Structured outputs need a tokenizer; pass tokenizer=… to LLM.")
        end, marker = form.reasoning_end, _marker(form.reasoning_end, target)
        if self._compiler is None:
            make = found_backend(self._name)
            known = target.tokenizer, target.vocab_size, self._eos_ids
            self._compiler = Compiler(lambda: make(*known))
        over = end is not None and _has_reasoned(prompt, end, target.tokenizer)
        pending = self._compiler.compile(form)
        return Requested(pending, form.form, target.vocab_size, None if over else marker)


@dataclass(frozen=True)
class Requested:
    """A request's grammar, which may not be there yet."""

    pending: Pending
    form: str
    vocab_size: int
    marker: Marker | None

    def applied(self, params: SamplingParams) -> SamplingParams:
        """The parameters with the compiled grammar. Raises `ForetokenError` where there is none."""
        name = f"structured_outputs ({self.form})"
        grammar = CompiledGrammar(name, self.vocab_size, self.pending.result(), self.marker)
        return replace(params, structured_outputs=grammar)


class Spelt:
    """A text, whatever tokens it is written in: one may have what follows in it too."""

    def __init__(self, text: str, tokenizer: Any) -> None:
        self._text, self._tokenizer = text, tokenizer
        self._longest = len(text.encode()) + 1  # the most tokens that have a part of it
        self._last: dict[int, bool] = {}  # token -> whether it may complete the text

    def after(self, text: Seq[int], seen: int) -> int | None:
        for end in range(seen + 1, len(text) + 1):
            if self._completes(text[end - 1]):
                tail = list(text[max(0, end - self._longest) : end])
                if self._text in decoded(self._tokenizer, tail, False):
                    return end
        return None

    def _completes(self, token: int) -> bool:
        known = self._last.get(token)
        if known is None:
            alone = decoded(self._tokenizer, [token], False)
            known = self._last[token] = self._text[-1] in alone or "\ufffd" in alone
        return known


def _marker(given: str | int | Seq[int] | None, target: Target) -> Marker | None:
    """Where a reasoning ends. Raises `ForetokenError` for ids outside the vocabulary."""
    if given is None:
        return None
    if isinstance(given, str):
        return Spelt(given, target.tokenizer)
    ids = (given,) if isinstance(given, int) else tuple(given)
    if not ids or not all(0 <= token < target.vocab_size for token in ids):
        raise ForetokenError(
            f"reasoning_end of structured_outputs is {shown(given)}; give a text, or ids below "
            f"{target.vocab_size}."
        )
    return Ids(ids)


def _has_reasoned(prompt: Seq[int], given: str | int | Seq[int], tokenizer: Any) -> bool:
    """Whether nothing but white space follows the marker's last occurrence in the prompt."""
    if isinstance(given, str):
        tail = decoded(tokenizer, list(prompt[-len(given.encode()) - _BLANK :]), False)
        return given in tail and not tail.rpartition(given)[2].strip()
    marker, last = Ids((given,) if isinstance(given, int) else tuple(given)), 0
    while (found := marker.after(prompt, last)) is not None:
        last = found
    return last > 0 and not decoded(tokenizer, list(prompt[last:]), False).strip()
