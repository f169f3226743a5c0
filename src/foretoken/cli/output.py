"""What commands print: through a pipe as it is; on a terminal with control characters made visible.

Models, servers and files decide what a text holds, and a terminal obeys its control sequences:
they move the cursor, retitle the window, hide or reorder what was written. Each control character
is replaced by itself, so a sequence that comes in two pieces is as harmless as a whole one.
"""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

if TYPE_CHECKING:
    from rich.table import Table

_CONTROLS = [*range(0x20), *range(0x7F, 0xA0)]  # C0 and C1
_BIDI = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]  # embeddings, overrides, isolates
_ESCAPES = {
    code: ascii(chr(code))[1:-1] for code in [*_CONTROLS, *_BIDI] if chr(code) not in "\n\t"
}


def visible(text: str) -> str:
    """The text with control characters as escapes: \\x1b, \\r, \\u202e. Lines and tabs stay."""
    return text.translate(_ESCAPES)


def write(text: str, *, end: str = "\n", to: TextIO | None = None) -> None:
    """Print a text, on standard output unless told otherwise."""
    stream = to or sys.stdout
    print(visible(text) if stream.isatty() else text, end=end, file=stream, flush=True)


def note(text: str, style: str = "") -> None:
    """Print a line on standard error. style: a terminal's codes for it, as "2" for dim."""
    styled = style and sys.stderr.isatty()
    print(f"\x1b[{style}m" if styled else "", end="", file=sys.stderr)
    write(text, end="\x1b[0m\n" if styled else "\n", to=sys.stderr)


def write_json(data: Any) -> None:
    """Print data as JSON that any encoding and any terminal can carry: in ASCII."""
    print(json.dumps(data, indent=1), flush=True)


def console(width: int | None = None) -> Console:
    """For tables and styled text. width: of what goes through a pipe."""
    shown = None if sys.stdout.isatty() else width
    return _Plain(width=shown, markup=False, emoji=False, highlight=False)


def table(
    *heads: str,
    right: Collection[str] = (),
    whole: Collection[str] = (),
    key: str = "",
    title: str | None = None,
) -> Table:
    """A table without lines. right: columns of numbers; whole: columns whose cells stay on one
    line; key: the column that names the rows."""
    from rich.table import Table

    made = Table(title=title, title_justify="left", box=None, header_style="bold", pad_edge=False)
    for head in heads:
        made.add_column(
            head,
            justify="right" if head in right else "left",
            no_wrap=head in whole,
            style="cyan" if head == key else "",
        )
    return made


class _Plain(Console):
    """A console to which text is text: no markup, no control sequences but its own."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text) if self.is_terminal else text, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        if self.is_terminal and isinstance(renderable, Text):
            renderable = _visible(renderable)
        return super().render(renderable, options)


def _visible(text: Text) -> Text:
    """A styled text with its control characters as escapes, in the same styles."""
    places = [0, *accumulate(len(visible(letter)) for letter in text.plain)]
    shown = text.blank_copy(visible(text.plain))
    for span in text.spans:
        shown.stylize(span.style, places[span.start], places[min(span.end, len(text.plain))])
    return shown


def accept_any_text() -> None:
    """Let the standard streams carry text that their encoding can't: what is printed as escapes,
    what is read as lone surrogates, which are refused where they matter."""
    for stream, errors in ((sys.stdout, "backslashreplace"), (sys.stdin, "surrogateescape")):
        if isinstance(stream, io.TextIOWrapper):
            with suppress(io.UnsupportedOperation):  # it is being read already
                stream.reconfigure(errors=errors)
