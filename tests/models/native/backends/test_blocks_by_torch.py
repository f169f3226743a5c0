"""Blocks multiplied by torch's operators: the loops' bits, and a model's texts without them."""

from __future__ import annotations

import logging
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

import gguf_files
from block_matrices import matrix, sizes
from foretoken import LLM, SamplingParams
from foretoken.errors import ForetokenError
from foretoken.models.load import load_model
from foretoken.models.native.backends import blocks, blocks_by_torch, kernels
from foretoken.models.native.backends.blocks import ALL, Blocks
from foretoken.testing import logits_after

needs_loops = pytest.mark.skipif(not blocks.has_loops(), reason="no loop for blocks was built")


@pytest.fixture
def without_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "library", lambda: None)
    blocks_by_torch.say_that_it_is_slow.cache_clear()


def slow(*weights: Blocks, bias: Tensor | None = None) -> blocks_by_torch.Product:
    parts = [blocks_by_torch.Matrix(w.data, w.kind, w.shape[1]) for w in weights]
    return blocks_by_torch.Product(parts, weights[0].shape[1], bias)


def same_bits(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.equal(one.view(torch.int32), two.view(torch.int32))


@needs_loops
@pytest.mark.parametrize("kind", ALL)
def test_the_bits_are_the_loops(kind: str) -> None:
    """For any number of rows, with outliers and rows of zeros or of next to nothing among them."""
    torch.manual_seed(0)
    for outputs, inputs in [*sizes(kind), (48, 1024)]:
        weight, x = matrix(kind, outputs, inputs), torch.randn(33, inputs)
        x[3] *= 1e4
        x[5], x[6, :40] = 0, 0
        x[7] *= 1e-38
        fast, same = blocks.product([weight], None), slow(weight)
        for count in (*range(1, 18), 33):
            assert same_bits(same(x[:count]), fast(x[:count]))


@needs_loops
@pytest.mark.parametrize("kind", ALL)
def test_the_bits_in_parts(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many blocks and rows are multiplied at a time; a bias is added."""
    torch.manual_seed(0)
    (outputs, inputs), x = sizes(kind)[2], torch.randn(9, sizes(kind)[2][1])
    weight, bias = matrix(kind, outputs, inputs), torch.randn(outputs)
    expected = blocks.product([weight], bias)(x)
    for rows, many in ((32, 1), (2, 10_000), (4, 2**22)):
        monkeypatch.setattr(blocks_by_torch, "_ROWS", rows)
        monkeypatch.setattr(blocks_by_torch, "_MANY", many)
        assert same_bits(slow(weight, bias=bias)(x[None]), expected[None])


@needs_loops
@pytest.mark.parametrize("kind", ALL)
def test_rows_of_an_embedding(kind: str) -> None:
    outputs, inputs = sizes(kind)[1]
    table, rows = matrix(kind, outputs, inputs), torch.tensor([[3, 32], [0, 3]])
    head, embedding = slow(table), blocks_by_torch.Matrix(table.data, kind, inputs)
    assert torch.equal(embedding(rows), table(rows)) and head(torch.randn(0, inputs)).shape[0] == 0
    assert embedding(rows[:0]).shape == (0, 2, inputs)
    for wrong in (outputs, -1):
        with pytest.raises(IndexError):
            embedding(torch.tensor([0, wrong]))


@needs_loops
def test_rows_that_end_within_a_block() -> None:
    weight, x = matrix("Q4_K", 40, 512), torch.randn(3, 300)
    cut = Blocks(weight.data, "Q4_K", 300)
    assert same_bits(slow(cut)(x), blocks.product([cut], None)(x))
    assert torch.equal(blocks_by_torch.numbers(cut.data, "Q4_K", 300), cut(torch.arange(40)))


def test_a_sum_rounds_once() -> None:
    """a · b + c as exact fractions say, near and at the middle of two float32 too."""
    some = np.random.default_rng(0)
    a, b, c = (some.standard_normal(3000).astype(np.float32) for _ in range(3))
    c[:1000] *= np.float32(2.0) ** some.integers(-60, 60, 1000).astype(np.float32)
    # Just off the middle of 1 and the next float32, by less than float64 holds beside 1.
    a[:2], b[:2], c[:2] = 2.0**-24 * (1 + 2.0**-23), 1.0, (1.0, -1.0)
    a[2:4], b[2:4], c[2:4] = 2.0**-12, 2.0**-12 * (1 + 2.0**-23), (1.0, 1 + 2.0**-23)
    a[4:6] = b[4:6] = 2.0**-12 * (1 - 2.0**-24)
    c[4:6] = 1.0, -(1 + 2.0**-23)
    a[6:8], b[6:8], c[6:8] = 2.0**-60, 2.0**-60, (1 + 2.0**-23, -1.0)
    a[8], b[8], c[8] = 2.0**-30 * (1 + 2.0**-20), 2.0**-30 * (1 + 2.0**-20), 2.0**-3
    found = blocks_by_torch._fused(*map(torch.from_numpy, (a, b, c))).numpy()
    triples = zip(a.tolist(), b.tolist(), c.tolist(), strict=True)
    exact = [nearest(Fraction(x) * Fraction(y) + Fraction(z)) for x, y, z in triples]
    assert found.tolist() == exact


def nearest(exact: Fraction) -> float:
    """The float32 next to a number, the even one of two."""
    near = np.float32(float(exact))
    around = [np.nextafter(near, np.float32(to)) for to in (-np.inf, np.inf)] + [near]
    off = [(abs(Fraction(float(x)) - exact), int(x.view(np.int32)) & 1) for x in around]
    return float(around[off.index(min(off))])


def test_a_sum_near_the_middle_of_two() -> None:
    """Where float64 would land in the middle, and rounding it again would go to the even one."""
    a, b = np.float32(1 + 2.0**-23), np.float32(2.0**-24 * (1 - 2.0**-23))
    terms = [torch.tensor([float(x)]) for x in (a, b)]
    one, odd = torch.tensor([1.0]), torch.tensor([1 + 2.0**-23])
    for c in (one, odd, -one, -odd):
        exact = Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c))
        assert blocks_by_torch._fused(*terms, c).item() == nearest(exact)
    twice = (terms[0].double() * terms[1].double() + odd.double()).float()
    assert twice.item() != blocks_by_torch._fused(*terms, odd).item()  # so this test can fail


def test_gradients_and_other_sizes_are_refused() -> None:
    product = slow(matrix("Q4_0", 8, 64))
    for x in (torch.randn(2, 32), torch.randn(2, 64).double(), torch.randn(64).requires_grad_()):
        with pytest.raises(ForetokenError, match="A packed layer takes float32"):
            product(x)
    with pytest.raises(ForetokenError, match="takes a bias"):
        slow(matrix("Q4_0", 8, 64), bias=torch.ones(7))


def test_matrices_of_several_kinds_in_one_product(without_loops: None) -> None:
    torch.manual_seed(0)
    weights, x = (
        [matrix("Q4_K", 7, 256), matrix("Q6_K", 9, 256), torch.randn(5, 256)],
        torch.randn(3, 256),
    )
    bias = torch.randn(21)
    product = blocks.product(weights, bias)
    found, parts = product(x), [slow(w)(x) for w in weights[:2]]
    assert product.nbytes == sum(slow(w).nbytes for w in weights[:2]) + 4 * 256 * 5
    assert torch.equal(found[:, :16], torch.cat(parts, 1) + bias[:16])
    assert torch.allclose(found[:, 16:], x @ weights[2].t() + bias[16:], atol=1e-4)


@needs_loops
@pytest.mark.parametrize("architecture", gguf_files.ARCHITECTURES)
def test_a_model_without_a_compiler(
    architecture: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """`blocks` says once that it is slow, and the texts are the same; `auto` takes float16, and
    says that it does."""
    path = str(gguf_files.written(tmp_path / "a.gguf", architecture, Kind.Q4_0))
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

    def texts(backend: str) -> list[list[int]]:
        llm = LLM(path, speculative_config={"method": "pld"}, device="cpu", backend=backend)
        assert llm.model.backend == "blocks"
        return [out.outputs[0].token_ids for out in llm.generate(["the cat in", "a"], params)]

    expected = texts("auto")
    monkeypatch.setattr(kernels, "library", lambda: None)
    blocks_by_torch.say_that_it_is_slow.cache_clear()
    with caplog.at_level(logging.WARNING):
        assert texts("blocks") == expected
    [said] = [r.getMessage() for r in caplog.records if "many times slower" in r.getMessage()]
    assert "g++" in said
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        assert load_model(path, device="cpu").backend == "half"
    [said] = [r.getMessage() for r in caplog.records]
    assert "dequantised to float16" in said and "backend='blocks'" in said


def test_a_model_quantised_without_a_compiler(tmp_path: Path, without_loops: None) -> None:
    """`blocks` and `q8` may be asked for by name; what is read in a pass is counted."""
    path = gguf_files.written(tmp_path / "a.gguf", "llama", Kind.Q8_0)
    asked, other = (load_model(path, device="cpu", backend=name) for name in ("blocks", "q8"))
    assert (asked.backend, other.backend) == ("blocks", "q8")
    ids = [3, 50, 7, 7, 21, 90, 0, 13]
    assert torch.equal(logits_after(asked, ids), logits_after(other, ids))
    exact = load_model(path, device="cpu", dtype="float32")
    assert asked.bytes_read < 0.3 * exact.bytes_read
    found, expected = logits_after(asked, ids), logits_after(exact, ids)
    assert 0 < (found - expected).abs().max() < 0.05 * expected.abs().max()
