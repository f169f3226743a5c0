"""The command line: what each command prints, and that bad input is one sentence."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from foretoken import METHODS
from foretoken.bench.record import read_results
from foretoken.cli.commands import app
from foretoken.registry import verifier_names

Pair = tuple[Path, Path]
SRC = "import sys; from foretoken.cli import main; main(sys.argv[1:])"


def run(*arguments: object, said: str | None = None) -> Any:
    return CliRunner().invoke(app, [str(a) for a in arguments], input=said)


def process(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", SRC, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


def model(pair: Pair) -> tuple[str, ...]:
    return "--model", str(pair[0]), "--max-tokens", "12"


def sps(pair: Pair) -> tuple[str, ...]:
    return "--method", "sps", "--draft-model", str(pair[1])


@pytest.mark.parametrize(
    "command",
    [
        "",
        "demo",
        "generate",
        "chat",
        "methods",
        "zoo",
        "zoo list",
        "zoo inflate",
        "bench",
        "report",
        "simulate",
        "certify",
        "export",
        "datastore",
        "datastore build",
        "datastore add",
    ],
)
def test_help_has_an_example(command: str) -> None:
    found = run(*command.split(), "--help")
    assert found.exit_code == 0
    assert "Usage" in found.output
    assert "Example" in found.output or command in ("", "zoo", "datastore")


def test_help_is_light() -> None:
    code = "import sys; from foretoken.cli.commands import app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert not {"torch", "transformers", "numpy", "jinja2"} & set(done.stdout.split())


def test_methods_as_data() -> None:
    found = run("methods", "--json")
    rows = json.loads(found.stdout)
    assert [row["name"] for row in rows] == list(METHODS)
    keys = ["name", "drafter", "length", "tree", "verifier", "lossless", "trained", "paper"]
    assert all(list(row) == keys for row in rows)


@pytest.mark.parametrize(("width", "papers"), [(80, False), (100, False), (160, True)])
def test_methods_as_a_table(width: int, papers: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole words at any width; who drafts and the papers where there is room, else how to see."""
    monkeypatch.setenv("COLUMNS", str(width))
    found = run("methods")
    assert found.exit_code == 0 and all(f"\n{name} " in found.stdout for name in METHODS)
    assert ("Leviathan" in found.stdout, "--json" in found.stdout) == (papers, not papers)
    lines = found.stdout.splitlines()
    assert max(map(len, lines)) <= width and "…" not in found.stdout
    assert len(lines) < 2 * len(METHODS)
    if not papers:
        words = {word for row in METHODS.values() for word in f"{row.length} {row.tree}".split()}
        assert words <= set(found.stdout.split())


def test_rules_as_data() -> None:
    """Every rule that the package finds, the lossless ones first, with what it claims."""
    rows = json.loads(run("methods", "--axis", "verify", "--json").stdout)
    assert sorted(row["name"] for row in rows) == verifier_names()
    keys = ["name", "lossless", "trees", "sampling", "kinds", "source"]
    assert all(list(row) == keys and row["kinds"] and row["source"] for row in rows)
    assert [row["lossless"] for row in rows] == sorted(row["lossless"] for row in rows)[::-1]
    claims = {row["name"]: row for row in rows}
    assert claims["speculative"]["lossless"] and not claims["speculative"]["trees"]
    assert not claims["typical"]["lossless"] and not claims["top_beta"]["sampling"]
    assert "without_replacement" not in claims["lenience"]["kinds"]


@pytest.mark.parametrize(("width", "sources"), [(80, False), (140, True)])
def test_rules_as_a_table(width: int, sources: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line a rule; the sources where there is room, and never a line that is too long."""
    monkeypatch.setenv("COLUMNS", str(width))
    found = run("methods", "--axis", "verify")
    assert found.exit_code == 0 and all(name in found.stdout for name in verifier_names())
    assert ("Leviathan et al. 2023" in found.stdout) == sources == ("--json" not in found.stdout)
    assert max(map(len, found.stdout.splitlines())) <= width


def test_unknown_axes_are_refused() -> None:
    """One sentence with the choices."""
    found = process("methods", "--axis", "colour")
    assert found.returncode != 0 and "'verify'" in found.stderr and found.stderr.count("\n") == 1


def test_generate(checkpoints: Pair) -> None:
    """The text on standard output, the same by every method, and one line beside it."""
    plain = run("generate", "Hello there", *model(checkpoints))
    drafted = run("generate", "Hello there", *model(checkpoints), *sps(checkpoints))
    assert plain.exit_code == drafted.exit_code == 0
    assert plain.stdout == drafted.stdout and plain.stdout.strip()
    assert "mean acceptance length" in drafted.stderr and drafted.stderr.count("\n") == 1


def test_generate_json(checkpoints: Pair) -> None:
    found = run(
        "generate",
        "Hello there",
        *model(checkpoints),
        "--json",
        "--n",
        2,
        "--temperature",
        1,
        "--seed",
        3,
        "--ignore-eos",
        "-sc",
        '{"method": "ngram", "prompt_lookup_max": 2}',
    )
    data = json.loads(found.stdout)
    assert data["method"] == "pld" and len(data["outputs"]) == 2
    for sample in data["outputs"]:
        assert len(sample["token_ids"]) == len(sample["accepted"]) == 12
    assert data["tokens"] == 24 and data["mean_acceptance_length"] >= 1


def test_generate_reads_standard_input_and_options(checkpoints: Pair) -> None:
    again = [
        run(
            "generate",
            *model(checkpoints),
            "--raw",
            "--temperature",
            0.8,
            "--top-k",
            20,
            "--top-p",
            0.9,
            "--min-p",
            0.01,
            "--seed",
            1,
            "--method",
            "pld",
            "--num-speculative-tokens",
            3,
            said="Some text",
        ).stdout
        for _ in range(2)
    ]
    assert again[0] == again[1] != ""
    templated = run("generate", *model(checkpoints), "--chat", "Some text", "--seed", 1)
    assert templated.exit_code == 0


def test_generate_stops(checkpoints: Pair) -> None:
    whole = run("generate", "Hello there", *model(checkpoints)).stdout.rstrip("\n")
    stop = whole[len(whole) // 2 :][:2]
    found = run("generate", "Hello there", *model(checkpoints), "--stop", stop)
    assert found.stdout.rstrip("\n") == whole[: whole.index(stop)]


def test_chat_through_a_pipe(checkpoints: Pair) -> None:
    lines = "Hello\n/what\n\nAnd then?\n/reset\nHello\n/quit\nnot read\n"
    found = run("chat", *model(checkpoints), "--method", "pld", said=lines)
    assert found.exit_code == 0
    notes = found.stderr.splitlines()
    assert len(notes) == 5  # three answers, a wrong command, the totals
    assert "no command '/what'" in notes[1] and notes[-1].startswith("In all: 36 tokens")
    shown = run("chat", *model(checkpoints), said="Hello\n").stdout
    assert found.stdout.startswith(shown) and found.stdout.endswith(shown)


def test_chat_survives_a_prompt_that_is_too_long(checkpoints: Pair) -> None:
    found = run("chat", *model(checkpoints), said="word " * 5000 + "\nHello\n")
    assert found.exit_code == 0 and "/reset" in found.stderr and found.stdout.strip()


def test_zoo_inflate(checkpoints: Pair, tmp_path: Path) -> None:
    found = run(
        "zoo",
        "inflate",
        checkpoints[1],
        "--shape",
        "135m",
        "--for",
        checkpoints[0],
        "--dtype",
        "bfloat16",
        "--out",
        tmp_path / "big",
    )
    assert found.exit_code == 0, found.stderr
    config = json.loads((tmp_path / "big" / "config.json").read_text())
    assert config["foretoken_inflated"]["shape"] == "custom" and "GiB" in found.stdout
    again = run("zoo", "inflate", checkpoints[1], "--shape", "135m", "--out", tmp_path / "big")
    assert again.exit_code == 1 and "not an empty folder" in again.stderr


BAD = {
    "no such command": ("generat",),
    "no such option": ("generate", "x", "--temprature", "1"),
    "no number": ("generate", "x", "--temperature", "warm"),
    "no such model": ("generate", "x", "--model", "nowhere"),
    "nowhere at all": ("generate", "x", "--model", "./nowhere"),
    "no prompt": ("generate", ""),
    "no such shape": ("zoo", "inflate", "mini", "--shape", "9b", "--out", "x"),
    "demo, no such shape": ("demo", "--shape", "9b"),
}
BAD_WITH_MODEL = {
    "out of range": ("--top-p", "7"),
    "no such method": ("--method", "slp"),
    "no draft model": ("--method", "sps"),
    "no such method option": ("-sc", '{"method": "pld", "prompt_lookup_mx": 3}'),
    "no JSON": ("-sc", "{method: pld}"),
    "no object": ("-sc", "3"),
    "no such dtype": ("--dtype", "float31"),
    "no such device": ("--device", "abacus"),
    "no threads": ("--threads", "0"),
}


def one_sentence(found: Any) -> None:
    assert found.exit_code in (1, 2), found.output
    lines = found.stderr.strip().splitlines()
    assert len(lines) == 1 and lines[0].startswith("foretoken: "), found.stderr
    assert not found.stdout


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one_sentence(run(*BAD[case]))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("case", BAD_WITH_MODEL)
def test_bad_input_beside_a_model(case: str, checkpoints: Pair) -> None:
    one_sentence(run("generate", "x", *model(checkpoints), *BAD_WITH_MODEL[case]))


def test_exit_codes_of_the_process(checkpoints: Pair) -> None:
    good, bad = process("--version"), process("generate", "word " * 5000, *model(checkpoints))
    assert (good.returncode, bad.returncode) == (0, 1)
    assert good.stdout.startswith("foretoken ")
    assert bad.stderr.count("\n") == 1 and "context" in bad.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="has no such signal")
def test_interrupt_is_quiet_and_keeps_what_was_written(checkpoints: Pair) -> None:
    """Ctrl-C in the middle of an answer: exit 130, the text so far, no trace."""
    command = [sys.executable, "-c", SRC, "generate", "Hello", "--model", str(checkpoints[0])]
    command += ["--max-tokens", "100000", "--max-model-len", "4000", "--ignore-eos"]

    def listen() -> None:  # a job in the background of a shell is born deaf to the signal
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, preexec_fn=listen) as child:
        assert child.stdout is not None and child.stderr is not None
        first = child.stdout.read(1)
        time.sleep(0.05)
        child.send_signal(signal.SIGINT)
        rest, errors = child.communicate(timeout=60)
    assert child.returncode == 130, errors
    assert first and rest.endswith(b"\n") and b"Traceback" not in errors


def test_demo(checkpoints: Pair, tmp_path: Path) -> None:
    """The whole of it on two prompts a task and tiny models, without the inflated part."""
    found = run(
        "demo",
        *model(checkpoints),
        "--draft-model",
        checkpoints[1],
        "--limit",
        1,
        "--shape",
        "none",
        "--out",
        tmp_path / "demo",
    )
    assert found.exit_code == 0, found.output
    files = {p.name for p in (tmp_path / "demo").iterdir()}
    assert files == {"results.json", "samples.jsonl", "report.md", "report.html"}
    results = read_results(tmp_path / "demo" / "results.json")
    assert len(results["runs"]) == 6 and results["suite"]["prompts"] == 7
    assert "autoregressive" in found.stdout and "same" in found.stdout
