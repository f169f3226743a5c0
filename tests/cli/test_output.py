"""What commands print: harmless on a terminal, unchanged through a pipe."""

from __future__ import annotations

import io
import json
import re
import sys

import pytest

from command_line import Terminal, harmless
from foretoken.cli import output

HARMFUL = {
    "colour": "\x1b[31mred",
    "title": "\x1b]0;title\x07",
    "C1": "\x9b31m \x85",
    "return": "shown\rhidden",
    "backspace": "a\b\x7f",
    "bidi": "\u202eright\u202c \u2066left\u2069",
}


@pytest.mark.parametrize("case", HARMFUL)
def test_a_terminal_gets_escapes_and_a_pipe_the_text(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Standard output and standard error, each by what it is."""
    text = f"é [red]x[/] {HARMFUL[case]}\tend\n"
    terminal, pipe = Terminal(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", terminal)
    monkeypatch.setattr(sys, "stderr", pipe)
    output.write(text)
    output.note(text)
    assert harmless(terminal.getvalue())
    assert terminal.getvalue().startswith("é [red]x[/] ") and "\tend\n" in terminal.getvalue()
    assert pipe.getvalue() == text + "\n"


def test_a_sequence_in_two_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is as visible as a whole one."""
    monkeypatch.setattr(sys, "stdout", terminal := Terminal())
    for piece in ("a\x1b", "[2Jb\r", "\n"):
        output.write(piece, end="")
    assert terminal.getvalue() == "a\\x1b[2Jb\\r\n"


def test_a_note_may_be_dim(monkeypatch: pytest.MonkeyPatch) -> None:
    """By codes of our own, and only on a terminal."""
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    output.note("an\x1b[0m error", "2")
    assert terminal.getvalue() == "\x1b[2man\\x1b[0m error\x1b[0m\n"
    monkeypatch.setattr(sys, "stderr", pipe := io.StringIO())
    output.note("an error", "2")
    assert pipe.getvalue() == "an error\n"


def test_a_table_has_columns_of_text_and_of_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers stand to the right; what is to stay whole does where the line is short."""
    monkeypatch.setattr(sys, "stdout", pipe := io.StringIO())
    shown = output.table("name", "count", "about", right=("count",), whole=("name",), title="All")
    shown.add_row("two words", "7", "a longer text")
    output.console(width=24).print(shown)
    lines = [line.rstrip() for line in pipe.getvalue().splitlines()]
    assert lines == [
        "All",
        "name       count  about",
        "two words      7  a",
        "                  longer",
        "                  text",
    ]


@pytest.mark.parametrize("stream", [Terminal, io.StringIO])
def test_tables_hold_text_and_no_markup(
    stream: type[io.StringIO], monkeypatch: pytest.MonkeyPatch
) -> None:
    """In cells, heads and styled text; what our styles need is not escaped."""
    from rich.table import Table
    from rich.text import Text

    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stdout", out := stream())
    console = output.console(80)
    table = Table("[bold]head", box=None)
    table.add_row("[/] :smile: \x1b[31m")
    console.print(table, Text.assemble("of \x9b\x1b", ("a model\u202e", "bold")), "[red]plain")
    shown = out.getvalue()
    assert all(part in shown for part in ("[bold]head", "[/] :smile: ", "[red]plain"))
    terminal = stream is Terminal
    found = [part in shown for part in ("\\x1b[31m", "of \\x9b\\x1b", "a model\\u202e")]
    assert found == [terminal] * 3 and harmless(re.sub(r"\x1b\[[\d;]*m", "", shown)) == terminal
    assert ("\x1b[1m" in shown) == terminal


def test_json_is_ascii(capsys: pytest.CaptureFixture[str]) -> None:
    """And read back as it was."""
    data = {"text": "é \ud83d \x9b\u202e 漢"}
    output.write_json(data)
    shown = capsys.readouterr().out
    assert shown.isascii() and json.loads(shown) == data


@pytest.mark.parametrize("encoding", ["ascii", "utf-8", "latin-1"])
def test_streams_carry_any_text(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Strict ones, too; what the encoding has stays as it is."""
    out = io.TextIOWrapper(io.BytesIO(), encoding)
    read = io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stdin", read)
    output.accept_any_text()
    output.accept_any_text()
    output.write("é \ud83d")
    assert out.buffer.getvalue().decode(encoding) in ("é \\ud83d\n", "\\xe9 \\ud83d\n")  # type: ignore[attr-defined]
    assert sys.stdin.read() == ("café" if encoding == "latin-1" else "caf\udce9")
    output.accept_any_text()
