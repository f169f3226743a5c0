"""`foretoken perplexity`: what quantised execution costs a model in quality, on a text."""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import options, output
from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    from foretoken.bench.measure.perplexity import Row

_MOST = 20_000  # tokens that are read, where none are asked for


def perplexity(
    *,
    model: options.Model = "mini",
    text: Annotated[str, typer.Option(help="A file of plain text; - is standard input.")],
    backend: Annotated[
        list[str] | None,
        typer.Option(
            help="blocks (a GGUF file's own), q4, q5, q6 or q8; may be repeated. By default the "
            "file's own blocks, else each of the others."
        ),
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(min=2, help=f"Of the text. Default: all that it has, at most {_MOST}."),
    ] = None,
    window: Annotated[int, typer.Option(min=2, help="Tokens that are read together.")] = 512,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """Measure what quantised execution costs a model in quality: perplexity on your own text.

    Numbers are those of the checkpoint in float32; weights are a backend's, dequantised; executed
    is how it runs, with tokens rounded to 8 bits. Executed over weights is the arithmetic's share,
    with a 95 % interval over windows of the text.

    Example: [bold]foretoken perplexity --model model.gguf --text book.txt --backend blocks
    --backend q4[/bold]
    """
    from foretoken.bench.measure import perplexity as measured
    from foretoken.progress import track

    windows = measured.cut(model, _read(text), tokens or _MOST, window, exactly=tokens is not None)
    backends = backend or measured.default_backends(model)
    with track("Windows", measured.passes(backends) * len(windows), not as_json) as advance:
        rows = list(measured.rows(model, backends, windows, advance))
    if as_json:
        output.write_json([_data(row) for row in rows])
    else:
        _show(rows)


def _read(text: str) -> str:
    if text == "-":
        return sys.stdin.read()
    try:
        return Path(text).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ForetokenError(f"{text} is no text in UTF-8; give a file of plain text.") from error


def _data(row: Row) -> dict[str, float | str | None]:
    """Without an interval, of a single window, null."""
    data = asdict(row) | {"arithmetic": row.arithmetic}
    nothing = {name: None for name in ("low", "high") if math.isnan(data[name])}
    return data | nothing


def _show(rows: list[Row]) -> None:
    heads = ("backend", "MB a pass", "numbers", "weights", "executed", "executed ÷ weights")
    shown = output.table(*heads, right=heads[1:], whole=heads, key="backend")
    for row in rows:
        values = [f"{value:.3f}" for value in (row.numbers, row.weights, row.executed)]
        range_ = "" if math.isnan(row.low) else f" ({row.low:.4f} to {row.high:.4f})"
        shown.add_row(row.backend, f"{row.mb:.0f}", *values, f"{row.arithmetic:.4f}{range_}")
    console = output.console(width=100)
    console.print(shown)
    console.print(f"\nOver {rows[0].tokens:,} tokens from the text's beginning.")
