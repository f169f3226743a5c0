"""Jacobi decoding: its guesses are the iterates, computed here by hand from the target."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.jacobi import Jacobi
from foretoken.drafters.merged import Merged
from foretoken.engine.engine import Engine
from foretoken.models.target import ModelTarget
from foretoken.protocols import Step
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Oracle, Pair, check_distribution, logits_after, serve, table_pair
from foretoken.testing.checks import PROMPTS
from foretoken.tree import DraftTree, chains
from foretoken.trees.from_lists import from_parents
from foretoken.verify.target_only import TargetOnly

GREEDY = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
TOKENS = 30


def iterates(pair: Pair, prompt: list[int], ahead: int, block: int | None) -> list[int]:
    """How many tokens each pass fixes, where the rest of the answer is one row of guesses."""
    text, guesses, fixed = list(prompt), {}, []  # type: ignore[var-annotated]
    while (done := len(text) - len(prompt)) < TOKENS:
        size = min(ahead, TOKENS - done - 1)
        if block is not None:
            size = min(size, block - done % block - 1)
        start = [prompt[i % len(prompt)] for i in range(done, done + size)]
        draft = [guesses.get(done + i, token) for i, token in enumerate(start)]
        predicted = [
            int(logits_after(pair.target, text + draft[:i]).argmax()) for i in range(size + 1)
        ]
        right = next((i for i in range(size) if draft[i] != predicted[i]), size)
        guesses = {done + i: predicted[i] for i in range(right + 1, size + 1)}
        text += predicted[: right + 1]
        fixed.append(right + 1)
    return fixed


@pytest.mark.parametrize("block", [None, 3, 5])
def test_passes_are_the_iterations(pair: Pair, block: int | None) -> None:
    """Each pass fixes as many tokens as one iteration by hand, with and without blocks."""
    for prompt in (PROMPTS[0], PROMPTS[3]):
        drafter, target = Jacobi(6, block), ModelTarget(pair.target, 1, 256)
        engine = Engine(target, drafter, TargetOnly())
        request = engine.add(prompt, GREEDY)
        written = [0]
        while engine.busy:
            engine.step()
            written.append(len(request.samples[0].output.token_ids))
        fixed = [b - a for a, b in pairwise(written) if b > a]
        assert fixed == iterates(pair, prompt, 6, block)


def test_blocks_are_not_crossed() -> None:
    """No guess for a place of the next block; the last place of a block is a plain step."""
    drafter = Jacobi(16, 4)
    drafter.bind(SimpleNamespace(device=torch.device("cpu")))
    one = Sequence.start([7, 8, 9], GREEDY)
    counts = []
    for token in range(9):
        counts += drafter.draft([one], [30], None).counts  # type: ignore[arg-type]
        one.tokens.append(token)
    assert counts == [3, 2, 1, 0, 3, 2, 1, 0, 3]
    assert drafter.draft([Sequence.start([7, 8], GREEDY)], [2], None).tokens.tolist() == [[7, 8]]  # type: ignore[arg-type]


def test_guesses_begin_with_a_source() -> None:
    """Of an encoder–decoder, whose text's own beginning says nothing."""
    drafter = Jacobi(3)
    drafter.bind(SimpleNamespace(device=torch.device("cpu")))
    one = Sequence.start([0], GREEDY, source=[7, 8, 9, 5])
    assert drafter.draft([one], [3], None).tokens.tolist() == [[7, 8, 9]]  # type: ignore[arg-type]
    one.tokens += [7, 8]
    one.state.clear()
    assert drafter.draft([one], [3], None).tokens.tolist() == [[9, 5, 7]]  # type: ignore[arg-type]


def test_anothers_draft_teaches_nothing(pair: Pair) -> None:
    """After a step with another drafter's tree the guesses start again."""
    drafter = Jacobi(3)
    drafter.bind(ModelTarget(pair.target, 1, 64))
    one = Sequence.start([7, 8, 9], GREEDY)
    fresh = drafter.draft([one], [3], None).tokens.tolist()  # type: ignore[arg-type]
    tree = from_parents([[1, 2, 3]], [[0, 0, 1]], torch.device("cpu"))
    probs = torch.ones(1, 4, 97)
    drafter.observe([one], [Step([5], [], 3, 0, tree, SimpleNamespace(probs=probs))])  # type: ignore[arg-type]
    assert drafter.draft([one], [3], None).tokens.tolist() == fresh  # type: ignore[arg-type]


def test_fixed_points_are_accepted(pair: Pair) -> None:
    """Text that repeats converges faster than a token a pass."""
    [output] = serve(pair.target, Jacobi(), TargetOnly(), [[11] * 3], GREEDY)
    assert output.stats.passes < output.stats.tokens


@pytest.mark.parametrize("block", [None, 2])
def test_distribution(block: int | None) -> None:
    """The sampled distribution of three tokens, every outcome enumerated."""
    check_distribution(
        lambda p: Jacobi(2, block),
        TargetOnly(),
        table_pair(3),
        SamplingParams(temperature=0.8),
        3,
        rows=1,
    )


def test_wrong_options() -> None:
    """One sentence."""
    with pytest.raises(ForetokenError, match="num_speculative_tokens is 0; it must be at least 1"):
        Jacobi(0)
    with pytest.raises(ForetokenError, match="block_size is 1; it must be at least 2"):
        Jacobi(block_size=1)
    with pytest.raises(ForetokenError, match="block_size is 5000; it must be from 1 to 4096"):
        Jacobi(block_size=5000)


class Noting(Jacobi):
    """Notes its guesses."""

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        tree = super().draft(sequences, budgets, draws)
        self.noted = [*getattr(self, "noted", []), tree.tokens[0].tolist()]
        return tree


def test_guesses_are_corrected_in_a_tree_too(pair: Pair) -> None:
    """Beside drafts that are never right (`a|b`) they are what they are alone."""
    prompt, alone, beside = PROMPTS[0], Noting(3), Noting(3)
    [output] = serve(pair.target, alone, TargetOnly(), [prompt], GREEDY)
    wrong = [(token + 1) % 97 for token in output.token_ids]
    both = Merged([beside, Oracle({tuple(prompt): wrong}, 2)])
    [same] = serve(pair.target, both, TargetOnly(), [prompt], GREEDY)
    assert same.token_ids == output.token_ids and beside.noted == alone.noted
    first = {tuple((prompt * 4)[i : i + 3]) for i in range(len(prompt))}  # of places not seen yet
    assert any(tuple(guesses) not in first for guesses in alone.noted if len(guesses) == 3)


def test_a_row_is_read_where_its_step_says() -> None:
    """In a batch's tree and scores, whoever else is observed."""
    drafter, cpu = Jacobi(2), torch.device("cpu")
    drafter.bind(SimpleNamespace(device=cpu))
    one = Sequence.start([7, 8, 9], GREEDY)
    assert drafter.draft([one], [2], None).tokens.tolist() == [[7, 8]]  # type: ignore[arg-type]
    scores: Any = SimpleNamespace(best=torch.tensor([[1, 1, 1], [4, 5, 6]]))
    one.tokens.append(4)
    drafter.observe([one], [Step([4], [], 2, 1, chains([[3, 3], [7, 8]], cpu), scores)])
    assert drafter.draft([one], [2], None).tokens.tolist() == [[5, 6]]  # type: ignore[arg-type]
