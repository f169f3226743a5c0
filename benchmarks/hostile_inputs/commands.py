"""Hostile command lines, in this process: each option of each command with every wrong word."""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from hostile_inputs.case import Case, Outcome, shown
from hostile_inputs.stand import Stand

WORDS = [
    "", " ", "-1", "0", "1.5", "nan", "inf", "1e400", "99999999999999999999", "four", "-", "--",
    "{", "{}", "[]", "null", '{"method": 5}', '{"method": "pld", "x": 1}', "a,b", ",", "1,,2",
    "../x", "no/such", "no-such", "a\nb", "\x1b[31m", "\udc80", "x" * 5000, "häßlich", "%s", "{0}",
    "$HOME", "1/0", "3/2", "0/0", "1:2:3", "name=value", "=", "a=b=c", "mini", "http:/x",
]  # fmt: skip
"""Words of a command line; none of them is a path outside."""

QUICK = {
    "generate": ["hi", "--max-tokens", "4"],
    "bench": ["--temperatures", "0", "--max-tokens", "4", "--methods", "pld", "--out", "run"],
    "report": ["run"],
    "simulate": ["--acceptance", "0.5", "--curve", "1:10,8:12,64:30"],
    "methods": [],
    "chat": ["--max-tokens", "4"],
    "export": ["drafter", "--to", "hf", "--out", "exported"],
    "datastore build": ["texts.txt", "--out", "store"],
    "datastore add": ["texts.txt", "--out", "store"],
}
"""Arguments by which a command ends soon."""

SLOW = {
    "demo": [],
    "certify": ["--quick", "--method", "pld"],
    "layers": ["--out", "set.npz"],
    "tune": ["--method", "pld"],
    "train": ["medusa", "--out", "trained"],
    "zoo inflate": ["mini", "--shape", "135m", "--out", "large"],
}
"""Commands that may take minutes, of which only options are tried that are no numbers."""

NO_NUMBERS = ["four", "{", "a\nb", "\udc80", "x" * 5000, "1:2:3", ""]
ENDLESS = ("--repeats", "--ray", "--ray-address")
"""Options whose good values take for ever."""

WRONG = [
    [], ["nonsense"], ["--nonsense"], ["-x"], ["generate", "--model"], ["generate", "a", "b"],
    ["generate", ""], ["generate", " "], ["generate", "\udc80"], ["methods", "extra"], ["zoo"],
    ["report"], ["report", "a", "b", "c"], ["export", "x"], ["datastore", "build"], ["--version=1"],
    ["generate", "hi", "--method", "sps"], ["generate", "hi", "--method", "rest"], ["\x1b[31m"],
    ["generate", "hi", "--method", "medusa"], ["generate", "hi", "--method", "pld+pld"],
    ["simulate"], ["simulate", "--curve", "1:1"], ["simulate", "--acceptance", "2"], ["bench", "x"],
    ["simulate", "--acceptance", "0.5", "--curve", "1:nan,8:inf"], ["simulate", "--ranks", "1,1,1"],
    ["simulate", "--acceptance", "nan"], ["simulate", "--acceptance", "0.5", "--tflops", "-1"],
    ["report", ".", "--fail-on-regression"], ["report", "texts.txt"],
    ["train", "sps", "--set", "x"],
    ["bench", "--engine", "openai"], ["bench", "--engine", "openai", "--base-url", "x"],
    ["bench", "--engine", "x"], ["bench", "--shard", "5/3"], ["bench", "--out", "texts.txt"],
    ["bench", "--engine", "openai", "--base-url", "http://127.0.0.1:1/v1", "--model", "m"],
]  # fmt: skip
"""Whole lines that are wrong."""


def command(*arguments: str, typed: str | None = None) -> Any:
    """What a command does in this process."""
    from typer.testing import CliRunner

    from foretoken.cli.commands import app

    here, before = Path.cwd(), dict(os.environ)
    try:
        return CliRunner().invoke(app, list(arguments), input=typed)
    finally:
        os.chdir(here)
        os.environ.clear()
        os.environ.update(before)


def note(result: Any, outcome: Outcome) -> None:
    """Take a command's result into the outcome: served, or refused in one line on standard
    error."""
    error = result.exception
    if error is not None and not isinstance(error, SystemExit):
        outcome.blame("raw", f"{type(error).__name__}: {error}")
    elif result.exit_code == 0 or (result.exit_code == 2 and "Usage:" in result.stdout):
        outcome.served = True
    elif result.exit_code in (1, 2):
        lines = [line for line in result.stderr.splitlines() if line.startswith("foretoken: ")]
        rest = result.stderr.partition("foretoken: ")[2]
        outcome.errors.append(rest.strip("\n") if lines else result.stderr)
    else:
        outcome.blame("raw", f"it ended with {result.exit_code}: {result.stderr[-200:]}")
    if "Traceback (most recent" in result.output:
        outcome.blame("raw", "a traceback was printed")


def cases(random: Random, count: int) -> Iterator[Case]:
    options = [one for name in QUICK | SLOW for one in _options(name) if one[1] not in ENDLESS]
    options = [one for one in options if one[0] in QUICK or one[2] != "str"]
    yield from (_case(line, ()) for line in random.sample(WRONG, min(len(WRONG), count // 3)))
    for _ in range(count - min(len(WRONG), count // 3)):
        name, option, _ = random.choice(options)
        word = random.choice(WORDS if name in QUICK else NO_NUMBERS)
        line = [*name.split(), *(QUICK | SLOW)[name], option, word]
        yield _case(line, (option, option.strip("-").replace("-", "_"), *_also(option, word)))


@cache
def _options(name: str) -> list[tuple[str, str, str]]:
    """(command, option, type) of each option that takes a word."""
    import typer

    from foretoken.cli.commands import app

    group: Any = typer.main.get_command(app)
    for word in name.split():
        group = group.commands[word]
    found = []
    for parameter in group.params:
        if parameter.param_type_name == "option" and not parameter.is_flag:
            kind = str(parameter.type_descriptor.annotation)
            words = "str" in kind or "Path" in kind
            found.append((name, parameter.opts[0], "str" if words else kind))
    return found


def _drafter(stand: Stand) -> str:
    from hostile_inputs import makings

    return str(makings.draft_folder(stand))


def _also(option: str, word: str) -> tuple[str, ...]:
    """What else names a word, or what an option is about."""
    about = {"--model": "checkpoint", "--draft-model": "checkpoint", "--method": "method"}
    about |= {"--tokenizer": "checkpoint", "--suite": "prompts", "-sc": "config"}
    return word.strip(), repr(word)[1:-1].strip(), about.get(option, "")


def _case(line: list[str], names: tuple[str, ...]) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        from hostile_inputs import files

        given = [_drafter(stand) if word == "drafter" else word for word in line]
        place = stand.place()
        (place / "texts.txt").write_text("hello\n")
        options = {
            "generate": ["--model", str(files.model(stand))],
            "chat": ["--model", str(files.model(stand))],
            "bench": ["--model", str(files.model(stand)), "--suite", str(files.suite(stand))],
            "datastore": ["--tokenizer", str(files.model(stand))],
        }
        own = options.get(line[0] if line else "", [])
        at = 2 if line[:1] == ["datastore"] else 1
        given[at:at] = own
        here = Path.cwd()
        os.chdir(place)
        try:
            with stand.neighbour(stand.llm(), outcome):
                note(command(*given, typed="hi\n"), outcome)
        finally:
            os.chdir(here)

    label = " ".join(shown(word, 40) or "''" for word in line)
    wanted = tuple(word for word in names if word.strip())
    return Case(f"foretoken {label}", run, wanted)
