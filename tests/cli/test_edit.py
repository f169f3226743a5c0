"""`foretoken edit`: the diff, where the file is written, and when it isn't."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from command_line import Pair, Terminal, harmless, model, one_sentence, run
from edits import ASKED, FILE, scripted
from foretoken import LLM, ForetokenError
from foretoken.cli import edit as command
from foretoken.cli.options import ModelOptions

CHANGED = FILE.replace("f(", "area(")


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Lets the command load a model that answers so."""
    made: list[LLM] = []

    def use(answer: str, text: str = FILE) -> None:
        made.append(scripted(answer, text))
        monkeypatch.setattr(ModelOptions, "llm", lambda *_, **__: made[-1])

    yield use
    for llm in made:
        llm.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "shapes.py"
    path.write_text(FILE)
    return path


def test_the_diff_is_printed_and_nothing_written(answers: Any, file: Path) -> None:
    answers(f"```python\n{CHANGED}```")
    found = run("edit", file, ASKED)
    assert found.exit_code == 0 and file.read_text() == FILE
    assert found.stdout.startswith(f"--- {file}\n+++ {file}\n@@ -1,6 +1,6 @@\n-def f(r):\n+def ar")
    assert found.stderr.startswith(f"[autoregressive] {len(CHANGED) + 14} tokens · ")
    assert " passes · " in found.stderr and " tokens a pass · " in found.stderr
    assert f" · of the prediction's {len(FILE) + 7} tokens " in found.stderr
    assert found.stderr.count("\n") == 1


def test_nothing_changed(answers: Any, file: Path) -> None:
    answers(FILE)
    found = run("edit", file, ASKED, "--write")
    assert not found.stdout and found.stderr.endswith(" · nothing changed\n")


def test_in_place(answers: Any, file: Path, tmp_path: Path) -> None:
    """The file that a link leads to, with the permissions that it has."""
    answers(f"```\n{CHANGED}```")
    file.chmod(0o750)
    link = tmp_path / "link.py"
    link.symlink_to(file)
    assert run("edit", link, ASKED, "--write").exit_code == 0
    assert file.read_text() == CHANGED and link.is_symlink()
    assert file.stat().st_mode & 0o777 == 0o750
    assert sorted(tmp_path.iterdir()) == [link, file]


def test_output(answers: Any, file: Path, tmp_path: Path) -> None:
    answers(f"```\n{CHANGED}```")
    out = tmp_path / "new" / "out.py"
    assert run("edit", file, ASKED, "--output", out).exit_code == 0
    assert out.read_text() == CHANGED and file.read_text() == FILE


@pytest.mark.parametrize("written", [True, False])
def test_cut_off(answers: Any, file: Path, written: bool) -> None:
    """The diff is printed; half a file is not written."""
    answers(f"```\n{CHANGED}```")
    found = run("edit", file, ASKED, "--max-tokens", 30, *["--write"] * written)
    assert found.exit_code == written and file.read_text() == FILE
    assert "cut off after 30 tokens" in found.stderr and found.stdout.startswith("---")


@pytest.mark.parametrize("written", [True, False])
def test_a_block_that_is_not_closed(answers: Any, file: Path, written: bool) -> None:
    """The model has ended, so more tokens would change nothing."""
    answers(f"```\n{CHANGED}")
    found = run("edit", file, ASKED, *["--write"] * written)
    assert found.exit_code == written and file.read_text() == FILE
    assert "ended before its block was closed" in found.stderr
    assert "--max-tokens" not in found.stderr


def test_an_answer_that_is_no_file(answers: Any, file: Path, tmp_path: Path) -> None:
    """A model that says why it won't is shown, and takes no file's place; elsewhere it may go."""
    answers("I can not do that.")
    found = run("edit", file, ASKED, "--write")
    assert found.exit_code == 1 and file.read_text() == FILE
    assert "+I can not do that." in found.stdout and "has no line of" in found.stderr
    out = tmp_path / "out.py"
    assert run("edit", file, ASKED, "--output", out).exit_code == 0
    assert out.read_text() == "I can not do that.\n"


def test_a_file_that_changed_meanwhile(
    answers: Any, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers(f"```\n{CHANGED}```")
    monkeypatch.setattr(command, "_show", lambda _: file.write_text("other\n"))
    found = run("edit", file, ASKED, "--write")
    one_sentence_after_a_note = found.stderr.splitlines()[1]
    assert "has changed meanwhile" in one_sentence_after_a_note
    assert found.exit_code == 1 and file.read_text() == "other\n"


def test_a_terminal_gets_colours_and_obeys_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    command._show("--- a\n+++ a\n@@ -1 +1 @@\n-old[1]\n+\x1b[2Jnew\n same\n")
    shown = terminal.getvalue()
    assert "\x1b[31m-old[1]" in shown and "\x1b[32m+\\x1b[2Jnew" in shown
    assert "\x1b[36m@@" in shown and "\x1b[1m---" in shown
    for code in ("\x1b[31m", "\x1b[32m", "\x1b[36m", "\x1b[1m", "\x1b[0m"):
        shown = shown.replace(code, "")
    assert harmless(shown)


def test_what_is_refused(checkpoints: Pair, file: Path, tmp_path: Path) -> None:
    """Before a model is loaded, but for the file that is too long."""
    binary, latin, long = (tmp_path / name for name in ("a.bin", "b.txt", "c.txt"))
    binary.write_bytes(b"a\0b")
    latin.write_bytes("ä".encode("latin-1"))
    long.write_text("a" * 3000)
    for wrong in (binary, latin, tmp_path / "none.txt", tmp_path, long):
        one_sentence(run("edit", wrong, "x", *model(checkpoints)))
    one_sentence(run("edit", file, "x", "--write", "--output", tmp_path / "o.py"))
    one_sentence(run("edit", file, "x", "--output", tmp_path))
    one_sentence(run("edit", file, " ", *model(checkpoints)))
    told = run("edit", long, "x", *model(checkpoints)).stderr
    assert "the context is 4096" in told and "as long 6" in told


def test_a_block_may_share_nothing_with_the_file(tmp_path: Path) -> None:
    """It is meant to be the file; a bare answer that has nothing of it is not."""
    file = tmp_path / "a.py"
    file.write_text(FILE)
    edited: Any = SimpleNamespace(before=FILE, text="new\n", output=SimpleNamespace(text=""))
    with pytest.raises(ForetokenError, match="is no block and has no line of"):
        command._check_kept(file, FILE.encode(), edited)
    edited.output.text = "```\nnew\n```"
    command._check_kept(file, FILE.encode(), edited)
