"""What quantised execution does to a model: perplexity, beside that of its numbers in float32.

    FORETOKEN_DATA=folder python benchmarks/perplexity.py --models small.gguf --formats blocks q4

As `foretoken perplexity` measures it (`foretoken/bench/measure/perplexity.py`), of several models,
with a record. The default is the format `blocks`, a GGUF file's own. The text is
corpora/heldout.jsonl.gz, conversations and books as they come.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import shared

from foretoken.bench.measure import perplexity
from foretoken.bench.suites.data import folder
from foretoken.errors import ForetokenError
from foretoken.progress import track

WANTED = 1.005
"""How much the arithmetic may cost."""


def main() -> None:
    parser = shared.options(__doc__)
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    known = perplexity.BACKENDS
    parser.add_argument(
        "--formats", nargs="+", default=[perplexity.STORED], choices=known, help=", ".join(known)
    )
    parser.add_argument("--name", default="perplexity", help="of the record (perplexity)")
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--check", action="store_true", help=f"fail above {WANTED}")
    given = parser.parse_args()
    rows = [row for model in given.models for row in of_model(model, given)]
    heads = ["model, format", "MB a pass", "numbers", "weights", "executed", "arithmetic"]
    shared.table([heads, *map(line, rows)])
    given.model = given.draft_model = ""
    read = {"tokens": given.tokens, "window": given.window}
    shared.save(given.name, given, {**read, "wanted": WANTED, "rows": rows})
    if given.check and any(row["arithmetic"] > WANTED for row in rows):
        raise SystemExit(1)


def line(row: dict[str, Any]) -> list[str]:
    numbers = [row[name] for name in ("numbers", "weights", "executed")]
    return [
        f"{row['model']}, {row['format']}",
        f"{row['mb']:.0f}",
        *(f"{number:.3f}" for number in numbers),
        f"{row['arithmetic']:.4f} ({row['low']:.4f} to {row['high']:.4f})",
    ]


def of_model(source: str, given: Any) -> Iterator[dict[str, Any]]:
    """A row for the blocks of a GGUF file, and one for each format."""
    windows = perplexity.cut(source, text(8 * given.tokens), given.tokens, given.window)
    with track("Windows", perplexity.passes(given.formats) * len(windows), True) as advance:
        for row in perplexity.rows(source, given.formats, windows, advance):
            own = asdict(row) | {"arithmetic": row.arithmetic}
            own["format"] = own.pop("backend")
            yield own


def text(characters: int) -> str:
    parts = (
        row["text"] if "text" in row else "\n".join(said["content"] for said in row["messages"])
        for row in held_out()
    )
    found: list[str] = []
    length = 0
    for part in parts:
        found.append(part)
        if (length := length + len(part)) >= characters:
            break
    return "\n\n".join(found)


def held_out() -> Iterator[dict[str, Any]]:
    root = folder()
    path = root / "corpora" / "heldout.jsonl.gz" if root else None
    if path is None or not path.is_file():
        raise ForetokenError("FORETOKEN_DATA names no folder with corpora/heldout.jsonl.gz.")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


if __name__ == "__main__":
    main()
