"""benchmarks/peers: the talk with an engine, the numbers, the table and the GGUF file.

No peer is installed and none is run: the engines here are made up.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

PEERS = Path(__file__).parents[1] / "benchmarks" / "peers"
if not PEERS.is_dir():
    pytest.skip("the benchmarks are not part of this tree", allow_module_level=True)
sys.path.insert(0, str(PEERS))

import checkpoints  # noqa: E402
import environments  # noqa: E402
import measure  # noqa: E402
import run  # noqa: E402
import tables  # noqa: E402
import to_gguf  # noqa: E402
from lineup import DRAFT, ENGINES, PLAIN, ROWS, Row, like, plain  # noqa: E402
from protocol import Failed, Worker  # noqa: E402

needs_gguf = pytest.mark.skipif(find_spec("gguf") is None, reason="needs the package gguf")

ENGINE = """
import os, subprocess, sys, time
from protocol import serve

class Made:
    def __init__(self, given):
        print("loading")                      # a library that prints must not break the talk
        os.system("echo loaded")
        self.versions = {"made": given["version"]}
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])

    def generate(self, method, prompt, max_tokens, **drawn):
        print("working")
        if method == "raise":
            raise ValueError("no such method")
        if method == "die":
            print("out of memory", file=sys.stderr)
            os._exit(3)
        if method == "hang":
            time.sleep(60)
        seed = [drawn["seed"]] if drawn else []
        return [self.child.pid, *prompt, *seed][:max_tokens], 0.5

serve(Made)
"""


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    """A made-up engine in a process of its own."""
    script = tmp_path / "engine.py"
    script.write_text(ENGINE)
    env = {**os.environ, "PYTHONPATH": str(PEERS)}
    command = [sys.executable, str(script), json.dumps({"version": "7"})]
    made = Worker(command, tmp_path / "log", env=env)
    yield made
    made.close()


def runs(process: int) -> bool:
    """Whether a process is there and not merely waiting to be collected."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_worker_answers_and_goes_on_after_an_error(worker: Worker) -> None:
    """Versions, ids and seconds come through whatever is printed; an error is the prompt's only."""
    assert worker.versions == {"made": "7"}
    ids, seconds = worker.ask("plain", [5, 6, 7], 3)
    assert (ids[1:], seconds) == ([5, 6], 0.5)
    assert worker.ask("plain", [5, 6], 4, temperature=1.0, seed=9)[0][1:] == [5, 6, 9]
    with pytest.raises(Failed, match="ValueError: no such method"):
        worker.ask("raise", [5], 3)
    assert worker.ask("plain", [5], 3)[0][1:] == [5]


def test_dead_worker_says_its_last_words(worker: Worker) -> None:
    """Whoever dies is reported with the last line of its log, also when asked again."""
    for _ in range(2):
        with pytest.raises(Failed, match="status 3: out of memory"):
            worker.ask("die", [5], 3)


def test_silent_worker_is_ended(worker: Worker) -> None:
    """One that hangs fails after its patience instead of stopping the measurement."""
    worker._patience = 0.2
    with pytest.raises(Failed, match="status -9"):
        worker.ask("hang", [5], 3)


def test_closing_ends_what_the_worker_started(worker: Worker) -> None:
    """No server stays after."""
    [child] = worker.ask("plain", [], 1)[0]
    assert runs(child)
    worker.close()
    end = time.monotonic() + 5
    while runs(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not runs(child)


def test_end_of_text_counts_whether_it_is_handed_out_or_not() -> None:
    """The same text in the conventions of all engines."""
    assert measure.ended([4, 5, 0], 0, 8) == [4, 5, 0]
    assert measure.ended([4, 5], 0, 8) == [4, 5, 0]
    assert measure.ended([4, 5, 0, 9, 9], 0, 8) == [4, 5, 0]
    assert measure.ended([4, 5, 6, 7], 0, 3) == [4, 5, 6]


class Made:
    """A worker with known speeds: a prompt costs a second, then a token its share of one."""

    def __init__(self, share: float, fails: tuple[tuple[str, int], ...] = ()) -> None:
        self.share, self.fails = share, fails

    def ask(self, method: str, prompt: list[int], max_tokens: int) -> tuple[list[int], float]:
        if (method, prompt[0]) in self.fails:
            raise Failed("too hard")
        count = min(prompt[0], max_tokens)
        reading = 1.0 if method == PLAIN else 1.25  # the drafter reads the prompt as well
        share = self.share if method == PLAIN else self.share / 2
        return list(range(1, count + 1)), reading + (count - 1) * share


PLAIN_ROWS = [
    row for row in ROWS if row.method == PLAIN and row.engine in ("foretoken", "openvino")
]
DRAFT_ROWS = [
    row for row in ROWS if row.method == DRAFT and row.engine in ("foretoken", "openvino")
]
PROMPTS = [[9], [5], [12]]


def answers(**workers: Made) -> dict[Row, list[measure.Answer]]:
    rows = PLAIN_ROWS + DRAFT_ROWS
    made: Any = workers
    return measure.measure(made, rows, PROMPTS, eos=99, max_tokens=9, repeats=3)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "PAUSE", 0.0)


def test_numbers_are_the_stated_ones() -> None:
    """Decoding is all tokens but the first over the time after the plain first token."""
    found = answers(foretoken=Made(0.1), openvino=Made(0.4))
    own, peer = DRAFT_ROWS
    numbers = measure.numbers(found, peer)
    # 9, 6 (an end of text after 5) and 9 tokens; 0.2 s a token and 0.25 s for the drafter
    decoding = [0.25 + 8 * 0.2, 0.25 + 4 * 0.2, 0.25 + 8 * 0.2]
    speed = (8 + 5 + 8) / sum(decoding)
    assert numbers["decoding"]["tokens_per_second"] == pytest.approx(speed)
    assert numbers["whole"]["tokens_per_second"] == pytest.approx(24 / (3 + sum(decoding)))
    assert numbers["tokens"] == 24
    theirs = (8 + 5 + 8) / (20 * 0.4)
    assert numbers["decoding"]["over_own_plain"]["ratio"] == pytest.approx(speed / theirs)
    mine = (8 + 5 + 8) / (3 * 0.25 + 20 * 0.05)
    ratio = numbers["decoding"]["foretoken_over_it"]
    assert ratio["ratio"] == pytest.approx(mine / speed)
    assert ratio["ci95"][0] <= ratio["ratio"] <= ratio["ci95"][1]
    assert like(peer) == own and plain(peer) == PLAIN_ROWS[1]


def test_a_failed_prompt_lends_nobody_its_numbers() -> None:
    """It is counted as failed, and ratios are over the prompts that both sides answered."""
    found = answers(foretoken=Made(0.1), openvino=Made(0.4, fails=((PLAIN, 5), (DRAFT, 9))))
    numbers = measure.numbers(found, PLAIN_ROWS[1])
    assert (numbers["prompts"], numbers["failed"], numbers["error"]) == (2, 1, "too hard")
    assert numbers["decoding"]["tokens_per_second"] == pytest.approx(1 / 0.4)
    assert numbers["decoding"]["foretoken_over_it"]["ratio"] == pytest.approx(4.0)
    numbers = measure.numbers(found, DRAFT_ROWS[1])
    assert (numbers["prompts"], numbers["failed"]) == (1, 1)  # of one there is no plain first token
    assert numbers["decoding"]["over_own_plain"]["ratio"] == pytest.approx(
        8 * 0.4 / (0.25 + 8 * 0.2)
    )


def test_order_rotates() -> None:
    """Each row goes first in its turn, and is asked for one token before the answer."""
    seen: list[tuple[str, str, int]] = []

    class Noting(Made):
        def ask(self, method: str, prompt: list[int], max_tokens: int) -> tuple[list[int], float]:
            seen.append((self.name, method, max_tokens))
            return super().ask(method, prompt, max_tokens)

        name = ""

    workers = {"foretoken": Noting(0.1), "openvino": Noting(0.4)}
    for name, made in workers.items():
        made.name = name
    answers(**workers)
    turns = [seen[i : i + 8] for i in range(8, len(seen), 8)]  # after the warm-up
    assert [turn[0][:2] for turn in turns[:4]] == [
        ("foretoken", PLAIN),
        ("openvino", PLAIN),
        ("foretoken", DRAFT),
        ("openvino", DRAFT),
    ]
    assert all([call[2] for call in turn] == [1, 9] * 4 for turn in turns)


def row(engine: str, kind: str, speed: float | None, **more: Any) -> dict[str, Any]:
    part = {
        "tokens_per_second": speed,
        "over_own_plain": {"ratio": 1.5, "ci95": [1.25, 1.75]},
        "foretoken_over_it": {"ratio": 0.5, "ci95": None},
    }
    identity = {"identical": 2, "near_tie": 1, "different": 0}
    return {
        "engine": engine,
        "kind": kind,
        "note": "",
        "prompts": 3,
        "failed": 0,
        "decoding": part,
        "whole": part,
        "identity": identity,
        "error": None,
        **more,
    }


def test_table_names_the_fastest_whoever_it_is() -> None:
    """Kinds stand together, the fastest of each in bold, and what does not apply is a dash."""
    rows = [
        row("foretoken", PLAIN, 50.0),
        row("foretoken", DRAFT, 120.4),
        row("openvino", PLAIN, 151.6),
        row("openvino", DRAFT, None, note="its defaults", failed=3),
    ]
    lines = tables.table({"rows": rows}).splitlines()[2:]
    assert lines == [
        "| foretoken, plain | 50.0 | 50.0 | – | – | 2 of 3, near ties: 1 |",
        "| openvino, plain | **152** | 152 | – | 0.50 | 2 of 3, near ties: 1 |",
        "| foretoken, draft model | **120** | 120 | 1.50 (1.25–1.75) | – | 2 of 3, near ties: 1 |",
        "| openvino, draft model, its defaults | – | – | 1.50 (1.25–1.75) | 0.50 | 2 of 3, "
        "near ties: 1, failed: 3 |",
    ]


def test_foretoken_keeps_no_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the others are asked to: each answer reads its whole prompt, asked again or not."""
    monkeypatch.syspath_prepend(str(PEERS / "engines"))
    import with_foretoken

    methods = {PLAIN: {"method": "autoregressive"}, DRAFT: {"method": "sps"}}
    given = {"target": "mini", "draft": "mini-draft", "threads": torch.get_num_threads()}
    engine = with_foretoken.Foretoken({**given, "methods": methods})
    for method in methods:
        for _ in range(2):
            engine.generate(method, list(range(5, 45)), 4)
    assert [llm.stats.prefix_cache_hits for llm in engine._llms.values()] == [0, 0]


def test_a_table_beside_one_peer_says_what_was_asked() -> None:
    found = {
        "max_tokens": 24,
        "repeats": 3,
        "limit": 1,
        "versions": {"foretoken": {"foretoken": "1"}, "openvino": {"openvino": "2"}},
        "targets": [{"prompts": 6, "left_out": ["qa-01"], "rows": [row("foretoken", PLAIN, 5.0)]}],
    }
    told, _, table = tables.pair(found).partition("\n\n")
    assert told == (
        "**foretoken and openvino** (at most 24 tokens an answer, median of 3; one of each task: "
        "6 prompts, 1 more left out because plain decoding loops)"
    )
    assert table == tables.table(found["targets"][0])
    assert "3 of each task" in tables.pair(found | {"limit": 3})


def test_the_tables_say_who_is_missing() -> None:
    """An engine that was left out stands there with its reason."""
    found = {
        "environment": {"cpu": "a CPU", "cores": 2},
        "threads": 2,
        "max_tokens": 8,
        "repeats": 3,
        "versions": {"foretoken": {"foretoken": "1", "torch": "2"}, "x": {"torch": "2"}},
        "left_out": {"llama.cpp": "there is no compiler"},
        "targets": [
            {
                "name": "135m",
                "parameters": 134_500_000,
                "prompts": 1,
                "left_out": ["qa-01"],
                "rows": [row("foretoken", PLAIN, 50.0)],
            }
        ],
    }
    page = tables.markdown(found)
    assert "foretoken 1, torch 2." in page
    assert "**mini at the cost of 135m (134 M parameters; 1 prompts, 1 more left out" in page
    assert page.endswith("Left out: llama.cpp, because there is no compiler.")
    assert not run.sound(found)


def test_every_row_has_an_engine_and_every_environment_exact_pins() -> None:
    """Rows are told apart by engine and method; each engine has its file, each peer its pins."""
    assert len({(r.engine, r.method) for r in ROWS}) == len(ROWS)
    assert {r.engine for r in ROWS} == set(ENGINES)
    for engine, home in ENGINES.items():
        assert run.script(engine).is_file()
        if home is None:
            continue
        lines = (PEERS / f"requirements-{home}.txt").read_text().splitlines()
        pins = [line for line in lines if not line.startswith("#")]
        assert pins and all(re.fullmatch(r"[\w.-]+==[\w.]+", pin) for pin in pins), home


def test_environment_is_made_once_and_its_failure_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished environment is left alone; a failing command is quoted with its last line."""
    monkeypatch.setattr(environments, "CACHE", tmp_path)
    made = tmp_path / "transformers"
    made.mkdir()
    pins = (PEERS / "requirements-transformers.txt").read_text()
    (made / "installed.txt").write_text(pins)
    monkeypatch.setattr(sys, "executable", "false")
    environments.prepare("transformers")
    (made / "installed.txt").write_text(pins + "more==1\n")
    with pytest.raises(Failed, match="`false -m venv"):
        environments.prepare("transformers")
    assert not made.exists()


def test_engines_of_an_environment_that_fails_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is tried once, and all of its engines get the reason; the others stay."""
    tried: list[str] = []

    def prepare(home: str) -> None:
        tried.append(home)
        if home == "llama.cpp":
            raise Failed("there is no compiler")

    monkeypatch.setattr(run, "prepare", prepare)
    left_out = run.installed(["transformers", "llama.cpp", "llama-cpp-python"])
    assert left_out == dict.fromkeys(["llama.cpp", "llama-cpp-python"], "there is no compiler")
    assert tried == ["transformers", "llama.cpp"]


def test_what_was_interrupted_is_made_again(tmp_path: Path) -> None:
    """A half-written file never stands under its final name."""

    def half(out: Path) -> None:
        out.write_text("half")
        raise KeyboardInterrupt

    path = tmp_path / "model.gguf"
    with pytest.raises(KeyboardInterrupt):
        checkpoints.once(path, half)
    assert not path.exists()
    checkpoints.once(path, lambda out: out.write_text("whole"))
    assert path.read_text() == "whole"
    checkpoints.once(path, half)  # there already
    assert path.read_text() == "whole"


def test_tensor_names() -> None:
    """As llama.cpp's specification has them; anything unknown is refused."""
    assert to_gguf.tensor_name("model.layers.12.self_attn.o_proj.weight") == (
        "blk.12.attn_output.weight"
    )
    assert to_gguf.tensor_name("lm_head.weight") == "output.weight"
    with pytest.raises(KeyError):
        to_gguf.tensor_name("model.layers.0.self_attn.q_proj.bias")


def test_interleaved_rows_rotate_alike() -> None:
    """Rotating halves and rotating neighbours of the reordered rows give the same scores."""
    random = np.random.default_rng(0)
    heads, d, width = 2, 8, 6
    q, k = random.normal(size=(2, heads * d, width))
    x = random.normal(size=(2, width))

    def halves(rows: Any, angle: Any) -> Any:
        a, b = rows.reshape(heads, 2, d // 2).swapaxes(0, 1)
        return np.stack(
            [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
        )

    def neighbours(rows: Any, angle: Any) -> Any:
        a, b = np.moveaxis(rows.reshape(heads, d // 2, 2), 2, 0)
        return np.stack(
            [a * np.cos(angle) - b * np.sin(angle), b * np.cos(angle) + a * np.sin(angle)]
        )

    frequencies = 10.0 ** -np.arange(d // 2)
    wanted = (halves(q @ x[0], 3 * frequencies) * halves(k @ x[1], 5 * frequencies)).sum((0, 2))
    q, k = to_gguf.interleaved(q, heads), to_gguf.interleaved(k, heads)
    got = (neighbours(q @ x[0], 3 * frequencies) * neighbours(k @ x[1], 5 * frequencies)).sum(
        (0, 2)
    )
    np.testing.assert_allclose(got, wanted)
    wrong = (halves(q @ x[0], 3 * frequencies) * halves(k @ x[1], 5 * frequencies)).sum((0, 2))
    assert not np.allclose(wrong, wanted)


@needs_gguf
def test_gguf_holds_the_checkpoint(tmp_path: Path, checkpoints: tuple[Path, Path]) -> None:
    """Every tensor comes back under its new name, q and k reordered, with the model's shape."""
    import gguf
    from safetensors.numpy import load_file

    source, file = checkpoints[0], tmp_path / "model.gguf"
    to_gguf.write(source, file)
    held = gguf.GGUFReader(file)
    config = json.loads((source / "config.json").read_text())
    stored = load_file(source / "model.safetensors")
    assert len(held.tensors) == len(stored)
    found = {tensor.name: tensor.data for tensor in held.tensors}
    q = stored["model.layers.1.self_attn.q_proj.weight"]
    heads = config["num_attention_heads"]
    np.testing.assert_array_equal(found["blk.1.attn_q.weight"], to_gguf.interleaved(q, heads))
    down = stored["model.layers.0.mlp.down_proj.weight"]
    np.testing.assert_array_equal(found["blk.0.ffn_down.weight"], down)
    assert held.fields["llama.block_count"].contents() == config["num_hidden_layers"]
    assert len(held.fields["tokenizer.ggml.tokens"].data) == config["vocab_size"]


@needs_gguf
def test_only_plain_llamas_are_written(tmp_path: Path) -> None:
    """Another family would load and talk nonsense, so it is refused."""
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen2"}))
    with pytest.raises(ValueError, match="not a Llama without biases"):
        to_gguf.write(tmp_path, tmp_path / "model.gguf")
