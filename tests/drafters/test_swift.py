"""Drafters that run a part of the target: what they run, where they write it, what they learn."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foretoken import LLM, SamplingParams
from foretoken.config import build
from foretoken.drafters.draft_verify import DraftVerify
from foretoken.drafters.early_exit import EarlyExit
from foretoken.drafters.pruned import Pruned
from foretoken.drafters.swift import Search, Swift, upper_bounds
from foretoken.engine.engine import Engine
from foretoken.errors import ForetokenError
from foretoken.models import layer_set
from foretoken.models.drafting.self_model import SelfModel
from foretoken.models.hf.adapter import HFModel
from foretoken.models.load import build_native
from foretoken.models.prune import prune
from foretoken.models.target import ModelTarget
from foretoken.protocols import Drafter
from foretoken.sampling.sequence import Sequence
from foretoken.testing import check_company, check_greedy, check_seeded, logits_after, native
from foretoken.testing.checks import PROMPTS, SAMPLED, serve
from foretoken.testing.models import Pair, tiny_pair, tiny_transformers
from foretoken.tree import chains
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly

LAYERS = 4
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)


@pytest.fixture(scope="module")
def deep() -> Pair:
    """A target of four layers whose upper ones change little, so that a part of it agrees with it
    now and then."""
    model = tiny_transformers(layers=LAYERS)
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            layer.self_attn.o_proj.weight *= 0.2
            layer.mlp.down_proj.weight *= 0.2
    return Pair(native(model), native(model), model)


def begun(target: ModelTarget, *texts: list[int]) -> list[Sequence]:
    sequences = [Sequence.start(text, GREEDY) for text in texts]
    for sequence in sequences:
        target.begin(sequence)
        while target.pending(sequence):
            target.prefill([sequence], 64)
    return sequences


def without(pair: Pair, layers: list[int]) -> Any:
    """The native model without these layers."""
    import copy

    model = copy.deepcopy(pair.transformers)
    kept = [layer for i, layer in enumerate(model.model.layers) if i not in layers]
    for place, layer in enumerate(kept):
        layer.self_attn.layer_idx = place
    model.model.layers = torch.nn.ModuleList(kept)
    model.config.num_hidden_layers = len(kept)
    model.config.layer_types = None
    return native(model)


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
    assert torch.equal(before, target.score(sequences, trees).logits)


@torch.inference_mode()
def test_a_rerun_sees_the_history_and_itself(deep: Pair) -> None:
    """All layers again over the last tokens give what they gave; nothing committed is touched."""
    target = ModelTarget(deep.target, 2, 64)
    texts = [[5, 9, 2, 7, 1, 30], [40, 3, 3, 17, 40, 3, 8, 8]]
    sequences = begun(target, *texts)
    held = target.cache.data[..., :5, :].clone()
    said = SelfModel(target, range(2 * LAYERS)).again(sequences, 3)
    for row, text in enumerate(texts):
        for n in range(3):
            expected = logits_after(deep.target, text[: len(text) - 3 + n])
            assert torch.allclose(said[row, n], expected, atol=1e-10)
    assert torch.equal(held[:, :, 0], target.cache.data[:, :, 0, :, :5])
    some = SelfModel(target, range(2, 2 * LAYERS)).again(sequences, 3)
    assert not torch.allclose(some, said)


@pytest.mark.parametrize(
    "drafter",
    [DraftVerify((2, 5)), DraftVerify(), EarlyExit(2), Swift(context_window=4), Pruned()],
    ids=lambda drafter: type(drafter).__name__,
)
def test_text_is_the_targets_and_drafts_are_accepted(deep: Pair, drafter: Drafter) -> None:
    """In batches, greedy and sampled, on four layers; and more than one token comes of a pass."""
    model = deep.transformers
    weights = model.state_dict().__getitem__
    own = build_native(
        model.config, weights, torch.float64, torch.device("cpu"), "plain", source=model
    )
    target = dataclasses.replace(deep, target=own)
    rule = build({"method": drafter}).verifier

    def make(_: Pair) -> Drafter:
        return dataclasses.replace(drafter)  # type: ignore[type-var]

    for slots in (1, 3):
        outputs = check_greedy(make, rule, target, slots=slots, prompts=PROMPTS, tokens=40)
    assert sum(output.stats.accepted for output in outputs) > 10
    check_company(make, rule, target)
    if isinstance(rule, TargetOnly):
        check_seeded(make, rule, target, slots=3)


def test_the_adapter_is_refused(deep: Pair) -> None:
    """Level e is the native model's alone; a pruned copy needs level a and is served anywhere."""
    target = HFModel(deep.transformers)
    for name in ("draft_verify", "early_exit", "swift", "ppd", "speed"):
        with pytest.raises(ForetokenError, match="model_impl='native'"):
            LLM(target, speculative_config={"method": name})
    assert LLM(target, speculative_config={"method": "pruned"}).generate([[1, 2]], GREEDY)


def test_every_second_layer() -> None:
    """SWIFT's start: the first and the last layer stay, and short models keep all."""
    assert layer_set.every_second(7) == (2, 3, 6, 7, 10, 11)
    assert layer_set.every_second(4) == (2, 3)
    assert layer_set.every_second(2) == ()
    assert layer_set.kept((1, 2), 2) == [0, 3]


def test_files_of_layer_sets(deep: Pair, tmp_path: Path) -> None:
    """A set is found again by the model it was made for, in any dtype, and by no other."""
    path = tmp_path / "set.npz"
    layer_set.save(path, (2, 5), ModelTarget(deep.target, 1, 8))
    half = native(tiny_transformers(layers=LAYERS).float())
    assert layer_set.load(path, ModelTarget(half, 1, 8)) == (2, 5)
    drafter = DraftVerify(path)
    drafter.bind(ModelTarget(half, 1, 8))
    assert drafter._lm.sublayers == (0, 1, 3, 4, 6, 7)
    for other in (tiny_pair(layers=LAYERS, seed=1), tiny_pair(layers=LAYERS + 1)):
        with pytest.raises(ForetokenError, match="use a layer set of this target's"):
            layer_set.load(path, ModelTarget(other.target, 1, 8))
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ForetokenError, match="damaged"):
        layer_set.load(path, ModelTarget(half, 1, 8))


def test_settings_that_cannot_be(deep: Pair) -> None:
    """Layers that aren't there and shares that are none are refused."""
    target = ModelTarget(deep.target, 1, 8)
    for drafter, part in (
        (DraftVerify((1, 8)), "sub-layers"),
        (EarlyExit(4), "exit_layer"),
        (Pruned(), "where the target's weights"),
    ):
        with pytest.raises(ForetokenError, match=part):
            drafter.bind(target)
    for make in (
        lambda: Swift(context_window=1),
        lambda: Swift(skip_ratio=1.0),
        lambda: Swift(opt_interval=0),
        lambda: Pruned(kept_columns=0.0),
    ):
        with pytest.raises(ForetokenError):
            make()


def test_search_while_serving(deep: Pair, tmp_path: Path) -> None:
    """SWIFT finds the set that its windows agree with most, keeps it, saves it and forgets it."""
    settings = Swift(context_window=4, max_opt_iter=40)
    target = ModelTarget(deep.target, 4, 128)
    engine = Engine(target, settings, TargetOnly())
    for prompt in PROMPTS:
        engine.add(prompt, dataclasses.replace(GREEDY, max_tokens=100))
    while engine.busy:
        engine.step()
    search = settings.shared
    assert len(search.tried) > 5
    assert search.tried[0][0] == layer_set.every_second(LAYERS)
    assert all(len(each) == 1 for each, _ in search.tried[1:])  # int(0.45 · 4)
    assert search.score == max(score for _, score in search.tried)
    assert (search.best, search.score) in search.tried
    search.save(tmp_path / "set")
    best = search.best
    search.reset()
    assert (search.best, search.tried) == (layer_set.every_second(LAYERS), [])
    search.load(tmp_path / "set")
    assert search.best == best == search.candidate()


def test_when_the_search_ends(deep: Pair) -> None:
    """At a good enough score, after too many that were no better, or after all it may try."""
    target = ModelTarget(deep.target, 1, 8)
    search = Search(target, Swift(max_tolerance_iter=3, max_opt_iter=5))
    search.learn((2,), 0.96)
    assert search.candidate() is None
    search.reset()
    for score in (0.5, 0.4, 0.5, 0.1):
        assert search.candidate() is not None
        search.learn((2,), score)
    assert search.candidate() is None
    assert Search(ModelTarget(tiny_pair().target, 1, 8), Swift()).candidate() is None


def test_upper_bounds_prefer_what_is_good_or_unknown() -> None:
    """Of two points as far from what was tried the one near the better is rated higher, and of two
    as good the one farther away."""
    known = np.array([[1.0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1.0]])
    asked = np.array([[1.0, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 1.0], [0, 1.0, 1, 1, 1, 0]])
    good, bad, far = upper_bounds(known, np.array([0.9, 0.1]), asked)
    assert good > bad
    assert far > good


@pytest.mark.parametrize("method", ["draft_verify+pld", "swift+early_exit", "early_exit|pld"])
def test_together_with_others(deep: Pair, method: str) -> None:
    """Another drafter's passes and nodes in between don't end up in the text."""
    options: dict[str, Any] = {"method": method}
    if "swift" in method:
        options["context_window"] = 3
    built = build(options)
    rule = built.verifier
    for slots in (1, 3):
        check_greedy(
            lambda _: build(options).drafter, rule, deep, slots=slots, prompts=PROMPTS, tokens=30
        )


def test_pruned_whole_is_the_model(deep: Pair) -> None:
    """All heads and columns kept is the target itself; a share of them has that shape."""
    target = ModelTarget(deep.target, 1, 64)
    text = PROMPTS[0]
    whole = prune(deep.transformers, 1.0, 1.0, target)
    assert torch.equal(logits_after(whole, text), logits_after(deep.target, text))
    small = prune(deep.transformers, 0.5, 0.25, target)
    # Of a layer's 32·32 weights of q and o and 32·16 of k and v half, of 3·32·64 a quarter.
    gone = LAYERS * ((2 * 32 * 32 + 2 * 32 * 16) // 2 + 3 * 32 * 64 * 3 // 4)
    assert small.parameters == deep.target.parameters - gone
    assert not torch.allclose(logits_after(small, text), logits_after(deep.target, text))


def test_what_is_pruned_is_what_weighs_least(deep: Pair) -> None:
    """Columns and heads without weight go first, so that leaving them out changes nothing."""
    import copy

    model = copy.deepcopy(deep.transformers)
    with torch.no_grad():
        for layer in model.model.layers:
            for rows in (layer.mlp.gate_proj, layer.mlp.up_proj):
                rows.weight[::2] = 0
            layer.mlp.down_proj.weight[:, ::2] = 0
            attention = layer.self_attn
            attention.q_proj.weight[:16] = 0  # the two query heads of the first key/value head
            attention.o_proj.weight[:, :16] = 0
            attention.k_proj.weight[:8] = 0
            attention.v_proj.weight[:8] = 0
    target = ModelTarget(native(model), 1, 64)
    small = prune(model, 0.5, 0.5, target)
    expected = logits_after(target.model, PROMPTS[0])
    assert torch.allclose(logits_after(small, PROMPTS[0]), expected, atol=1e-10)


def test_rule_of_drawn_drafts(deep: Pair) -> None:
    """Draft & Verify draws when it samples, and is verified by speculative sampling."""
    built = build({"method": "draft_verify", "skip": [2, 5]})
    drafter, rule = built.drafter, built.verifier
    assert isinstance(rule, Speculative)
    outputs = serve(deep.target, drafter, rule, PROMPTS, SAMPLED, slots=4)
    assert sum(output.stats.accepted for output in outputs)
