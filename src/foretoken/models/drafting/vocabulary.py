"""The texts of a tokenizer's tokens, by which two tokenizers are brought together.

Tokenizers differ in what they do at the beginning of a text (a space put before it, or taken away).
So a token's text, and the tokens of a text that follows another, are always computed after an
anchor: a character that is put before them and then removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from functools import cached_property
from typing import Any

from foretoken.errors import ForetokenError

_ANCHORS = ("a", "\n", "0", ".")  # the first one that the text after it doesn't merge with
_LONGEST = 32  # tokens of a group at most
_BROKEN = "\ufffd"  # what a decoder writes for bytes that are no whole character


class Vocabulary:
    """A tokenizer of transformers, or one with its `__call__` and `decode`.

    size: tokens of the model; its tokenizer may have fewer or more.
    """

    def __init__(self, tokenizer: Any, size: int) -> None:
        self._tokenizer, self.size = tokenizer, size
        self._anchor = self._ids(_ANCHORS[0])[-1:]
        self._shown = len(self._decode(self._anchor))

    @cached_property
    def special(self) -> dict[int, str]:
        """The ids that stand for no text, and their names; beginning and end are named alike in
        all vocabularies."""
        tokenizer = self._tokenizer
        added = getattr(tokenizer, "added_tokens_decoder", {})
        names = {i: token.content for i, token in added.items() if token.special}
        names |= {i: self._decode([i]) for i in getattr(tokenizer, "all_special_ids", ())}
        for role in ("bos", "eos"):  # the end last: it may be the beginning as well
            token = getattr(tokenizer, f"{role}_token_id", None)
            names |= {} if token is None else {token: f"<{role}>"}
        return {i: name for i, name in names.items() if i < self.size}

    @cached_property
    def texts(self) -> list[str | None]:
        """Each token's text; None for a special one, and where it has none."""
        ids = range(min(self.size, self._known))
        texts = [self._own_text(text) for text in self._each([[*self._anchor, i] for i in ids])]
        texts += [None] * (self.size - len(texts))
        for i in self.special:
            texts[i] = None
        return texts

    @property
    def _known(self) -> int:
        """How many tokens the tokenizer has. Raises `ForetokenError` where it doesn't say."""
        try:
            return len(self._tokenizer)
        except TypeError as error:
            raise ForetokenError(
                f"The tokenizer {type(self._tokenizer).__name__} has no length, by which its "
                "tokens are read one by one; give one that has, as those of transformers do."
            ) from error

    def _own_text(self, decoded: str) -> str | None:
        text = decoded[self._shown :]
        return None if _BROKEN in text else text or None

    @cached_property
    def ids(self) -> dict[str, int]:
        """Text or special name -> token; of several the last one, since single bytes, which a
        tokenizer only uses in need, come first."""
        plain = {text: i for i, text in enumerate(self.texts) if text is not None}
        return plain | {name: i for i, name in self.special.items()}

    @cached_property
    def beginning(self) -> list[int]:
        """What the tokenizer puts before every text: its beginning token, or nothing."""
        start = getattr(self._tokenizer, "bos_token_id", None)
        return [i for i in self._ids("", specials=True) if i == start][:1]

    def text(self, ids: Seq[int]) -> str:
        """What these tokens add to a text; bytes of an unfinished character are left out."""
        return self._decode([*self._anchor, *ids])[self._shown :].rstrip(_BROKEN)

    def starting(self, text: str) -> list[int]:
        """The tokens of a text with nothing before it."""
        return self._ids(text)

    def continuing(self, text: str) -> list[int]:
        """The tokens of a text that stands after other text."""
        for anchor in _ANCHORS:
            head, whole = self._ids(anchor), self._ids(anchor + text)
            tail = whole[len(head) :]
            if whole[: len(head)] == head and self.text(tail) == text:
                return tail
        return self._ids(text)

    def groups(self, ids: Seq[int]) -> Iterator[list[int]]:
        """Tokens in groups that may be tokenized apart: no tokenizer merges over a word's start.

        A group is a word with what is written on to it, or one special token. Where a group ends
        depends on what stands in and right after it only.
        """
        group: list[int] = []
        for i in ids:
            alone = i in self.special
            full = len(group) == _LONGEST or (group and group[-1] in self.special)
            if group and (alone or full or self._starts_word(i, group[-1])):
                yield group
                group = []
            group.append(i)
        if group:
            yield group

    def _starts_word(self, token: int, before: int) -> bool:
        """Whether a word starts at this token: at a space, or the first of several, or the last of
        them together with the word."""
        text, last = self.texts[token] or "", self.texts[before] or ""
        return text.startswith(" ") and not (text.isspace() and last.isspace())

    def _each(self, rows: list[list[int]]) -> list[str]:
        """The text of each row, by all cores where the tokenizer can."""
        inner = getattr(self._tokenizer, "backend_tokenizer", None)
        if inner is not None:
            decoded: list[str] = inner.decode_batch(rows, skip_special_tokens=False)
            return decoded
        return [self._decode(row) for row in rows]

    def _ids(self, text: str, specials: bool = False) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=specials)["input_ids"]
        return [i for i in ids if i < self.size]

    def _decode(self, ids: Seq[int]) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


def shared(own: Vocabulary, theirs: Vocabulary) -> list[tuple[int, int]]:
    """(own id, their id) of every token that both have, the special ones by name."""
    return [(own.ids[text], i) for text, i in theirs.ids.items() if text in own.ids]
