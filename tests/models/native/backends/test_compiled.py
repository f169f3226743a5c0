"""Runners of whole passes: filling a pass up changes no result; what does not fit runs as it is."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken import LLM, SamplingParams
from foretoken.errors import ForetokenError
from foretoken.models.load import build_native, run_through
from foretoken.models.native.backends import compiled, cuda_graphs
from foretoken.models.native.backends.compiled import Compiled
from foretoken.models.native.backends.cuda_graphs import Graphs
from foretoken.models.native.transformer import Transformer
from foretoken.models.target import ModelTarget
from foretoken.sampling.sequence import Sequence
from foretoken.testing import Pair, tiny_transformers
from foretoken.tree import DraftTree, empty
from foretoken.trees.from_lists import from_paths

CPU = torch.device("cpu")
VOCAB = 97


@cache
def weights(windowed: bool) -> Any:
    model = tiny_transformers(VOCAB, max_length=192)
    if windowed:
        model.config.model_type, model.config.sliding_window = "mistral", 6
        model.config.layer_types = ["sliding_attention", "full_attention"]
    return model


def fresh(windowed: bool = False, device: torch.device = CPU) -> Transformer:
    """The tiny model again, without a runner."""
    model = weights(windowed)
    return build_native(
        model.config, model.state_dict().__getitem__, torch.float64, device, "plain"
    )


def begun(model: Transformer, hidden: tuple[int, ...] = ()) -> tuple[ModelTarget, list[Sequence]]:
    """Three sequences with 3, 20 and 70 tokens."""
    target, rng = ModelTarget(model, 3, 150, nodes=40, hidden=hidden), random.Random(0)
    sequences = []
    for length in (3, 20, 70):
        prompt = [rng.randrange(VOCAB) for _ in range(length)]
        sequences.append(Sequence.start(prompt, SamplingParams(temperature=0)))
        target.begin(sequences[-1])
        while target.pending(sequences[-1]):
            target.prefill(sequences[-1:], 33)
    return target, sequences


def drawn(rng: random.Random, rows: int) -> DraftTree:
    """A tree for each row, of any shape, some without nodes."""
    paths = [
        [[rng.randrange(VOCAB) for _ in range(rng.randrange(1, 5))] for _ in range(branches)]
        for branches in (rng.randrange(8) for _ in range(rows))
    ]
    return from_paths(paths, CPU) if any(paths) else empty(rows, CPU)


def last_path(tree: DraftTree, row: int) -> list[int]:
    """The slots above the last node of a row, and it."""
    path, slot = [], tree.counts[row]
    while slot:
        path.append(slot)
        slot = int(tree.parent_slots[row, slot - 1])
    return path[::-1]


@torch.inference_mode()
def check_same(
    model: Transformer, windowed: bool = False, steps: int = 12, near: float = 1e-9
) -> None:
    """Random trees over changing rows: every pass says what it says without the runner."""
    rng, (own, mine), (other, theirs) = random.Random(1), begun(fresh(windowed)), begun(model)
    for _ in range(steps):
        some = [[0], [0, 1], [0, 1, 2], [2], [1, 2]][rng.randrange(5)]
        tree = drawn(rng, len(some))
        said = [
            target.score([rows[i] for i in some], tree).logits
            for target, rows in ((own, mine), (other, theirs))
        ]
        for row, count in enumerate(tree.counts):
            one, two = (logits[row, : count + 1] for logits in said if logits is not None)
            assert torch.allclose(one, two, rtol=0, atol=near)
        paths = [last_path(tree, row) for row in range(len(some))]
        for target, rows in ((own, mine), (other, theirs)):
            target.commit([rows[i] for i in some], paths)
            for i, path in zip(some, paths, strict=True):
                rows[i].tokens += [5] * (len(path) + 1)


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be compiled runs as it is written."""
    monkeypatch.setattr(compiled, "_compiled", lambda function, bucket: function)


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize("windowed", [False, True])
def test_filling_up_changes_nothing(windowed: bool) -> None:
    """Ragged trees, chunks of prompts and single tokens, in sizes that fit a bucket and don't."""
    model = fresh(windowed)
    model.run_by(Compiled, "compiled")
    check_same(model, windowed)


def test_compiled_at_load_and_never_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One compilation a size; a pass of more tokens than the largest size runs without."""
    built: list[int] = []
    ran: list[int] = []

    def build(function: Any, bucket: int) -> Any:
        built.append(bucket)

        def run(*given: Tensor) -> Tensor:
            ran.append(bucket)
            assert given[0].shape[1] == bucket
            return function(*given)

        return run

    monkeypatch.setattr(compiled, "_compiled", build)
    model = fresh()
    model.run_by(Compiled, "compiled")
    assert built == list(compiled.BUCKETS)
    ran.clear()
    target, sequences = begun(model)
    assert ran == [4, 64, 64, 64, 4] and target.pending(sequences[0]) == 0
    target.score(sequences, from_paths([[[1] * 30], [[1] * 30], [[1] * 30]], CPU))
    assert len(ran) == 5 and len(built) == len(compiled.BUCKETS)


def test_in_the_background(monkeypatch: pytest.MonkeyPatch) -> None:
    """Passes run as they are until their size is ready; nothing waits."""
    may, ran = threading.Event(), threading.Event()

    def build(function: Any, bucket: int) -> Any:
        may.wait(60)

        def run(*given: Tensor) -> Tensor:
            ran.set()
            return function(*given)

        return run

    monkeypatch.setattr(compiled, "_compiled", build)
    model = fresh()
    model.run_by(partial(Compiled, background=True), "compiled_in_background")
    runner: Any = model.runner
    check_same(model, steps=2)
    assert not ran.is_set()
    may.set()
    runner.thread.join(60)
    check_same(model, steps=2)
    assert ran.is_set()


def test_a_compiler_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence that says what to do; in the background a warning, and passes run without."""

    def build(function: Any, bucket: int) -> Any:
        raise RuntimeError("no g++")

    monkeypatch.setattr(compiled, "_compiled", build)
    with pytest.raises(ForetokenError, match=r"'compiled' needs a compiler .* backend='auto'"):
        Compiled(fresh())
    model = fresh()
    said: list[str] = []
    monkeypatch.setattr(compiled.warnings, "warn", lambda text, **_: said.append(text))
    model.run_by(partial(Compiled, background=True), "compiled_in_background")
    runner: Any = model.runner
    runner.thread.join(60)
    check_same(model, steps=2)
    assert len(said) == 1 and "needs a compiler" in said[0]


@pytest.mark.usefixtures("unbuilt")
def test_states_of_layers(pair: Pair) -> None:
    """A drafter that reads states between layers gets them, without the runner."""
    model = fresh()
    model.run_by(Compiled, "compiled")
    target, sequences = begun(model, (1, -1))
    out = target.score(sequences, empty(3, CPU))
    plain, others = begun(fresh(), (1, -1))
    wanted = plain.score(others, empty(3, CPU))
    assert all(torch.equal(out.hidden[layer], wanted.hidden[layer]) for layer in (1, -1))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no g++")
def test_the_compiler_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile's own code says the same, and no later pass compiles anything."""
    from torch._dynamo.utils import counters

    monkeypatch.setattr(compiled, "BUCKETS", (1, 16))
    model = fresh()
    model.run_by(Compiled, "compiled")
    before = counters["stats"]["unique_graphs"]
    check_same(model, steps=4, near=1e-5)  # norms are float32, and fused ones round differently
    assert counters["stats"]["unique_graphs"] == before


def test_where_results_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's cache folder, or where the user says; torch's own choice is a temporary one."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    compiled._store_results()
    assert compiled.os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "/elsewhere")
    compiled._store_results()
    assert compiled.os.environ["TORCHINDUCTOR_CACHE_DIR"] == "/elsewhere"


@pytest.mark.usefixtures("unbuilt")
def test_by_name(checkpoints: tuple[Path, Path]) -> None:
    """The name is asked for, reported and goes with a linear backend; the text is the same."""
    params = SamplingParams(temperature=0, max_tokens=24)
    config = {"method": "pld"}
    plain = LLM(checkpoints[0], backend="plain")
    quick = LLM(checkpoints[0], backend="compiled+plain", speculative_config=config)
    assert quick.model.backend == "compiled+plain"
    prompts = [[5, 9, 5, 9, 5], [7, 8, 30]]
    wanted = [o.outputs[0].token_ids for o in plain.generate(prompts, params)]
    assert [o.outputs[0].token_ids for o in quick.generate(prompts, params)] == wanted


def fake_capture(run: Callable[[], Tensor]) -> tuple[Callable[[], None], Tensor]:
    """In place of a CUDA graph: does it again at each replay, into the same memory."""
    result = run().clone()

    def replay() -> None:
        result.copy_(run())

    return replay, result


@pytest.mark.parametrize("windowed", [False, True])
def test_graphs_take_trees(windowed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows and tokens filled up, the mask in fixed memory: the same logits, and the same cache."""
    monkeypatch.setattr(cuda_graphs, "SHORTEST", 64)
    model = fresh(windowed)
    model.run_by(partial(Graphs, capture=fake_capture), "cuda_graphs")
    runner: Any = model.runner
    check_same(model, windowed, steps=24)
    assert {size[2] for size in runner._graphs} == {64, 96, 192}
    used = [size for size, graph in runner._graphs.items() if graph.feed.positions.any()]
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
    runner: Any = model.runner
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
    other = model.new_cache(3, 100)
    assert runner._cache is other


def test_graphs_need_a_gpu() -> None:
    """Said in one sentence."""
    with pytest.raises(ForetokenError, match="'cuda_graphs' needs a GPU, not cpu"):
        run_through("cuda_graphs", fresh())


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
@pytest.mark.parametrize("windowed", [False, True])
def test_graphs_on_a_gpu(windowed: bool) -> None:
    """Real ones."""
    model = fresh(windowed, torch.device("cuda"))
    model.run_by(Graphs, "cuda_graphs")
    check_same(model, windowed)
