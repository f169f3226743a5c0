"""Errors that a user can act on: one sentence that names the thing and the remedy."""

from __future__ import annotations

import contextlib
import difflib
import re
import threading
import traceback
from collections.abc import Iterable
from typing import Any

_SHOWN = 80  # characters of a value that a sentence can carry
_LINE = 240  # of what another library says
_NAMES = 250  # of a list of names
_NEAREST = 12  # names of a longer list
_FRAMES = 20  # of a traceback, the last ones
_ENDLESS = re.compile(r"(\S{250})\S{500,}(\S{250})")
_CLASS, _ADDRESS = re.compile(r"<class '([\w.]+)'>"), re.compile(r" at 0x[0-9a-f]+")


class ForetokenError(ValueError):
    """Bad input: the message is one sentence, fit to be shown without a stack trace. It is on one
    line, and without what a terminal or a file can't take, whatever was given."""

    def __init__(self, message: str) -> None:
        super().__init__(_printable(message))


class Overloaded(ForetokenError):
    """What was asked for is served, but not now: too much waits already."""


def described(what: str, error: BaseException) -> ForetokenError:
    """That `what` raised this error, in one sentence; one that is fit to be shown stays.

    Call it where the error was caught: the error is kept as the cause, and of its traceback the
    text, as a note, from which on its frames and the values in them are let go, a pass's logits for
    one.
    """
    if isinstance(error, ForetokenError):
        return error
    lines = _message(error).strip().splitlines()
    told = ForetokenError(
        f"{what} raised {type(error).__name__}: {_fit(lines[0] if lines else '–')}"
    )
    _let_go(error)
    told.__cause__ = error
    return told


def _let_go(error: BaseException) -> None:
    """Put a note in the place of an error's frames: a frame keeps its values, and the frames of all
    its callers with theirs, also once they have returned."""
    caught = error.__traceback__
    under = caught.tb_next if caught else None
    with contextlib.suppress(Exception):  # a class may have notes of its own kind
        note = "".join(traceback.format_tb(under, -_FRAMES)).rstrip()
        if note and note not in getattr(error, "__notes__", ()):  # one object may be raised again
            error.add_note(note)
    error.__traceback__ = None
    frames = {frame for frame, _ in traceback.walk_tb(under)}
    todo = [error.__cause__, error.__context__]
    while todo:
        each = todo.pop()
        # What was raised above is somebody else's, who may be handling it.
        if each is not None and each.__traceback__ and each.__traceback__.tb_frame in frames:
            frames.update(frame for frame, _ in traceback.walk_tb(each.__traceback__))
            each.__traceback__ = None
            todo += [each.__cause__, each.__context__]


def one_line(error: Exception) -> str:
    """What an error of another library says, on one line and without its full stop."""
    return _fit(" ".join(_message(error).split())).rstrip(".") or type(error).__name__


def _message(error: BaseException) -> str:
    """What an error says; nothing where that raises."""
    try:
        return str(error)
    except Exception:
        return ""


def _fit(text: str) -> str:
    """Cut, after a whole sentence where there is one, and in words in place of Python's own."""
    text = _ADDRESS.sub("", _CLASS.sub(r"\1", text[: 4 * _LINE]))
    if len(text) > _LINE:
        whole = text.rfind(". ", _LINE // 4, _LINE)
        text = text[:whole] if whole > 0 else f"{text[: _LINE - 2]} …"
    return _printable(text)


def _printable(text: str) -> str:
    """On one line, without what a terminal or a file can't take, and without the middle of what is
    longer than any path."""
    text = "".join(c if c.isprintable() else " " if c.isspace() else "\ufffd" for c in text)
    # By a function: a template would be read by modules that an ending interpreter has let go.
    return _ENDLESS.sub(lambda found: f"{found[1]}…{found[2]}", text)


def caught() -> type[BaseException]:
    """What to catch of a user's own code: `except caught() as error`.

    On the main thread Ctrl-C and `sys.exit` come through. On others, which no interrupt reaches,
    whatever the code raises is an error of its own, and must not end the thread.
    """
    main = threading.current_thread() is threading.main_thread()
    return Exception if main else BaseException


def unknown(kind: str, given: str, choices: Iterable[str]) -> ForetokenError:
    """The error for a name that does not exist, with the nearest one that does."""
    known, tried = sorted(set(choices)), given[:_SHOWN]
    small = {name.lower(): name for name in known}  # PLD means pld

    def like(count: int, least: float) -> list[str]:
        return [small[n] for n in difflib.get_close_matches(tried.lower(), small, count, least)]

    swapped = [small[n] for n in small if sorted(n) == sorted(tried.lower())]  # pdl for pld
    near = swapped or like(1, 0.5)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    listed = ", ".join(known)
    if len(listed) > _NAMES:
        nearest = sorted(like(_NEAREST, 0))
        listed = f"{', '.join(nearest)} … ({len(known)} in all)"
    return ForetokenError(f"Unknown {kind} {shown(given)}.{hint} Choose one of: {listed}.")


def shown(value: Any) -> str:
    """A value as a sentence can show it: short and on one line; of what isn't plain, its type."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if not _plain(value):
        return f"a value of type {type(value).__name__}"
    try:
        text = ascii(value)
    except ValueError:  # a number of too many digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 2]} …"


def _plain(value: Any, depth: int = 4) -> bool:
    """Whether it is of Python's own types throughout, whose words we know."""
    if type(value) is dict:
        return _plain([*value, *value.values()], depth)
    if type(value) in (list, tuple, set):
        return depth > 0 and all(_plain(item, depth - 1) for item in value)
    return value is None or type(value) in (bool, int, float, complex, str, bytes)
