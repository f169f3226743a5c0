"""Tokenizers of a few known pieces, for models whose vocabularies differ."""

from __future__ import annotations

import string
from collections.abc import Sequence as Seq
from typing import Any

from foretoken import SamplingParams
from foretoken.protocols import Verifier
from foretoken.testing import Pair, TableModel, check_distribution

LETTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits + string.punctuation + " "


class Pieces:
    """Takes the longest piece first, and leaves out what it has no piece for; `end` has no text."""

    def __init__(self, pieces: Seq[str], end: int | None = None) -> None:
        self.pieces, self.eos_token_id = list(pieces), end
        self.all_special_ids = [] if end is None else [end]
        self._ids = {piece: i for i, piece in enumerate(pieces) if i != end}
        self._sizes = sorted({len(piece) for piece in pieces}, reverse=True)

    def __len__(self) -> int:
        return len(self.pieces)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        ids, at = [], 0
        while at < len(text):
            sizes = [n for n in self._sizes if text[at : at + n] in self._ids]
            if sizes:
                ids.append(self._ids[text[at : at + sizes[0]]])
            at += sizes[0] if sizes else 1
        return {"input_ids": ids}

    def decode(self, ids: Seq[int], **options: Any) -> str:
        return "".join(self.pieces[i] for i in ids)


def two_tokenizers(size: int) -> tuple[Pieces, Pieces]:
    """The target's, one letter a token, and one that has half of these at other ids and
    pairs of letters besides."""
    letters = list((LETTERS + "äöü")[:size])
    kept = letters[size // 2 :]
    pairs = [a + b for a in letters for b in letters][: size - len(kept)]
    return Pieces(letters), Pieces([*kept, *pairs])


def check_where_few_tokens_are_shared(drafter: Any, rule: Verifier) -> None:
    """Every outcome enumerated; the request's own bias and ban are of target ids, and one ban
    leaves no shared token. `drafter` takes the small model, both tokenizers and a length."""
    theirs, own = Pieces(["a", "b", "c"]), Pieces(["c", "b", "aa"])
    pair = Pair(TableModel.random(3, 1), TableModel.random(3, 2))
    for params in (
        SamplingParams(logit_bias={1: 2.0}, temperature=0.8),
        SamplingParams(frequency_penalty=0.9, top_p=0.9),
        SamplingParams(bad_token_ids=[1, 2]),
        SamplingParams(temperature=0),
    ):
        check_distribution(
            lambda p: drafter(p.draft, own, theirs, 2), rule, pair, params, 3, rows=1
        )
