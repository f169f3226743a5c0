"""What tests of trained drafters share: a target's own texts, and what an estimate must meet."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import SamplingParams
from foretoken.drafters.nothing import Nothing
from foretoken.engine.outputs import RequestOutput
from foretoken.models.feed import Feed
from foretoken.models.load import load_model
from foretoken.models.model import CausalLM
from foretoken.protocols import Verifier
from foretoken.testing import Pair, serve
from foretoken.train.batches import Rows, collate, whole
from foretoken.train.frozen import FrozenTarget
from foretoken.train.records import Records
from foretoken.trainable.checkpoint import Facts
from foretoken.trainable.lesson import Estimate, Lesson, estimate
from foretoken.trainable.losses import Objective
from foretoken.verify.target_only import TargetOnly

LIMIT = 20
TOGETHER = 70  # sequences of a batch, where many texts are sampled
PROMPTS = [[1, 2, 3], [4, 5], [9] * 6, [7, 3, 7, 3], [20, 1], [8, 8, 2, 1, 0], [5]]
GREEDY = SamplingParams(temperature=0, max_tokens=LIMIT)


def written(target: CausalLM) -> Records:
    """What it writes greedily."""
    outputs = serve(target, Nothing(), TargetOnly(), PROMPTS, GREEDY)
    pairs = [(p, o.token_ids) for p, o in zip(PROMPTS, outputs, strict=True)]
    return Records.of(pairs, LIMIT, target.vocab_size)


def seeded(cls: Any, pair: Pair, **shape: Any) -> Any:
    """A module in float64 with weights from a seed, not in training."""
    torch.manual_seed(3)
    return cls(Facts.of(pair.target), **shape).double().eval()


def late(cls: Any) -> Any:
    """A drafter that drafts nothing before a text has 40 tokens."""

    class Late(cls):  # type: ignore[misc]
        def draft(self, sequences: Any, budgets: Any, draws: Any) -> Any:
            pairs = zip(sequences, budgets, strict=True)
            left = [budget if len(s.tokens) > 40 else 0 for s, budget in pairs]
            return super().draft(sequences, left, draws)

    return Late


def randomised(heads: Any, seed: int = 0, scale: float = 0.3) -> Any:
    """The heads in float64 with all weights drawn from a seed."""
    heads = heads.double()
    random = torch.Generator().manual_seed(seed)
    for weight in heads.parameters():
        noise = torch.randn(weight.shape, generator=random, dtype=torch.float64)
        weight.data.copy_(scale * noise)
    return heads


def packed(records: Records) -> Rows:
    """Two rows of three records each."""
    return collate(records, [[0, 1, 2], [3, 4, 5]], 80, prompt_weight=0.25)


def after_text(model: Any, tokens: list[int], embeddings: torch.Tensor) -> torch.Tensor:
    """[A, D] the model's last states at embeddings after a text, by one pass over both."""
    cache, many = model.new_cache(1, 64), len(embeddings)
    ids = torch.tensor([[*tokens, *[0] * many]])
    length = ids.shape[1]
    own = torch.arange(length)[None] >= len(tokens)
    inputs = torch.zeros(1, length, embeddings.shape[1], dtype=embeddings.dtype)
    inputs[0, len(tokens) :] = embeddings
    feed = Feed(
        ids,
        torch.arange(length)[None],
        torch.ones(1, length, length, dtype=torch.bool).tril(),
        [0],
        [0],
        65,
        logits=False,
        replaced=(own, inputs),
    )
    return model.forward(feed, cache, (-1,)).hidden[-1][0, len(tokens) :]


def everywhere(lesson: Lesson) -> torch.Tensor:
    """[B, T] all places."""
    return torch.ones_like(lesson.tokens, dtype=torch.bool)


def random_lesson(target: Path, temperature: float) -> Lesson:
    """Random text of a model of 97 tokens: two records in each of two rows."""
    random = torch.Generator().manual_seed(0)
    texts = [torch.randint(0, 97, (20,), generator=random).tolist() for _ in range(4)]
    records = Records.of([(text[:6], text[6:]) for text in texts], 16, 97)
    frozen = FrozenTarget(load_model(target, backend="plain"), 8, temperature)
    return frozen.lesson(collate(records, [[0, 1], [2, 3]], 40, 0.0), (-1,))


def taught(
    module: Any,
    target: CausalLM,
    rows: Callable[[int], Rows],
    goal: Objective,
    steps: int = 40,
    lr: float = 1e-2,
    left: float = 0.7,
) -> Any:
    """The module after some steps of learning, its loss at most that share of what it was."""
    frozen, losses = FrozenTarget(target), []
    optimizer = torch.optim.AdamW(module.train().parameters(), lr)
    for step in range(steps):
        loss = module(frozen.lesson(rows(step), module.hidden), goal)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < left * losses[0]
    return module.eval().requires_grad_(False)


def estimated(
    drafter: Any, module: Any, target: CausalLM, records: Records, temperature: float = 0.0
) -> Estimate:
    """What serving these records, which were written at that temperature, is expected to accept."""
    frozen, total = FrozenTarget(target, temperature=temperature), Estimate()
    with torch.no_grad():
        for rows in whole(records, 4):
            lesson = frozen.lesson(rows, module.hidden)
            total.add(estimate(lesson.max_nodes, drafter.acceptance(module, lesson)))
    return total


def check_estimate(
    drafter: Any, module: Any, target: CausalLM, records: Records, rule: Verifier
) -> Estimate:
    """Some drafts are accepted; steps and accepted places, one by one, are those that are served,
    with prompts in chunks and one of a single token; the text is plain decoding's."""
    total = estimated(drafter, module, target, records)
    outputs = serve(target, drafter, rule, PROMPTS, GREEDY, slots=3, chunk=2)
    assert [o.token_ids for o in outputs] == [records.answer(i) for i in range(len(records))]
    assert_served(total, outputs)
    assert total.accepted[0] > 0
    return total


def check_expectation(
    drafter: Any, module: Any, target: CausalLM, rule: Verifier, estimator: Any = None
) -> None:
    """What is expected along sampled texts is what serving others accepts, up to chance. estimator:
    what has the drafter's `acceptance`, where that isn't the drafter."""
    asked, heat = PROMPTS * 20, 0.8

    def sampled(first: int) -> list[SamplingParams]:
        seeds = range(first, first + len(asked))
        return [SamplingParams(temperature=heat, max_tokens=LIMIT, seed=seed) for seed in seeds]

    plain = serve(target, Nothing(), TargetOnly(), asked, sampled(0), slots=TOGETHER)
    pairs = [(p, o.token_ids) for p, o in zip(asked, plain, strict=True)]
    records = Records.of(pairs, LIMIT, target.vocab_size)
    expected = estimated(estimator or drafter, module, target, records, heat)
    outputs = serve(target, drafter, rule, asked, sampled(10_000), slots=TOGETHER)
    served = [output.stats for output in outputs]
    assert expected.tokens == sum(one.tokens for one in served) == len(asked) * LIMIT
    assert expected.steps == pytest.approx(sum(one.passes for one in served), rel=0.06)
    first = sum(sum(one.accepted_at[:1]) for one in served)
    assert expected.accepted[0] == pytest.approx(first, rel=0.12) and first > 0


def assert_served(expected: Estimate, outputs: Seq[RequestOutput]) -> None:
    """Steps and places, one by one."""
    assert expected.tokens == sum(o.stats.tokens for o in outputs)
    assert expected.steps == sum(o.stats.passes for o in outputs)
    for place, count in enumerate(expected.accepted):
        assert count == sum(sum(o.stats.accepted_at[place : place + 1]) for o in outputs)
