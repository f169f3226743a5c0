"""A tokenizer from a GGUF file's metadata: byte-level BPE ("gpt2") and SentencePiece's ("llama").

The ids are those of transformers' `AutoTokenizer.from_pretrained(…, gguf_file=…)`, but where it
cuts text in a simpler way than the model's makers (`DIGITS`, `WHOLE`; the space after a special
token, in `_sentencepiece`; the white space that Phi 3's take): there they are the makers', and
llama.cpp's. Where a text begins with a space, or does so after a special token, they are
transformers': it puts no other one before it but for Phi 3, and llama.cpp does for all. A way of
cutting text into words that isn't known here is refused, as another one would give other ids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

from foretoken.errors import ForetokenError, one_line, shown
from foretoken.models.gguf.reader import GGUFFile, Strings

CONTROL, _USER_DEFINED = 3, 4  # types of tokens
_MERGES = "tokenizer.ggml.merges"
TEMPLATE = "tokenizer.chat_template"
"""The key of the chat template; of others their names follow after a dot."""
_SPECIAL = (
    ("bos_token", "bos"),
    ("eos_token", "eos"),
    ("unk_token", "unknown"),
    ("pad_token", "padding"),
)
_INSTEAD = "give the model's tokenizer beside it (tokenizer=…)"
_SPACE = "\u2581"  # SentencePiece's sign for a space
_LONGEST = 1024  # characters of a token: cutting all of them takes as long as their squares

_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_CASED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CASED[0]}*{_CASED[1]}+|[^\r\n\p{{L}}\p{{N}}]?{_CASED[0]}+{_CASED[1]}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_ENDING = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CASED[0]}*{_CASED[1]}+{_ENDING}"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_CASED[0]}+{_CASED[1]}*{_ENDING}"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
DIGITS = ("smollm", "starcoder", "refact")
"""Ways in which each digit is a word, and the rest is cut as by GPT-2's: otherwise spaces and line
ends before a number would be cut as those before a letter, of which the last one stands alone."""
WORDS: dict[str, str | None] = {
    **dict.fromkeys(("default", "gpt-2", *DIGITS)),  # GPT-2's, which `tokenizers` knows
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "smaug-bpe", "pixtral", "dbrx"), _LLAMA3),
    **dict.fromkeys(("falcon3", "falcon-h1", "midm-2.0", "lfm2", "jina-v5-nano"), _LLAMA3),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez", "kormo", "f2llmv2"), _QWEN2),
    "stablelm2": _QWEN2,
    **dict.fromkeys(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), _GPT4O),
    "tekken": _TEKKEN,
}
"""tokenizer.ggml.pre -> what a word is."""

WHOLE = (
    *("llama3", "llama-v3", "llama-bpe", "pixtral", "falcon3", "falcon-h1", "midm-2.0", "lfm2"),
    *("jina-v5-nano", "tekken"),
)
"""Ways in which a word that is a token is that token, whatever the merges would make of it: some
tokens of these vocabularies are made by no merges. Texts begin with the token for that, where the
file doesn't say."""

_UNNAMED = {"qwen2": "qwen2", "qwen3": "qwen2", "gpt2": "gpt-2", "starcoder2": "starcoder"}
"""Architecture -> the way of cutting text of all of its models, for files that don't name one."""

_THEIRS = ("qwen35",)
"""Ways of models whose tokenizers transformers reads."""


def serves(file: GGUFFile) -> bool:
    """Whether `read` is to read it, of an architecture that isn't: transformers' reader takes ways
    of cutting text that it doesn't know for GPT-2's, without a word."""
    kind, words = (file.metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    return (kind == "gpt2" and words not in _THEIRS) or _strips(file)


def _strips(file: GGUFFile) -> bool:
    """Whether special tokens take the white space after them, which Phi 3's metadata don't say."""
    kind = file.metadata.get("tokenizer.ggml.model")
    return file.architecture == "phi3" and kind == "llama"


def read(file: GGUFFile) -> Any:
    """The tokenizer, with its chat template. Raises `ForetokenError` where it can't be made."""
    from transformers import PreTrainedTokenizerFast

    kind = file.text("tokenizer.ggml.model")
    makers = {"gpt2": _byte_level, "llama": _sentencepiece}
    if kind not in makers:
        raise file.unserved(f"its tokenizer is of kind {shown(kind)}", _INSTEAD)
    tokens = file.strings("tokenizer.ggml.tokens")
    try:
        made = makers[kind](file, tokens)
        _keep_whole(made, file, tokens)
        return PreTrainedTokenizerFast(
            tokenizer_object=_Own(made),
            clean_up_tokenization_spaces=False,
            chat_template=_template(file),
            add_bos_token=bool(file.metadata.get("tokenizer.ggml.add_bos_token", _opens(file))),
            add_eos_token=bool(file.metadata.get("tokenizer.ggml.add_eos_token", False)),
            **_special(file, tokens),
        )
    except ForetokenError:
        raise
    except Exception as error:  # `tokenizers` has no other one
        raise file.refusal(f"its tokenizer can't be made ({one_line(error)})") from error


class _Own:
    """A tokenizer that nobody else has. transformers copies what it is given, which takes as much
    memory again, and seconds where there are 260,000 tokens."""

    def __init__(self, made: Any) -> None:
        self._made = made

    def __deepcopy__(self, memo: Any) -> Any:
        return self._made


def _opens(file: GGUFFile) -> bool:
    """Whether texts begin with the token for that, where the file doesn't say: as in llama.cpp."""
    kind, words = (file.metadata.get(f"tokenizer.ggml.{name}") for name in ("model", "pre"))
    return kind == "llama" or words in WHOLE


def _template(file: GGUFFile) -> str | dict[str, str] | None:
    """The chat template; where there are more, as one for tools, all of them by their names. None
    without one for plain conversations."""
    named = {key: file.text(key) for key in file.metadata if _is_template(key)}
    if TEMPLATE not in named or len(named) == 1:
        return named.get(TEMPLATE)
    return {
        key.removeprefix(TEMPLATE).lstrip(".") or "default": text for key, text in named.items()
    }


def _is_template(key: str) -> bool:
    return key == TEMPLATE or key.startswith(f"{TEMPLATE}.")


def _byte_level(file: GGUFFile, tokens: list[str]) -> Any:
    """BPE over bytes, each of which is written as a character."""
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    words = _words(file)
    pairs = [(left, right) for left, _, right in map(_parted, file.strings(_MERGES))]
    whole = _whole(file, tokens, pairs)
    vocabulary = {t if i in whole else _spelled(t): i for i, t in enumerate(tokens)}
    made = Tokenizer(
        models.BPE(
            vocabulary,
            pairs,
            continuing_subword_prefix="",
            end_of_word_suffix="",
            ignore_merges=words in WHOLE,
        )
    )
    pattern, byte_level = WORDS[words], pre_tokenizers.ByteLevel
    if pattern is None:
        made.pre_tokenizer = byte_level(add_prefix_space=False)
        if words in DIGITS:
            digits = pre_tokenizers.Digits(individual_digits=True)
            made.pre_tokenizer = pre_tokenizers.Sequence([digits, made.pre_tokenizer])
    else:
        cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        as_bytes = byte_level(add_prefix_space=False, use_regex=False)
        made.pre_tokenizer = pre_tokenizers.Sequence([cut, as_bytes])
    made.decoder = decoders.ByteLevel()
    return made


def _words(file: GGUFFile) -> str:
    """The name of the way in which text is cut. Raises `ForetokenError` for one that isn't known,
    and where none is named."""
    words = file.metadata.get("tokenizer.ggml.pre") or _UNNAMED.get(file.architecture)
    if words is None:
        raise file.unserved(
            "it doesn't name its way of cutting text (tokenizer.ggml.pre), as files didn't before "
            "May 2024",
            _INSTEAD,
        )
    if words not in WORDS:
        raise file.unserved(f"its way of cutting text, {shown(words)}, isn't known", _INSTEAD)
    return str(words)


def _sentencepiece(file: GGUFFile, tokens: list[str]) -> Any:
    """BPE over characters, whose merges follow from the vocabulary; Gemma's by its order. Others
    put a space before a text, and before what follows a special token: in SentencePiece's own
    library, with which the models were made, that is another text. One that is there already is
    enough, but for Phi 3's: as in transformers."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

    gemma = file.architecture.startswith("gemma")
    if gemma:  # runs of spaces are stored as such
        tokens = [_SPACE * len(t) if " " in t and not t.strip() else t for t in tokens]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    scores = None if gemma else file.metadata.get("tokenizer.ggml.scores")
    pairs = _merges(file, vocabulary, scores)
    unknown = _special(file, tokens)["unk_token"] if gemma else None
    made = Tokenizer(
        models.BPE(vocabulary, pairs, fuse_unk=True, byte_fallback=True, unk_token=unknown)
    )
    after = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if gemma:
        made.normalizer = normalizers.Replace(" ", _SPACE)
        made.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    else:
        prefix = file.metadata.get("tokenizer.ggml.add_space_prefix", True)
        if prefix and file.architecture == "phi3":
            spaced = [normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)]
            made.normalizer = normalizers.Sequence(spaced)
        else:
            made.pre_tokenizer = pre_tokenizers.Metaspace(
                _SPACE, prepend_scheme="always" if prefix else "never", split=False
            )
        after += [decoders.Strip(" ", 1, 0)] if prefix else []
    made.decoder = decoders.Sequence(after)
    return made


def _merges(
    file: GGUFFile, vocabulary: Mapping[str, int], scores: Sequence[float] | None
) -> list[tuple[str, str]]:
    """The pairs of tokens that are joined, in the order of doing so: those that the file lists,
    else all that make a token, the best first by its score, and by its place without scores."""
    if _MERGES in file.metadata:
        return [(left, right) for left, _, right in map(_parted, file.strings(_MERGES))]
    if (longest := max(map(len, vocabulary), default=0)) > _LONGEST:
        raise file.refusal(f"it has a token of {longest} characters, and no merges")
    pairs = _pairs(vocabulary)
    if scores is None:
        return [(left, right) for left, right, _ in pairs]
    if len(scores) < len(vocabulary):
        raise file.refusal(f"it has {len(vocabulary)} tokens and {len(scores)} scores")
    found = [(scores[token], len(left), len(right), left, right) for left, right, token in pairs]
    found.sort(key=itemgetter(0, 1, 2), reverse=True)
    return [(left, right) for *_, left, right in found]


def _pairs(vocabulary: Mapping[str, int]) -> Iterator[tuple[str, str, int]]:
    """Two tokens and the third one that they make, the longest left part first: the vocabulary's
    own texts, as parts of each token would take twice the memory that a Gemma's take by then."""
    own = {token: token for token in vocabulary}
    for token, i in vocabulary.items():
        for cut in range(len(token) - 1, 0, -1):
            left = own.get(token[:cut])
            right = None if left is None else own.get(token[cut:])
            if left is not None and right is not None:
                yield left, right, i


def _parted(merge: str) -> tuple[str, str, str]:
    return merge.partition(" ")


@cache
def alphabet() -> dict[int, str]:
    """The character that byte-level BPE writes for each byte: itself where it can be seen."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in seen]
    return {**{b: chr(b) for b in seen}, **{b: chr(256 + i) for i, b in enumerate(others)}}


@cache
def _characters() -> frozenset[str]:
    return frozenset(alphabet().values())


def _spelled(token: str) -> str:
    """A token in the characters of bytes, if it isn't yet."""
    if _characters().issuperset(token):
        return token
    return "".join(alphabet()[byte] for byte in token.encode())


def _whole(file: GGUFFile, tokens: list[str], pairs: Sequence[tuple[str, str]]) -> set[int]:
    """The ids of tokens that are written as they are, and not in the characters of bytes: those
    that are never cut, and those with a part of their own; unless pairs of tokens make them."""
    uncut = {i for i, kind in enumerate(_kinds(file, tokens)) if kind in (CONTROL, _USER_DEFINED)}
    uncut |= {i for i in _special_ids(file, tokens).values() if i is not None}
    others = {_spelled(tokens[i]): i for i in uncut if not _characters().issuperset(tokens[i])}
    made = others.keys() & {left + right for left, right in pairs if others}
    return uncut.difference(others[token] for token in made)


def _kinds(file: GGUFFile, tokens: list[str]) -> Any:
    """The tokens' types."""
    kinds: Any = file.metadata.get("tokenizer.ggml.token_type", [0] * len(tokens))
    if isinstance(kinds, Strings) or len(kinds) != len(tokens):
        raise file.refusal(f"its {len(tokens)} tokens have no list of as many types")
    return kinds


def _keep_whole(made: Any, file: GGUFFile, tokens: list[str]) -> None:
    """Tokens of control, and those that the model's makers added, are never cut."""
    from tokenizers import AddedToken

    named = list(zip(tokens, _kinds(file, tokens), strict=True))
    strips, bare = _strips(file), ("<s>", "<|endoftext|>")
    control = [token for token, kind in named if kind == CONTROL]
    made.add_special_tokens(
        [
            AddedToken(t, normalized=False, special=True, rstrip=strips and t not in bare)
            for t in control
        ]
    )
    added = [token for token, kind in named if kind == _USER_DEFINED]
    made.add_tokens(
        [
            AddedToken(token, normalized=False, special=False, rstrip=strips)
            for token in added
            if made.token_to_id(token) is not None
        ]
    )


def _special(file: GGUFFile, tokens: list[str]) -> dict[str, str | None]:
    """The tokens with a part of their own, by transformers' names."""
    ids = _special_ids(file, tokens)
    return {name: None if i is None else tokens[i] for name, i in ids.items()}


def _special_ids(file: GGUFFile, tokens: list[str]) -> dict[str, int | None]:
    """None for a token that there isn't, or, of those that no text needs, that isn't there: some
    converters write -1 for it, without its sign."""
    ids = {name: file.metadata.get(f"tokenizer.ggml.{key}_token_id") for name, key in _SPECIAL}
    for name, i in ids.items():
        if name in ("unk_token", "pad_token") and type(i) is int and i >= len(tokens):
            ids[name] = None
        elif i is not None and not (type(i) is int and 0 <= i < len(tokens)):
            raise file.refusal(f"its {name} is {shown(i)}, and it has {len(tokens)} tokens")
    return ids
