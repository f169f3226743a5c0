"""Runners of whole passes: filling a pass up changes no result; what does not fit runs as it is."""

from __future__ import annotations

import shutil
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foretoken import LLM, SamplingParams
from foretoken.errors import ForetokenError
from foretoken.models.native.backends import compiled
from foretoken.models.native.backends.compiled import Compiled
from foretoken.testing import Pair
from foretoken.tree import empty
from foretoken.trees.from_lists import from_paths
from whole_passes import CPU, KINDS, begun, check_same, fresh


@pytest.fixture
def unbuilt(monkeypatch: pytest.MonkeyPatch) -> None:
    """What would be compiled runs as it is written."""
    monkeypatch.setattr(compiled, "_compiled", lambda function, bucket: function)


@pytest.mark.usefixtures("unbuilt")
@pytest.mark.parametrize("kind", KINDS)
def test_filling_up_changes_nothing(kind: str) -> None:
    """Ragged trees, chunks of prompts and single tokens, in sizes that fit a bucket and don't."""
    model = fresh(kind)
    model.run_by(Compiled, "compiled")
    check_same(model, kind)


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
    monkeypatch.setattr(compiled._log, "warning", lambda form, error: said.append(form % error))
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
    """In the user's cache folder, or where the user says; torch's own choice is a temporary one. A
    container's user may have no name."""

    def nameless() -> str:
        raise KeyError("getpwuid(): uid not found: 12345")

    monkeypatch.setattr("getpass.getuser", nameless)
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    compiled._store_results()
    assert compiled.os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "inductor")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_me")
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
