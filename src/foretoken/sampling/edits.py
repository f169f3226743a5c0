"""What changes logits before the temperature: allowed and bad ids and words, biases, processors,
penalties.

Legend: B sequences, M places (slots of a pass), V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

import torch
from torch import Tensor

from foretoken.errors import ForetokenError, caught, described
from foretoken.grammar.constraint import mask
from foretoken.sampling.params import LogitsProcessor, SamplingParams
from foretoken.sampling.sequence import Sequence
from foretoken.sampling.stateful import stateful

Contexts = Callable[[], list[list[list[int]]]]
"""Host lists [batch][place] of the draft tokens between a sequence's end and each place; places
after a sequence's own are padding."""

Errors = dict[tuple[int, int], ForetokenError]
"""Row and place of a pass -> why there is no distribution."""


def edited(logits: Tensor, sequences: Seq[Sequence], contexts: Contexts) -> tuple[Tensor, Errors]:
    """A copy of [B, M, V] with everything that comes before temperature applied; the logits
    themselves where nothing is. Of padding nobody is asked: no processor, and no grammar.

    A place at which a user's processor raises becomes NaN and is named in the errors: it matters
    only if the text gets there, and to no other row.
    """
    if not any(s.params.edits for s in sequences):
        return logits, {}
    raw, logits, errors = logits, torch.empty_like(logits), Errors()
    paths = contexts() if any(s.params.reads_context for s in sequences) else None
    for b, sequence in enumerate(sequences):
        params, places = sequence.params, raw.shape[1] if paths is None else len(paths[b])
        row, path = logits[b, :places], [] if paths is None else paths[b]
        logits[b, places:] = raw[b, places:]
        if paths is not None and sequence.constraint is not None:
            wrong = mask(raw[b], row, sequence.constraint, sequence.output, path)
            errors |= {(b, m): reason for m, reason in wrong.items()}
        else:
            row.copy_(raw[b, :places])
        _static_edits(row, params)
        if paths is None or not params.reads_context:
            continue
        _forbid_words(row, sequence, path)
        _minimum_length(row, sequence, path)
        for process in [*params.logits_processors, *stateful(sequence)]:
            raised = _user_processor(row, sequence, path, process)
            errors |= {(b, m): reason for m, reason in raised.items() if (b, m) not in errors}
        if params.penalises:
            _penalise(row, sequence, path)
    return logits, errors


def _ids(ids: Seq[int], like: Tensor) -> Tensor:
    """An index of ids that are in the vocabulary (the engine has seen to it), or of places."""
    return torch.tensor(list(ids), device=like.device, dtype=torch.int64)


def _static_edits(row: Tensor, params: SamplingParams) -> None:
    """In place on [M, V]: what does not depend on the tokens before a place."""
    if params.allowed_token_ids is not None:
        mask = torch.ones(row.shape[-1], dtype=torch.bool, device=row.device)
        mask[_ids(params.allowed_token_ids, row)] = False
        row.masked_fill_(mask, -torch.inf)
    if params.bad_token_ids:
        row[:, _ids(params.bad_token_ids, row)] = -torch.inf
    if params.logit_bias:
        values = torch.tensor(list(params.logit_bias.values()), device=row.device, dtype=row.dtype)
        row[:, _ids(list(params.logit_bias), row)] += values


def _forbid_words(row: Tensor, sequence: Sequence, paths: list[list[int]]) -> None:
    """In place on [M, V]: the last token of each word whose others are what the output, with a
    place's draft path, ends with."""
    words: Seq[Any] = sequence.params.bad_words  # of ids: the engine has seen to it
    before = max(map(len, words), default=1) - 1
    start = max(sequence.prompt_length, len(sequence.tokens) - before)
    for m, path in enumerate(paths if words else ()):
        text = (*sequence.tokens[start:], *path)
        last = [w[-1] for w in words if text[len(text) - len(w) + 1 :] == tuple(w[:-1])]
        row[m, _ids(last, row)] = -torch.inf


def _minimum_length(row: Tensor, sequence: Sequence, paths: list[list[int]]) -> None:
    missing = sequence.params.min_tokens - (len(sequence.tokens) - sequence.prompt_length)
    short = _ids([m for m, path in enumerate(paths) if len(path) < missing], row)
    row[short[:, None], _ids(sorted(sequence.late_ids), row)] = -torch.inf


def _user_processor(
    row: Tensor, sequence: Sequence, paths: list[list[int]], process: LogitsProcessor
) -> dict[int, ForetokenError]:
    """In place on [M, V]; the places at which it raised, and what."""
    raised: dict[int, ForetokenError] = {}
    for m, path in enumerate(paths):
        ids = torch.tensor([[*sequence.tokens, *path]], device=row.device)
        try:
            row[m] = _checked(process(ids, row[m : m + 1]), row.shape[-1])
        except caught() as error:
            row[m] = torch.nan
            raised[m] = described("A logits processor", error)
    return raised


def _checked(scores: Any, vocab: int) -> Tensor:
    """[V] of what a processor gave back. Raises `ForetokenError` for what isn't scores [1, V]."""
    got = None if scores is None else f"a value of type {type(scores).__name__}"
    if isinstance(scores, Tensor):
        if scores.shape == (1, vocab) and not scores.is_complex():
            return scores[0]
        got = f"{scores.dtype} {list(scores.shape)}"
    raise ForetokenError(
        f"A logits processor gave back {got}; it must be a tensor of scores, [1, {vocab}]."
    )


def _penalise(row: Tensor, sequence: Sequence, paths: list[list[int]]) -> None:
    """In place on [M, V]: each place's penalties see the accepted prefix and its own draft path."""
    params, vocab = sequence.params, row.shape[-1]
    seen_prompt, base = _update_counts(sequence, vocab, row.device)
    counts = base.to(row.dtype).repeat(len(paths), 1)  # [M, V]
    places = [m for m, path in enumerate(paths) for _ in path]
    drafted = [token for path in paths for token in path]
    if drafted:
        index = (torch.tensor(places, device=row.device), torch.tensor(drafted, device=row.device))
        counts.index_put_(index, torch.ones_like(index[0], dtype=row.dtype), accumulate=True)
    if params.repetition_penalty != 1:
        rate = params.repetition_penalty
        repeated = seen_prompt | (counts > 0)
        row.copy_(torch.where(repeated, torch.where(row > 0, row / rate, row * rate), row))
    present = (counts > 0).to(row.dtype)
    row -= params.frequency_penalty * counts + params.presence_penalty * present


def _update_counts(sequence: Sequence, vocab: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The running counts at the sequence's end: ([V] bool of the prompt, [V] of the output)."""
    counts, cut = sequence.penalty, sequence.prompt_length
    if counts.prompt is None or counts.output is None:
        counts.prompt = torch.zeros(vocab, dtype=torch.bool, device=device)
        counts.prompt[torch.tensor(sequence.tokens[:cut], device=device)] = True
        counts.output = torch.zeros(vocab, dtype=torch.int64, device=device)
        counts.seen = cut
    new = sequence.tokens[counts.seen :]
    if new:
        counts.output += torch.bincount(torch.tensor(new, device=device), minlength=vocab)
        counts.seen += len(new)
    return counts.prompt, counts.output
