"""LLMCad's drafts: the small model's tree, its threshold, and the target's text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.drafters.merged import Merged
from foretoken.drafters.paced import Paced, _likeliest_path
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.engine.engine import Engine
from foretoken.length import Cumulative
from foretoken.models.drafting.draft_model import DraftModel
from foretoken.models.target import ModelTarget
from foretoken.protocols import Scores, Step
from foretoken.sampling.sequence import Sequence, draws_for
from foretoken.testing import Pair, logits_after, native, related, tiny_transformers
from foretoken.tree import DraftTree, chains
from foretoken.trees.paced import Paced as PacedTree
from foretoken.verify.target_only import TargetOnly

RULE = TargetOnly()
PROMPT = [5, 9, 2, 5, 9, 2, 5]
PROMPTS = [PROMPT, [40, 3, 3, 17, 40, 3], [1]]


def drafted(pair: Pair, drafter: Paced, prompts: list[list[int]], budget: int = 64) -> DraftTree:
    """The first drafts after the prompts."""
    target = ModelTarget(pair.target, len(prompts), 128)
    drafter.bind(target)
    sequences = [Sequence.start(prompt, SamplingParams(temperature=0)) for prompt in prompts]
    for sequence in sequences:
        drafter.begin(sequence)
    with torch.inference_mode():
        draws = draws_for(sequences, target.device)
        return drafter.draft(sequences, [budget] * len(prompts), draws)


def test_each_node_is_likely_after_its_path(pair: Pair) -> None:
    """Its token is one of the two likeliest to the small model after the text and its own path,
    read from scratch: rows draft as if alone, and branches don't see each other."""
    tree = drafted(pair, Paced(pair.draft, 24, 1e-6), PROMPTS)
    assert not tree.is_chain and tree.counts == [24] * 3
    for row, prompt in enumerate(PROMPTS):
        for node, path in enumerate(tree.contexts()[row][1:]):
            logits = logits_after(pair.draft, [*prompt, *path[:-1]])
            assert path[-1] in logits.topk(2).indices.tolist(), (row, node)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("after_error", ["rate", "confidence"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_text_is_plain_decodings(
    pair: Pair, slots: int, after_error: str, temperature: float
) -> None:
    """Token for token at a seed, in fewer passes."""
    params = [
        SamplingParams(temperature=temperature, seed=7, max_tokens=30, ignore_eos=True)
    ] * len(PROMPTS)
    config = {
        "method": "llmcad",
        "model": pair.draft,
        "num_speculative_tokens": 12,
        "after_error": after_error,
    }
    options: dict[str, Any] = {"max_num_seqs": slots, "eos_ids": ()}
    with LLM(pair.target, **options) as plain:
        expected = [output.token_ids for output in plain.generate(PROMPTS, params)]
    with LLM(pair.target, speculative_config=config, **options) as llm:
        outputs = llm.generate(PROMPTS, params)
        assert [output.token_ids for output in outputs] == expected
        assert llm.stats.accepted > 0


@pytest.mark.parametrize(
    ("after_error", "path", "accepted", "threshold"),
    [
        ("rate", [0.9, 0.5], 2, 0.1),  # all correct: half
        ("rate", [0.9, 0.5, 0.4, 0.2], 1, 0.75),
        ("confidence", [0.9, 0.5, 0.4, 0.3], 2, 0.2 / 0.35),
    ],
)
def test_the_threshold(
    pair: Pair, after_error: str, path: list[float], accepted: int, threshold: float
) -> None:
    """Both readings of equation 3, by the likeliest path."""
    drafter = Paced(pair.draft, 8, 0.2, after_error)
    sequence = Sequence.start([1], SamplingParams())
    drafter._fallback.note(sequence, path)
    drafter._fallback.observe(sequence, len(path), accepted)
    assert drafter._fallback.threshold(sequence) == pytest.approx(threshold)


def test_the_threshold_learns_from_each_step(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """How deep the tree was, and how much of a path was right."""
    seen: list[tuple[int, int]] = []
    observe = Cumulative.observe

    def looked_at(rule: Cumulative, sequence: Sequence, drafted: int, accepted: int) -> None:
        seen.append((drafted, accepted))
        observe(rule, sequence, drafted, accepted)

    monkeypatch.setattr(Cumulative, "observe", looked_at)
    config = {"method": "llmcad", "model": pair.draft, "num_speculative_tokens": 6}
    with LLM(pair.target, speculative_config=config, eos_ids=()) as llm:
        llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=20))
        assert len(seen) == llm.stats.drafts
        assert sum(accepted for _, accepted in seen) >= llm.stats.accepted > 0
    assert all(accepted <= drafted <= 6 for drafted, accepted in seen)


def test_others_drafts_are_not_its_own(pair: Pair) -> None:
    """Beside another part in one tree, where it isn't told what of its own was accepted, and where
    a prediction was drafted, the threshold stays."""
    paced = Paced(pair.draft, 8, 0.01)
    engine = Engine(ModelTarget(pair.target, 2, 128), Merged([paced, PromptLookup(2)]), RULE)
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    assert thresholds(engine, paced, params) == {0.01}
    assert engine.stats.drafts
    paced = Paced(pair.draft, 8, 0.01)
    engine = Engine(ModelTarget(pair.target, 2, 128), paced, RULE)
    wrong = replace(params, max_tokens=2, prediction=[3, 3, 3, 3, 3, 3, 3, 3])
    assert thresholds(engine, paced, wrong) == {0.01}
    assert engine.stats.rejected_prediction_tokens
    assert thresholds(engine, paced, params) != {0.01}  # of its own drafts it learns


def thresholds(engine: Engine, paced: Paced, params: SamplingParams) -> set[float]:
    """Those of a request after each step."""
    request, seen = engine.add(PROMPT, params), set[float]()
    while engine.busy:
        engine.step()
        seen |= {paced._fallback.threshold(sample.sequence) for sample in request.samples}
    return seen


def test_what_is_refused(pair: Pair) -> None:
    for options, said in (
        ({}, "name it"),
        ({"model": pair.draft, "after_error": "x"}, "Unknown after_error"),
        ({"model": pair.draft, "num_speculative_tokens": 0}, "num_speculative_tokens is 0"),
    ):
        with pytest.raises(ForetokenError, match=said):
            build({"method": "llmcad", **options})


def test_no_tree_passes_the_small_models_context(pair: Pair) -> None:
    small = native(related(tiny_transformers(max_length=12), 0.02))
    tree = drafted(pair, Paced(small, 20, 1e-6), [PROMPT])
    assert tree.counts == [13 - len(PROMPT)]


def test_the_likeliest_path_is_one_of_the_longest() -> None:
    tree = PacedTree([5, 6, 7, 8], [0, 0, 2, 2], [0.9, 0.4, 0.1, 0.3])
    assert _likeliest_path(tree) == [0.4, 0.3]


def test_each_row_learns_of_its_own_tree(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the others' depth."""
    seen: list[int] = []
    monkeypatch.setattr(Cumulative, "observe", lambda rule, one, drafted, *_: seen.append(drafted))
    drafter = Paced(pair.draft, 8)
    drafter.bind(ModelTarget(pair.target, 2, 64))
    rows = [Sequence.start(PROMPT, SamplingParams()) for _ in range(2)]
    none, tree = torch.empty(2, 0), chains([[1], [1, 2, 3]], torch.device("cpu"))
    for row in rows:
        drafter.begin(row)
        row.tokens.append(5)
    steps = [Step([5], [], n, i, tree, Scores(none, none, none)) for i, n in enumerate((1, 3))]
    drafter.observe(rows, steps)
    assert seen == [1, 3]


def test_no_distribution_ends_a_tree(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first token, which is taken in any case."""
    level = DraftModel.level
    monkeypatch.setattr(DraftModel, "level", lambda *given: level(*given) * torch.nan)
    assert drafted(pair, Paced(pair.draft, 8), [PROMPT]).counts == [1]
