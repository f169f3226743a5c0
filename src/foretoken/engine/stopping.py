"""Ends a sequence exactly where plain decoding would have ended it.

Tokens of an accepted block are checked one by one, so nothing after a stop token, stop string
or length limit is ever emitted or counted.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from copy import copy
from dataclasses import dataclass
from typing import Any

from foretoken.errors import ForetokenError, shown
from foretoken.sampling.params import SamplingParams

Criterion = Callable[[Seq[int]], bool]
"""A user's own stopping rule: the output tokens so far -> whether the last of them ends it."""

_WINDOW = 8  # tokens after which it moves on, as each move decodes once more
_INCOMPLETE = "\ufffd"  # what a decoder writes for bytes that are not yet a whole character
_BYTES = 4  # the most bytes of a character, and so the most tokens that it is written in
_PART = 256  # tokens whose text is looked for in one step, as everybody waits for it

LEAD = 24
"""The most tokens of a prompt that its output is decoded after."""


class TextTracker:
    """Text that grows token by token.

    Decoding a window that overlaps the last piece, rather than the new token alone, keeps spaces
    and multi-token characters right; an incomplete character waits. What was shown stays: some
    decoders make broken bytes of whole characters too, where these have broken ones after them.
    """

    def __init__(self, tokenizer: Any, skip_special_tokens: bool, before: Seq[int] = ()) -> None:
        """before: the last tokens of what the text goes on from."""
        self._tokenizer = tokenizer
        self._skip = skip_special_tokens
        self._ids = list(before)
        self._window, self._shown = 0, len(before)
        # The text of the window's tokens that were shown; None until it is needed, as a tokenizer
        # may raise.
        self._before: str | None = None
        self._with_text = set[int]()  # tokens that were seen to have one
        self.text = ""

    def append(self, token: int) -> str:
        """Add one token; returns the text that became certain with it."""
        self._ids.append(token)
        return self._certain(self._decode(self._recent()), 1)

    def extend(self, tokens: Seq[int]) -> None:
        """Add several tokens."""
        now = self._decode([*self._recent(), *tokens])
        if _INCOMPLETE not in now:
            self._ids += tokens
            self._certain(now, len(tokens))
        elif len(tokens) <= _WINDOW:
            for token in tokens:  # what comes before broken bytes is certain
                self.append(token)
        else:
            self.extend(tokens[: len(tokens) // 2])
            self.extend(tokens[len(tokens) // 2 :])

    def _certain(self, now: str, added: int) -> str:
        """What is certain of the window's text, which so many tokens were added to, and wasn't
        shown yet."""
        new = self._new(now)
        if not new or now.endswith(_INCOMPLETE):
            self._leave_out_textless(added)
            return self._certain_of_broken(new)
        self.text += new
        shown, self._shown, self._before = self._shown, len(self._ids), now
        if shown - self._window >= _WINDOW:
            self._window = shown
            self._before = self._decode(self._ids[shown:])
        return new

    def _leave_out_textless(self, added: int) -> None:
        """Of the last tokens those without a text, as special ones that are skipped: each later
        token would decode them again."""
        first = len(self._ids) - added
        textless = {token for token in set(self._ids[first:]) if not self._has_text(token)}
        self._ids[first:] = [token for token in self._ids[first:] if token not in textless]

    def _has_text(self, token: int) -> bool:
        """A space has none at the beginning of a text, but two have. Some tokenizers drop white
        space at a text's end, too: it is looked for between tokens that were shown."""
        if token in self._with_text:
            return True
        shown = self._ids[self._window : self._shown]
        found = bool(self._decode([token] * 2))
        if not found and shown:
            found = self._decode([*shown, token] * 2) != self._decode(shown * 2)
        if found:
            self._with_text.add(token)
        return found

    def _certain_of_broken(self, new: str) -> str:
        """Of more bytes than a character has only the last may still become one. The middle of so
        many is left out: each later token would decode it again."""
        if not new or len(self._ids) - self._shown <= 2 * _BYTES:
            return ""
        del self._ids[self._shown + _BYTES : -_BYTES]
        self._before = self._decode(self._recent())[:-1]
        self.text += new[:-1]
        return new[:-1]

    def finish(self, more: Seq[int] = ()) -> str:
        """The text, an incomplete character included, with `more` tokens, which aren't added."""
        if more:
            ahead = copy(self)
            ahead._ids = list(self._ids)
            ahead.extend(more)
            return ahead.finish()
        waits = self._shown < len(self._ids)
        return self.text + (self._new(self._decode(self._recent())) if waits else "")

    def _new(self, now: str) -> str:
        """What the window's text has beyond the one that was shown, whose last character may have
        been incomplete."""
        shown = self._before or ""
        known = shown if now.startswith(shown) else shown.rstrip(_INCOMPLETE)
        if _INCOMPLETE in now and not now.startswith(known):
            return self._decode(self._ids[self._shown :])
        return now[len(known) :]

    def _recent(self) -> list[int]:
        """The window's tokens."""
        if self._before is None:
            kept, self._before = _lead(self._tokenizer, self._ids[: self._shown], self._skip)
            self._window = self._shown - len(kept)
        return self._ids[self._window :]

    def _decode(self, ids: list[int]) -> str:
        return decoded(self._tokenizer, ids, self._skip)


def decoded(tokenizer: Any, ids: list[int], skip_special_tokens: bool) -> str:
    """The text of these tokens. Raises `ForetokenError` for a tokenizer that gives back none;
    what it raises itself comes through."""
    text = tokenizer.decode(
        ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False
    )
    if not isinstance(text, str):
        raise ForetokenError(f"The tokenizer's decode gave back {shown(text)}; it must be a text.")
    return text


def decoded_after(
    tokenizer: Any, before: Seq[int], ids: list[int], skip_special_tokens: bool
) -> str:
    """What these tokens add to the text of those before them, of which the last `LEAD` are read: a
    first space, which many tokenizers leave out at the beginning of a text, and the character that
    the last of them had begun."""
    tracker = TextTracker(tokenizer, skip_special_tokens, before)
    tracker.extend(ids)
    return tracker.finish()


class OutputText:
    """The text of an output, asked for at its end. Broken bytes are decoded token by token, which
    for all of a long output would hold up everybody: it is read in parts, as it grows."""

    def __init__(self, tokenizer: Any, skip_special_tokens: bool, before: Seq[int]) -> None:
        """tokenizer: None where there is none. before: see `TextTracker`."""
        self._tokenizer, self._skip, self._before = tokenizer, skip_special_tokens, before
        self._tracker = TextTracker(tokenizer, skip_special_tokens, before)
        self._read = 0

    def read(self, output: list[int], part: int = _PART) -> None:
        """Read on in the output so far, where at least a `part` of it is new."""
        if self._tokenizer is not None and len(output) >= self._read + part:
            self._tracker.extend(output[self._read :])
            self._read = len(output)

    def whole(self, output: list[int], last: Seq[int] = ()) -> str:
        """The text of the output and the last tokens after it, which aren't kept; "" without a
        tokenizer."""
        if self._tokenizer is None:
            return ""
        self.read(output, 1)
        if _INCOMPLETE in self._tracker.text:
            return self._tracker.finish(last)
        return decoded_after(self._tokenizer, self._before, [*output, *last], self._skip)


def _lead(tokenizer: Any, before: Seq[int], skip: bool) -> tuple[list[int], str]:
    """The fewest last tokens that have a text which begins with a whole character, and it."""
    last, text = list(before[-LEAD:]), ""
    for start in reversed(range(len(last))):
        text = decoded(tokenizer, last[start:], skip)
        if text and not text.startswith(_INCOMPLETE):
            return last[start:], text
    return last, text


@dataclass(slots=True)
class Ending:
    """Where a block ends. emitted: its tokens that count; the rest is dropped. without_last:
    whether the last of them is no part of the text, as it ended it."""

    emitted: int
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    text: str | None = None
    without_last: bool = False


class StopChecker:
    """One sequence's stopping rules, fed with its blocks of new tokens."""

    def __init__(
        self,
        params: SamplingParams,
        eos_ids: frozenset[int],
        limit: int,
        tokenizer: Any = None,
        criterion: Criterion | None = None,
        before: Seq[int] = (),
    ) -> None:
        """`limit`: how many tokens may be written at most, by max_tokens and the context. before:
        the last tokens of what the text goes on from.

        `criterion` is called after every token, whatever min_tokens is.
        """
        self._params = params
        self._eos = frozenset() if params.ignore_eos else eos_ids
        self._stop_ids = frozenset(params.stop_token_ids)
        self._limit = limit
        self._written = 0
        self._criterion, self._output = criterion, list[int]()
        self.tracker: TextTracker | None = None
        if params.stops:
            self.tracker = TextTracker(tokenizer, params.skip_special_tokens, before)

    def check(self, block: list[int]) -> Ending:
        """How much of the block is emitted, and why it ends there, if it does."""
        by_ids = self.tracker is None and self._criterion is None
        if by_ids and not self._might_end(block):
            self._written += len(block)
            return Ending(len(block))
        for place, token in enumerate(block, 1):
            self._written += 1
            ending = self._after(token, place)
            if ending is not None:
                return ending
        return Ending(len(block))

    def _might_end(self, block: list[int]) -> bool:
        ends = self._eos or self._stop_ids
        ended = bool(ends) and any(t in self._eos or t in self._stop_ids for t in block)
        return ended or self._written + len(block) >= self._limit

    def _after(self, token: int, place: int) -> Ending | None:
        criterion_met = self._criterion_met(token)
        if self.tracker is not None:
            new = self.tracker.append(token)
            match = self._stop_string(len(new))
            if match is not None and self._written > self._params.min_tokens:
                stop, at = match
                end = at + len(stop) if self._params.include_stop_str_in_output else at
                return Ending(place, "stop", stop, self.tracker.text[:end])
        hidden = not self._params.include_stop_str_in_output
        if token in self._eos:
            return Ending(place, "stop", without_last=hidden)
        if token in self._stop_ids:
            return Ending(place, "stop", token, without_last=hidden)
        if criterion_met:
            return Ending(place, "stop")
        if self._written >= self._limit:
            return Ending(place, "length")
        return None

    def _criterion_met(self, token: int) -> bool:
        if self._criterion is None:
            return False
        self._output.append(token)
        return self._criterion(self._output)

    def _stop_string(self, new: int) -> tuple[str, int] | None:
        """The first stop string in the text that its newest `new` characters complete, and where it
        begins."""
        if not new or self.tracker is None:
            return None
        text = self.tracker.text
        after = len(text) - new + 1
        places = [(text.find(s, max(0, after - len(s))), s) for s in self._params.stops]
        matches = [(at, stop) for at, stop in places if at >= 0]
        if not matches:
            return None
        at, stop = min(matches)
        return stop, at
