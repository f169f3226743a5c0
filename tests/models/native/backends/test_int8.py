"""int8 weights: exact products of integers, near the matrix, and a target that they are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from foretoken import LLM, SamplingParams
from foretoken.models.native.backends import int8, panels
from linear_layers import PATHS, loops_for, made, needs


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


SHAPES = [(320, 512), (971, 100), (33, 7), (64, 5)]


@needs("int8")
@pytest.mark.parametrize("shape", SHAPES)
def test_the_int8_loop_multiplies_integers_exactly(shape: tuple[int, int]) -> None:
    if not int8._looped():
        pytest.skip("no loop for int8 was built")
    _is_exact(shape)


@needs("int8")
@pytest.mark.parametrize("flags", PATHS, ids=" ".join)
def test_the_loops_for_other_cpus_multiply_integers_exactly(
    flags: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Activations have 8 bits with VNNI, and 7 where pairs of products are added in 16."""
    with loops_for(flags, tmp_path_factory):
        assert panels.loops().int8_levels() == (127 if "-mavxvnni" in flags else 63)
        for shape in SHAPES:
            _is_exact(shape)


def _is_exact(shape: tuple[int, int]) -> None:
    """The largest products of one sign among random ones, in widths that fill nothing up evenly."""
    torch.manual_seed(0)
    levels = panels.loops().int8_levels()
    weight = torch.randint(-127, 128, shape)
    weight[0], weight[1] = 127, -127
    x = torch.randint(-levels, levels + 1, (70, shape[1]))
    x[0], x[1], x[:, 0] = levels, -levels, levels  # each row's scale is 1
    product = panels.Product([panels.bytes_of(weight.to(torch.int8), torch.ones(shape[0]))], None)
    for rows in (*range(1, 27), 48, 70):
        assert torch.equal(product(x[:rows].float()).long(), x[:rows] @ weight.t())


@needs("int8")
def test_what_is_no_number_stays_so() -> None:
    """A row with NaN or an infinity is lost; its neighbours and a row of tiny numbers are not."""
    if not int8._looped():
        pytest.skip("no loop for int8 was built")
    torch.manual_seed(0)
    linear, x = made("int8", torch.randn(64, 100)), torch.randn(5, 100)
    wanted = linear(x)
    x[1, 7], x[2, 99], x[3] = torch.nan, torch.inf, 1e-38
    got = linear(x)
    assert torch.equal(got[[0, 4]], wanted[[0, 4]])
    assert not got[1:3].isfinite().any() and got[3].abs().max() < 1e-30


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


class Finite(TorchDispatchMode):
    """Every result of torch is a number: what NaN is as an integer differs from CPU to CPU."""

    def __torch_dispatch__(self, run: Any, types: Any, args: Any = (), options: Any = None) -> Any:
        result = run(*args, **(options or {}))
        if isinstance(result, torch.Tensor) and result.is_floating_point():
            assert result.isfinite().all(), run
        return result


@needs("int8")
def test_nothing_is_divided_by_zero(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of zeros, in the weights as in what they are multiplied with, have a scale above 0."""
    weight, bias, x = torch.randn(32, 64), torch.randn(32), torch.randn(4, 64)
    weight[3], x[2] = 0, 0
    monkeypatch.setattr(int8, "_looped", lambda: False)
    with Finite():
        whole, scales = int8._quantized(weight)
        got = made("int8", weight, bias)(x)
    assert not whole[3].any() and bool((scales > 0).all())
    assert torch.equal(got[2], bias) and torch.equal(got[:, 3], bias[3].expand(4))


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
