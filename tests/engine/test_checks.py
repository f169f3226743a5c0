"""What is checked before a request is queued and a draft is scored. Pairings are in test_engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.engine.checks import check_device, check_draft, check_request
from foretoken.models.seq2seq.target import target_for
from foretoken.models.target import ModelTarget
from foretoken.protocols import BaseDrafter
from foretoken.testing import Pair
from foretoken.tree import DraftTree, Kind, chains
from foretoken.verify.target_only import TargetOnly
from seq2seq_models import native_of, tiny


@pytest.mark.parametrize(
    ("prompt", "options", "said"),
    [
        ([], {}, "prompt is empty"),
        ([1] * 32, {}, "32 tokens and the context is 32"),
        ([97], {}, "outside the vocabulary of 97"),
        ([-1], {}, "outside the vocabulary of 97"),
        ([1], {"logprobs": 98}, "logprobs is 98 and the vocabulary has 97 tokens"),
        ([1], {"stop": "x"}, "need a tokenizer"),
        ([1], {"stop_token_ids": [97]}, "Token id 97 of stop_token_ids"),
        ([1], {"references": [[97]]}, "Token id 97 of references"),
        ([1], {"bad_words": [[1, 97]]}, "Token id 97 of bad_words"),
        ([1], {"logit_bias": {97: 1.0}}, "Token id 97 of logit_bias"),
        ([1], {"bad_token_ids": [-1]}, "Token id -1 of bad_token_ids"),
        ([1], {"allowed_token_ids": [3, 97]}, "Token id 97 of allowed_token_ids"),
        ([1], {"bad_words": ["x"]}, "The engine takes bad_words as token ids"),
        ([1], {"prompt_logprobs": 98}, "prompt_logprobs is 98 and the vocabulary has 97 tokens"),
        ([1], {"logprobs": 10**400}, r"logprobs is 1000* … and the vocabulary has 97 tokens"),
        ([1], {"logprobs": 10**5000}, "logprobs is a value of type int and the vocabulary"),
        ([1], {"bad_token_ids": list(range(97))}, "bad_token_ids forbids every token"),
        (
            [1],
            {"bad_token_ids": [3, 4, 5], "allowed_token_ids": [3, 5]},
            "bad_token_ids forbids every token",
        ),
    ],
)
def test_requests_that_cant_be_served(
    pair: Pair, prompt: list[int], options: dict[str, Any], said: str
) -> None:
    """One sentence each."""
    target = ModelTarget(pair.target, 1, 32)
    with pytest.raises(ForetokenError, match=said):
        check_request(target, TargetOnly(), prompt, SamplingParams(**options))


def test_the_room_that_is_left(pair: Pair) -> None:
    """max_tokens, or what the context leaves."""
    target = ModelTarget(pair.target, 1, 32)
    for asked, room in ((None, 30), (7, 7), (99, 30)):
        params = SamplingParams(max_tokens=asked, logprobs=97)
        assert check_request(target, TargetOnly(), [1, 2], params) == room


def test_the_memory_that_a_source_takes() -> None:
    """An encoder–decoder's cache has it too, however short the text is that goes with it."""
    target = target_for(native_of(tiny("t5")), 2, 200)
    target.budget.limit = target.budget.needs(10)
    assert target.budget.needs(150) > target.budget.limit
    params = SamplingParams(max_tokens=3)
    assert check_request(target, TargetOnly(), [5] * 9, params) == 3
    with pytest.raises(ForetokenError, match="for a prompt of 150 tokens and 3 new ones"):
        check_request(target, TargetOnly(), [5] * 150, params)


class Hostile(BaseDrafter):
    """Returns what it is told, and then nothing wrong."""

    trees = True
    kinds = frozenset({Kind.CHOSEN, Kind.INDEPENDENT})
    returned: Any = None

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> DraftTree:
        given, self.returned = self.returned, None
        if given is None:
            return chains([[5]] * len(sequences), torch.device("cpu"))
        tree: DraftTree = given
        return tree


def ids(*rows: list[int]) -> Tensor:
    return torch.tensor(rows)


def drawn(probability: float) -> DraftTree:
    proposals = torch.full((1, 1, 97), 1 / 97, dtype=torch.float64)
    proposals[0, 0, 50] = probability
    return DraftTree(ids([5]), [1], kind=Kind.INDEPENDENT, proposals=proposals)


@pytest.fixture(scope="module")
def hostile(pair: Pair) -> tuple[LLM, Hostile]:
    drafter = Hostile()
    config = {"method": drafter, "verifier": "multi_candidate"}
    return LLM(pair.target, speculative_config=config), drafter


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (lambda: [[1, 2]], "returned a value of type list"),
        (lambda: ids([1]), "returned a value of type Tensor"),
        (lambda: DraftTree(ids([1], [2]), [1, 1]), r"shape \[2, 1\] for 1 sequences"),
        (lambda: DraftTree(torch.tensor([1]), [1]), r"shape \[1\] for 1 sequences"),
        (lambda: DraftTree(ids([1]), []), r"shape \[1, 1\] for 1 sequences"),
        (lambda: DraftTree(torch.ones(1, 1), [1]), "tokens of torch.float32 on cpu"),
        (lambda: DraftTree(torch.ones(1, 1, dtype=torch.int32), [1]), "torch.int32"),
        (lambda: DraftTree(ids([1]).to("meta"), [1]), "torch.int64 on meta"),
        (lambda: DraftTree(ids([1]), [2]), r"counts \[2\] nodes and returned 1"),
        (lambda: DraftTree(ids([1]), [-1]), r"counts \[-1\] nodes"),
        (lambda: DraftTree(ids([97]), [1]), "ids outside the vocabulary of 97"),
        (lambda: DraftTree(ids([3, -1]), [2]), "ids outside the vocabulary of 97"),
        (lambda: DraftTree(ids([2**62]), [1]), "ids outside the vocabulary of 97"),
        (lambda: DraftTree(ids([1, 2]), [2], ids([0, 2])), "parent that doesn't stand before"),
        (lambda: DraftTree(ids([1, 2]), [2], ids([-1, 0])), "parent that doesn't stand before"),
        (lambda: DraftTree(ids([1, 2]), [2], ids([0])), r"parents of shape \[1, 1\] for tokens"),
        (lambda: DraftTree(ids([1, 2]), [2], kinds=ids([0, 0, 0])), r"kinds of shape \[1, 3\]"),
        (lambda: DraftTree(ids([1, 2]), [2], rows=ids([0])), r"rows of shape \[1, 1\]"),
        (
            lambda: DraftTree(ids([1, 2]), [2], amateur_logits=torch.zeros(1, 2, 97)),
            r"amateur_logits of shape \[1, 2, 97\] for \[1, 3\] slots",
        ),
        (
            lambda: DraftTree(ids([1] * 65), [65]),
            "returned 65 nodes and declares 64",
        ),
        (lambda: DraftTree([[1]], [1]), "returned tokens that are .* and no tensor"),  # type: ignore[arg-type]
        (lambda: DraftTree(ids([1]), ids([1])), "counts its nodes in a value of type Tensor"),  # type: ignore[arg-type]
        (lambda: DraftTree(ids([1]), [1], [0]), "returned parents that are .* and no tensor"),  # type: ignore[arg-type]
        (lambda: DraftTree(ids([1]), [1], ids([0]).float()), "returned parents of torch.float32"),
        (
            lambda: DraftTree(ids([1]), [1], kind=Kind.WITHOUT_REPLACEMENT),
            "nodes of the kind without_replacement, which its `kinds` don't name",
        ),
        (lambda: DraftTree(ids([1]), [1], kinds=ids([3])), "nodes of the kind auxiliary"),
        (lambda: DraftTree(ids([1]), [1], kinds=ids([7])), "nodes of the kind 7"),
        (
            lambda: DraftTree(ids([1]), [1], kind=Kind.INDEPENDENT),
            "drawn nodes without the proposals",
        ),
        (lambda: replace(drawn(0.1), proposals=torch.ones(1, 97)), r"proposals of shape \[1, 97\]"),
        (lambda: replace(drawn(0.1), proposals=torch.ones(1, 1, 96)), r"not \[1, rows, 97\]"),
        (lambda: replace(drawn(0.1), tokens=ids([5, 6]), counts=[2]), "1 proposals for 2 nodes"),
        (lambda: replace(drawn(0.1), rows=ids([1])), "a row of its 1 proposals that isn't there"),
        (lambda: drawn(float("nan")), "probabilities that are NaN or infinite"),
        (lambda: drawn(float("inf")), "probabilities that are NaN or infinite"),
        (lambda: drawn(7.0), r"numbers of the sum 7\.99 in 1 rows, so no probabilities"),
        (lambda: drawn(-7.0), r"numbers of the sum -6\.01 in 1 rows, so no probabilities"),
    ],
)
def test_drafts_that_cant_be_scored(
    hostile: tuple[LLM, Hostile], given: Callable[[], Any], said: str
) -> None:
    """The request fails with one sentence that names the drafter; the next one is served."""
    llm, drafter = hostile
    params = SamplingParams(max_tokens=6, seed=1, ignore_eos=True)
    [before] = llm.generate([[1, 2, 3]], params)
    drafter.returned = given()
    with pytest.raises(ForetokenError, match=f"^The drafter Hostile .*{said}.*; `draft` must"):
        llm.generate([1, 2, 3], params)
    [after] = llm.generate([[1, 2, 3]], params)
    assert after.token_ids == before.token_ids and len(after.token_ids) == 6


def test_good_drafts_pass(pair: Pair) -> None:
    """The highest id, a tree of siblings, a row without a draft; nodes with a row of their own."""
    target = ModelTarget(pair.target, 2, 32)
    siblings = DraftTree(ids([96, 0], [0, 0]), [2, 0], ids([0, 0], [0, 0]))
    check_draft(Hostile(), siblings, 2, target)
    check_draft(Hostile(), drawn(1 / 97), 1, target)


def test_a_tree_that_is_not_declared(pair: Pair) -> None:
    """A drafter of chains may give parents, if they are a chain's; padding counts for nothing."""
    target, drafter = ModelTarget(pair.target, 2, 32), Hostile()
    drafter.trees = False
    check_draft(drafter, DraftTree(ids([1, 2, 0]), [2], ids([0, 1, 0])), 1, target)
    with pytest.raises(ForetokenError, match="returned a tree and declares chains only"):
        check_draft(drafter, DraftTree(ids([1, 2, 0]), [3], ids([0, 1, 0])), 1, target)


def test_a_device_that_fails_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails whatever it is asked for; a processor never does. (A real one is in gpu/.)"""
    device = torch.device("cuda:0")
    monkeypatch.setattr(torch.accelerator, "synchronize", lambda device: None)
    check_device(device)

    def fails(device: torch.device) -> None:
        raise torch.AcceleratorError("CUDA error: an illegal memory access\nSearch for it.")

    monkeypatch.setattr(torch.accelerator, "synchronize", fails)
    check_device(torch.device("cpu"))
    with pytest.raises(ForetokenError) as told:
        check_device(device)
    assert str(told.value) == (
        "The device cuda:0 raised AcceleratorError: CUDA error: an illegal memory access, and "
        "computes nothing more until this process has ended."
    )
