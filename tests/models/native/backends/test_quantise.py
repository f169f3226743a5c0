"""Matrices quantised to blocks: how close, in which layout, and models that are loaded so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gguf import GGMLQuantizationType as Kind
from gguf import dequantize, quantize

import gguf_files
import stored_models
from foretoken import LLM, SamplingParams
from foretoken.errors import ForetokenError
from foretoken.models.load import load_model
from foretoken.models.native.backends import blocks, kernels, quantise
from foretoken.models.native.backends.blocks import Blocks
from foretoken.testing import logits_after

pytestmark = pytest.mark.skipif(not blocks.has_loops(), reason="no loop for blocks was built")
OFF = {"Q4_0": 0.085, "Q4_K": 0.075, "Q5_0": 0.042, "Q6_0": 0.021, "Q8_0": 0.0056}
"""How far normal numbers may be off, relative."""


def numbers(given: Blocks) -> torch.Tensor:
    return given(torch.arange(len(given)))


@pytest.mark.parametrize("kind", quantise.WRITTEN)
def test_how_close_numbers_are(kind: str) -> None:
    """Normal ones closer than the package `gguf` brings them; a scale that is lost would show."""
    weight = torch.randn(40, 512, generator=torch.Generator().manual_seed(0)) * 0.02
    weight[3] *= 30
    weight[4] = 0
    found = numbers(quantise.quantised(weight, kind))
    for rows in (slice(0, 3), slice(3, 4), slice(5, 40)):
        off = float((found[rows] - weight[rows]).norm() / weight[rows].norm())
        assert off < OFF[kind]
    assert not found[4].any()
    if kind in ("Q4_0", "Q5_0", "Q8_0"):
        theirs = dequantize(quantize(weight.numpy(), Kind[kind]), Kind[kind])
        error = np.linalg.norm(theirs - weight.numpy())
        assert float((found - weight).norm()) < error


@pytest.mark.parametrize("kind", quantise.WRITTEN)
def test_the_package_reads_the_same(kind: str) -> None:
    weight = torch.randn(5, 256, generator=torch.Generator().manual_seed(1))
    found = quantise.quantised(weight.bfloat16(), kind)
    if kind != "Q6_0":  # which is ours alone
        theirs = dequantize(found.data.numpy(), Kind[kind])
        assert np.array_equal(theirs, numbers(found).numpy())


@pytest.mark.parametrize("kind", sorted(quantise.BITS))
def test_numbers_of_a_format_stay(kind: str) -> None:
    """Whatever a block's whole numbers are, and one that is off by a step is not hidden."""
    bits, some = quantise.BITS[kind], np.random.default_rng(0)
    most = 2 ** (bits - 1) - (bits == 8)
    whole = torch.from_numpy(some.integers(-most, 2 ** (bits - 1), (30, 32))).float()
    whole[:, 0] = -most  # so that the scale is certain
    weight = whole * 0.25
    assert torch.equal(numbers(quantise.quantised(weight, kind)), weight)


@pytest.mark.parametrize("kind", sorted(quantise.BITS))
def test_the_loop_does_what_torch_does(kind: str) -> None:
    """But for sums in another order: scales to a few bits, and whole numbers where two are as near,
    of which none leaves more."""
    most = 2 ** (quantise.BITS[kind] - 1)
    x = torch.randn(4000, 32, generator=torch.Generator().manual_seed(0)) * 0.02
    x[:40], x[40:80, 5:], x[80:120, 3], x[120:160] = 0, 0, -3, x[120:160].abs() * 1e-20
    scales, whole = kernels.quantise(x, most)
    expected, theirs = quantise.by_torch(x, most)
    same = (whole == theirs).all(1)
    assert float(same.float().mean()) > 0.99
    torch.testing.assert_close(scales[same], expected[same], rtol=1e-5, atol=0)
    left, least = ((s * w - x).norm(dim=1) for s, w in ((scales, whole), (expected, theirs)))
    torch.testing.assert_close(left, least, rtol=1e-3, atol=0)
    assert whole.min() == -most + (most == 128) and whole.max() == most - 1


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_K"])
def test_rows_in_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are quantised together, of numbers and of blocks, none is left out."""
    weight = torch.randn(7, 256)
    whole = quantise.quantised(weight, kind).data
    lying = quantise.quantised(weight, "Q8_0")
    again = quantise.quantised(lying, kind).data
    for part in (1, 512, 3 * 256):
        monkeypatch.setattr(quantise, "_PART", part)
        assert torch.equal(quantise.quantised(weight, kind).data, whole)
        assert torch.equal(quantise.quantised(lying, kind).data, again)


def test_any_numbers_are_stored() -> None:
    """Huge, tiny, of one sign, alone in a block: never worse than leaving out the block."""
    given = torch.zeros(6, 256)
    given[0], given[1, 7], given[2] = 3.0, -2.0, torch.linspace(0, 1, 256)
    given[3], given[4, ::2], given[5] = 1e-8, 6e4, -1e-3
    for kind in quantise.WRITTEN:
        found = numbers(quantise.quantised(given, kind))
        assert found.isfinite().all()
        assert ((found - given).norm(dim=1) <= given.norm(dim=1)).all()
        assert ((found - given)[2].norm() <= 0.1 * given[2].norm()).all()


def test_small_numbers_beside_large_ones() -> None:
    """Parts of a block whose scale is lost are no further off than zeros would be."""
    given = torch.randn(8, 256, generator=torch.Generator().manual_seed(0)) * 1e-3
    given[:4, 32:] = given[:4, 32:].abs() * 1e3
    given[4:] *= 1e-3  # nothing has a scale
    given[2], given[6] = given[2] - 2e-3, given[6].abs()
    off = numbers(quantise.quantised(given, "Q4_K")) - given
    for one, whole in zip(off.view(-1, 32), given.view(-1, 32), strict=True):
        assert one.norm() <= whole.norm()


@pytest.mark.parametrize("kind", quantise.WRITTEN)
def test_numbers_without_a_scale_are_refused(kind: str) -> None:
    """Scales are float16: of larger numbers than those suit, infinities would be stored."""
    given = torch.randn(3, 256)
    for large in (1e9, torch.inf, torch.nan):
        given[1, 7] = large
        with pytest.raises(ForetokenError, match=f"as large as .*{kind} has no scale; leave out"):
            quantise.quantised(given, kind)


@pytest.mark.parametrize("kind", quantise.WRITTEN)
def test_rows_that_end_within_a_block(kind: str) -> None:
    """As those that are filled up with zeros: their numbers, and the product."""
    torch.manual_seed(0)
    weight, x = torch.randn(20, 88), torch.randn(3, 88)
    found = quantise.quantised(weight, kind)
    assert found.shape == (20, 88) and numbers(found).shape == (20, 88)
    filled = quantise.quantised(F.pad(weight, (0, 168)), kind)
    assert torch.equal(numbers(found), numbers(filled)[:, :88])
    product, whole = blocks.product([found], None), blocks.product([filled], None)
    assert torch.equal(product(x), whole(F.pad(x, (0, 168))))


@pytest.mark.parametrize("backend", sorted(quantise.BACKENDS))
def test_a_folder_as_a_backend(backend: str, tmp_path: Path) -> None:
    """Products, head and embedding are those of the quantised matrices."""
    folder = stored_models.written(tmp_path / "model")
    model, exact = load_model(folder, backend=backend), load_model(folder)
    assert model.backend == backend
    bits = quantise.BITS[quantise.BACKENDS[backend].kind]
    assert model.bytes_read < exact.bytes_read * (bits + 1) / 16 + 1
    off = {4: 0.5, 5: 0.3, 6: 0.15, 8: 0.05}[bits]
    ids = [3, 50, 7, 7, 21, 90, 0, 13]
    found, expected = logits_after(model, ids), logits_after(exact, ids)
    assert 0 < (found - expected).abs().max() < off * expected.abs().max()


def test_blocks_of_the_same_format_stay_as_they_lie(tmp_path: Path) -> None:
    path = gguf_files.written(tmp_path / "a.gguf", "llama", Kind.Q4_0)
    ids = [3, 50, 7, 7, 21, 90, 0, 13]
    lying, asked = load_model(path, device="cpu"), load_model(path, device="cpu", backend="q4")
    assert torch.equal(logits_after(lying, ids), logits_after(asked, ids))
    other = load_model(path, device="cpu", backend="q8")
    assert not torch.equal(logits_after(lying, ids), logits_after(other, ids))


def test_text_is_that_of_plain_decoding(tmp_path: Path) -> None:
    path = str(gguf_files.written(tmp_path / "a.gguf", "llama", Kind.F32))
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    texts = []
    for config in (None, {"model": path}, {"method": "specinfer", "model": path}):
        llm = LLM(path, speculative_config=config, device="cpu", backend="q5")
        texts.append([out.outputs[0].token_ids for out in llm.generate(["a", "the cat"], params)])
    assert all(text == texts[0] for text in texts)
