"""The blocks of an answer: what each step drafted, and what it wrote."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import Any

from foretoken.engine.outputs import CompletionOutput, Draft
from foretoken.engine.stopping import TextTracker
from foretoken.serve.logprobs import Spelling
from foretoken.serve.schema import Sampling


class Blocks:
    """Tells the choices of one answer their blocks, each once."""

    def __init__(self, tokenizer: Any, body: Sampling) -> None:
        self._tokenizer, self._skips = tokenizer, body.skip_special_tokens
        self._spelling = Spelling(tokenizer)
        self._wanted = body.foretoken.blocks
        self._known: dict[int, _Known] = {}

    def more(self, index: int, sample: CompletionOutput, before: Seq[int]) -> dict[str, Any]:
        """What a choice has beside its text; nothing where it isn't wanted. before: the last tokens
        of what the text goes on from."""
        if not self._wanted:
            return {}
        assert sample.drafts is not None  # asked for with the request
        known = self._known.setdefault(index, _Known(self._tracker(before)))
        new = sample.drafts[known.blocks :]
        blocks = [self._block(known, sample, draft) for draft in new]
        known.blocks += len(new)
        if known.tracker is not None and sample.finish_reason and blocks and blocks[-1]["tokens"]:
            blocks[-1]["tokens"][-1] += known.tracker.finish()[len(known.tracker.text) :]
        return {"foretoken": {"blocks": blocks}}

    def _tracker(self, before: Seq[int]) -> TextTracker | None:
        if self._tokenizer is None:
            return None
        return TextTracker(self._tokenizer, self._skips, before)

    def _block(self, known: _Known, sample: CompletionOutput, draft: Draft) -> dict[str, Any]:
        ids = sample.token_ids[known.tokens : known.tokens + draft.written]
        known.tokens += draft.written
        return {
            "tokens": [known.piece(token, self._spelling) for token in ids],
            "accepted": len(draft.path),
            "ms": 1000 * draft.seconds,
            "draft": [
                {"text": self._spelling.token(token), "parent": parent, "accepted": slot in path}
                for path in [set(draft.path)]
                for slot, (token, parent) in enumerate(
                    zip(draft.tokens, draft.parents, strict=True), 1
                )
            ],
        }


class _Known:
    """How much of a choice has been told."""

    def __init__(self, tracker: TextTracker | None) -> None:
        self.tracker, self.blocks, self.tokens = tracker, 0, 0

    def piece(self, token: int, spelling: Spelling) -> str:
        """What a token adds to the text; a character in several tokens comes with its last."""
        return spelling.token(token) if self.tracker is None else self.tracker.append(token)
