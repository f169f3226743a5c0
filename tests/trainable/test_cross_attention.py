"""GliDe's module: what it reads of the target's cache, its loss, its targets."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken import ForetokenError, SamplingParams
from foretoken.drafters.glide import Glide
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, serve, tiny_pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable import cross_attention
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.cross_attention import CrossAttentionModel, CrossAttentionModule
from foretoken.trainable.losses import DIVERGENCES, Objective
from foretoken.verify.speculative import Speculative
from modules import glimpse_module, learned_glimpse_module


@pytest.fixture(scope="module")
def learned(small: Pair, records: Records) -> CrossAttentionModule:
    """Trained for a few steps, on the very texts."""
    return learned_glimpse_module(small, records)


def test_a_draft_sees_what_lies_before_its_root(
    small: Pair, records: Records, learned: CrossAttentionModule
) -> None:
    """Its outputs follow from the cache before the root and from nothing of it after."""
    lesson = FrozenTarget(small.target).lesson(collate(records, [[0], [3]], 20, 0.0), (-1,))
    keys, values = (x.clone() for x in lesson.kv(learned.read_layer))
    root, ahead = 9, 2
    counts = torch.full_like(lesson.tokens, ahead)
    before = learned.outputs(lesson, counts)

    def changed(place: int) -> torch.Tensor:
        mine = [x.clone() for x in (keys, values)]
        for x in mine:
            x[:, :, place] += 1
        object.__setattr__(lesson, "kv", lambda layer: tuple(mine))
        return learned.outputs(lesson, counts)[:, root + ahead]

    assert torch.equal(changed(root), before[:, root + ahead])
    assert not torch.allclose(changed(root - 1), before[:, root + ahead])


def test_the_loss_by_hand(small: Pair, records: Records) -> None:
    """Every token whose block's root has something before it; a gradient for every weight."""
    module, frozen = glimpse_module(small, block_size=3), FrozenTarget(small.target)
    lesson = frozen.lesson(collate(records, [[0, 1], [2, 3]], 40, 0.25), (-1,))
    torch.manual_seed(5)
    loss = module(lesson, Objective({"kl_div": 1.0}, 0.5))
    torch.manual_seed(5)
    first = torch.randint(3, (2, 1))
    total = weight = 0.0
    for b in range(2):
        for t in range(39):
            ahead = (t - int(first[b])) % 3
            root = int(lesson.positions[b, t]) - ahead
            if root < 1 or int(lesson.positions[b, t + 1]) != int(lesson.positions[b, t]) + 1:
                continue
            mine = module.outputs(lesson, torch.full_like(lesson.tokens, ahead))[b, t]
            share = float(lesson.weight[b, t + 1]) * 0.5**ahead
            given, goal = (small.target.head(x) for x in (mine, lesson.hidden[-1][b, t]))
            weight += share
            total += share * float(DIVERGENCES["kl_div"](given, goal).detach())
    assert loss.item() == pytest.approx(total / weight, rel=1e-6)
    loss.backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())


def test_targets(small: Pair) -> None:
    """Heads of another width are refused; a checkpoint that doesn't know them is not asked."""
    module = glimpse_module(small)
    assert (module.facts.kv_heads, module.facts.head_dim) == (2, 8)
    known = Facts(32, 23, 2, 2, 16)
    with pytest.raises(ForetokenError, match=r"head_dim 16 and this target has 8"):
        known.check(module.facts, "It")
    Facts(32, 23, 2).check(module.facts, "It")
    known.check(Facts(32, 23, 2), "It")  # of which these numbers aren't known
    with pytest.raises(ForetokenError, match="trained for its target; name"):
        Glide()
    with pytest.raises(ForetokenError, match="below the target's 2 layers"):
        CrossAttentionModule.from_shape(module.facts, {"read_layer": 2}, "it")
    with pytest.raises(ForetokenError, match="below the target's 2 layers"):
        CrossAttentionModule.from_shape(module.facts, {"read_layer": -3}, "it")
    wide = CrossAttentionModule(Facts(24, 23, 2, 2, 8), heads=3, kv_heads=1)
    assert wide.layers[0].cross_attn.layer_shape.heads == 4  # of 8, two for each head of the keys
    assert wide.read_layer == 1


def test_nothing_is_drafted_where_the_targets_cache_is_empty(small: Pair) -> None:
    """Before the root of one token there is none to attend to."""
    model = CrossAttentionModel(glimpse_module(small), ModelTarget(small.target, 1, 32), 4)
    texts = (Sequence.start(prompt, SamplingParams()) for prompt in ([5], [5, 6]))
    assert [model.room(text) for text in texts] == [0, 4]


def test_a_copy_begins_with_what_is_read_of_its_prompt(small: Pair) -> None:
    """However far the other text is, or isn't."""
    model = CrossAttentionModel(glimpse_module(small), ModelTarget(small.target, 2, 32), 4)
    text, copy = (Sequence.start([5, 6, 7, 8], SamplingParams()) for _ in range(2))
    for each in (text, copy):
        model.begin(each)
    one, two = model._slots([text, copy])
    for length, count in ((2, 2), (9, 3)):
        model._cache.lengths[one] = length
        model.fork(text, copy)
        assert model._cache.lengths[two] == count


def test_a_long_prompt_is_read_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the target reads it: a pass has a mask as large as its width squared."""
    widths, made = [], cross_attention.chain_feed

    def noted(cache: Any, slots: Any, tokens: list[list[int]], **more: Any) -> Any:
        widths.append(max(map(len, tokens)))
        return made(cache, slots, tokens, **more)

    drafting = CrossAttentionModel.root_logits

    def checked(model: Any, texts: list[Sequence]) -> torch.Tensor:
        """A draft's root stands after what is kept of the text before it."""
        logits = drafting(model, texts)
        lengths = [model._cache.lengths[slot] for slot in model._slots(texts)]
        assert lengths == [len(text.tokens) - 1 for text in texts]
        return logits

    monkeypatch.setattr(CrossAttentionModel, "root_logits", checked)
    monkeypatch.setattr(cross_attention, "chain_feed", noted)
    monkeypatch.setattr(cross_attention, "_CHUNK", 8)
    pair = tiny_pair(max_length=256)
    params = SamplingParams(temperature=0, max_tokens=12)
    prompt = [i % 90 for i in range(128)]
    [out] = serve(
        pair.target, Glide(glimpse_module(pair)), Speculative(), [prompt], params, chunk=8
    )
    assert out.error is None and max(widths) <= 8 and sum(widths) >= 127
