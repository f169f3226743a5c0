"""Models on the GPU: backends, GGUF files, caches, and every other kind of target."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from copy import deepcopy
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contrasts import contrastive
from engines import engine_of, known
from engines import written as written_by
from foretoken import LLM, AsyncLLM, ForetokenError, SamplingParams
from foretoken.config import build
from foretoken.drafters.medusa import Medusa, MedusaHeads
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.online import Online
from foretoken.drafters.small_lm import SmallLM
from foretoken.models.hf.adapter import HFModel
from foretoken.models.native.backends import compiled
from foretoken.models.native.backends.cuda_graphs import Graphs
from foretoken.models.native.build import build_native
from foretoken.models.ppd import PPD
from foretoken.models.seq2seq.beginning import beginning
from foretoken.models.seq2seq.build import build_seq2seq
from foretoken.models.speed import Speed
from foretoken.testing import ByteTokenizer, Pair, logits_after, related, serve, tiny_transformers
from foretoken.testing.checks import PROMPTS, texts
from foretoken.trainable.checkpoint import Facts
from foretoken.verify.speculative import Speculative
from foretoken.verify.target_only import TargetOnly
from on_device import DEVICE, MARKS, NEAR, ON_GPU, native_there, needs_gpu, pair_there
from online_serving import answered
from seq2seq_models import EOS, SOURCES, native_of, tiny
from seq2seq_models import related as related_seq2seq
from test_conformance import models, saved
from whole_passes import KINDS, begun, check_same, fresh, tree_of

pytestmark = MARKS

GREEDY = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1, seed=3, max_tokens=24, ignore_eos=True)
BRANCHES = [[[1, 2, 3], [1, 4], [5, 6, 7, 8]], [[9], [10, 11]], []]


def pair_here() -> Pair:
    return models("native")


# --- backends


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("runner", ["plain", pytest.param("cuda_graphs", marks=needs_gpu)])
def test_chains_and_trees(kind: str, runner: str) -> None:
    """In float64 the logits are the CPU's: ragged chunks of prompts, trees, single tokens."""
    model = fresh(kind, DEVICE)
    if runner == "cuda_graphs":
        model.run_by(Graphs, runner)
    check_same(model, kind, near=NEAR)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "BUCKETS", (1, 16))
    model = fresh("llama", DEVICE)
    model.run_by(compiled.Compiled, "compiled")
    check_same(model, steps=4, near=NEAR)


@pytest.mark.parametrize(
    ("backend", "off"), [("int8", 0.2), pytest.param("int4", 0.6, marks=needs_gpu)]
)
def test_narrow_weights(backend: str, off: float) -> None:
    """Logits of chains and trees are near those of the same numbers, unrounded, on the CPU."""
    if ON_GPU:
        pytest.importorskip("torchao")
    said, expected = (
        tree_logits(narrow(*where)) for where in ((backend, DEVICE), ("plain", torch.device("cpu")))
    )
    assert (said - expected).norm() < off * expected.norm()


def narrow(backend: str, device: torch.device) -> Any:
    """A model of the backend's dtype, as wide as groups of weights that share a scale."""
    model = tiny_transformers(width=128, scale=0.05, max_length=192, dtype=torch.float32)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    return build_native(model.config, model.state_dict().__getitem__, dtype, device, backend)


@torch.inference_mode()
def tree_logits(model: Any) -> Tensor:
    """[nodes, V] of a tree after each of three texts."""
    target, sequences = begun(model)
    tree = tree_of(BRANCHES, model.device)
    logits = target.score(sequences, tree).logits
    return torch.cat([logits[i, : n + 1] for i, n in enumerate(tree.counts)]).float().cpu()


@pytest.mark.parametrize("backend", ["auto", "plain", "cuda_graphs+plain"])
@pytest.mark.parametrize("dtype", ["auto", "float64", "bfloat16", "float16"])
def test_llm(checkpoints: tuple[Path, Path], backend: str, dtype: str) -> None:
    """By its front door, with a small model that drafts; in float64 the text is the CPU's."""
    target, draft = checkpoints
    if backend.startswith("cuda_graphs") and not ON_GPU:
        with pytest.raises(ForetokenError, match="'cuda_graphs' needs a GPU, not cpu"):
            LLM(target, device=DEVICE, backend=backend, max_model_len=128)
        return
    given: dict[str, Any] = {"dtype": dtype, "max_model_len": 128, "eos_ids": ()}
    config = {"method": "sps", "model": str(draft)}
    with LLM(target, device=DEVICE, backend=backend, speculative_config=config, **given) as llm:
        assert llm.model.device.type == DEVICE.type
        found = texts(llm.generate(list(PROMPTS), GREEDY, raise_on_error=True))
        again = texts(llm.generate(list(PROMPTS), GREEDY, raise_on_error=True))
    assert [len(text) for text in found] == [24] * len(PROMPTS)
    if dtype == "float64":
        with LLM(target, device="cpu", backend="plain", **given) as llm:
            assert found == again == texts(llm.generate(list(PROMPTS), GREEDY))


BUNDLED = ("draft", "dflash", "eagle", "eagle3", "hydra", "medusa", "mtp")


@cache
def minis_text(device: str) -> list[list[int]]:
    with LLM("mini", device=device, dtype="float64", backend="plain") as llm:
        return texts(llm.generate(["The sea", "One two one two"], GREEDY))


@pytest.mark.parametrize("name", BUNDLED)
def test_bundled_drafters(name: str) -> None:
    """Checkpoints of trained weights are read onto the GPU; auto is where they then run."""
    pytest.importorskip("foretoken_zoo")
    config = {"method": "sps" if name == "draft" else name, "model": f"mini-{name}"}
    with LLM("mini", device=DEVICE, dtype="float64", speculative_config=config) as llm:
        found = llm.generate(["The sea", "One two one two"], GREEDY, raise_on_error=True)
        assert llm.stats.accepted > 0
    assert texts(found) == minis_text("cpu")


def test_auto_is_the_gpu() -> None:
    pytest.importorskip("foretoken_zoo")
    with LLM("mini") as llm:
        assert llm.model.device.type == ("cuda" if torch.cuda.is_available() else "cpu")
        llm.generate("The sea", GREEDY)


# --- GGUF files


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0"])
def test_gguf(kind: str, tmp_path: Path) -> None:
    """In float32 it writes what the CPU writes; by itself it is plain, in the file's dtype."""
    gguf = pytest.importorskip("gguf")
    import gguf_files

    path = gguf_files.written(tmp_path / "a.gguf", kind=gguf.GGMLQuantizationType[kind])
    given: dict[str, Any] = {"eos_ids": ()}
    written, params = [], SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    for device in (DEVICE, "cpu"):
        with LLM(path, device=device, dtype="float32", backend="plain", **given) as llm:
            assert llm.model.dtype == torch.float32
            written.append(texts(llm.generate(list(PROMPTS), params, raise_on_error=True)))
    assert written[0] == written[1]
    with LLM(path, device=DEVICE, **given) as llm:
        if ON_GPU:
            dtype = torch.float32 if kind == "F32" else torch.float16
            assert (llm.model.backend, llm.model.dtype) == ("plain", dtype)
        llm.generate(list(PROMPTS), params, raise_on_error=True)


# --- caches


@pytest.mark.parametrize("drafting", [False, True])
def test_more_requests_than_the_budget_holds(drafting: bool) -> None:
    """64 requests, and memory for 5: all but one that is cancelled get their texts."""
    pair, params = pair_there(), SamplingParams(temperature=0, max_tokens=20)
    drafter = SmallLM(pair.draft, 3) if drafting else None
    engine = engine_of(pair, drafter, slots=64, length=64, rule=Speculative())
    budget = engine.target.budget
    budget.limit = 5 * budget.needs(27)
    expected = known(pair_here())
    prompts = [list(prompt) for prompt in expected] * 13
    requests = [engine.add(prompt, params) for prompt in prompts[:64]]
    engine.step()
    engine.step()
    engine.cancel(requests[1].id)
    while engine.busy:
        engine.step()
    for request in requests[:1] + requests[2:]:
        assert written_by(request) == [expected[tuple(request.prompt)]]
    assert requests[1].samples[0].output.finish_reason == "cancelled"
    assert budget.reserved == 0


@pytest.mark.parametrize(
    "bound",
    [
        {"kv_cache_memory": "64MiB"},
        {"kv_cache_memory": 0.1},
        pytest.param({"gpu_memory_utilization": 0.9}, marks=needs_gpu),
        {"kv_cache_dtype": "bfloat16"},
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_llm_bounds(bound: dict[str, Any]) -> None:
    """The same prompt again and again, which goes on from what caches have of it."""
    model, given = pair_there().target, {"enable_prefix_caching": True} | bound
    with LLM(model, eos_ids=(), max_num_seqs=4, **given) as llm:
        outputs = llm.generate([list(range(60))] * 9, GREEDY, raise_on_error=True)
        assert "kv_cache" in repr(llm)
    assert len({tuple(output.token_ids) for output in outputs}) == 1


# --- other targets


@pytest.mark.parametrize("method", ["autoregressive", "pld", "sps", "sequoia", "lookahead"])
def test_a_model_of_transformers(method: str) -> None:
    """Through its own code it writes what the native model writes."""
    adapted = HFModel(deepcopy(pair_here().transformers).to(DEVICE))
    given = {"model": pair_there().draft} if method in ("sps", "sequoia") else {}
    built = build({"method": method, **given})
    found = serve(adapted, built.drafter, built.verifier, PROMPTS, GREEDY, slots=3)
    assert texts(found) == plain(pair_here().target)


def plain(target: Any, params: SamplingParams = GREEDY) -> list[list[int]]:
    return texts(serve(target, Nothing(), TargetOnly(), PROMPTS, params, slots=3))


@pytest.mark.parametrize("method", ["autoregressive", "pld", "sps", "sequoia"])
@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders(name: str, method: str) -> None:
    model = tiny(name)

    def there(model: Any) -> Any:
        begun = beginning(model.generation_config.to_dict(), model.config)
        weights = model.state_dict().__getitem__
        return build_seq2seq(model.config, weights, model.dtype, DEVICE, "plain", begun)

    given = {"model": there(related_seq2seq(model))} if method in ("sps", "sequoia") else {}
    built = build({"method": method, **given})
    serving = partial(serve, prompts=SOURCES, params=GREEDY, eos_ids=frozenset({EOS}), slots=3)
    found = serving(there(model), built.drafter, built.verifier)
    assert texts(found) == texts(serving(native_of(model), Nothing(), TargetOnly()))


def test_contrastive() -> None:
    """Two models on the GPU; the amateur drafts."""
    there, here = contrastive(pair_there()), contrastive(pair_here())
    drafter = SmallLM(there.draft, 3)
    found = serve(there.target, drafter, Speculative(), PROMPTS, GREEDY, slots=3)
    assert texts(found) == plain(here.target)
    assert plain(there.target, SAMPLED) == plain(here.target, SAMPLED)


@pytest.mark.parametrize("wrap", [PPD(), PPD(20, 2), Speed()], ids=["ppd", "wide", "speed"])
@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_pipelines(deep: Pair, wrap: Any, params: SamplingParams) -> None:
    """Guesses that are computed meanwhile, on a stream of their own, and used where right."""
    model = native_there(deep.transformers)
    found = serve(model, Nothing(), TargetOnly(), PROMPTS, params, slots=3, wrap=wrap)
    assert texts(found) == plain(deep.target, params)


def small_model() -> Any:
    return SmallLM(saved(pair_here()).name, 4), Speculative()


def medusa() -> Any:
    heads = MedusaHeads(Facts.of(pair_there().target), num_heads=2, own_lm_heads=False)
    return Medusa(heads.double().to(DEVICE).eval().requires_grad_(False)), TargetOnly()


@pytest.mark.parametrize("make", [small_model, medusa])
def test_learning_while_serving(make: Callable[[], Any]) -> None:
    """Greedy texts are plain decoding's under every version of the weights."""
    part, rule = make()
    drafter, prompts = Online([part], every=1, lr=3e-3), PROMPTS[:2] * 3
    engine = engine_of(pair_there(), drafter, slots=2, length=128, rule=rule)
    found = [answered(engine, prompt, GREEDY) for prompt in prompts]
    assert texts(found) == plain(pair_here().target)[:2] * 3
    assert drafter.learner.version > 2


def test_layers_that_are_read_when_they_run(checkpoints: tuple[Path, Path]) -> None:
    """Into the memory of a CPU only."""
    options: dict[str, Any] = {"device": DEVICE, "weights_memory": "1MiB", "eos_ids": ()}
    if ON_GPU:
        with pytest.raises(ForetokenError, match="layers are read into the memory of a CPU"):
            LLM(checkpoints[0], **options)
        return
    with LLM(checkpoints[0], **options) as llm:
        llm.generate([[1, 2, 3]], GREEDY, raise_on_error=True)


# --- other fronts


@pytest.mark.parametrize("sampling", [False, True])
def test_hook(sampling: bool) -> None:
    """transformers' `generate` with a hook: left-padded rows on the GPU."""
    from test_hook import INPUTS, check_equal, hooks, llama

    model, draft = llama(1).to(DEVICE), related(llama(1), 0.02).to(DEVICE)
    inputs = {name: tensor.to(DEVICE) for name, tensor in INPUTS.items()}
    if not sampling:
        check_equal(model, draft, inputs, max_new_tokens=30, do_sample=False)
        return
    for hook in hooks(draft).values():
        found = []
        for _ in range(2):
            torch.manual_seed(5)
            ids = model.generate(**inputs, custom_generate=hook, max_new_tokens=20, do_sample=True)
            found.append(ids.tolist())
        assert found[0] == found[1] and ids.device.type == DEVICE.type


def test_several_at_once() -> None:
    """From an event loop: the texts are those of the same `LLM` on the CPU."""
    model = tiny_transformers(257)
    config = {"method": "sps", "model": native_there(related(model, 0.02))}
    given: dict[str, Any] = {"tokenizer": ByteTokenizer(257), "eos_ids": (), "max_num_seqs": 3}
    prompts = ["ab", "cd", [1, 2], "efg efg", "x"]

    async def one(front: AsyncLLM, prompt: Any) -> list[int]:
        output = None
        async for output in front.generate(prompt, GREEDY):  # noqa: B007
            pass
        assert output is not None and output.error is None
        return output.token_ids

    async def ask(front: AsyncLLM) -> list[list[int]]:
        return list(await asyncio.gather(*(one(front, prompt) for prompt in prompts)))

    with LLM(native_there(model), speculative_config=config, **given) as llm:
        found = asyncio.run(ask(AsyncLLM(llm)))
    with LLM(model, **given) as llm:
        assert found == texts(llm.generate(prompts, GREEDY))


def test_logits_of_a_chain() -> None:
    there, here = (logits_after(p.target, PROMPTS[0]).cpu() for p in (pair_there(), pair_here()))
    torch.testing.assert_close(there, here, atol=NEAR, rtol=0)
