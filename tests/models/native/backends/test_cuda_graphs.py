"""Passes as CUDA graphs: filling a pass up changes no result; what does not fit runs as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken.engine.costs import PassProbe
from foretoken.errors import ForetokenError
from foretoken.models.cache import KVCache
from foretoken.models.native.backends import cuda_graphs
from foretoken.models.native.backends.cuda_graphs import Graphs
from foretoken.models.native.build import run_through
from foretoken.tree import empty
from foretoken.trees.from_lists import from_paths
from whole_passes import CPU, KINDS, begun, check_same, fresh


def fake_capture(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """In place of a CUDA graph: does it again at each replay, into the same memory."""
    result = run().clone()

    def replay() -> None:
        result.copy_(run())

    return replay, result


@pytest.mark.parametrize("kind", KINDS)
def test_graphs_take_trees(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and tokens filled up, the mask in fixed memory: the same logits, and the same cache."""
    monkeypatch.setattr(cuda_graphs, "SHORTEST", 64)
    model = fresh(kind)
    model.run_by(partial(Graphs, capture=fake_capture), "cuda_graphs")
    runner: Any = model.runner
    check_same(model, kind, steps=24)
    known = [(size, graph) for graphs in runner._graphs.values() for size, graph in graphs.items()]
    assert {size[2] for size, _ in known} == {64, 96, 192}
    used = [size for size, graph in known if graph.feed.positions.any()]
    assert {size[0] for size in used} == {1, 2, 3}


def test_the_grid() -> None:
    """Sizes stay within the slots and the most tokens, and reach the whole cache."""
    grid = cuda_graphs.sizes(slots=5, cells=3000)
    assert {size[0] for size in grid} == {1, 2, 4, 5}
    assert {size[2] for size in grid} == {3000, 1500, 750, 512}
    assert max(size[0] * size[1] for size in grid) == cuda_graphs.MOST
    assert (1, 64, 3000) in grid and (4, 64, 512) not in grid


def test_the_next_larger_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass takes the smallest that holds it; none where rows are not the first slots in order."""
    model = fresh()
    model.run_by(partial(Graphs, capture=fake_capture), "cuda_graphs")
    target, sequences = begun(model)
    taken: list[tuple[int, ...] | None] = []
    own = cuda_graphs._size

    def size(*given: Any) -> Any:
        taken.append(own(*given))
        return taken[-1]

    monkeypatch.setattr(cuda_graphs, "_size", size)
    with torch.inference_mode():
        for rows, width in (([0], 1), ([0, 1], 3), ([1], 1), ([1, 0], 1), ([0, 1, 2], 1)):
            target.score(
                [sequences[i] for i in rows],
                from_paths([[[1] * (width - 1)]] * len(rows), CPU)
                if width > 1
                else empty(len(rows), CPU),
            )
    assert taken == [(1, 1, 192), (2, 4, 192), None, None, (3, 1, 192)]


def test_another_cache_takes_nothing_away() -> None:
    """A cache that is made later, as for measuring what passes cost, has graphs of its own."""
    model = fresh()
    replayed: list[KVCache] = []

    def capture(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
        again, result = fake_capture(run)
        cache = run.__closure__ and next(
            cell.cell_contents
            for cell in run.__closure__
            if isinstance(cell.cell_contents, KVCache)
        )

        def replay() -> None:
            assert cache
            replayed.append(cache)
            again()

        return replay, result

    model.run_by(partial(Graphs, capture=capture), "cuda_graphs")
    target, sequences = begun(model)
    probe = PassProbe(model, 1, 1, 8)
    replayed.clear()
    with torch.inference_mode():
        probe.run(1)
        target.score(sequences, empty(len(sequences), CPU))
    assert replayed == [probe._target.cache, target.cache]


def test_graphs_need_a_gpu() -> None:
    """Said in one sentence."""
    with pytest.raises(ForetokenError, match="'cuda_graphs' needs a GPU, not cpu"):
        run_through("cuda_graphs", fresh())


def test_graphs_are_recorded_on_the_models_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whichever is the current one; torch's own stream for graphs is the first one's that had any.
    CUDA is played here."""
    current, recorded = [torch.device("cuda:0")], list[torch.device]()

    class Stream:
        def __init__(self, device: torch.device | None = None) -> None:
            self.device = device or current[-1]

        def wait_stream(self, other: Stream) -> None:
            assert other.device == self.device

    @contextmanager
    def device(chosen: torch.device) -> Iterator[None]:
        current.append(chosen)
        yield
        current.pop()

    @contextmanager
    def graph(
        made: Any,
        pool: Any,
        stream: Stream = Stream(current[0]),  # noqa: B008
        capture_error_mode: str = "global",
    ) -> Iterator[None]:
        assert capture_error_mode == "thread_local"  # another model may run in another thread
        recorded.append(stream.device)
        yield

    played = {"graph_pool_handle": lambda: None, "Stream": Stream, "device": device, "graph": graph}
    played |= {"current_stream": Stream, "stream": lambda stream: device(stream.device)}
    played |= {"CUDAGraph": lambda: SimpleNamespace(replay=lambda: None)}
    for name, instead in played.items():
        monkeypatch.setattr(torch.cuda, name, instead)
    model: Any = SimpleNamespace(device=torch.device("cuda:1"))
    where: list[torch.device] = []

    def run() -> Tensor:
        where.append(current[-1])
        return torch.zeros(1)

    Graphs(model)._capture(run)
    assert recorded == [model.device] and set(where) == {model.device}
    assert current == [torch.device("cuda:0")]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_graphs_on_a_gpu(kind: str) -> None:
    """Real ones."""
    model = fresh(kind, torch.device("cuda"))
    model.run_by(Graphs, "cuda_graphs")
    check_same(model, kind, near=1e-4)  # the other side is on the CPU, and norms are float32
