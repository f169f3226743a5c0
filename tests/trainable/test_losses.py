"""Divergences against slow references and finite differences, and the chunked sum."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from foretoken import ForetokenError
from foretoken.trainable.losses import (
    DIVERGENCES,
    NLL,
    Objective,
    acceptance,
    chance_to_reach,
    chances_in_turn,
    chunked,
    divergence,
    drawn_chance,
    exponential,
    jsd,
    nll,
    sibling_chances,
)

EVERY = sorted(DIVERGENCES)


def logits(*shape: int, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=random, dtype=torch.float64)


def by_hand(name: str, drafter: Tensor, target: Tensor) -> float:
    """One place, with loops over the vocabulary."""
    q, p = drafter.softmax(-1).tolist(), target.softmax(-1).tolist()
    both = list(zip(p, q, strict=True))
    half = [(a + b) / 2 for a, b in both]

    def kl(a: list[float], b: list[float]) -> float:
        return sum(x * math.log(x / y) for x, y in zip(a, b, strict=True) if x)

    shares = {
        "kl_div": lambda: kl(p, q),
        "rkl": lambda: kl(q, p),
        "jsd": lambda: kl(p, half) / 2 + kl(q, half) / 2,
        "tv": lambda: sum(abs(a - b) for a, b in both) / 2,
        "nla": lambda: -math.log(sum(min(a, b) for a, b in both)),
        "ce": lambda: -math.log(q[p.index(max(p))]),
    }
    return shares[name]()


@pytest.mark.parametrize("name", EVERY)
def test_values(name: str) -> None:
    """Every place is what the definition says; broadcast over leading dimensions."""
    drafter, target = logits(2, 3, 7), logits(2, 1, 7, seed=1)
    found = DIVERGENCES[name](drafter, target)
    for i in range(2):
        for j in range(3):
            assert float(found[i, j]) == pytest.approx(by_hand(name, drafter[i, j], target[i, 0]))


@pytest.mark.parametrize("name", EVERY)
def test_gradients(name: str) -> None:
    """The gradient by the drafter's logits is the finite difference."""
    drafter, target = logits(2, 5).requires_grad_(), logits(2, 5, seed=1)
    assert torch.autograd.gradcheck(lambda x: DIVERGENCES[name](x, target), (drafter,))


@pytest.mark.parametrize("name", EVERY)
def test_one_distribution_is_no_divergence(name: str) -> None:
    """At the target's own distribution all are 0 (cross-entropy to one token isn't a divergence of
    distributions)."""
    same = DIVERGENCES[name](logits(4, 9), logits(4, 9))
    assert name == "ce" or same.abs().max() < 1e-12


def test_a_generalised_jensen_shannon_divergence() -> None:
    """By its definition; a half is the plain one, and the ends go towards forward and reverse KL,
    each times its share."""
    drafter, target = logits(7), logits(7, seed=1)
    p, q = target.softmax(-1), drafter.softmax(-1)
    for beta in (0.1, 0.7):
        mixed = beta * p + (1 - beta) * q
        to_mixed = [(x * (x / mixed).log()).sum() for x in (p, q)]
        measure = divergence(f"jsd@{beta}")
        assert measure is not None
        expected = beta * to_mixed[0] + (1 - beta) * to_mixed[1]
        torch.testing.assert_close(measure(drafter, target), expected)
    half = Objective({"jsd@0.5": 1.0})(drafter, target, torch.tensor(0))
    torch.testing.assert_close(half, DIVERGENCES["jsd"](drafter, target))
    for beta, name in ((1e-6, "kl_div"), (1 - 1e-6, "rkl")):
        near = jsd(drafter, target, beta) / min(beta, 1 - beta)
        torch.testing.assert_close(near, DIVERGENCES[name](drafter, target), rtol=1e-4, atol=0)
    assert Objective({"jsd@0.1": 1.0}).reads_target
    for wrong in ("jsd@", "jsd@x", "tv@0.1"):
        with pytest.raises(ForetokenError, match="jsd@BETA"):
            Objective({wrong: 1.0})
    with pytest.raises(ForetokenError, match="above 0 and below 1"):
        Objective({"jsd@1": 1.0})


def test_rejections_and_acceptances() -> None:
    """Total variation is the share that speculative sampling rejects."""
    drafter, target = logits(4, 9), logits(4, 9, seed=1)
    torch.testing.assert_close(DIVERGENCES["tv"](drafter, target), 1 - acceptance(drafter, target))


def drawn_siblings(p: Tensor, q: Tensor, count: int) -> Tensor:
    """[count, V] how often the first, the second … child is accepted and is each token, by going
    through all that may be drawn and rejected before it."""
    found = torch.zeros(count, len(p), dtype=p.dtype)

    def draw(number: int, reached: Tensor, left: Tensor, residual: Tensor) -> None:
        proposal = left / left.sum()
        for token in range(len(p)):
            if not proposal[token]:
                continue
            accepted = (residual[token] / proposal[token]).clamp(max=1)
            found[number, token] += reached * proposal[token] * accepted
            rejected = reached * proposal[token] * (1 - accepted)
            if number + 1 < count and rejected > 0:
                rest, more = left.clone(), (residual - proposal).clamp(min=0)
                rest[token] = 0
                draw(number + 1, rejected, rest, more / more.sum())

    draw(0, torch.ones((), dtype=p.dtype), q, p)
    return found


def test_siblings_drawn_without_replacement() -> None:
    """On average each has its chance, given the text's token, at a temperature; the first one's is
    exact, and where the drafter's distribution has one token there is nothing to draw after it."""
    drafter, target, heat, many = 2 * logits(5), 2 * logits(5, seed=1), 0.8, 20_000
    p, q = ((x / heat).softmax(-1) for x in (target, drafter))
    expected = drawn_siblings(p, q, 3) / p
    random = torch.Generator().manual_seed(0)
    for token in range(5):
        rows = drafter.expand(many, 5), target.expand(many, 5), torch.tensor([token] * many)
        found = sibling_chances(*rows, heat, 3, random)
        torch.testing.assert_close(found.mean(0), expected[:, token], rtol=0.03, atol=0.003)
        torch.testing.assert_close(found[:, 0], expected[0, token].expand(many))
    one = torch.tensor([0.0, -torch.inf, -torch.inf])
    found = sibling_chances(one[None], one.new_zeros(1, 3), torch.tensor([0]), 1.0, 3, random)
    assert found.tolist() == [[1.0, 0.0, 0.0]]


def test_chances_of_a_target_in_half_precision() -> None:
    """They are what its logits say, and not what a distribution in that precision does."""
    drafter, target = (5 * logits(40, 64, seed=seed).bfloat16() for seed in (0, 1))
    tokens, heat = target.argmax(-1), 0.7
    wide = drafter.float(), target.float()
    found = drawn_chance(drafter, target, tokens, heat)
    torch.testing.assert_close(found, drawn_chance(*wide, tokens, heat), rtol=0, atol=0)
    in_turn = chances_in_turn([drafter], target, tokens, heat)[:, 0]
    torch.testing.assert_close(in_turn, found, rtol=1e-4, atol=1e-6)
    random = torch.Generator().manual_seed(0)
    first = sibling_chances(drafter, target, tokens, heat, 2, random)[:, 0]
    torch.testing.assert_close(first, found, rtol=1e-4, atol=1e-6)


def test_drafts_of_several_in_turn() -> None:
    """By going through all that the first may draw; together they accept no more than the target
    writes."""
    heat, target = 0.8, logits(5)
    drafters = [2 * logits(5, seed=1), logits(5, seed=2)]
    p, one, two = ((x / heat).softmax(-1) for x in (target, *drafters))
    found = torch.stack(
        [chances_in_turn(drafters, target, torch.tensor(token), heat) for token in range(5)]
    )
    first = torch.minimum(p, one)
    rest = (p - one).clamp(min=0)
    second = torch.zeros(5, dtype=p.dtype)
    for token in range(5):  # rejected
        rejected = one[token] * (1 - (p[token] / one[token]).clamp(max=1))
        second += rejected * torch.minimum(rest / rest.sum(), two)
    torch.testing.assert_close(found, torch.stack((first, second), 1) / p[:, None])
    assert (found.sum(1) <= 1 + 1e-9).all() and (found[:, 1] > 0).any()


def test_forbidden_tokens_do_no_harm() -> None:
    """A target that rules tokens out has finite divergences and gradients."""
    target = logits(3, 6, seed=1)
    target[:, :2] = -torch.inf
    for name in ("kl_div", "tv", "nla", "ce", "jsd"):
        drafter = logits(3, 6).requires_grad_()
        DIVERGENCES[name](drafter, target).sum().backward()
        assert drafter.grad is not None and drafter.grad.isfinite().all(), name


@pytest.mark.parametrize("name", EVERY)
def test_tokens_that_neither_gives(name: str) -> None:
    """Are as if there were none."""
    drafter, target = logits(3, 7), logits(3, 7, seed=1)
    drafter[:, 2] = target[:, 2] = -torch.inf
    others = [0, 1, 3, 4, 5, 6]
    found = DIVERGENCES[name](drafter, target)
    torch.testing.assert_close(found, DIVERGENCES[name](drafter[:, others], target[:, others]))


def test_a_drafter_that_is_always_rejected() -> None:
    """Its loss is a number."""
    nothing = -torch.inf
    drafter, target = torch.tensor([0.0, nothing]), torch.tensor([nothing, 0.0])
    assert float(DIVERGENCES["nla"](drafter, target)) == pytest.approx(-math.log(1e-12))


def test_what_is_drawn_too_seldom_is_always_kept() -> None:
    """The chance of a token is at most 1."""
    drafter, target = logits(1, 7), logits(1, 7, seed=1)
    found = drawn_chance(drafter.expand(7, -1), target.expand(7, -1), torch.arange(7), 0.8)
    q, p = ((x / 0.8).softmax(-1)[0] for x in (drafter, target))
    torch.testing.assert_close(found, (q / p).clamp(max=1))
    assert 0 < int((found == 1).sum()) < 7


def test_a_divergence_without_weight_reads_nothing() -> None:
    assert not Objective({NLL: 1.0, "kl_div": 0.0}).reads_target
    assert Objective({NLL: 1.0, "kl_div": 0.1}).reads_target


def test_mixtures() -> None:
    """Weighted by name; the text's own tokens need no target."""
    drafter, target, tokens = logits(3, 6), logits(3, 6, seed=1), torch.tensor([1, 4, 2])
    mixed = Objective({"kl_div": 0.5, NLL: 2.0})
    by_parts = 0.5 * DIVERGENCES["kl_div"](drafter, target) + 2 * nll(drafter, tokens)
    torch.testing.assert_close(mixed(drafter, target, tokens), by_parts)
    assert mixed.reads_target and not Objective().reads_target
    torch.testing.assert_close(Objective()(drafter, None, tokens), nll(drafter, tokens))


def test_wrong_mixtures() -> None:
    """Unknown names, weights that are all 0 or negative, and a decay of 0 are refused."""
    with pytest.raises(ForetokenError, match="Did you mean 'kl_div'"):
        Objective({"kl-div": 1.0})
    for wrong in ({}, {"tv": 0.0}, {"tv": 1.0, "rkl": -1.0}):
        with pytest.raises(ForetokenError, match="at least one above 0"):
            Objective(wrong)
    with pytest.raises(ForetokenError, match="decay is 0"):
        Objective(decay=0)


@pytest.mark.parametrize("chunk", [1, 3, 100])
def test_chunks_change_nothing(chunk: int) -> None:
    """Value and gradients of inputs and parameters are those of the whole sum."""
    states, goal = logits(7, 4).requires_grad_(), logits(7, 5, seed=1)
    head = logits(5, 4, seed=2).requires_grad_()

    def measure(at: slice, part: Tensor) -> Tensor:
        return DIVERGENCES["kl_div"](part @ head.T, goal[at]).sum()

    (3 * measure(slice(None), states)).backward()
    expected = [states.grad, head.grad]
    states.grad = head.grad = None
    total = chunked(measure, [states], [head], chunk)
    (3 * total).backward()
    torch.testing.assert_close(total, measure(slice(None), states))
    torch.testing.assert_close([states.grad, head.grad], expected)
    with torch.no_grad():
        torch.testing.assert_close(chunked(measure, [states], [head], chunk), total)


def test_gradients_through_a_head_in_half_precision() -> None:
    """As small as those of one of many places are, float16 would have no number for most."""
    states, head = torch.randn(40, 16), 0.5 * torch.randn(2000, 16)
    goal, grads = 0.5 * torch.randn(40, 2000), []

    for own, dtype in ((torch.float64, torch.float64), (torch.float32, torch.float16)):
        leaf, weights = states.to(own).requires_grad_(), head.to(dtype)

        def measure(at: slice, part: Tensor, weights: Tensor = weights) -> Tensor:
            logits = part.to(weights.dtype) @ weights.T
            return (DIVERGENCES["kl_div"](logits, goal[at]) / 16384).sum()

        chunked(measure, [leaf], []).backward()
        assert leaf.grad is not None
        grads.append(leaf.grad.double())
    assert (grads[1] - grads[0]).norm() < 0.02 * grads[0].norm()


def test_weights_of_places() -> None:
    """exp(-i / gamma), and how often a draft gets there."""
    assert exponential(4.0) ** 4 == pytest.approx(torch.tensor(-1.0).exp().item())
    with pytest.raises(ForetokenError, match="gamma is 0"):
        exponential(0.0)
    there = chance_to_reach(torch.tensor([0.5, 0.5, 1.0]))
    assert there.tolist() == [1.0, 0.5, 0.25]
