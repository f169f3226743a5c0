"""A model larger than the memory that it may have writes what it would write in memory."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import mmap
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind

import gguf_files
import stored_models
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.drafters.early_exit import EarlyExit
from foretoken.drafters.nothing import Nothing
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.drafters.small_lm import SmallLM
from foretoken.drafters.small_tree import SmallTree
from foretoken.machine import return_memory
from foretoken.models import gguf
from foretoken.models.checkpoint import Checkpoint
from foretoken.models.feed import chain_feed
from foretoken.models.load import load_model
from foretoken.models.model import Output
from foretoken.models.native.transformer import Transformer
from foretoken.models.reads import Reads
from foretoken.testing import logits_after, related, tiny_transformers
from foretoken.testing.checks import serve, texts
from foretoken.verify.multi_candidate import MultiCandidate
from foretoken.verify.target_only import TargetOnly

LAYERS = 5
PROMPTS = [[5, 9, 2, 5, 9, 2, 5], [40, 3, 3, 17, 40, 3], [11] * 3]
GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.8, top_p=0.9, max_tokens=8, seed=3, ignore_eos=True)


def folder(tmp: Path, family: str = "llama", dtype: torch.dtype = torch.float32) -> Path:
    model = stored_models.original(family, num_hidden_layers=LAYERS)
    model.to(dtype).save_pretrained(tmp / "model")
    return tmp / "model"


def shards(tmp: Path) -> Path:
    model = stored_models.original("llama", num_hidden_layers=LAYERS)
    model.save_pretrained(tmp / "model", max_shard_size="150KB")
    assert len(list((tmp / "model").glob("*.safetensors"))) > LAYERS
    return tmp / "model"


def parts(tmp: Path) -> Path:
    """Of a GGUF file, in which layers begin in one and end in another."""
    first, *others = gguf_files.split(file(tmp, Kind.Q8_0), 8)
    assert len(others) > LAYERS // 2
    return first


def file(tmp: Path, kind: Kind, architecture: str = "llama") -> Path:
    sizes = {"num_hidden_layers": LAYERS} if architecture != "gemma3" else {}
    return gguf_files.written(tmp / "model.gguf", architecture, kind, **sizes)


STORED: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "float32": (folder, {}),
    "float64": (folder, {"dtype": "float64"}),
    "plain": (folder, {"backend": "plain"}),
    "bfloat16": (lambda tmp: folder(tmp, dtype=torch.bfloat16), {}),
    "shards": (shards, {}),
    "biases": (lambda tmp: folder(tmp, "qwen2"), {}),
    "windows": (lambda tmp: folder(tmp, "gemma3_text"), {}),
    "Q8_0": (lambda tmp: file(tmp, Kind.Q8_0), {}),
    "Q4_0": (lambda tmp: file(tmp, Kind.Q4_0, "qwen3"), {}),
    "dequantised": (lambda tmp: file(tmp, Kind.Q4_0), {"backend": "half"}),
    "shifted norms": (lambda tmp: file(tmp, Kind.Q8_0, "gemma3"), {}),
    "parts": (parts, {}),
    "quantised": (folder, {"backend": "q8"}),
}
"""What writes a checkpoint, and how it is loaded."""


def offloaded(path: Path, kept: int = 0, **options: Any) -> Transformer:
    """The model with memory for so many of its layers, which are all of one size."""
    with pytest.raises(ForetokenError) as refusal:
        load_model(path, weights_memory=1, **options)
    found = re.search(r"needs (\d+) at least", str(refusal.value))
    assert found is not None
    least = load_model(path, weights_memory=int(found[1]), **options)
    assert isinstance(least, Transformer) and least.offloaded is not None
    assert not least.offloaded.kept
    if not kept:
        return least
    size = least.offloaded.nbytes // least.layers
    model = load_model(path, weights_memory=int(found[1]) + kept * size, **options)
    assert isinstance(model, Transformer) and model.offloaded is not None
    assert len(model.offloaded.kept) == kept
    return model


def passed(model: Any, hidden: tuple[int, ...]) -> list[Output]:
    """Two passes, the second of which sees what the first has left in the cache."""
    cache = model.new_cache(1, 32)
    slot, outputs = cache.acquire(0), list[Output]()
    for tokens in ([3, 50, 7, 7, 21], [9, 2]):
        feed = chain_feed(cache, [slot], [tokens])
        with torch.inference_mode():
            outputs.append(model.forward(feed, cache, hidden))
        cache.lengths[slot] += len(tokens)
    return outputs


@pytest.mark.parametrize("name", STORED)
def test_same_bits(tmp_path: Path, name: str) -> None:
    """Logits and states of the layers, the first pass's and the second's, wherever layers stay."""
    write, options = STORED[name]
    path = write(tmp_path)
    whole = load_model(path, **options)
    rights = passed(whole, (0, 2, 3, -1))
    for kept in (0, 2):
        model = offloaded(path, kept, **options)
        assert model.backend == whole.backend
        assert (model.parameters, model.bytes_read) == (whole.parameters, whole.bytes_read)
        assert (model.whole is None) == (whole.whole is None)  # type: ignore[attr-defined]
        for right, found in zip(rights, passed(model, (0, 2, 3, -1)), strict=True):
            assert right.logits is not None and found.logits is not None
            assert torch.equal(found.logits, right.logits)
            assert found.hidden.keys() == right.hidden.keys()
            assert all(torch.equal(found.hidden[i], right.hidden[i]) for i in right.hidden)


@pytest.mark.parametrize("slots", [1, 3])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_same_text(tmp_path: Path, dtype: str, slots: int) -> None:
    """Greedy and seeded, with chains, trees, copied drafts and drafts by the first layers."""
    original = tiny_transformers(dtype=torch.float32, layers=LAYERS)
    original.save_pretrained(tmp_path / "target")
    related(original).save_pretrained(tmp_path / "draft")
    whole, draft = (load_model(tmp_path / name, dtype=dtype) for name in ("target", "draft"))
    model = offloaded(tmp_path / "target", 1, dtype=dtype)
    seeded, greedy = (
        texts(serve(whole, Nothing(), TargetOnly(), PROMPTS, params))
        for params in (SAMPLED, GREEDY)
    )
    for params, right in ((SAMPLED, seeded), (GREEDY, greedy)):
        for copies in (Nothing(), PromptLookup()):
            outputs = serve(model, copies, TargetOnly(), PROMPTS, params, slots=slots)
            assert texts(outputs) == right
    for drafter in (SmallLM(draft, 3), SmallTree(draft, widths=(2, 2)), EarlyExit(3)):
        outputs = serve(model, drafter, MultiCandidate(), PROMPTS, GREEDY, slots=slots)
        assert texts(outputs) == greedy
        assert sum(output.stats.accepted for output in outputs) > 0


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_bytes(tmp_path: Path, kind: str) -> None:
    """A pass reads the bytes that the layers which don't stay have in the file, once, for one token
    as for many; passes over layers that stay read nothing, nor do those of a model with a single
    other one, whose place nothing takes."""
    path = folder(tmp_path) if kind == "folder" else file(tmp_path, Kind.Q8_0)
    for kept in (0, 3, LAYERS - 1):
        model = offloaded(path, kept)
        layers = model.offloaded
        assert layers is not None
        coming = range(kept, LAYERS)
        need = sum(_in_file(path, index) for index in coming) if len(coming) > 1 else 0
        assert layers.pass_bytes == need
        for tokens in ([3], [3, 50, 7, 7, 21, 5]):
            before = layers.bytes_so_far
            logits_after(model, tokens)
            assert layers.bytes_so_far - before == need
        cache = model.new_cache(1, 8)
        feed = chain_feed(cache, [cache.acquire(0)], [[3, 4]])
        before = layers.bytes_so_far
        with torch.inference_mode():
            model.run(model.embed(feed.tokens), feed, cache, range(2 * kept))
        assert layers.bytes_so_far == before


def test_what_is_read_in_vain_counts(tmp_path: Path) -> None:
    """After a pass the first layer comes; another one that is asked for has to be read besides."""
    path = folder(tmp_path)
    model = offloaded(path)
    assert model.offloaded is not None
    logits_after(model, [3])
    before, cache = model.offloaded.bytes_so_far, model.new_cache(1, 8)
    feed = chain_feed(cache, [cache.acquire(0)], [[3, 4]])
    with torch.inference_mode():
        model.run(model.embed(feed.tokens), feed, cache, range(6, 8))
    read = model.offloaded.bytes_so_far - before
    assert read == _in_file(path, 0) + _in_file(path, 3)


def _in_file(path: Path, index: int) -> int:
    """Bytes of a layer's tensors, by what the file itself says of them."""
    if gguf.is_named(path):
        found = gguf_files.gguf.GGUFReader(path).tensors
        return sum(int(x.n_bytes) for x in found if x.name.startswith(f"blk.{index}."))
    headers = Checkpoint(path).headers.items()
    shapes = [header.shape for name, header in headers if f"layers.{index}." in name]
    return sum(4 * torch.Size(shape).numel() for shape in shapes)


@pytest.mark.parametrize(
    ("tied", "kept"), [(False, torch.float32), (True, torch.float32), (True, torch.bfloat16)]
)
def test_the_embedding_stays_in_its_file(tmp_path: Path, tied: bool, kept: torch.dtype) -> None:
    """Also that of a head of the same numbers, which the bound holds once."""
    model = stored_models.original("llama", num_hidden_layers=LAYERS, tie_word_embeddings=tied)
    path = tmp_path / "model"
    model.to(kept).save_pretrained(path)
    whole, read = load_model(path), offloaded(path)
    assert isinstance(whole, Transformer)
    assert whole.embedding.nbytes > 0 and read.embedding.nbytes == 0
    tokens = torch.tensor([[3, 0, 50], [whole.vocab_size - 1, 3, 3]])
    assert torch.equal(read.embed(tokens), whole.embed(tokens))
    for wrong in (-1, whole.vocab_size):
        with pytest.raises(IndexError):
            read.embed(torch.tensor([wrong]))
    os.truncate(path / "model.safetensors", 2000)
    with pytest.raises(ForetokenError, match="shorter than when it was opened"):
        read.embed(tokens)


def test_an_embedding_in_another_form_is_in_memory(tmp_path: Path) -> None:
    """Dequantised rows can't be taken from the file as they are."""
    path = file(tmp_path, Kind.Q4_0)
    whole, read = (load(path, backend="half") for load in (load_model, offloaded))
    assert isinstance(whole, Transformer)
    assert read.embedding.nbytes == whole.embedding.nbytes > 0


def test_where_all_fits(tmp_path: Path) -> None:
    """Nothing is read after loading, and the pass is one call, as without a bound."""
    path = folder(tmp_path)
    model = load_model(path, weights_memory=2**30)
    assert isinstance(model, Transformer) and model.offloaded is not None
    before = model.offloaded.bytes_so_far
    whole = load_model(path)
    assert isinstance(whole, Transformer) and type(model.whole) is type(whole.whole)
    assert torch.equal(logits_after(model, [3, 50]), logits_after(whole, [3, 50]))
    assert model.offloaded.bytes_so_far == before and model.offloaded.pass_bytes == 0


def test_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the process nor the page cache holds more of a file of 59 MB than was asked for while
    it is loaded and while it runs; without a bound the process does."""
    config = {"hidden_size": 384, "intermediate_size": 768, "num_hidden_layers": 10}
    path = stored_models.written(tmp_path / "model", **config, head_dim=96, num_key_value_heads=4)
    weights = path / "model.safetensors"
    with weights.open("rb") as opened:
        os.fsync(opened.fileno())  # what isn't on the disk yet can't be dropped
    logits_after(offloaded(path, backend="panels"), [3])  # what is made once is there
    bound = 40 * 10**6
    grown, model = _growth(lambda: load_model(path, backend="panels", weights_memory=bound))
    assert isinstance(model, Transformer) and model.offloaded is not None
    assert 0 < len(model.offloaded.kept) < 8
    ran, _ = _growth(lambda: [logits_after(model, [3, 5]) for _ in range(3)])
    assert max(grown, grown + ran) <= bound + SLACK
    assert _cached(weights) <= SLACK
    with monkeypatch.context() as patched:  # what is read in a pass is dropped at once
        patched.setattr(Reads, "forget", lambda reads: None)
        logits_after(model, [3])
    assert _cached(weights) <= SLACK
    grown, _ = _growth(lambda: load_model(path, backend="panels"))
    assert grown > bound + 2 * SLACK
    assert _cached(weights) > 2 * SLACK


SLACK = 2 * 10**6
"""Bytes that the test's own things may take."""


def _growth(run: Callable[[], Any]) -> tuple[int, Any]:
    """By how much the process grew at its largest, and what `run` gave."""
    gc.collect()  # what was let go before must not make room
    return_memory()
    Path("/proc/self/clear_refs").write_text("5")  # the peak is now what is there
    before = _status("VmRSS")
    given = run()
    return _status("VmHWM") - before, given


def _status(field: str) -> int:
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return 1024 * int(found[1])


def _cached(path: Path) -> int:
    """Bytes of a file that are in the page cache."""
    with path.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_COPY) as data:
        pages = -(-len(data) // mmap.PAGESIZE)
        there, first = (ctypes.c_ubyte * pages)(), ctypes.c_char.from_buffer(data)
        asked = ctypes.CDLL(None).mincore(
            ctypes.c_void_p(ctypes.addressof(first)), ctypes.c_size_t(len(data)), there
        )
        del first
    assert asked == 0
    return mmap.PAGESIZE * sum(page & 1 for page in there)


def test_a_read_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request ends with one sentence that names the file, and the model serves the next one."""
    path = folder(tmp_path)
    model, right = offloaded(path), load_model(path)
    weights = path / "model.safetensors"
    stored, size = weights.read_bytes(), weights.stat().st_size
    [expected] = texts(serve(right, Nothing(), TargetOnly(), PROMPTS[:1], GREEDY))

    def attempt() -> Any:
        [output] = serve(model, Nothing(), TargetOnly(), PROMPTS[:1], GREEDY)
        return output

    os.truncate(weights, size // 2)
    cut = attempt()
    assert cut.outputs[0].finish_reason == "error"
    assert f"{weights} is shorter than when it was opened" in str(cut.error)
    with weights.open("r+b") as opened:
        opened.write(stored)
    assert attempt().token_ids == expected

    def failing(*given: Any) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, "preadv", failing)
        lost = attempt()
    assert lost.outputs[0].finish_reason == "error"
    assert f"{weights} can't be read (Input/output error)" in str(lost.error)
    assert attempt().token_ids == expected


def test_nothing_is_left(tmp_path: Path) -> None:
    """A model that is let go takes its thread and its open files with it."""
    path = folder(tmp_path)
    before = {*threading.enumerate()}
    model: Any = load_model(path, weights_memory=2**20)
    logits_after(model, [3])
    [reading] = {*threading.enumerate()} - before
    assert str(path / "model.safetensors") in _open_files()
    del model
    reading.join(10)
    assert not reading.is_alive()
    assert str(path / "model.safetensors") not in _open_files()


def _open_files() -> set[str]:
    found = set()
    for each in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # that of the listing itself
            found.add(str(each.readlink()))
    return found


def test_what_is_refused(tmp_path: Path) -> None:
    path = folder(tmp_path)
    for options, said in (
        ({"model_impl": "transformers"}, "it runs by transformers' code"),
        ({"backend": "compiled+plain"}, "needs all layers at once"),
    ):
        with pytest.raises(ForetokenError, match=said):
            load_model(path, weights_memory=2**30, **options)  # type: ignore[arg-type]
    with pytest.raises(ForetokenError, match=r"weights_memory is 1000 bytes, and this model needs"):
        LLM(str(path), weights_memory=1000)
    for wrong in ("0.5", "much", "4 quarts"):
        with pytest.raises(ForetokenError, match=r"weights_memory is '.*'; give bytes"):
            LLM(str(path), weights_memory=wrong)
    with pytest.raises(ForetokenError, match="weights_memory is 0; give bytes"):
        LLM(str(path), weights_memory=0)
    with pytest.raises(ForetokenError, match="weights_memory is '1GiB' and the model is loaded"):
        LLM(load_model(path), weights_memory="1GiB", eos_ids=())


def test_llm(tmp_path: Path) -> None:
    """As users give it."""
    path = folder(tmp_path)
    with LLM(str(path), eos_ids=()) as whole, LLM(str(path), weights_memory="1MiB") as llm:
        assert isinstance(llm.model, Transformer) and llm.model.offloaded is not None
        assert llm.model.offloaded.pass_bytes > 0
        [right], [found] = (
            each.generate({"prompt_token_ids": PROMPTS[0]}, GREEDY) for each in (whole, llm)
        )
    assert found.outputs[0].token_ids == right.outputs[0].token_ids
