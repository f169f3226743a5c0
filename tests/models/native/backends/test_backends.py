"""How linear layers run: equal to torch, held once in memory, each row on its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from foretoken.errors import ForetokenError
from foretoken.models.native import backends
from linear_layers import CPU, EXACT, each, is_there, made, needs


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


def test_automatic_choice() -> None:
    """The narrowest that keeps the checkpoint's numbers; never int8, never packed float64."""
    fine, coarse = torch.randn(64, 64), torch.randn(64, 64).half()
    named = {
        kind: backends.choose("auto", torch.float32, CPU, sample)[0]
        for kind, sample in (("fine", fine), ("coarse", coarse))
    }
    lossless = [n for n in ("plain", "packed", "panels") if is_there(n)]
    assert named == {"fine": lossless[-1], "coarse": "half" if is_there("half") else lossless[-1]}
    assert backends.choose("auto", torch.float64, CPU, coarse)[0] == "plain"


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


@pytest.mark.slow  # four processes that each import transformers
@pytest.mark.parametrize("backend", ["packed", "panels", "half", "int8"])
def test_peak_memory_while_loading(backend: str, tmp_path: Path) -> None:
    """Weights and cache, once, and little else: no page of the file, no second copy."""
    if not (sys.platform.startswith("linux") and is_there(backend)):
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
weights = model.bytes_read + model.embedding.nbytes
mib = {"weights": weights / 2**20, "cache": cache.written / 2**20}
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
