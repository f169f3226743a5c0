"""Parallel prompts: what is estimated is served; rates."""

from __future__ import annotations

import pytest
import torch

from foretoken import ForetokenError
from foretoken.drafters.parallel_prompt import ParallelPrompt, ParallelPromptTokens
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.step import prefill, step
from foretoken.testing import Pair, tiny_pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.verify.target_only import TargetOnly
from lessons import GREEDY, after_text, check_estimate, seeded


@pytest.mark.parametrize("nodes", [60, 7])
def test_parallel_prompts_estimate_what_is_served(
    small: Pair, records: Records, nodes: int
) -> None:
    """The walk from state to state included."""
    module = seeded(ParallelPromptTokens, small)
    module.embeddings.data = torch.randn(3, 32).double()
    module.notes["rates"] = [[0.5, 0.2, 0.1, 0.05], [0.4, 0.2, 0.1], [0.3, 0.2]]
    drafter = ParallelPrompt(module, tree_nodes=nodes)
    total = check_estimate(drafter, module, small.target, records, TargetOnly())
    assert total.acceptance_length > 1.02


def test_prompt_tokens_count_their_ranks(small: Pair, records: Records) -> None:
    """Rates are of the tokens after the root, from states before it."""
    module, frozen = seeded(ParallelPromptTokens, small, num_tokens=2), FrozenTarget(small.target)
    lesson = frozen.lesson(collate(records, [[0, 1]], 44, 0.0), (-1,))
    with torch.no_grad():
        ranks = module.ranks(lesson)
    for root in (lesson.max_nodes[0] >= 0).nonzero()[:, 0].tolist():
        first = root - int(lesson.positions[0, root])
        text = lesson.tokens[0, first:root].tolist()
        said = frozen.head(after_text(small.target, text, module.embeddings))
        for i in range(2):
            goal = root + 1 + i
            if goal < 44 and lesson.records[0, goal] == lesson.records[0, root]:
                want = (said[i] > said[i, lesson.tokens[0, goal]]).sum()
                assert ranks[0, root, i] == want
            else:
                assert ranks[0, root, i] > 23
    module.note_counts(module.count_held_out(lesson))
    assert len(module.notes["rates"]) == 2


def test_no_more_prompt_tokens_than_levels(small: Pair) -> None:
    """Though the checkpoint has more, and rates for them."""
    module = seeded(ParallelPromptTokens, small)
    module.notes["rates"] = [[0.5, 0.2, 0.1, 0.05], [0.4, 0.2, 0.1], [0.3, 0.2]]
    for levels in (3, 2):
        drafter = ParallelPrompt(module, num_speculative_tokens=levels)
        drafter.bind(ModelTarget(small.target, 1, 64))
        assert drafter._trees.of(0, 60).prompts == (levels,)
    module.notes["rates"] = [[0.5, 0.2], [0.0, 0.0], [0.0, 0.0]]  # of which the others never help
    assert module.trees(60, 3).of(0, 60).prompts == (1,)


@torch.inference_mode()
def test_a_row_is_read_where_its_step_says(small: Pair) -> None:
    """In a batch's tree and scores, whoever else is observed; by its own embeddings, whatever was
    given to the target before."""
    module = seeded(ParallelPromptTokens, small)
    module.embeddings.data = torch.randn(3, 32).double()
    drafter, target = ParallelPrompt(module, tree_nodes=12), ModelTarget(small.target, 2, 64)
    target.extra_tokens(torch.randn(2, 32).double())
    target.bind(drafter)
    rows = [Sequence.start(prompt, GREEDY) for prompt in ([1, 2, 3], [7, 3, 7, 3])]
    for row in rows:
        target.begin(row)
    prefill(target, drafter, rows, 64)
    steps = step(target, drafter, TargetOnly(), rows, [12, 12])
    first, second = (row.state[drafter] for row in rows)
    drafter.observe(rows[1:], steps[1:])
    assert torch.equal(rows[1].state[drafter], second) and not torch.equal(first, second)


def test_a_vocabulary_smaller_than_the_ranks() -> None:
    """All of its tokens are candidates, and there are no others."""
    tiny = tiny_pair(5)
    module = seeded(ParallelPromptTokens, tiny)
    drafter, target = ParallelPrompt(module, tree_nodes=120), ModelTarget(tiny.target, 1, 64)
    target.bind(drafter)
    sequence = Sequence.start([1, 2, 3], GREEDY)
    target.begin(sequence)
    with torch.inference_mode():
        prefill(target, drafter, [sequence], 64)
        step(target, drafter, TargetOnly(), [sequence], [120])
        assert sequence.state[drafter][0].sort().values.tolist() == [0, 1, 2, 3, 4]
        [done] = step(target, drafter, TargetOnly(), [sequence], [120])
    assert {0, 1, 2, 3, 4} <= set(done.tree.tokens[0].tolist())


def test_wrong_options() -> None:
    """Are refused before a model is loaded."""
    with pytest.raises(ForetokenError, match="tree_nodes is 0; it must be from 1 to 4096"):
        ParallelPrompt("folder", tree_nodes=0)
    with pytest.raises(ForetokenError, match="drafts with weights that were trained"):
        ParallelPrompt()
