"""`foretoken recommend`: from a text to what to paste."""

from __future__ import annotations

import json
from functools import partial
from itertools import count
from typing import Any

import pytest

from command_line import Pair, model, one_sentence, run
from foretoken.recommender import recommend as recommending
from foretoken.recommender.candidates import Candidate
from foretoken.recommender.prediction import Prediction
from foretoken.recommender.race import Allowance
from foretoken.recommender.served import Cell
from foretoken.recommender.verdict import Row
from foretoken.tuned import read_tuned
from recommender.test_recommendation import CONFIG, GREEDY, ROW, found

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the command asks for; the answer is always the same."""
    given: dict[str, Any] = {}

    def answer(model: str, **options: Any) -> Any:
        given.update(options, model=model)
        return found(notes=("A note.",))

    monkeypatch.setattr(recommending, "recommend", answer)
    return given


def test_options(asked: dict[str, Any]) -> None:
    """Each reaches the library, and none is left out."""
    done = run(
        *("recommend", "--model", "mini", "--draft-model", "a", "--draft-model", "b"),
        *("--batch", "1,4", "--temperature", "0,0.7", "--seconds", 9, "--prompts", "-"),
        *("-sc", '{"method": "pld"}', "--dtype", "float32", "--device", "cpu"),
        *("--backend", "plain", "--max-model-len", 300, "--kv-cache-memory", "64MiB"),
        *("--trust-remote-code", "--max-tokens", 9, "--seed", 3),
        typed="One.\nTwo.",
    )
    assert done.exit_code == 0, done.output
    assert (asked["model"], asked["draft_models"]) == ("mini", ["a", "b"])
    assert (asked["batch_sizes"], asked["temperatures"]) == ([1, 4], [0.0, 0.7])
    assert (asked["seconds"], asked["dtype"], asked["device"]) == (9, "float32", "cpu")
    assert (asked["backend"], asked["max_model_len"]) == ("plain", 300)
    assert (asked["kv_cache_memory"], asked["trust_remote_code"]) == ("64MiB", True)
    assert (asked["max_tokens"], asked["seed"]) == (9, 3)
    assert asked["speculative_config"] == {"method": "pld"}
    assert {prompt.turns for prompt in asked["prompts"]} == {("One.",), ("Two.",)}


def test_what_is_printed(asked: dict[str, Any]) -> None:
    """The table, what was left out, and at the end the sentence and what to paste; or JSON."""
    done = run("recommend", "--save", "mine")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert "speedup (95 %)" in lines[0] and "1.50× (1.40–1.60)" in lines[1]
    assert "sam 1.20×" in done.stdout and "Without swift: It can't." in done.stdout
    assert "A note." in lines
    at = lines.index("Use pld: 1.50× (1.40–1.60) greedy.")
    assert [line.strip() for line in lines[at + 1 :: 2]] == ["Python:", "command line:", "vLLM:"]
    assert '{"tuned": "mine"}' in done.stderr and read_tuned("mine") == CONFIG
    data = json.loads(run("recommend", "--json").stdout)
    assert data["speculative_config"] == CONFIG


def test_several_recommendations(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is to be pasted is named by its method; of what was left out the best comes first, each
    with the best that is predicted for it."""
    other = Row("sam", {"method": "sam"}, GREEDY, 9, 50.0, 2.0, 1.5, 1.4, 1.6)
    speedups = {"slow": {GREEDY: 0.8, Cell(4, 0.0): 0.9}, "fast": {GREEDY: 1.2, Cell(4, 0.0): 1.1}}
    screened = tuple(
        Prediction(label, Candidate(label, {"method": "sam"}), each)
        for label, each in speedups.items()
    )
    result = found(chosen=(ROW, other), screened=screened)
    monkeypatch.setattr(recommending, "recommend", lambda *_, **__: result)
    shown = run("recommend").stdout
    assert "pld, Python:" in shown and "sam, command line:" in shown
    assert "fast 1.20×, slow 0.90×" in shown


@pytest.mark.parametrize(
    "options",
    [
        ("--batch", "some"),
        ("--batch", ""),
        ("--temperature", "warm"),
        ("--draft-backend", "q4"),
        ("-sc", "{"),
        ("--prompts", "./nowhere"),
    ],
    ids=" ".join,
)
def test_bad_options(options: tuple[str, ...]) -> None:
    one_sentence(run("recommend", *options))


def test_from_the_command_line(checkpoints: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole of it, on a tiny model, with as much measured on any machine: the time that it has
    passes whenever it looks."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", "nowhere")
    starting = partial(Allowance.starting, now=partial(next, count(step=0.02)))
    monkeypatch.setattr(Allowance, "starting", staticmethod(starting))
    text = "\n".join(f"What is {number}?" for number in range(9))
    done = run(
        *("recommend", *model(checkpoints), "--seconds", 2, "--temperature", 0, "--prompts", "-"),
        typed=text,
    )
    assert done.exit_code == 0, done.output
    assert "autoregressive" in done.stdout
    assert "Screening" in done.stderr and "Timing" in done.stderr
