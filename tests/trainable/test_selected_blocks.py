"""DFlash 2's module: its selector by hand, its loss, its names."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from foretoken import ForetokenError
from foretoken.drafters.dflash import DFlash
from foretoken.drafters.dflash2 import DFlash2
from foretoken.testing import Pair
from foretoken.train.batches import collate
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.block_layers import BlockModule
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Lesson
from foretoken.trainable.losses import Objective
from foretoken.trainable.selected_blocks import CandidateSelector, SelectedModule
from lessons import estimated
from modules import block_module, selected_module


def lesson_of(pair: Pair, module: BlockModule, records: Records) -> Lesson:
    rows = collate(records, [[0, 1, 2], [6, 3, 4]], 60, 0.25)
    return FrozenTarget(pair.target).lesson(rows, module.hidden)


def scored(
    module: SelectedModule, logits: torch.Tensor, state: torch.Tensor, token: int
) -> dict[int, float]:
    """Candidate -> its score after a token, one by one."""
    selector = module.candidate_selector
    best = sorted(range(len(logits)), key=lambda t: -float(logits[t]))
    gate = selector.predecessor_codebook[token] * selector.hidden_projection(state)
    return {
        c: float(logits[c] + gate @ selector.successor_codebook[c])
        for c in best[: module.shape["selector_top_k"]]
    }


@torch.no_grad()
def test_scores_and_logits_of_two_dtypes(small: Pair) -> None:
    """As where products run in half precision: the scores keep theirs."""
    module, states = selected_module(small), torch.randn(3, small.target.width).double()
    logits = small.target.head(states)
    exact = module.selected(states, logits, torch.tensor([3, 9, 1]))
    found = module.selected(states, logits.float(), torch.tensor([3, 9, 1]))
    assert found.dtype == torch.float64
    assert torch.allclose(found, exact)


@torch.no_grad()
def test_the_scores_by_hand(small: Pair) -> None:
    """After each token; the tree's chances are the same scores', each row after one candidate."""
    module = selected_module(small)
    states = torch.randn(2, 4, small.target.width).double()
    logits, roots = small.target.head(states), torch.tensor([3, 9])
    chances, ids = module.transitions(states, logits, roots)
    for b in range(2):
        for n in range(4):
            befores = [int(roots[b])] * 6 if n == 0 else ids[b, n - 1].tolist()
            for i, before in enumerate(befores):
                wanted = scored(module, logits[b, n], states[b, n], before)
                full = module.selected(states[b, n], logits[b, n], torch.tensor(before))
                found = {t: float(x) for t, x in enumerate(full) if not x.isneginf()}
                assert found == pytest.approx(wanted)
                tree = dict(zip(ids[b, n].tolist(), chances[b, n, i].tolist(), strict=True))
                shares = torch.tensor([wanted[t] for t in tree]).softmax(0)
                assert list(tree.values()) == pytest.approx(shares.tolist(), rel=1e-5)


def test_without_effect_it_is_dflash(small: Pair, records: Records) -> None:
    """New convolutions are the identity, a new selector adds nothing: the drafts are DFlash's."""
    plain = block_module(small)
    torch.manual_seed(3)
    shape = {**plain.shape, "conv_group_size": 8, "selector_rank": 4}
    new = SelectedModule(plain.facts, **shape).double().eval()
    new.load_state_dict(plain.state_dict(), strict=False)
    totals = [
        estimated(drafter, module, small.target, records)
        for drafter, module in ((DFlash(plain), plain), (DFlash2(new), new))
    ]
    assert totals[0] == totals[1]


def test_the_loss_by_hand(small: Pair, records: Records) -> None:
    """DFlash's, and the cross-entropy of the candidates' scores after the text's own tokens, the
    text's token among them; every weight learns."""
    module = selected_module(small, anchors=1000, selector_loss=0.5)
    lesson = lesson_of(small, module, records)
    loss = module(lesson, Objective({"kl_div": 1.0}, 0.8))
    with torch.no_grad():
        states, row, token, ahead = module.predictions(lesson)
        share = lesson.weight[row, token].double() * 0.8**ahead
        unary = BlockModule.forward(module, lesson, Objective({"kl_div": 1.0}, 0.8))
        total, missing = 0.0, 0
        for p in range(len(row)):
            logits = small.target.head(states[p])
            before = int(lesson.tokens[row[p], token[p] - 1])
            goal = int(lesson.tokens[row[p], token[p]])
            found = scored(module, logits, states[p], before)
            if goal not in found:  # it takes the place of the last candidate
                missing += 1
                found.popitem()
                widest = selected_module(small, selector_top_k=len(logits))
                widest.load_state_dict(module.state_dict())
                found[goal] = scored(widest, logits, states[p], before)[goal]
            scores = torch.tensor([[*found.values()]])
            at = torch.tensor([list(found).index(goal)])
            total += float(share[p] * F.cross_entropy(scores, at))
        assert 0 < missing < len(row)
        wanted = float(unary) + 0.5 * total / float(share.sum())
    assert loss.item() == pytest.approx(wanted, rel=1e-6)
    loss.backward()
    assert all(w.grad is not None and w.grad.abs().sum() > 0 for w in module.parameters())


def test_checkpoint_names(small: Pair) -> None:
    """Those of DFlash, and z-lab's for what is new."""
    module = selected_module(small, num_layers=1)
    more = {
        *(f"layers.0.{at}_conv.base_kernel" for at in ("attention", "mlp")),
        *(f"layers.0.{at}_conv.kernel_projection.weight" for at in ("attention", "mlp")),
        *(f"candidate_selector.{at}_codebook" for at in ("predecessor", "successor")),
        "candidate_selector.hidden_projection.weight",
    }
    assert set(module.state_dict()) == set(block_module(small, num_layers=1).state_dict()) | more
    assert module.layers[0].attention_conv.base_kernel.shape == (2, 2, 32)


def test_no_more_candidates_than_tokens(small: Pair) -> None:
    selector, logits = CandidateSelector(Facts.of(small.target), 4, 99), torch.randn(2, 23)
    own, ids = selector.candidates(logits)
    assert torch.equal(ids, logits.argsort(-1, descending=True)) and own.shape == (2, 23)


@pytest.mark.parametrize("shape", [{"selector_rank": 0}, {"selector_top_k": 0}])
def test_numbers_that_do_not_fit(small: Pair, shape: dict[str, int]) -> None:
    with pytest.raises(ForetokenError, match=r"selector_rank is .* both must be at least 1"):
        SelectedModule.from_shape(selected_module(small).facts, shape, "it")
