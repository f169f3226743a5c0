"""The target's own layers as a draft model: what they compute, and where they write it."""

from __future__ import annotations

import torch

from caches import stored
from foretoken.models import layer_set
from foretoken.models.drafting.self_model import SelfModel
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import logits_after
from foretoken.testing.models import Pair
from foretoken.tree import chains
from partial_target import GREEDY, LAYERS, begun, without


@torch.inference_mode()
def test_a_prefix_is_the_shorter_model(deep: Pair) -> None:
    """Early exit's logits, token by token in ragged rows, are those of the model cut there: the
    target's own keys and values of the lower layers are the prefix's."""
    target = ModelTarget(deep.target, 2, 64)
    lm, short = SelfModel(target, range(4)), without(deep, [2, 3])
    texts = [[5, 9, 2, 7], [40, 3, 3, 17, 40, 3, 8]]
    sequences = begun(target, *texts)
    said = [lm.root_logits(sequences)]
    drafted = torch.tensor([[11, 12], [13, 14]])
    said += [lm.next_logits(sequences, tokens) for tokens in drafted]
    for row, text in enumerate(texts):
        for n in range(3):
            expected = logits_after(short, text + drafted[:n, row].tolist())
            assert torch.allclose(said[n][row, 0], expected, atol=1e-10)
    assert torch.equal(lm.root_logits(sequences), said[0])  # the next draft begins there, too


@torch.inference_mode()
def test_scoring_overwrites_a_draft(deep: Pair) -> None:
    """Whatever was drafted, the target's pass is the one that it makes without a draft."""
    target = ModelTarget(deep.target, 2, 64)
    sequences = begun(target, [5, 9, 2, 7], [40, 3, 3])
    trees = chains([[1, 2], [3]], torch.device("cpu"))
    before = target.score(sequences, trees).logits
    lm = SelfModel(target, layer_set.kept((1, 4), LAYERS))
    lm.root_logits(sequences)
    for _ in range(5):
        lm.next_logits(sequences, torch.tensor([60, 61]))
    lm.again(sequences, 2)
    assert before is not None
    after = target.score(sequences, trees).logits
    for row, count in enumerate(trees.counts):
        assert torch.equal(before[row, : count + 1], after[row, : count + 1])


@torch.inference_mode()
def test_a_rerun_sees_the_history_and_itself(deep: Pair) -> None:
    """All layers again over the last tokens give what they gave; nothing committed is touched."""
    target = ModelTarget(deep.target, 2, 64)
    texts = [[5, 9, 2, 7, 1, 30], [40, 3, 3, 17, 40, 3, 8, 8]]
    sequences = begun(target, *texts)
    held = stored(target.cache)[..., :5, :]
    said = SelfModel(target, range(2 * LAYERS)).again(sequences, 3)
    for row, text in enumerate(texts):
        for n in range(3):
            expected = logits_after(deep.target, text[: len(text) - 3 + n])
            assert torch.allclose(said[row, n], expected, atol=1e-10)
    assert torch.equal(held[:, :, 0], stored(target.cache)[:, :, 0, :, :5])
    some = SelfModel(target, range(2, 2 * LAYERS)).again(sequences, 3)
    assert not torch.allclose(some, said)


def test_room_ends_with_the_context(deep: Pair) -> None:
    lm = SelfModel(ModelTarget(deep.target, 1, 10), range(2))
    texts = [Sequence.start([1] * length, GREEDY) for length in (3, 10, 11, 12)]
    assert [lm.room(text) for text in texts] == [8, 1, 0, 0]
