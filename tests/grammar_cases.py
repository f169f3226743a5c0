"""What every backend of grammars is tried with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from foretoken.grammar.constraint import Matcher
from json_tokenizer import ids, pair, tokenizer

EOS = frozenset({tokenizer().eos_token_id})
VOCAB = pair().target.vocab_size


def check_matcher(start: Callable[[], Matcher], text: str) -> None:
    """Along a text: tokens that the mask allows are accepted and others aren't, going back brings
    the state back, and forks are apart."""
    one, other = start(), start()
    seen: list[tuple[bool, np.ndarray[Any, Any]]] = []
    for token in ids(text):
        words = np.zeros(-(-VOCAB // 32), np.int32)
        one.fill(words)
        seen.append((one.complete, words))
        bits = np.unpackbits(words.view(np.uint8), bitorder="little")[:VOCAB]
        assert bits[token] and not any(bits[end] for end in EOS)
        for wrong in np.flatnonzero(bits == 0)[:: max(1, VOCAB // 9)]:
            assert not one.accept(int(wrong))
        assert one.accept(token)
    assert one.complete and not any(one.accept(end) for end in EOS)
    for back in range(len(seen) - 1, -1, -1):
        one.rollback(1)
        words = np.zeros_like(seen[0][1])
        one.fill(words)
        assert one.complete == seen[back][0] and (words == seen[back][1]).all()
    words = np.zeros_like(seen[0][1])
    other.fill(words)
    assert (words == seen[0][1]).all()


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "tags": {"enum": ["red", "green"]}},
    "required": ["name", "tags"],
    "additionalProperties": False,
}
CASES: list[tuple[dict[str, Any], str]] = [
    ({"json": SCHEMA}, '{"name":"a é","tags":"red"}'),
    ({"regex": "(ab|12)+x?"}, "ab12ab"),
    ({"choice": ["red", 'a "b" \\ é']}, 'a "b" \\ é'),
    ({"grammar": 'root ::= "a" root "b" | "ab"'}, "aaabbb"),
    ({"grammar": 'start: "a" start "b" | "ab"'}, "aaabbb"),
    ({"json_object": True}, '{"a":{"b":null}}'),
]
