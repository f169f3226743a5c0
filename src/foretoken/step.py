"""The loop: draft, score, verify, commit, observe. It serves every method."""

from __future__ import annotations

from collections.abc import Sequence as Seq

import torch
from torch import Tensor

from foretoken.draws import Draws
from foretoken.errors import ForetokenError
from foretoken.grammar.ahead import filled_ahead
from foretoken.protocols import Drafter, Scorer, Scores, Step, Target, Verdict, Verifier
from foretoken.sampling.fold import fold
from foretoken.sampling.sequence import Sequence, draws_for
from foretoken.tree import DraftTree, empty

NO_DISTRIBUTION = ForetokenError(
    "The target gave no probabilities (NaN logits, or every token forbidden); check the weights, "
    "dtype, processors and structured_outputs."
)


def step(
    target: Scorer,
    drafter: Drafter,
    verifier: Verifier,
    sequences: Seq[Sequence],
    budgets: Seq[int],
    draws: Draws | None = None,
) -> list[Step]:
    """Advance every sequence by at least one token; `budgets[b]` bounds the nodes drafted for b."""
    draws = draws or draws_for(sequences, target.device, verifier.draws)
    trees = drafter.draft(sequences, budgets, draws).trim(budgets)
    with filled_ahead(sequences, trees.contexts, trees.counts) as contexts:
        out = target.score(sequences, trees)
    assert out.logits is not None
    folded = fold(out.logits, sequences, contexts, [count + 1 for count in trees.counts])
    scores = Scores(out.logits, folded, folded.bad, out.hidden)
    steps = _to_steps(trees, scores, verifier(trees, scores, draws))
    for sequence, done in zip(sequences, steps, strict=True):
        sequence.tokens.extend(done.tokens)
    target.commit(sequences, [done.path for done in steps])
    drafter.observe(sequences, steps)
    return steps


def prefill(target: Target, drafter: Drafter, sequences: Seq[Sequence], chunk: int) -> list[Step]:
    """Read one chunk of each prompt: a step with empty trees that emits nothing, which the drafter
    observes too. Where a sequence's parameters ask for log-probabilities of its prompt, the steps'
    scores have logits at each token read."""
    pending = [target.pending(sequence) for sequence in sequences]
    out = target.prefill(sequences, chunk)
    tree = empty(len(sequences), target.device)
    none = torch.empty(len(sequences), 0, device=target.device)
    scores = Scores(none if out.logits is None else out.logits, none, none, out.hidden)
    steps = []
    for row, (s, before) in enumerate(zip(sequences, pending, strict=True)):
        # Of a text all but the root is pending at most, so what is beyond that is a source's.
        source, read = max(0, before - len(s.tokens) + 1), before - target.pending(s)
        steps.append(Step([], [], 0, row, tree, scores, read=read, source=source))
    drafter.observe(sequences, steps)
    return steps


def _to_steps(trees: DraftTree, scores: Scores, verdict: Verdict) -> list[Step]:
    """The `Step` of each sequence. Brings the verdict to the host in one transfer."""
    path, lengths, token, strayed = verdict
    width = path.shape[1]
    columns: list[Tensor] = [lengths[:, None], token[:, None]]
    if trees.is_chain:  # the path is 1, 2, …
        columns += [trees.tokens[:, :width], scores.bad[:, : width + 1]]
    else:
        slots = torch.cat((path.new_zeros(trees.batch, 1), path), 1)  # the root, then the path
        columns += [trees.tokens.gather(1, path - 1), scores.bad.gather(1, slots), path]
    columns += [] if strayed is None else [strayed[:, None]]
    steps = []
    for row, (length, extra, *rest) in enumerate(torch.cat(columns, 1).tolist()):
        strays = 0 if strayed is None else rest.pop()
        bad = rest[width : width + length + 1]
        # Nothing after a place without a distribution counts as accepted.
        n = bad.index(1) if any(bad) else length
        accepted = list(range(1, n + 1)) if trees.is_chain else rest[2 * width + 1 :][:n]
        tokens = [*rest[:n], extra]
        slot = accepted[-1] if accepted else 0
        error = scores.errors.get((row, slot), NO_DISTRIBUTION) if any(bad) else None
        steps.append(Step(tokens, accepted, trees.counts[row], row, trees, scores, error, strays))
    return steps
