"""`foretoken generate`: the text, and how the drafting went."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import time
from typing import Any

import pytest

from command_line import SRC, Pair, Saying, Terminal, harmless, model, one_sentence, run, sps
from foretoken.cli import generate
from foretoken.sampling.params import SamplingParams


def test_generate(checkpoints: Pair) -> None:
    """The text on standard output, the same by every method, and one line beside it."""
    plain = run("generate", "Hello there", *model(checkpoints))
    drafted = run("generate", "Hello there", *model(checkpoints), *sps(checkpoints))
    assert plain.exit_code == drafted.exit_code == 0
    assert plain.stdout == drafted.stdout and plain.stdout.strip()
    assert "mean acceptance length" in drafted.stderr and drafted.stderr.count("\n") == 1


def test_generate_json(checkpoints: Pair) -> None:
    """The samples with their token ids and statistics, under the method's own name."""
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
    """The prompt may come by a pipe; a seed repeats the text; --chat uses the template."""
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
            typed="Some text",
        ).stdout
        for _ in range(2)
    ]
    assert again[0] == again[1] != ""
    templated = run("generate", *model(checkpoints), "--chat", "Some text", "--seed", 1)
    assert templated.exit_code == 0


def test_a_line_of_standard_input_is_the_prompt(checkpoints: Pair) -> None:
    """`echo` ends it with a line feed, which is no part of it; those before are."""
    shown = [
        run("generate", *model(checkpoints), "--raw", *words, "--json", typed=typed).stdout
        for words, typed in ((["Some text"], None), ([], "Some text\n"), ([], "Some text\n\n"))
    ]
    tokens = [json.loads(text)["prompt_tokens"] for text in shown]
    assert tokens == [9, 9, 10]
    shown = [
        run("generate", *model(checkpoints), *words, "Some text", "--json").stdout
        for words in ((), ("--chat",))
    ]
    one, other = (json.loads(text)["prompt_tokens"] for text in shown)
    assert one == other > 9  # this model has a template, which is used


def test_generate_stops(checkpoints: Pair) -> None:
    """The text ends before a stop string."""
    whole = run("generate", "Hello there", *model(checkpoints)).stdout.rstrip("\n")
    stop = whole[len(whole) // 2 :][:2]
    found = run("generate", "Hello there", *model(checkpoints), "--stop", stop)
    assert found.stdout.rstrip("\n") == whole[: whole.index(stop)]


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


@pytest.mark.parametrize("case", BAD_WITH_MODEL)
def test_bad_input_beside_a_model(case: str, checkpoints: Pair) -> None:
    """Wrong options for a target that is there."""
    one_sentence(run("generate", "x", *model(checkpoints), *BAD_WITH_MODEL[case]))


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


@pytest.mark.parametrize("n", [1, 2])
def test_a_terminal_obeys_no_model(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A control sequence is visible, also one in two pieces; a pipe gets it as it is."""
    pieces = ("a\x1b", "]0;title\x07 [/red]\r", "b\u202e\n")
    llm: Any = Saying(*pieces)
    for stream in (Terminal(), io.StringIO()):
        monkeypatch.setattr(sys, "stdout", stream)
        generate._run(llm, "x", SamplingParams(n=n, temperature=1.0), False)
        shown = stream.getvalue()
        assert harmless(shown) == stream.isatty() and "[/red]" in shown
        assert stream.isatty() or "".join(pieces) in shown
