"""SpecDec: what is estimated is served; checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import ForetokenError
from foretoken.drafters.specdec import SpecDec, SpecDecModel
from foretoken.draws import GreedyDraws
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.losses import Objective
from foretoken.verify.speculative import Speculative
from lessons import GREEDY, check_estimate, seeded
from stored_models import written


@pytest.mark.parametrize("most", [None, 1])
def test_specdec_estimates_what_is_served(small: Pair, records: Records, most: int | None) -> None:
    """Training is by transformers' arithmetic, serving by the native model's."""
    alike = dict(num_attention_heads=4, num_key_value_heads=2, intermediate_size=64)
    module = seeded(SpecDecModel, small, masks=3, tie_word_embeddings=False, **alike)
    module.masks.data = torch.randn(3, 32).double()
    module.base.lm.load_state_dict(small.transformers.state_dict())  # else it is never right
    drafter = SpecDec(module, num_speculative_tokens=most)
    total = check_estimate(drafter, module, small.target, records, Speculative())
    assert total.acceptance_length > 1.9
    assert most == 1 or total.accepted[1] > 0


@torch.inference_mode()
def test_masks_beyond_the_draft_are_not_read(small: Pair) -> None:
    """A shorter draft is the beginning of a long one, from a pass over fewer masks."""
    module = seeded(SpecDecModel, small, masks=3)
    module.masks.data = torch.randn(3, 32).double()
    read: list[int] = []
    drafts = []
    for most in (4, 3, 2, 1):
        drafter, target = SpecDec(module, most), ModelTarget(small.target, 1, 64)
        target.bind(drafter)
        [lm] = drafter.small_models
        forward = lm.forward

        def noted(feed: Any, *given: Any, forward: Any = forward) -> Any:
            read.append(feed.tokens.shape[1] - 1)  # the root besides
            return forward(feed, *given)

        lm.forward = noted  # type: ignore[method-assign]
        sequence = Sequence.start([7], GREEDY)
        target.begin(sequence)
        drafter.begin(sequence)
        drafts.append(drafter.draft([sequence], [9], GreedyDraws()).tokens[0].tolist())
    assert read == [3, 2, 1, 1]
    assert drafts == [drafts[0][:most] for most in (4, 3, 2, 1)]


def test_specdec_learns_and_keeps_its_shape(small: Pair, records: Records, tmp_path: Path) -> None:
    """Gradients reach every weight, and a checkpoint needs nothing but itself."""
    module, frozen = (
        seeded(SpecDecModel, small, masks=2, num_hidden_layers=1),
        FrozenTarget(small.target),
    )
    module.copy_from(frozen)
    lesson = frozen.lesson(collate(records, [[0, 1, 2], [3, 4, 5]], 80, 0.0), (-1,))
    optimizer, seen = torch.optim.Adam(module.parameters(), 0.01), []
    for _ in range(20):
        optimizer.zero_grad()
        loss = module(lesson, Objective({"nll": 1.0}))
        loss.backward()
        optimizer.step()
        seen.append(float(loss.detach()))
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())
    assert seen[-1] < 0.8 * seen[0]
    module.save(tmp_path / "a", {})
    config = json.loads((tmp_path / "a" / "config.json").read_text())
    assert config["shape"]["num_hidden_layers"] == 1 and "model" not in config["shape"]
    read = SpecDecModel.load(tmp_path / "a", ModelTarget(small.target, 1, 32))
    for name, weight in module.state_dict().items():
        assert torch.equal(read.state_dict()[name], weight)


def test_a_block_drafter_begins_as_a_llama(small: Pair, tmp_path: Path) -> None:
    """Others' layers aren't run with masks. The masks are of the vocabulary."""
    folder = written(tmp_path, "qwen2", vocab_size=23)
    with pytest.raises(ForetokenError, match="is of the family 'qwen2'"):
        SpecDecModel(Facts.of(small.target), model=str(folder))
    module = seeded(SpecDecModel, small, masks=2)
    assert any(weight is module.masks for weight in module.of_vocabulary())
