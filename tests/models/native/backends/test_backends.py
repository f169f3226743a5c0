"""How linear layers run: equal to torch, held once in memory, each row on its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from foretoken import LLM, SamplingParams
from foretoken.errors import ForetokenError
from foretoken.models.native import backends
from foretoken.models.native.backends import half, int8, kernels, packed, panels, weight_only
from foretoken.models.native.layer import Linear

CPU = torch.device("cpu")
EXACT = ("plain", "packed", "packed+plain", "half", "panels")


def needs(name: str) -> pytest.MarkDecorator:
    there = backends.MODULES[name].supports(torch.float32, CPU)
    return pytest.mark.skipif(not there, reason=f"this machine can't run {name!r}")


def each(*names: str) -> pytest.MarkDecorator:
    params = [pytest.param(name, marks=needs(name)) for name in names]
    return pytest.mark.parametrize("name", params)


def made(name: str, weight: Tensor, bias: Tensor | None = None) -> Linear:
    return backends.choose(name, torch.float32, CPU)[1](weight.clone(), bias)


@each(*EXACT)
@pytest.mark.parametrize("rows", [1, 2, 7, 8, 50])
@pytest.mark.parametrize("bias", [False, True])
def test_equals_torchs_own_linear(name: str, rows: int, bias: bool) -> None:
    """The lossless backends compute the same product, up to rounding, for any number of rows."""
    torch.manual_seed(0)
    weight, x = torch.randn(971, 100).half().float(), torch.randn(1, rows, 100)
    offset = torch.randn(971) if bias else None
    linear = made(name, weight, offset)
    with torch.inference_mode():
        got = linear(x)
    assert torch.allclose(got, F.linear(x, weight, offset), rtol=1e-5, atol=2e-5)


@each(*EXACT, "int8")
def test_a_row_does_not_depend_on_its_neighbours(name: str) -> None:
    """A row's result is bit-identical whatever stands in the other rows of the pass."""
    torch.manual_seed(0)
    linear = made(name, torch.randn(960, 64).half().float())
    row, calm = torch.randn(1, 1, 64), torch.randn(1, 7, 64)
    with torch.inference_mode():
        first = linear(torch.cat((row, calm), 1))[:, 0]
        second = linear(torch.cat((row, calm * 1e4), 1))[:, 0]
    assert torch.equal(first, second)


@each("int8", "panels")
@pytest.mark.parametrize("shape", [(960, 64), (320, 1000)])
def test_a_row_alone_and_among_64(name: str, shape: tuple[int, int]) -> None:
    """To the last bit, an outlier row beside it or not, for any number of rows."""
    torch.manual_seed(0)
    linear = made(name, torch.randn(*shape), torch.randn(shape[0]))
    x = torch.randn(65, shape[1])
    x[5] *= 1e4
    with torch.inference_mode():
        together = linear(x)
        for count in (1, 2, 3, 6, 7, 13, 64):
            assert torch.equal(linear(x[:count]), together[:count])
        assert torch.equal(linear(x[64:]), together[64:])


@needs("int8")
@pytest.mark.parametrize("rows", [1, 4, 33])
def test_int8_multiplies_integers_exactly(rows: int) -> None:
    """The largest products there are, all of one sign, and random ones: nothing overflows."""
    random = torch.Generator().manual_seed(0)
    levels = int8._levels()
    weight = torch.randint(-127, 128, (256, 512), generator=random)
    weight[0], weight[1] = 127, -127
    x = torch.randint(-levels, levels + 1, (rows, 512), generator=random)
    x[0] = levels
    held = int8._pack(weight.to(torch.int8), torch.ones(256))
    run = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
    assert torch.equal(run(x.float(), 1.0, levels + 1, held).long(), x @ weight.t())


@needs("int8")
@pytest.mark.parametrize("shape", [(320, 512), (971, 100), (33, 7)])
def test_the_int8_loop_multiplies_integers_exactly(shape: tuple[int, int]) -> None:
    """The largest products of one sign among random ones, in widths that fill nothing up evenly."""
    if not int8._looped():
        pytest.skip("no loop for int8 was built")
    torch.manual_seed(0)
    weight = torch.randint(-127, 128, shape)
    weight[0], weight[1] = 127, -127
    x = torch.randint(-63, 64, (70, shape[1]))
    x[0], x[1], x[:, 0] = 63, -63, 63  # each row's scale is 1
    product = panels.Product(weight.to(torch.int8), None, scales=torch.ones(shape[0]))
    for rows in (1, 2, 3, 4, 5, 8, 48, 70):
        assert torch.equal(product(x[:rows].float()).long(), x[:rows] @ weight.t())


@needs("int8")
def test_int8_without_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """FBGEMM says nearly the same: its activations have the same levels or twice as many."""
    torch.manual_seed(0)
    weight, bias, x = torch.randn(320, 512), torch.randn(320), torch.randn(8, 512)
    looped = made("int8", weight, bias)(x)
    monkeypatch.setattr(int8, "_looped", lambda: False)
    other = made("int8", weight, bias)
    assert not isinstance(other, panels.Product)
    assert (other(x) - looped).norm() < 0.02 * looped.norm()


@needs("int8")
def test_int8_is_near() -> None:
    """Two per cent off on random numbers, rows of zeros are zeros, and the bias is not scaled."""
    torch.manual_seed(0)
    weight, bias, x = torch.randn(320, 512), torch.randn(320), torch.randn(8, 512)
    weight[3], x[2] = 0, 0
    got, wanted = made("int8", weight, bias)(x), F.linear(x, weight, bias)
    assert (got - wanted).norm() < 0.02 * wanted.norm()
    assert torch.equal(got[2], bias) and torch.equal(got[:, 3], bias[3].expand(8))


@needs("int8")
@pytest.mark.parametrize("method", ["pld", "sps"])
def test_the_int8_model_is_the_target(checkpoints: tuple[Path, Path], method: str) -> None:
    """Speculation writes what plain decoding of the same int8 model writes."""
    folder, draft = checkpoints
    config = {"method": method} | ({"model": str(draft)} if method == "sps" else {})
    plain = LLM(folder, backend="int8")
    assert plain.model.backend == "int8"
    prompts = [[5, 9, 5, 9, 5], [7, 8, 30], [60, 61, 62, 60, 61, 62]]
    params = SamplingParams(temperature=0, max_tokens=48)
    wanted = plain.generate(prompts, params)
    quick = LLM(plain.model, tokenizer=plain.tokenizer, speculative_config=config)
    got = quick.generate(prompts, params)
    assert [o.outputs[0].token_ids for o in got] == [o.outputs[0].token_ids for o in wanted]
    assert len({tuple(o.outputs[0].token_ids) for o in wanted}) == 3


@needs("half")
def test_half_takes_only_what_it_holds_exactly() -> None:
    """A matrix whose numbers lie too close together, or too far apart, stays float32."""
    for values in ((1 + 2**-12, 1.0), (1e6, 1 + 2**-8), (2.0**-40, 1.0)):
        weight, x = torch.tensor(values).repeat(64, 480), torch.ones(1, 1, 960)
        assert not half.is_exact(weight)
        with torch.inference_mode():
            assert torch.allclose(half.make(weight, None)(x), x @ weight.t(), rtol=1e-6)


@needs("half")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("bias", [False, True])
def test_half_keeps_every_bit(dtype: torch.dtype, bias: bool) -> None:
    """Unit vectors bring back the weights themselves, bfloat16's small and large ones too."""
    torch.manual_seed(0)
    weight = (torch.randn(64, 96) * 0.02).to(dtype).float()
    if dtype == torch.bfloat16:
        weight[0, :3] = torch.tensor([2.0**-24, 1.0078125 * 2.0**-20, 0.8984375])
    offset = torch.zeros(64) if bias else None
    assert half.is_exact(weight)
    with torch.inference_mode():
        assert torch.equal(half.make(weight.clone(), offset)(torch.eye(96)).t(), weight)


@pytest.mark.parametrize(
    ("name", "size"),
    [
        pytest.param(n, s, marks=needs(n))
        for n, s in (("packed", 4), ("panels", 4), ("half", 2), ("int8", 1))
    ],
)
def test_packing_releases_the_original_weights(name: str, size: int) -> None:
    """The weights are held once: resident memory grows by about one copy, not two."""
    code = (
        f"from foretoken.models.native.backends import {name} as backend\n"
        + """
import gc, torch
def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 2**20
torch.set_num_threads(1)
with torch.inference_mode():
    backend.make(torch.ones(64, 64), None)(torch.randn(1, 64))
    before = resident()
    layers = [backend.make(torch.empty(4096, 2048).fill_(0.5), None) for _ in range(8)]
    for layer in layers:
        layer(torch.randn(4, 2048))
    print(resident() - before)
"""
    )
    if not sys.platform.startswith("linux"):
        pytest.skip("reads resident memory from /proc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    grown, weights = float(done.stdout), 8 * 4096 * 2048 * size / 2**20
    left = 4 * 4096 * 2048 * 4 / 2**20  # what the allocator may keep of the last originals
    assert 0.9 * weights < grown < 1.15 * weights + left


@each("panels", "half")
def test_what_a_loop_can_not_read_is_refused(name: str) -> None:
    """Another dtype, another width, and gradients, which it would silently leave out."""
    if not _there("panels"):
        pytest.skip("no loop was built")
    linear = made(name, torch.ones(64, 32))
    for x in (torch.ones(2, 32).double(), torch.ones(2, 16), torch.ones(2, 32, requires_grad=True)):
        with pytest.raises(ForetokenError, match="use backend='plain'"):
            linear(x)
    with torch.no_grad():
        assert linear(torch.ones(2, 32, requires_grad=True)).sum() == 2 * 64 * 32


@pytest.mark.parametrize("lanes", [4, 16])
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_panels_of_other_widths(
    lanes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel for CPUs with narrower or wider registers than this one's; and it is kept."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    monkeypatch.setattr(kernels, "_FLAGS", (*kernels._FLAGS, f"-DLANES={lanes}"))
    kernels.library.cache_clear()
    try:
        loops = kernels.library()
        assert loops is not None and loops.width() == 2 * lanes
        weight, x = torch.randn(971, 100), torch.randn(9, 100)
        assert torch.allclose(panels.make(weight, None)(x), x @ weight.t(), atol=1e-4)
        [built] = (tmp_path / "kernels").iterdir()
        stamp = built.stat().st_mtime_ns
        kernels.library.cache_clear()
        assert kernels.library() is not None and built.stat().st_mtime_ns == stamp
    finally:
        kernels.library.cache_clear()


def test_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked for, it is refused with what it needs; not asked for, another serves."""
    monkeypatch.setattr(kernels.shutil, "which", lambda name: None)
    kernels.library.cache_clear()
    try:
        with pytest.raises(ForetokenError, match=r"'panels' needs .* C\+\+ compiler"):
            backends.choose("panels", torch.float32, CPU)
        expected = "packed" if packed.supports(torch.float32, CPU) else "plain"
        assert backends.choose("auto", torch.float32, CPU)[0] == expected
    finally:
        kernels.library.cache_clear()


def test_automatic_choice() -> None:
    """The narrowest that keeps the checkpoint's numbers; never int8, never packed float64."""
    fine, coarse = torch.randn(64, 64), torch.randn(64, 64).half()
    named = {
        kind: backends.choose("auto", torch.float32, CPU, sample)[0]
        for kind, sample in (("fine", fine), ("coarse", coarse))
    }
    lossless = [n for n in ("plain", "packed", "panels") if _there(n)]
    assert named == {"fine": lossless[-1], "coarse": "half" if _there("half") else lossless[-1]}
    assert backends.choose("auto", torch.float64, CPU, coarse)[0] == "plain"


def _there(name: str) -> bool:
    return bool(backends.MODULES[name].supports(torch.float32, CPU))


def test_refusals_name_the_remedy() -> None:
    """A backend that is unknown, or that can't take the dtype, is refused in one sentence."""
    with pytest.raises(ForetokenError, match="Did you mean 'packed'"):
        backends.choose("paked", torch.float32, CPU)
    with pytest.raises(ForetokenError, match="backend='plain'"):
        backends.choose("packed", torch.float64, CPU)
    with pytest.raises(ForetokenError, match="'int4' needs bfloat16 on a GPU"):
        backends.choose("int4", torch.float32, CPU)


def test_names() -> None:
    """A runner goes with any linear backend; what a model reports can be asked for again."""
    assert backends.split("compiled+int8") == ("compiled", "int8")
    assert backends.split("cuda_graphs") == ("cuda_graphs", "auto")
    assert backends.split("packed+plain") == (None, "packed+plain")
    assert backends.known("compiled+packed+plain") and not backends.known("transformers")


def test_weight_only_without_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install, in one sentence."""
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(ForetokenError, match=r"'int4' on a GPU needs torchao.*foretoken\[quant\]"):
        weight_only.int4(torch.zeros(8, 128))


def test_weight_only() -> None:
    """torchao's int8 keeps a matrix to a per cent."""
    pytest.importorskip("torchao")
    torch.manual_seed(0)
    weight, x = torch.randn(64, 128).bfloat16(), torch.randn(3, 128).bfloat16()
    held = weight_only.int8(weight)
    with torch.inference_mode():
        got, wanted = F.linear(x, held).float(), x.float() @ weight.float().t()
    assert (got - wanted).norm() < 0.01 * wanted.norm()


@pytest.mark.slow  # four processes that each import transformers
@pytest.mark.parametrize("backend", ["packed", "panels", "half", "int8"])
def test_peak_memory_while_loading(backend: str, tmp_path: Path) -> None:
    """Weights and cache, once, and little else: no page of the file, no second copy."""
    if not (sys.platform.startswith("linux") and _there(backend)):
        pytest.skip("reads peak memory from /proc")
    _checkpoint(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path), backend],
        capture_output=True,
        text=True,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["peak"] <= 1.15 * (found["weights"] + found["cache"] + 150), found


PEAK = """
import json, sys, torch
from pathlib import Path
from foretoken.models.feed import chain_feed
from foretoken.models.load import load_model, read_config
def status(key):
    line = next(l for l in open("/proc/self/status") if l.startswith(key))
    return int(line.split()[1]) / 1024
torch.set_num_threads(1)
folder, backend = sys.argv[1:]
read_config(Path(folder))  # imports transformers
open("/proc/self/clear_refs", "w").write("5")  # the peak starts here
before = status("VmRSS")
model = load_model(folder, backend=backend)
cache = model.new_cache(1, 512)
with torch.inference_mode():
    model.forward(chain_feed(cache, [cache.acquire(0)], [list(range(16))]), cache)
weights = model.bytes_read + model._embedding.nbytes
mib = {"weights": weights / 2**20, "cache": cache.data.nbytes / 2**20}
print(json.dumps({"peak": status("VmHWM") - before, **mib}))
"""


def _checkpoint(folder: Path) -> None:
    """A Llama of 100 M random parameters in float16, 200 MB."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=16384,
        hidden_size=1024,
        intermediate_size=2816,
        num_hidden_layers=6,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=1024,
    )
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.half().to_empty(device="cpu")
    for weight in model.parameters():
        weight.data.normal_(0, 0.02)
    model.save_pretrained(folder)
