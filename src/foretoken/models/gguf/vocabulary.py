"""A tokenizer as a GGUF file's metadata: byte-level BPE ("gpt2") and SentencePiece's ("llama").

What is written is what `tokenizer.read` makes the same tokenizer of; any other is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from foretoken.errors import ForetokenError
from foretoken.models.gguf.tokenizer import TEMPLATE, WHOLE, WORDS

_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
_IDS = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def metadata(tokenizer: Any, size: int) -> dict[str, Any]:
    """The pairs of a tokenizer of transformers, for a model with an embedding of so many rows.

    Raises `ForetokenError` for a tokenizer of another kind, or of more tokens than rows.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    made = json.loads(backend.to_str()) if backend is not None else {"model": {}}
    if made["model"].get("type") != "BPE":
        raise _unwritten("it is no BPE of the package tokenizers")
    tokens = _tokens(made, size)
    merges = [_merge(pair) for pair in made["model"]["merges"]]
    found = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": _types(made, tokens),
        **_ids(tokenizer),
        **_added(backend),
    }
    found |= _templates(getattr(tokenizer, "chat_template", None))
    if '"ByteLevel"' in json.dumps(made["decoder"]):
        words = _words(made["pre_tokenizer"], bool(made["model"].get("ignore_merges")))
        kind = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": words}
        return {**kind, **found, "tokenizer.ggml.merges": merges}
    return {**found, **_sentencepiece(made, tokens, merges)}


def _templates(given: str | Mapping[str, str] | None) -> dict[str, Any]:
    """A chat template, or several by their names, of which the one called "default" has none."""
    named = given if isinstance(given, Mapping) else {"default": given} if given else {}
    others = [name for name in named if name != "default"]
    found: dict[str, Any] = {f"{TEMPLATE}.{name}": named[name] for name in others}
    found |= {TEMPLATE: named["default"]} if "default" in named else {}
    return found | ({f"{TEMPLATE}s": others} if others else {})


def _sentencepiece(made: Mapping[str, Any], tokens: list[str], merges: list[str]) -> dict[str, Any]:
    """SentencePiece's way: no merges, but a score for each token, so that the first merge is the
    best."""
    rank = {merge.replace(" ", "", 1): -float(i) for i, merge in enumerate(merges)}
    given = json.dumps([made["pre_tokenizer"], made["normalizer"]])
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.scores": [rank.get(token, 0.0) for token in tokens],
        "tokenizer.ggml.add_space_prefix": any(
            f'"{way}"' in given for way in ("Prepend", "first", "always")
        ),
    }


def _tokens(made: Mapping[str, Any], size: int) -> list[str]:
    """All tokens by their ids; rows of the embedding that no token has are named."""
    ids = {**made["model"]["vocab"], **{t["content"]: t["id"] for t in made["added_tokens"]}}
    named = {i: token for token, i in ids.items()}
    if max(named) >= size:
        raise _unwritten(f"it has tokens up to {max(named)}, and the model {size} embeddings")
    return [named.get(i, f"[PAD{i}]") for i in range(size)]


def _types(made: Mapping[str, Any], tokens: list[str]) -> list[int]:
    added = {
        t["content"]: _CONTROL if t["special"] else _USER_DEFINED for t in made["added_tokens"]
    }
    known, unknown = made["model"]["vocab"], made["model"].get("unk_token")
    fallback = made["model"].get("byte_fallback", False)

    def of(token: str) -> int:
        if token == unknown:
            return _UNKNOWN
        if fallback and len(token) == 6 and token.startswith("<0x"):
            return _BYTE
        return added.get(token, _NORMAL if token in known else _UNUSED)

    return [of(token) for token in tokens]


def _ids(tokenizer: Any) -> dict[str, int]:
    ids = {part: getattr(tokenizer, f"{name}_token_id") for name, part in _IDS.items()}
    return {f"tokenizer.ggml.{part}_token_id": i for part, i in ids.items() if i is not None}


def _added(backend: Any) -> dict[str, bool]:
    """Whether a text gets a token before it and after it."""
    bare, full = (backend.encode("a", add_special_tokens=given).ids for given in (False, True))
    ends = len(full) - len(bare)
    before = next((i for i in range(ends + 1) if full[i : i + len(bare)] == bare), 0)
    return {
        "tokenizer.ggml.add_bos_token": before > 0,
        "tokenizer.ggml.add_eos_token": before < ends,
    }


def _words(given: Any, whole: bool) -> str:
    """The name of the way in which a byte-level tokenizer cuts text. whole: whether a word that is
    a token is never merged."""
    for name, pattern in WORDS.items():
        if pattern is not None and pattern in _patterns(given) and (name in WHOLE) == whole:
            return name
    if not whole and (own := _as_gpt2(given)):
        return own
    raise _unwritten("its way of cutting text has no name among " + ", ".join(WORDS))


def _as_gpt2(given: Any) -> str | None:
    """The name of GPT-2's way, or of that after cutting out each digit; None for another."""
    said = json.dumps(given)
    if list(_patterns(given)) or '"use_regex": false' in said:
        return None
    if '"Digits"' in said:
        return "smollm" if '"individual_digits": true' in said else None
    return "gpt-2"


def _patterns(given: Any) -> Iterator[str]:
    """The expressions by which a text is cut."""
    if isinstance(given, Mapping):
        if isinstance(given.get("Regex"), str):
            yield given["Regex"]
        for value in given.values():
            yield from _patterns(value)
    elif isinstance(given, list):
        for value in given:
            yield from _patterns(value)


def _merge(pair: Any) -> str:
    return pair if isinstance(pair, str) else " ".join(pair)


def _unwritten(why: str) -> ForetokenError:
    return ForetokenError(
        f"The tokenizer can't be written into a GGUF file: {why}; use llama.cpp's converter."
    )
