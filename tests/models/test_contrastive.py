"""Contrastive decoding: two models make one distribution, and all that is exact for a model is for
this."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from caches import fill, stored
from contrasts import (
    ALPHA,
    BETA,
    PROMPTS,
    contrastive,
    slow_distribution,
    slow_text,
    spelled_out,
)
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.access import Wants
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.engine.engine import check_pairing
from foretoken.models.contrastive import Contrastive, PairedCache
from foretoken.models.feed import chain_feed
from foretoken.models.hf.adapter import HFModel
from foretoken.models.target import ModelTarget
from foretoken.protocols import BaseDrafter
from foretoken.sampling.sequence import Sequence
from foretoken.testing import (
    Drawn,
    Pair,
    Scripted,
    TableModel,
    check_distribution,
    check_greedy,
    check_independence,
    check_seeded,
    distance,
    joint_distribution,
    logits_after,
    related,
    table_pair,
    tiny_pair,
    tiny_transformers,
)
from foretoken.tree import chains
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from test_distribution import chosen_tree

PARAMS = {
    "plain": SamplingParams(),
    "cold": SamplingParams(temperature=0.6),
    "greedy": SamplingParams(temperature=0),
    "top_p": SamplingParams(temperature=0.9, top_p=0.8),
    "penalties": SamplingParams(repetition_penalty=1.5, presence_penalty=0.4),
}


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("method", ["plain", "amateur drafts", "drawn chain", "chosen tree"])
def test_distribution(method: str, params: str) -> None:
    """The joint distribution of three tokens, by enumeration, is the contrastive distribution
    spelled out."""
    models = table_pair(4, seed=3)
    both, prompt = contrastive(models), [0, 1, 0]
    make, rule, options = {
        "plain": (lambda: Nothing(), TargetOnly(), {"rows": 256}),
        "amateur drafts": (lambda: SmallLM(both.draft, 2), Speculative(), {"rows": 256}),
        "drawn chain": (lambda: Drawn(both.draft, (1, 1)), Speculative(), {"rows": 256}),
        "chosen tree": (lambda: chosen_tree(both), TargetOnly(), {"budget": 3, "steps": 1}),
    }[method]
    distribution = joint_distribution(both.target, make, rule, prompt, PARAMS[params], 3, **options)
    expected = slow_distribution(models, prompt, PARAMS[params], 3)
    assert distance(distribution, expected) < 1e-12
    if params == "plain":  # something is implausible, and the expert alone says otherwise
        assert len(expected) < 64
        plain = joint_distribution(models.target, Nothing, TargetOnly(), prompt, PARAMS[params], 3)
        assert distance(distribution, plain) > 1e-2


@pytest.mark.parametrize(("alpha", "beta"), [(0.0, 0.0), (0.0, 0.5), (0.1, 0.5), (1.0, 2.0)])
def test_logits(alpha: float, beta: float) -> None:
    """Every place's distribution, over the corners of both parameters."""
    models = tiny_pair(31, noise=0.1)
    target = Contrastive(models.target, models.draft, alpha=alpha, beta=beta)
    for prompt in PROMPTS:
        tokens = [token % 31 for token in prompt]
        found = logits_after(target, tokens).softmax(-1)
        expected = spelled_out(models, tokens, alpha, beta).softmax(-1)
        assert torch.allclose(found, expected, rtol=0, atol=1e-12)
        if alpha == beta == 0:
            own = logits_after(models.target, tokens).softmax(-1)
            assert torch.allclose(found, own, rtol=0, atol=1e-12)
        if alpha == 1:
            assert int((found > 0).sum()) == 1


@pytest.fixture(scope="module")
def models() -> Pair:
    """A real expert, and an amateur that agrees with it about half of the time."""
    return tiny_pair(noise=0.1)


@pytest.mark.parametrize("slots", [1, 3])
def test_greedy_text(models: Pair, slots: int) -> None:
    """Greedy decoding is token for token the slow one's, alone and in a batch, with any drafter."""
    expected = [slow_text(models, prompt, 20) for prompt in PROMPTS]
    alone = [slow_expert(models, prompt, 20) for prompt in PROMPTS]
    assert expected != alone
    for make, rule in (
        (lambda pair: Nothing(), TargetOnly()),
        (lambda pair: SmallLM(pair.draft, 3), Speculative()),
        (lambda pair: PromptLookup(), TargetOnly()),
    ):
        check_greedy(
            make,
            rule,
            contrastive(models),
            slots=slots,
            tokens=20,
            prompts=PROMPTS,
            expected=expected,
        )


def test_branches_in_both_caches(models: Pair) -> None:
    """A branch that stands after another is moved into place in the amateur's cache too."""
    texts = {tuple(prompt): slow_text(models, prompt, 20) for prompt in PROMPTS}

    def paths(sequence: Sequence, budget: int) -> list[list[int]]:
        done = len(sequence.output)
        right = texts[tuple(sequence.tokens[: sequence.prompt_length])][done : done + 3]
        return [[(right[0] + 1) % 97], [(right[0] + 2) % 97], right]

    outputs = check_greedy(
        lambda pair: Scripted(paths),
        TargetOnly(),
        contrastive(models),
        slots=3,
        tokens=20,
        prompts=PROMPTS,
        expected=list(texts.values()),
    )
    assert all(output.stats.mean_acceptance_length > 2 for output in outputs)


def test_a_freed_slot_is_empty_in_both_caches() -> None:
    """What a finished sequence left behind, NaN for one, is gone when its slot is taken again."""
    cache = contrastive(table_pair()).target.new_cache(2, 8)
    assert isinstance(cache, PairedCache)
    slot = cache.acquire(1)
    cache.reserve([slot], [4])
    for part in (cache.expert, cache.amateur):
        fill(part, torch.nan)
    cache.keep([slot], [[1]])
    cache.release(1)
    assert cache.free == 2 and cache.acquire(2) == slot and cache.lengths == [0, 0]
    assert not stored(cache.expert)[:, :, slot].any()
    assert not stored(cache.amateur)[:, :, slot].any()


def slow_expert(models: Pair, prompt: list[int], tokens: int) -> list[int]:
    text = list(prompt)
    for _ in range(tokens):
        text.append(int(logits_after(models.target, text).argmax()))
    return text[len(prompt) :]


def test_seeded_text(models: Pair) -> None:
    """Copied drafts keep plain decoding's text at a temperature; company and chunks do nothing."""
    both = contrastive(models)
    check_seeded(lambda pair: PromptLookup(), TargetOnly(), both, slots=2)
    check_independence(lambda pair: SmallLM(pair.draft, 3), Speculative(), both)


def test_samples_share_the_prompt(models: Pair) -> None:
    """n > 1 copies both caches: the same samples as one after the other, each with its own pass."""
    params = SamplingParams(n=3, seed=5, max_tokens=12, temperature=0.9)
    texts = []
    for rows in (1, 4):
        llm = LLM(contrastive(models).target, max_num_seqs=rows)
        [output] = llm.generate([PROMPTS[0]], params)
        texts.append([sample.token_ids for sample in output.outputs])
    assert texts[0] == texts[1] and len({tuple(text) for text in texts[0]}) == 3


def test_front_door(tmp_path: Path) -> None:
    """From checkpoint folders, as `LLM` takes them; the amateur drafts."""
    expert = tiny_transformers(61, dtype=torch.float32, max_length=128)
    amateur = related(expert, noise=0.03)
    amateur.config.max_position_embeddings = 64
    expert.save_pretrained(tmp_path / "expert")
    amateur.save_pretrained(tmp_path / "amateur")
    target = Contrastive(tmp_path / "expert", str(tmp_path / "amateur"))
    assert (target.alpha, target.beta, target.max_length) == (0.1, 0.5, 64)
    params = SamplingParams(temperature=0, max_tokens=24)
    llm = LLM(target, speculative_config={"method": "sps", "model": tmp_path / "amateur"})
    [fast], [slow] = (one.generate([[3, 1, 4, 1, 5]], params) for one in (llm, LLM(target)))
    assert fast.token_ids == slow.token_ids and llm.stats.accepted > 0


def test_models_of_transformers(models: Pair) -> None:
    """An expert through transformers' own code beside a native amateur: the same text."""
    mixed = Contrastive(models.transformers, models.draft, alpha=ALPHA, beta=BETA)
    assert isinstance(mixed.expert, HFModel)
    check_greedy(
        lambda pair: SmallLM(pair.draft, 3),
        Speculative(),
        Pair(mixed, models.draft),
        slots=2,
        tokens=12,
        prompts=PROMPTS[:2],
        expected=[slow_text(models, prompt, 12) for prompt in PROMPTS[:2]],
    )


def test_a_pass_reads_both(models: Pair) -> None:
    target = contrastive(models).target
    for number in ("parameters", "bytes_read"):
        own, drafts = getattr(models.target, number), getattr(models.draft, number)
        assert getattr(target, number) == own + drafts


def test_a_copy_has_the_amateurs_part_unread() -> None:
    """Of a text whose logits were handed over: as much as the copy has of it."""
    for length in (3, 2):
        cache = contrastive(table_pair()).target.new_cache(2, 8)
        assert isinstance(cache, PairedCache)
        one, two = cache.acquire(1), cache.acquire(2)
        feed = chain_feed(cache, [one], [[0, 1, 2]])
        cache.handed_over(replace(feed, amateur_logits=torch.zeros(1, 3, 3)))
        cache.keep([one], [[1, 2]])
        cache.copy(one, two, length)
        assert cache.unread([two]) == {two: [0, 1, 2][:length]}
        assert (cache.lengths[two], cache.amateur.lengths[two]) == (length, 0)


def test_windows_can_be_kept_in_both() -> None:
    """For drafters that read a layer's whole history."""
    models = (TableModel.random(7, seed, window=40) for seed in (1, 2))
    cache = Contrastive(*models).new_cache(1, 2000)
    slot = cache.acquire(1)
    cache.keep_windows()
    for _ in range(30):
        cache.reserve([slot], [50])
        cache.lengths[slot] += 50
    assert cache.keeps(slot, 100)


def test_levels(models: Pair) -> None:
    """Logits and masks of both, states and head of the expert; the inside of neither."""
    target = ModelTarget(contrastive(models).target, 1, 64)
    assert target.levels == {"a", "b", "c"}
    drafter = BaseDrafter()
    for level in "def":
        drafter.wants = Wants("a" + level)
        with pytest.raises(ForetokenError, match="can't give"):
            check_pairing(target, drafter, TargetOnly())  # type: ignore[arg-type]
    chains_only = TableModel.random(97)
    chains_only.levels = frozenset("a")
    assert Contrastive(models.target, chains_only).levels == {"a", "c"}


@torch.inference_mode()
def test_states_are_the_experts(models: Pair) -> None:
    """Level c: the last states, turned into logits by the head, are the expert's own."""
    target = ModelTarget(contrastive(models).target, 1, 64)
    plain = ModelTarget(models.target, 1, 64)
    found = []
    for one in (target, plain):
        one.hidden = (-1,)
        sequence = Sequence.start([3, 1, 4], SamplingParams(temperature=0))
        one.begin(sequence)
        one.prefill([sequence], 8)
        found.append(one.score([sequence], chains([[1, 5]], torch.device("cpu"))).hidden[-1])
    assert torch.equal(*found) and torch.equal(target.head(found[0]), plain.head(found[1]))
    assert torch.equal(target.embed(torch.tensor([[7]])), plain.embed(torch.tensor([[7]])))


def test_an_amateurs_zero() -> None:
    """A token that the amateur holds for impossible has the highest merit there is, not NaN."""
    expert = TableModel.markov(torch.tensor([[0.5, 0.5], [0.5, 0.5]]))
    amateur = TableModel.markov(torch.tensor([[1.0, 0.0], [0.0, 1.0]]))
    found = logits_after(Contrastive(expert, amateur, alpha=0.1), [0]).softmax(-1)
    assert torch.allclose(found, torch.tensor([0.0, 1.0], dtype=torch.float64))
    both = Pair(Contrastive(amateur, expert), expert)
    check_distribution(
        lambda pair: SmallLM(pair.draft, 2), Speculative(), both, SamplingParams(), 3
    )


def test_half_precision() -> None:
    """Differences of half-precision logits are taken in float32."""
    random = torch.Generator().manual_seed(0)
    target = Contrastive(table_pair().target, table_pair().draft)
    expert, amateur = torch.randn(2, 1, 1, 3, generator=random).bfloat16()
    assert target._combined(expert, amateur).dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"alpha": -0.1}, "alpha is -0.1"),
        ({"alpha": 1.1}, r"in \[0, 1\]"),
        ({"beta": -1}, "at least 0"),
    ],
)
def test_wrong_parameters(options: dict[str, float], said: str) -> None:
    """What was given and what is expected."""
    pair = table_pair()
    with pytest.raises(ForetokenError, match=said):
        Contrastive(pair.target, pair.draft, **options)


def test_wrong_pairs() -> None:
    """Models of different vocabularies have nothing to compare."""
    with pytest.raises(ForetokenError, match="vocabulary is 3 and the amateur's 4"):
        Contrastive(table_pair(3).target, table_pair(4).target)
