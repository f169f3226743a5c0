"""All commands: their help, and that bad input is one sentence."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from command_line import Pair, harmless, model, one_sentence, process, run
from fake_server import answering, head
from foretoken.cli.commands import app


def commands(group: Any = None, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The words of every command, those of groups included."""
    group = group or get_command(app)
    if not hasattr(group, "commands"):
        return [path]
    nested = [commands(own, (*path, name)) for name, own in group.commands.items()]
    return [path, *(words for own in nested for words in own)]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_has_an_example(command: tuple[str, ...]) -> None:
    """Every command's help shows how it is used; a group's lists its commands."""
    result = run(*command, "--help")
    assert result.exit_code == 0 and "Usage" in result.output
    assert "Example" in result.output or command in ((), ("zoo",), ("datastore",))


def test_help_is_light() -> None:
    """The commands are known without loading anything heavy."""
    code = "import sys; from foretoken.cli.commands import app; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert not {"torch", "transformers", "numpy", "jinja2"} & set(done.stdout.split())


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


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence, and no file is left behind."""
    monkeypatch.chdir(tmp_path)
    one_sentence(run(*BAD[case]))
    assert not list(tmp_path.iterdir())


UNWRITABLE = {
    "demo": ("demo", "--shape", "none", "--limit", 1, "--out"),
    "bench": ("bench", "--suite", "bundled", "--limit", 1, "--out"),
    "tune": ("tune", "--method", "pld", "--limit", 1, "--trials", 1, "--out"),
    "recommend": ("recommend", "--seconds", 1, "--save"),
    "train": ("train", "medusa", "--target", "mini", "--data", "prompts.jsonl", "--out"),
    "inflate": ("zoo", "inflate", "own", "--shape", "135m", "--out"),
    "export": ("export", "checkpoint", "--to", "vllm", "--out"),
    "datastore": ("datastore", "build", "texts.txt", "--tokenizer", "mini", "--out"),
}


@pytest.mark.parametrize("case", UNWRITABLE)
def test_where_nothing_can_be_written(case: str, checkpoints: Pair, tmp_path: Path) -> None:
    """One sentence that names the folder; the file that is in the way stays."""
    files: dict[str, object] = {"mini": checkpoints[0], "checkpoint": checkpoints[1], "own": "mini"}
    for name, line in (
        ("prompts.jsonl", '{"id": 1, "turns": ["Hello there."]}'),
        ("texts.txt", "Hi."),
    ):
        (tmp_path / name).write_text(line)
        files[name] = tmp_path / name
    (file := tmp_path / "file").write_text("kept")
    words = [files.get(str(word), word) for word in UNWRITABLE[case]]
    found = run(
        *words, file / "out", *model(checkpoints)[: 2 * (case in ("demo", "bench", "tune"))]
    )
    one_sentence(found)
    assert str(file) in found.stderr and file.read_text() == "kept"


def test_no_command_shows_the_help() -> None:
    """And nothing else: an empty message is no message."""
    for words in ((), ("zoo",)):
        shown = run(*words)
        assert "Usage" in shown.output and not shown.stderr


def test_exit_codes_of_the_process(checkpoints: Pair) -> None:
    """0 and 1, as a shell sees them."""
    good, bad = process("--version"), process("generate", "word " * 5000, *model(checkpoints))
    assert (good.returncode, bad.returncode) == (0, 1)
    assert good.stdout.startswith("foretoken ")
    assert bad.stderr.count("\n") == 1 and "context" in bad.stderr


def test_a_strict_encoding(checkpoints: Pair) -> None:
    """What it can't carry is printed as escapes, and a prompt in another encoding is refused in
    one sentence."""
    ascii_only = CliRunner(charset="ascii")
    command = ["generate", *model(checkpoints), "--raw"]
    done = ascii_only.invoke(app, [*command, "Hi"])
    assert done.exit_code == 0 and done.stdout_bytes.isascii() and " \\xb7 " in done.stderr
    for prompt, typed in (("-", b"caf\xe9"), ("caf\udce9", b"")):
        done = ascii_only.invoke(app, [*command, prompt], input=typed)
        one_sentence(done)
        assert "'\\udce9' at place 3, half of a surrogate pair" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="has no such terminals")
def test_a_terminal_obeys_no_server() -> None:
    """An error sentence that holds a server's text: whole, in one line, and visible."""
    import pty

    def refuse(to: BaseHTTPRequestHandler) -> None:
        head(to, 400)
        to.wfile.write(b"\x1b]0;owned\x07 \xc2\x9b2J \xe2\x80\xae [/red] \rok")

    ours, terminal = pty.openpty()
    with answering(refuse) as url:
        words = ["bench", "--engine", "openai", "--base-url", url, "--model", "m"]
        words += ["--suite", "bundled", "--out", "unused", "--temperatures", "0"]
        code = f"from foretoken.cli import main; main({words!r})"
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", code]
            subprocess.run(command, stdout=terminal, stderr=terminal, cwd=folder, timeout=120)
    os.close(terminal)
    shown = os.read(ours, 10_000).decode().replace("\r\n", "\n")
    os.close(ours)
    shown = shown[shown.index("foretoken: ") :]  # before it the bar's own control sequences
    assert harmless(shown) and "]0;owned" in shown and " [/red] ok.\n" in shown


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_standard_output_that_takes_no_more() -> None:
    """One sentence and exit code 1, and nothing from the interpreter as it ends."""
    code = "from foretoken.cli import main; main(['--version'])"
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", code]
        pipes: dict[str, Any] = {"stdout": full, "stderr": subprocess.PIPE}
        done = subprocess.run(command, **pipes, text=True, timeout=300)
    assert done.returncode == 1 and done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("foretoken: Standard output, or a file, can't be")
