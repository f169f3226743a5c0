"""xgrammar as a backend: pushdown automata with masks computed ahead, in C++."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from foretoken.errors import ForetokenError, one_line
from foretoken.grammar.constraint import Matcher, Words
from foretoken.grammar.params import StructuredOutputsParams
from foretoken.grammar.xgrammar_schemas import check_schema, check_tag

_COMPACT = (",", ":")
_ANCHOR = "\n"  # with which hardly any tokenizer merges what follows it


class XGrammar:
    """Compiles grammars for one tokenizer. Raises `ForetokenError` for one that it can't read."""

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: frozenset[int]) -> None:
        import xgrammar

        try:
            ends = sorted(eos_ids) or None
            info = xgrammar.TokenizerInfo.from_huggingface(
                tokenizer, vocab_size=vocab_size, stop_token_ids=ends
            )
        except Exception as error:
            raise ForetokenError(
                f"structured_outputs can't read the tokenizer ({one_line(error)}); give the "
                "model's own (tokenizer=…)."
            ) from error
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._tokenizer, self._specials = tokenizer, frozenset(info.special_token_ids)

    def compile(self, form: StructuredOutputsParams) -> Callable[[], Matcher]:
        """Raises `ForetokenError` for a grammar that there isn't."""
        import xgrammar

        try:
            compiled = self._compiled(form)
        except ForetokenError:
            raise
        except Exception as error:
            raise ForetokenError(
                f"{form.form} of structured_outputs can't be used: {one_line(error)}."
            ) from error
        known = self._tokenizer, self._specials
        return lambda: XGrammarMatcher(xgrammar.GrammarMatcher(compiled), *known)

    def _compiled(self, form: StructuredOutputsParams) -> Any:
        compiler, text = self._compiler, form.text
        if form.form == "json":
            check_schema(json.loads(text))
        if form.form in ("json", "json_object"):
            if form.whitespace_pattern is not None:
                raise ForetokenError(
                    "xgrammar has no whitespace_pattern; use structured_outputs_backend='guidance'."
                )
            if not form.disable_any_whitespace:
                return compiler.compile_json_schema(text)
            return compiler.compile_json_schema(text, any_whitespace=False, separators=_COMPACT)
        if form.form == "regex":
            return compiler.compile_regex(text)
        if form.form == "choice":
            choices = " | ".join(json.dumps(t, ensure_ascii=False) for t in json.loads(text))
            return compiler.compile_grammar(f"root ::= {choices}")
        if form.form == "structural_tag":
            check_tag(json.loads(text))
            return compiler.compile_structural_tag(text)
        if "%json" in text:
            raise ForetokenError(
                "xgrammar has no %json in grammars, which calls of functions are constrained by; "
                "use structured_outputs_backend='guidance'."
            )
        return compiler.compile_grammar(text) if "::=" in text else compiler.compile_lark(text)


class XGrammarMatcher:
    """A `Matcher`."""

    def __init__(self, matcher: Any, tokenizer: Any, specials: frozenset[int]) -> None:
        self._matcher, self._tokenizer = matcher, tokenizer
        self._eos = frozenset(matcher.stop_token_ids)
        self._never = self._eos | specials  # it refuses these itself, and prints that it does

    def accept(self, token: int) -> bool:
        return token not in self._never and bool(self._matcher.accept_token(token))

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)

    def fill(self, words: Words) -> None:
        bits = torch.from_numpy(words)
        if not self._matcher.fill_next_token_bitmask(bits[None], 0):
            bits.fill_(-1)
        for token in self._eos:
            bits[token // 32] &= ~_bit(token % 32)

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_completed())

    def forced(self) -> list[int]:
        text = self._matcher.find_jump_forward_string()
        if not text:
            return []
        # Alone, a text may get a space before it that isn't there where it goes on from another.
        head, whole = self._ids(_ANCHOR), self._ids(_ANCHOR + text)
        return whole[len(head) :] if whole[: len(head)] == head else self._ids(text)

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def _bit(place: int) -> int:
    """The int32 with this bit set."""
    return (1 << place) - (1 << 32 if place == 31 else 0)
