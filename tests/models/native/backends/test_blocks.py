"""Blocks of GGUF files multiplied as they lie: the numbers, their bits, and who may ask for it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf import dequantize
from numpy.typing import NDArray
from torch import Tensor

import gguf_files
from block_matrices import BYTES, HEADS, matrix, sizes
from foretoken import LLM, SamplingParams
from foretoken.errors import ForetokenError
from foretoken.models.load import load_model
from foretoken.models.native.backends import blocks, kernels, pages
from foretoken.models.native.backends.blocks import ALL, VALUES, Blocks
from foretoken.testing import logits_after
from linear_layers import PATHS, loops_for

pytestmark = pytest.mark.skipif(not blocks.has_loops(), reason="no loop for blocks was built")


def numbers(given: Blocks) -> Tensor:
    """The matrix by the package `gguf`, [outputs, inputs] in float64."""
    raw = given.data.numpy().reshape(-1, BYTES[given.kind])
    read = of_six_bits(raw) if given.kind == "Q6_0" else dequantize(raw, Kind[given.kind])
    return torch.from_numpy(read.reshape(given.shape)).double()


def of_six_bits(raw: NDArray[np.uint8]) -> NDArray[np.float32]:
    """A scale, two upper bits of each number, and its lower four: the first half first."""
    upper = np.unpackbits(raw[:, 2:10], axis=1, bitorder="little").reshape(-1, 32, 2)
    lower = np.concatenate([raw[:, 10:] & 15, raw[:, 10:] >> 4], 1)
    whole = lower + 16 * upper[..., 0] + 32 * upper[..., 1] - 32.0
    return (raw[:, :2].copy().view(np.float16) * whole).astype(np.float32)


def quantised(x: Tensor) -> Tensor:
    """Rows in 8 bits, with a scale for every 32 numbers, as numbers in float64."""
    parts = x.view(len(x), -1, 32)
    largest = parts.abs().amax(-1, keepdim=True)
    factor = torch.where(largest > 0, 127 / largest, 0)
    return ((parts * factor).round().double() * (largest / 127)).view(x.shape)


@pytest.mark.parametrize("kind", ALL)
def test_the_product_is_that_of_the_numbers(kind: str) -> None:
    """Of rows in 8 bits with the matrix, to what float32 sums leave; a bias is added."""
    torch.manual_seed(0)
    for outputs, inputs in sizes(kind):
        weight, x, bias = matrix(kind, outputs, inputs), torch.randn(11, inputs), torch.randn(1)
        expected = quantised(x) @ numbers(weight).t() + bias
        found = blocks.product([weight], bias.expand(outputs).contiguous())(x)
        assert (found - expected).abs().max() < 2e-6 * expected.abs().max()


@pytest.mark.parametrize("kind", ALL)
def test_a_row_alone_and_among_64(kind: str) -> None:
    """To the last bit, beside an outlier, for any number of rows and threads."""
    torch.manual_seed(0)
    before = torch.get_num_threads()
    try:
        for outputs, inputs in [*sizes(kind), (512, 2304)]:
            linear, x = (
                blocks.product([matrix(kind, outputs, inputs)], None),
                torch.randn(65, inputs),
            )
            x[5] *= 1e4
            torch.set_num_threads(1)
            alone = torch.cat([linear(row[None]) for row in x])
            for count, threads in [*((n, 2) for n in (*range(1, 18), 33)), (65, 1), (65, 2)]:
                torch.set_num_threads(threads)
                assert torch.equal(linear(x[:count]), alone[:count])
            assert torch.equal(linear(x[60:]), alone[60:])
    finally:
        torch.set_num_threads(before)


def largest(kind: str) -> tuple[Blocks, Tensor]:
    """A matrix of the largest quants, and rows of the largest numbers and of signs that cancel."""
    values, size = VALUES[kind], BYTES[kind]
    raw = np.full((32, 2, size), 255, np.uint8)
    raw[1::2] = 0x80  # the lowest number of a signed byte
    for at in HEADS.get(kind, [0]):
        raw[..., at : at + 2] = np.ones((32, 2, 1), np.float16).view(np.uint8)
    x = torch.full((3, 2 * values), 127.0)
    x[1], x[2, ::2] = -127.0, -127.0
    return Blocks(torch.from_numpy(raw.reshape(32, -1)), kind, 2 * values), x


@pytest.mark.parametrize("kind", ALL)
def test_whole_numbers_are_added_exactly(kind: str) -> None:
    """Of few rows, and of so many that matrix tiles multiply them, where the CPU has such."""
    weight, x = largest(kind)
    for rows in (x, x.repeat(16, 1)):
        found = blocks.product([weight], None)(rows).double()
        assert torch.equal(found, rows.double() @ numbers(weight).t())


@pytest.mark.parametrize("flags", PATHS, ids=" ".join)
def test_other_instructions_give_the_same_bits(
    flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without VNNI pairs of products are added in 16 bits, which must hold them; numbers next to
    zero have no scale that is finite."""
    torch.manual_seed(0)
    cases = [(matrix(kind, *sizes(kind)[1]), torch.randn(9, sizes(kind)[1][1])) for kind in ALL]
    for _, x in cases:
        x[4] *= 1e-38
    cases += map(largest, ALL)

    def found() -> list[Tensor]:
        return [blocks.product([weight], None)(x) for weight, x in cases]

    native = found()
    with loops_for(flags, tmp_path_factory):
        assert all(map(torch.equal, found(), native))


def test_matrices_of_several_kinds_in_one_product() -> None:
    """One after the other, with their biases; those that share a kind as one; where one ends within
    a panel, all as numbers."""
    torch.manual_seed(0)
    x, width = torch.randn(3, 256), kernels.library().width()  # type: ignore[union-attr]
    for rows in (width, width + 1, width // 2):
        weights = [matrix("Q4_K", rows, 256), matrix("Q4_K", width, 256, 1)]
        weights += [matrix("Q6_K", 2 * width, 256, 2)]
        plain = torch.randn(5, 256)
        bias = torch.randn(rows + 3 * width + 5)
        together = blocks.product([*weights, plain], bias)(x)
        whole = torch.cat([*map(numbers, weights), plain.double()]).t()
        exact, rounded = x.double() @ whole + bias, quantised(x) @ whole + bias
        rounded[:, -5:] = exact[:, -5:]
        expected = rounded if rows == width else exact
        assert (together - expected).abs().max() < 2e-6 * expected.abs().max()


@pytest.mark.parametrize("kind", ALL)
def test_rows_of_an_embedding(kind: str) -> None:
    table = matrix(kind, 40, 256)
    tokens = torch.tensor([[3, 39], [0, 3]])
    assert torch.equal(table(tokens).double(), numbers(table)[tokens])
    with pytest.raises(IndexError):
        table(torch.tensor([40]))


@pytest.mark.parametrize("kind", ALL)
def test_rows_of_a_head(kind: str) -> None:
    """Of panels, as those of the blocks: any row, rows that end within a block or a unit too."""
    for outputs, inputs in [*sizes(kind), (40, 96 if VALUES[kind] == 32 else 512)]:
        table = matrix(kind, outputs, inputs)
        head, embedding = blocks.tied(table)
        rows = torch.arange(outputs)
        assert torch.equal(embedding(rows), table(rows)) and not embedding.nbytes
        x = torch.randn(3, inputs)
        assert torch.equal(head(x), blocks.product([table], None)(x))
        assert embedding(rows[:6].view(2, 3)).shape == (2, 3, inputs)
        assert embedding(rows[:0]).shape == (0, inputs)
        for wrong in (outputs, -1):
            with pytest.raises(IndexError):
                embedding(torch.tensor([0, wrong]))


@pytest.mark.parametrize("architecture", gguf_files.ARCHITECTURES)
def test_a_model(architecture: str, tmp_path: Path) -> None:
    """By itself as the file lies: close to the same numbers in float32, in fewer bytes."""
    path = gguf_files.written(tmp_path / "a.gguf", architecture, Kind.Q8_0)
    lying, exact = load_model(path, device="cpu"), load_model(path, device="cpu", dtype="float32")
    assert lying.backend == "blocks" and lying.bytes_read < 0.3 * exact.bytes_read
    ids = [3, 50, 7, 7, 21, 90, 0, 13]
    found, expected = logits_after(lying, ids), logits_after(exact, ids)
    assert (found - expected).abs().max() < 0.05 * expected.abs().max()


def test_text_is_that_of_plain_decoding(tmp_path: Path) -> None:
    path = str(gguf_files.written(tmp_path / "a.gguf", "llama", Kind.Q4_0))
    other = str(gguf_files.written(tmp_path / "b.gguf", "llama", Kind.Q8_0))
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    prompts = ["the cat in", "a", "hat the the"]
    texts = []
    for config in (
        None,
        {"model": other},
        {"method": "specinfer", "model": other},
        {"method": "pld"},
    ):
        llm = LLM(path, speculative_config=config, device="cpu")
        assert llm.model.backend == "blocks"
        texts.append([out.outputs[0].token_ids for out in llm.generate(prompts, params)])
        texts.append([llm.generate(one, params)[0].outputs[0].token_ids for one in prompts])
    assert all(text == texts[0] for text in texts)


def test_who_has_no_blocks_is_refused(tmp_path: Path) -> None:
    for kind, message in ((Kind.F32, "has none"), (Kind.F16, "has none")):
        path = gguf_files.written(tmp_path / "a.gguf", "llama", kind)
        assert load_model(path, device="cpu").backend in ("half", "panels")
        with pytest.raises(ForetokenError, match=message):
            load_model(path, device="cpu", backend="blocks")


def test_rows_that_are_joined_lie_where_others_lay() -> None:
    """Not in the allocator's memory, which has holds between weights that it doesn't give back."""
    parts = [matrix("Q4_K", 1024, 512).data, matrix("Q4_K", 256, 512).data]
    with pages.reusing():

        def joined() -> Blocks:
            found = blocks._joined([Blocks(part, "Q4_K", 512) for part in parts])
            assert isinstance(found, Blocks)
            return found

        first = joined()
        assert torch.equal(first.data, torch.cat(parts)) and first.shape == (1280, 512)
        place = first.data.data_ptr()
        del first
        other = torch.empty_like(torch.cat(parts))  # where the allocator would have put it
        assert joined().data.data_ptr() == place
        del other
