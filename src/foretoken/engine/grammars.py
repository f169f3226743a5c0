"""The grammars of requests: compiled before admission, and then part of a sample's parameters."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from foretoken.engine.prompts import text_ids
from foretoken.errors import ForetokenError, shown
from foretoken.grammar.compiling import Compiler, Pending, check_backend, found_backend
from foretoken.grammar.constraint import CompiledGrammar
from foretoken.grammar.params import StructuredOutputsParams
from foretoken.protocols import Target
from foretoken.sampling.params import SamplingParams


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
        marker = _marker(form.reasoning_end, target)
        if self._compiler is None:
            make = found_backend(self._name)
            known = target.tokenizer, target.vocab_size, self._eos_ids
            self._compiler = Compiler(lambda: make(*known))
        over = bool(marker) and _ends_with(prompt, marker, target.tokenizer)
        pending = self._compiler.compile(form)
        return Requested(pending, form.form, target.vocab_size, () if over else marker)


@dataclass(frozen=True)
class Requested:
    """A request's grammar, which may not be there yet."""

    pending: Pending
    form: str
    vocab_size: int
    marker: tuple[int, ...]

    def applied(self, params: SamplingParams) -> SamplingParams:
        """The parameters with the compiled grammar. Raises `ForetokenError` where there is none."""
        name = f"structured_outputs ({self.form})"
        grammar = CompiledGrammar(name, self.vocab_size, self.pending.result(), self.marker)
        return replace(params, structured_outputs=grammar)


def _marker(given: str | int | Seq[int] | None, target: Target) -> tuple[int, ...]:
    """The ids of where a reasoning ends. Raises `ForetokenError` for ids outside the vocabulary."""
    if given is None:
        return ()
    ids = [given] if isinstance(given, int) else given
    ids = text_ids(ids, target.tokenizer, special=False) if isinstance(ids, str) else ids
    if not ids or not all(0 <= token < target.vocab_size for token in ids):
        raise ForetokenError(
            f"reasoning_end of structured_outputs is {shown(given)}; give a text that the "
            f"tokenizer knows, or ids below {target.vocab_size}."
        )
    return tuple(ids)


def _ends_with(prompt: Seq[int], marker: Seq[int], tokenizer: Any) -> bool:
    """Whether nothing but white space follows the marker in the prompt."""
    text = list(prompt)
    for start in range(len(text) - len(marker), -1, -1):
        end = start + len(marker)
        if text[start:end] == list(marker):
            return not str(tokenizer.decode(text[end:])).strip()
    return False
