"""Blocks of GGUF files, multiplied as they lie: 4 to 8 bits a weight, a scale for 16 or 32 of them.

Each row that is multiplied is quantised too, to 8 bits with a scale for every 32 numbers; whole
numbers are added exactly, and blocks in their order, so that a row has the same bits alone and
among others. The model so executed is the target: its text is that of its plain decoding. A matrix
that isn't quantised is multiplied as `half` does. Where the loops can't be used, `blocks_by_torch`
multiplies blocks with the same bits, slowly.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from itertools import groupby

import torch
from torch import Tensor

from foretoken.models.native.backends import blocks_by_torch, half, kernels, pages, panels, plain
from foretoken.models.native.layer import Embedding, Linear

_log = logging.getLogger(__name__)

KINDS = ("Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
"""Formats of GGUF files that the loops read."""
ALL = (*KINDS, "Q6_0")
"""In the order of `dequantise.h`; the last is ours alone: a scale for 32 numbers of 6 bits."""
VALUES = {kind: 256 if kind.endswith("_K") else 32 for kind in ALL}
"""How many numbers a block has."""


def supports(dtype: torch.dtype, device: torch.device) -> bool:
    return device.type == "cpu" and dtype == torch.float32


def has_loops() -> bool:
    """Whether blocks are multiplied by the compiled loops, and so fast."""
    loops = kernels.library()
    return loops is not None and bool(loops.has_blocks())


def serves(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether `auto` takes blocks as they lie. Where they would be multiplied slowly it says that
    it doesn't."""
    if not supports(dtype, device):
        return False
    if not has_loops():
        _log.warning(
            "The loops that multiply blocks of weights can't be used here, so the file is "
            "dequantised to float16, which takes several times its memory. Install g++ (Linux on "
            "an x86 CPU with AVX2), or give backend='blocks' for the blocks as they lie, slowly."
        )
    return has_loops()


class Blocks:
    """A matrix [outputs, inputs] as a GGUF file has it. data: uint8 [outputs, bytes of a row],
    whose last block may reach beyond the inputs, with zeros; kind: one of `ALL`."""

    def __init__(self, data: Tensor, kind: str, inputs: int) -> None:
        self._data, self.kind = data, kind
        self.shape = (len(data), inputs)
        self.nbytes = data.nbytes

    @property
    def data(self) -> Tensor:
        return self._data

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        return self.shape[0] * self.shape[1]

    def __call__(self, rows: Tensor) -> Tensor:
        """Those rows, [..., inputs] in float32."""
        return self._numbers(self.data[rows.reshape(-1)].contiguous(), rows)

    def _numbers(self, taken: Tensor, rows: Tensor) -> Tensor:
        """Of the bytes of these rows."""
        inputs = self.shape[1]
        if kernels.library() is None:
            found = blocks_by_torch.numbers(taken, self.kind, inputs)
            return found.view(*rows.shape, inputs)
        numbers = torch.empty(len(taken), inputs + -inputs % VALUES[self.kind])
        kernels.dequantise(taken.data_ptr(), taken.nbytes, numbers, ALL.index(self.kind))
        return numbers[:, :inputs].reshape(*rows.shape, inputs)


class LaidRows:
    """The rows of a matrix in panels, as an embedding: of a head that is one too, nothing is stored
    twice. nbytes: what it has of its own."""

    nbytes = 0

    def __init__(self, part: panels.Part) -> None:
        self._part = part

    def __call__(self, rows: Tensor) -> Tensor:
        """[..., inputs] in float32. Raises IndexError for a row that isn't there."""
        part, taken = self._part, rows.reshape(-1).contiguous()
        if len(taken) and not 0 <= int(taken.min()) <= int(taken.max()) < part.outputs:
            raise IndexError(f"rows are 0 to {part.outputs - 1}")
        numbers = torch.empty(len(taken), part.inputs)
        places = part.panels.data_ptr(), taken.data_ptr(), numbers.data_ptr()
        kind = part.kind - panels.BLOCKS
        panels.loops().rows_of(*places, len(taken), part.inputs, kind)
        return numbers.view(*rows.shape, part.inputs)


def make(weight: Tensor, bias: Tensor | None) -> Linear:
    return half.make(weight, bias)


def product(weights: Sequence[Blocks | Tensor], bias: Tensor | None) -> Linear:
    """Matrices of as many inputs, one after the other."""
    if not has_loops():
        parts = [_unpacked(weight) for weight in weights]
        return blocks_by_torch.Product(parts, weights[0].shape[1], bias)
    joined = [_joined(list(same)) for _, same in groupby(weights, _kind)]
    width = panels.width()
    if any(len(weight) % width for weight in joined[:-1]):  # a part would begin within a panel
        joined = [torch.cat([_as_floats(weight) for weight in joined])]
    return panels.Product([_part(weight) for weight in joined], bias)


def tied(weight: Blocks) -> tuple[panels.Product | blocks_by_torch.Product, Embedding]:
    """A head that is the embedding too."""
    if not has_loops():
        matrix = blocks_by_torch.Matrix(weight.data, weight.kind, weight.shape[1])
        return blocks_by_torch.Product([matrix], matrix.inputs, None), matrix
    part = _part(weight)
    return panels.Product([part], None), LaidRows(part)


def _unpacked(weight: Blocks | Tensor) -> blocks_by_torch.Matrix | tuple[Linear, int]:
    if isinstance(weight, Blocks):
        return blocks_by_torch.Matrix(weight.data, weight.kind, weight.shape[1])
    way = half if half.supports(torch.float32, weight.device) else plain
    return way.make(weight.float(), None), len(weight)


def _kind(weight: Blocks | Tensor) -> str:
    return weight.kind if isinstance(weight, Blocks) else ""


def _joined(weights: list[Blocks | Tensor]) -> Blocks | Tensor:
    first = weights[0]
    if len(weights) == 1:
        return first
    if isinstance(first, Blocks):
        data = [weight.data for weight in weights if isinstance(weight, Blocks)]
        rows = pages.passing((sum(map(len, data)), data[0].shape[1]), torch.uint8)
        return Blocks(torch.cat(data, out=rows), first.kind, first.shape[1])
    return torch.cat([weight.float() for weight in weights if isinstance(weight, Tensor)])


def _as_floats(weight: Blocks | Tensor) -> Tensor:
    if isinstance(weight, Blocks):
        return weight(torch.arange(len(weight)))
    return weight.float()


def _part(weight: Blocks | Tensor) -> panels.Part:
    if not isinstance(weight, Blocks):
        return panels.floats(weight.float())
    loops, kind, (outputs, inputs) = panels.loops(), ALL.index(weight.kind), weight.shape
    laid = pages.empty((loops.laid_size(outputs, inputs, kind),), torch.uint8)
    rows, threads = weight.data.contiguous(), kernels.packers(weight.numel())
    loops.lay(rows.data_ptr(), laid.data_ptr(), outputs, inputs, kind, threads)
    return panels.Part(laid, panels.BLOCKS + kind, outputs, inputs)
