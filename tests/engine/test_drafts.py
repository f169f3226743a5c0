"""What a step drafted: the draft that the output keeps is the one that was verified."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from foretoken import LLM, SamplingParams
from foretoken.engine.drafts import drafted
from foretoken.engine.outputs import Draft
from foretoken.protocols import Scores, Step
from foretoken.testing import native, related, tiny_transformers
from foretoken.tree import DraftTree, Kind

VOCAB = 61
MODEL = tiny_transformers(VOCAB)
SPS = {"method": "sps", "model": native(related(MODEL, 0.02)), "num_speculative_tokens": 3}
RECYCLING = {"method": "token_recycling"}


def written(config: Any, **options: Any) -> Any:
    llm = LLM(MODEL, speculative_config=config)
    given = {"temperature": 0, "max_tokens": 40, "ignore_eos": True} | options
    [out] = llm.generate([{"prompt_token_ids": [1, 2, 3, 1, 2]}], SamplingParams(**given))
    return out


def check(sample: Any) -> None:
    """Each draft's accepted tokens, then one more, are the text."""
    at = 0
    for place, draft in enumerate(sample.drafts):
        count = len(draft.path)
        assert [draft.tokens[slot - 1] for slot in draft.path] == sample.token_ids[at : at + count]
        parents = [draft.parents[slot - 1] for slot in draft.path]
        assert parents == [0, *draft.path][:count]
        flags = sample.accepted[at : at + draft.written]
        assert flags == [True] * count + [False] * (draft.written - count)
        assert draft.written == count + 1 or place == len(sample.drafts) - 1
        at += draft.written
    assert at == len(sample.token_ids)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("config", [SPS, RECYCLING], ids=["chain", "tree"])
def test_drafts_are_those_of_the_text(config: Any, temperature: float) -> None:
    out = written(config, temperature=temperature, seed=3, return_drafts=True)
    [sample] = out.outputs
    check(sample)
    assert sum(len(draft.tokens) for draft in sample.drafts) == out.stats.drafted
    assert sum(len(draft.path) for draft in sample.drafts) == out.stats.accepted > 0
    assert len(sample.drafts) == out.stats.passes
    times = [draft.seconds for draft in sample.drafts]
    assert times == sorted(times) and 0 < times[0] <= times[-1] <= out.stats.total_time


def test_drafts_are_kept_only_if_asked_for() -> None:
    assert written(SPS).outputs[0].drafts is None


def test_a_request_can_be_written_plainly() -> None:
    """At temperature 0 it is the text of the method, a pass for each token."""
    plain, other = written(SPS, max_draft_tokens=0, return_drafts=True), written(SPS)
    assert plain.token_ids == other.token_ids
    assert (plain.stats.drafted, plain.stats.passes) == (0, 40)
    assert other.stats.passes < 40
    check(plain.outputs[0])


def test_a_request_can_be_drafted_for_less() -> None:
    out = written(SPS, max_draft_tokens=1, return_drafts=True)
    assert {len(draft.tokens) for draft in out.outputs[0].drafts} <= {0, 1}
    assert out.stats.accepted > 0 and out.token_ids == written(SPS).token_ids


def test_one_request_is_plain_beside_another() -> None:
    llm = LLM(MODEL, speculative_config=SPS)
    base = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}
    both = [SamplingParams(**base, max_draft_tokens=0), SamplingParams(**base)]
    plain, other = llm.generate([{"prompt_token_ids": [1, 2, 3]}] * 2, both)
    assert plain.token_ids == other.token_ids
    assert plain.stats.drafted == 0 < other.stats.drafted


def test_auxiliary_nodes_are_left_out() -> None:
    """Slots after them are told by what is left; padding is no node."""
    kinds = [Kind.CHOSEN, Kind.AUXILIARY, Kind.CHOSEN, Kind.CHOSEN, Kind.PADDING]
    tree = DraftTree(
        torch.tensor([[5, 6, 7, 8, 0]]),
        [4],
        torch.tensor([[0, 1, 1, 3, 0]]),
        torch.tensor([kinds], dtype=torch.int8),
    )
    none = torch.empty(1, 6)
    done = Step([5, 7, 9], [1, 3], 4, 0, tree, Scores(none, none, none))
    assert drafted(done, 3, 2, 0.5) == Draft([5, 7, 8], [0, 1, 2], [1, 2], 3, 0.5)
    assert drafted(done, 1, 1, 0.5) == Draft([5, 7, 8], [0, 1, 2], [1], 1, 0.5)
