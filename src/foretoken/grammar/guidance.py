"""llguidance as a backend: an Earley parser over derivatives of regular expressions, in Rust."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np

from foretoken.errors import ForetokenError, one_line
from foretoken.grammar.constraint import Matcher, Words
from foretoken.grammar.params import StructuredOutputsParams

_HEX = "[0-9a-fA-F]"
_NUMBERS = f"x({_HEX}{{2}})|u({_HEX}{{4}})|U({_HEX}{{8}})"
_ESCAPE = re.compile(rf"\\(?:{_NUMBERS}|([\[\]])|.)", re.DOTALL)  # of GBNF
_PASSED = re.compile(r"\\(?:x(..)|.)")
_ROOT = re.compile(r"^[^\S\n]*root\s*::=", re.MULTILINE)
# What is never closed reaches to the end, or each opening one would be looked for there anew.
_PARTS = re.compile(r'"(?:\\.|[^"\\])*"?|\[(?:\\.|[^\]\\])*\]?|#[^\r\n]*|[\w-]+|\.', re.DOTALL)
_INSTEAD = {".": r"[\x00-\U0010ffff]", "start": "start-of-its-own"}
"""Parts of GBNF that would be something else in Lark's notation: there a dot is no line break, and
the rule that all begins with has this name."""


class Guidance:
    """Compiles grammars for one tokenizer. Making it takes about a second for a large vocabulary.

    Raises `ForetokenError` for a tokenizer that isn't one of the library `tokenizers`.
    """

    def __init__(self, tokenizer: Any, vocab_size: int, eos_ids: frozenset[int]) -> None:
        from llguidance.hf import from_tokenizer

        ends = sorted(eos_ids) or None  # else the tokenizer's own
        try:
            self._tokenizer = from_tokenizer(tokenizer, vocab_size, ends)
        except Exception as error:
            raise ForetokenError(
                f"structured_outputs can't read the tokenizer ({one_line(error)}); give the "
                "model's fast one (tokenizer=…)."
            ) from error

    def compile(self, form: StructuredOutputsParams) -> Callable[[], Matcher]:
        """Raises `ForetokenError` for a grammar that there isn't."""
        from llguidance import LLMatcher

        try:
            first = LLMatcher(self._tokenizer, _grammar(form), log_level=0)
            wrong = first.get_error()
        except Exception as error:
            wrong = one_line(error)
        if wrong:
            said = _said(wrong)
            raise ForetokenError(f"{form.form} of structured_outputs can't be used: {said}")
        return lambda: GuidanceMatcher(first.deep_copy(), self._tokenizer)


class GuidanceMatcher:
    """A `Matcher`."""

    def __init__(self, matcher: Any, tokenizer: Any) -> None:
        self._matcher, self._tokenizer = matcher, tokenizer
        self._eos = frozenset(tokenizer.eos_tokens)

    def accept(self, token: int) -> bool:
        if token in self._eos or self._matcher.try_consume_tokens([token]) == 1:
            return token not in self._eos
        self._check()
        return False

    def rollback(self, count: int) -> None:
        self._matcher.rollback(count)

    def fill(self, words: Words) -> None:
        self._matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
        self._check()
        for token in self._eos:
            words.view(np.uint32)[token // 32] &= ~np.uint32(1 << token % 32)

    def _check(self) -> None:
        """Raise `ForetokenError` where the grammar has become too complex."""
        if self._matcher.is_error():
            raise ForetokenError(
                "What structured_outputs ask for can't be followed any further "
                f"({one_line_of(self._matcher)}); use a simpler grammar."
            )

    @property
    def complete(self) -> bool:
        return bool(self._matcher.is_accepting())

    def forced(self) -> list[int]:
        return list(self._tokenizer.tokenize_bytes(self._matcher.compute_ff_bytes()))


def one_line_of(matcher: Any) -> str:
    """A matcher's error, without the state that it lists."""
    return _said(matcher.get_error())


def wrong_schema(schema: Mapping[str, Any]) -> str:
    """What is wrong with a JSON schema, on one line; empty where nothing is, or llguidance isn't
    installed, so that another backend was asked."""
    if find_spec("llguidance") is None:
        return ""
    from llguidance import LLMatcher

    try:
        grammar = LLMatcher.grammar_from_json_schema(json.dumps(schema))
        return _said(LLMatcher.validate_grammar(grammar))
    except Exception as error:
        return one_line(error)


def _said(error: str) -> str:
    """llguidance's error without the state that it lists."""
    return " ".join(error.split("\n<state>")[0].split())[:200]


def _grammar(form: StructuredOutputsParams) -> str:
    """llguidance's own notation. Raises what it raises."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import is_lark_syntax

    if form.form in ("json", "json_object"):
        spaces: dict[str, Any] = {"whitespace_flexible": not form.disable_any_whitespace}
        if form.whitespace_pattern is not None:
            spaces = {"whitespace_pattern": form.whitespace_pattern}
        return str(LLMatcher.grammar_from_json_schema(form.text, overrides=spaces))
    if form.form == "regex":
        return str(LLMatcher.grammar_from_regex(form.text))
    if form.form == "choice":
        texts = json.loads(form.text)
        # As one terminal: a parser of rules holds two thousand at most.
        choices = " | ".join(json.dumps(text, ensure_ascii=False) for text in texts)
        lark = f"start: CHOICE\nCHOICE: {choices}"
        return str(LLMatcher.grammar_from_lark(lark))
    if form.form == "grammar":
        gbnf = _ROOT.search(form.text) or ("::=" in form.text and not is_lark_syntax(form.text))
        return str(LLMatcher.grammar_from_lark(_lark(form.text) if gbnf else form.text))
    raise ForetokenError(
        "llguidance has no structural tags; use structured_outputs_backend='xgrammar'"
    )


def _lark(gbnf: str) -> str:
    """A GBNF grammar in Lark's notation. Raises what llguidance's converter raises.

    That one takes the zeros from numbers in escapes, passes \\xHH and brackets on as they are, and
    knows no other escapes by which a character could go through it. Lark has \\uHHHH, which stands
    for the character itself in a text and in a class of characters.
    """
    from llguidance.gbnf_to_lark import gbnf_to_lark

    own = _PARTS.sub(lambda part: _INSTEAD.get(part[0], part[0]), gbnf)
    passed = gbnf_to_lark(_ESCAPE.sub(_passing, own))
    return _PASSED.sub(lambda e: e[0] if e[1] is None else f"\\u00{e[1]}", passed)


def _passing(escape: re.Match[str]) -> str:
    """An escape as the converter leaves it: \\xHH, or the character."""
    *numbers, bracket = escape.groups()
    digits = next(filter(None, numbers), None)
    if digits is None and bracket is None:
        return escape[0]
    code = ord(bracket) if digits is None else int(digits, 16)
    return f"\\x{code:02x}" if code < 256 else chr(code)
