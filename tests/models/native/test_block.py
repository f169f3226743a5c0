"""What the families of the native model differ in: each is transformers' model, part by part."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from foretoken import LLM, SamplingParams
from foretoken.config import build
from foretoken.drafters.early_exit import EarlyExit
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.small_tree import SmallTree
from foretoken.models.cache import KVCache
from foretoken.models.feed import chain_feed
from foretoken.models.hf.adapter import HFModel
from foretoken.models.load import load_model
from foretoken.models.native import block
from foretoken.models.native.check import CYCLE
from foretoken.models.native.transformer import Transformer
from foretoken.models.prune import prune
from foretoken.models.target import ModelTarget
from foretoken.testing import check_greedy, check_seeded, logits_after, native, related
from foretoken.testing.checks import PROMPTS
from foretoken.testing.models import Pair
from stored_models import FAMILIES, IDS, original, real_file

GEMMAS = [name for name in FAMILIES if name.startswith("gemma")]


@cache
def pair_of(family: str) -> Pair:
    """Four layers in float64, a window that every text crosses, caps that bend."""
    numbers: dict[str, Any] = {"num_hidden_layers": 4, "head_dim": 16}
    if family != "gemma":
        numbers |= {"sliding_window": 5, "final_logit_softcapping": 9.0}
    if family == "gemma2":
        numbers |= {"attn_logit_softcapping": 2.0}
    model = original(family, **numbers).double()
    model.generation_config.eos_token_id = None
    return Pair(native(model), native(related(model)), model)


def theirs(model: Any, prompt: list[int], tokens: int) -> list[int]:
    """What transformers' `generate` writes."""
    out = model.generate(torch.tensor([prompt]), max_new_tokens=tokens, do_sample=False)
    ids: list[int] = out[0, len(prompt) :].tolist()
    return ids


@pytest.mark.parametrize("family", GEMMAS)
def test_the_text_is_what_transformers_writes(family: str) -> None:
    """By chains and trees of a small model and by the model's own first layers, in a batch."""
    pair = pair_of(family)
    written = [theirs(pair.transformers, prompt, 24) for prompt in PROMPTS]
    for drafter in (
        lambda pair: SmallLM(pair.draft, 3),
        lambda pair: SmallTree(pair.draft),
        lambda pair: EarlyExit(2),
    ):
        rule = build({"method": drafter(pair)}).verifier
        outputs = check_greedy(drafter, rule, pair, slots=3, prompts=PROMPTS, expected=written)
        assert sum(output.stats.accepted for output in outputs) > 5
    copies = PromptLookup(3)
    check_seeded(lambda _: PromptLookup(3), build({"method": copies}).verifier, pair, slots=2)


@cache
def windowed(kinds: tuple[str, ...]) -> tuple[Any, Any, list[list[int]], list[list[int]]]:
    """A model of a window of five tokens, one that is like it, long prompts and what transformers
    writes to them."""
    numbers: dict[str, Any] = {"num_hidden_layers": 4, "head_dim": 16, "sliding_window": 5}
    numbers |= {"max_position_embeddings": 512, "layer_types": [f"{k}_attention" for k in kinds]}
    model = original("gemma3_text", **numbers).double()
    model.generation_config.eos_token_id = None
    rng = random.Random(0)
    prompts = [[rng.randrange(97) for _ in range(n)] for n in (190, 40)]
    return model, related(model), prompts, [theirs(model, prompt, 40) for prompt in prompts]


@pytest.mark.parametrize("run", [native, HFModel])
@pytest.mark.parametrize("kinds", [("sliding",) * 4, ("sliding", "sliding", "full", "sliding")])
def test_windows_return_what_they_have_passed(
    run: Any, kinds: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long texts, whose windows' memory is given back on the way, and that of a draft model: they
    are what transformers writes, also in copies that come when the prompt is gone."""
    monkeypatch.setattr("foretoken.models.cache._TRIMMED", 1)
    model, like, prompts, wanted = windowed(kinds)
    small, params = run(like), SamplingParams(temperature=0, max_tokens=40, n=2)
    for method in ({"method": "sps", "model": small}, {"method": "specinfer", "model": small}):
        llm = LLM(
            run(model),
            speculative_config=method,
            max_num_seqs=3,
            max_num_batched_tokens=32,
            eos_ids=(),
            enable_prefix_caching=False,  # which keeps what has ended
        )
        outputs = llm.generate(prompts, params)
        cache = llm.engine.target.cache
        for output, text in zip(outputs, wanted, strict=True):
            assert [list(sample.token_ids) for sample in output.outputs] == [text, text]
        most = 1 - 0.3 * kinds.count("sliding") / len(kinds)
        assert not cache.written and cache.needs(400) < most * _unwindowed(cache, 400)


def _unwindowed(cache: KVCache, tokens: int) -> int:
    shapes = [shape._replace(window=None) for shape in cache.shapes]
    return KVCache(shapes, 3, 512, cache.dtype, cache.device, spare=cache.spare).needs(tokens)


@pytest.mark.parametrize("family", ["llama", *GEMMAS])
@torch.inference_mode()
def test_any_of_the_sub_layers(family: str) -> None:
    """Level e: what is left out adds nothing, as in transformers with these modules silent."""
    pair, rng = pair_of(family) if family != "llama" else None, random.Random(0)
    model = original("llama").double() if pair is None else pair.transformers
    mine: Any = native(model) if pair is None else pair.target
    ids = [rng.randrange(97) for _ in range(12)]
    for _ in range(4):
        kept = sorted(rng.sample(range(2 * mine.layers), mine.layers))
        held = mine.new_cache(1, 16)
        feed = chain_feed(held, [held.acquire(0)], [ids])
        states = mine.run(mine.embed(feed.tokens), feed, held, kept)
        silent = [
            (layer.self_attn if part == 0 else layer.mlp).register_forward_hook(_nothing)
            for i, layer in enumerate(model.model.layers)
            for part in (0, 1)
            if 2 * i + part not in kept
        ]
        want = model(torch.tensor([ids]), use_cache=False).logits
        for handle in silent:
            handle.remove()
        torch.testing.assert_close(mine.head(mine.normed(states)), want, rtol=0, atol=1e-5)


def _nothing(_: Any, __: Any, output: Any) -> Any:
    """A hook: whatever a sub-layer says, it adds nothing."""
    if isinstance(output, tuple):
        return (torch.zeros_like(output[0]), *output[1:])
    return torch.zeros_like(output)


@torch.inference_mode()
def test_repeated_layers_keep_their_windows_and_turns() -> None:
    """Weights repeat, kinds of layers needn't; rows at different kinds run together."""
    model = original("gemma3_text", num_hidden_layers=4, sliding_window=3).double()
    layers = model.model.layers
    layers[2].load_state_dict(layers[0].state_dict())
    layers[3].load_state_dict(layers[1].state_dict())
    kinds = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"]
    model.config.layer_types = kinds
    whole = native(model)
    setattr(model.config, CYCLE, 2)
    mine = native(model)
    assert isinstance(mine, Transformer) and (mine.cycle, mine.layers) == (2, 4)
    assert [layer.rope for layer in mine.stack] == [0, 0, 1, 0]
    assert torch.equal(logits_after(mine, PROMPTS[0]), logits_after(whole, PROMPTS[0]))
    held = mine.new_cache(2, 16)
    slots = [held.acquire(i) for i in range(2)]
    feeds = [chain_feed(held, [slot], [[7]]) for slot in slots]
    states = torch.randn(2, 1, mine.width, dtype=mine.dtype)
    for cache_length in (0, 9):
        held.lengths[:] = [cache_length] * 2
        feeds = [chain_feed(held, [slot], [[7]]) for slot in slots]
        together = mine.run_together(states, feeds, [0, 2], 2, held)
        for row, first in enumerate((0, 2)):
            alone = mine.run(
                states[row : row + 1], feeds[row], held, range(2 * first, 2 * first + 4)
            )
            torch.testing.assert_close(together[row : row + 1], alone)


@pytest.mark.parametrize("family", GEMMAS)
def test_a_pruned_copy(family: str) -> None:
    """All heads and columns kept is the model itself."""
    pair = pair_of(family)
    whole = prune(pair.transformers, 1.0, 1.0, ModelTarget(pair.target, 1, 64))
    text = PROMPTS[0]
    assert torch.equal(logits_after(whole, text), logits_after(pair.target, text))
    small = prune(pair.transformers, 0.5, 0.5, ModelTarget(pair.target, 1, 64))
    assert small.parameters < whole.parameters


def test_what_a_configuration_says() -> None:
    """Windows by kinds of layers, scales and caps where the family has them."""
    gemma3 = original("gemma3_text", num_hidden_layers=6, sliding_window=7).config
    gemma3.attn_logit_softcapping = 3.0  # which transformers' Gemma 3 doesn't read
    assert [block.window(gemma3, i) for i in range(6)] == [7, 7, 7, 7, 7, None]
    assert block.rope_kinds(gemma3) == ["sliding_attention", "full_attention"]
    assert block.cap(gemma3, block.family(gemma3).score_cap) is None
    assert block.score_scale(gemma3, 16) == 256**-0.5
    assert block.embedding_scale(gemma3) == 8.0
    gemma2 = original("gemma2").config
    assert block.cap(gemma2, block.family(gemma2).score_cap) == 50.0
    llama = original("llama").config
    llama.query_pre_attn_scalar = llama.sliding_window = 9  # fields of other families
    assert block.score_scale(llama, 16) == 0.25 and block.rope_kinds(llama) == [None]
    assert block.window(llama, 0) is None
    assert block.embedding_scale(llama) == 1.0 and block.biased(llama) == ()
    llama.attention_bias = True
    assert block.biased(llama) == ("self_attn.",)


def test_types_of_layers_that_a_family_does_not_read() -> None:
    """Mistral's layers all have the window, whatever a configuration lists, as in transformers."""
    model = original("mistral", sliding_window=3)
    model.config.layer_types = ["full_attention", "sliding_attention"]
    assert [block.window(model.config, i) for i in range(2)] == [3, 3]
    expected = model.double()(torch.tensor([IDS])).logits[0, -1]
    assert torch.allclose(logits_after(native(model), IDS), expected)


@pytest.fixture(scope="module")
def real() -> Any:
    """Gemma 3 of 270 million parameters, read by transformers; skipped where it isn't at hand."""
    import transformers

    pytest.importorskip("gguf")
    file, auto = real_file("gemma-3-270m"), transformers.AutoModelForCausalLM
    read = auto.from_pretrained(file.parent, gguf_file=file.name, dtype=torch.float32)
    del read.config.quantization_config  # what was read is not quantised any more
    model = auto.from_config(read.config).eval()
    model.load_state_dict(read.state_dict())
    model.generation_config.eos_token_id = None
    return model


@pytest.mark.real
@pytest.mark.slow
@torch.inference_mode()
def test_a_real_gemma_is_transformers(real: Any, tmp_path: Path) -> None:
    """From a folder: logits after a text longer than its window, and what is written after it,
    natively, through the adapter and by `generate`."""
    real.save_pretrained(tmp_path)
    mine, adapted = (
        load_model(tmp_path, dtype="float32", device="cpu", model_impl=impl)
        for impl in ("native", "transformers")
    )
    assert isinstance(mine, Transformer) and mine.layers == 18
    ids = [2, *random.Random(0).choices(range(1000, 4000), k=40)] * 14  # 574, the window is 512
    want = real(torch.tensor([ids])).logits[0, -1]
    torch.testing.assert_close(logits_after(mine, ids), want, rtol=0, atol=2e-3)
    theirs = real.generate(torch.tensor([ids]), max_new_tokens=32, do_sample=False)[0].tolist()
    greedy = SamplingParams(temperature=0, max_tokens=32, ignore_eos=True)
    for model in (mine, adapted):
        for method in (None, {"method": "pld"}):
            llm = LLM(model, speculative_config=method, max_model_len=700)
            [written] = llm.generate([ids], greedy)
            assert ids + written.token_ids == theirs
