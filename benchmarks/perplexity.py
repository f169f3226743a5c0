"""What quantised execution does to a model: perplexity, beside that of its numbers in float32.

    FORETOKEN_DATA=folder python benchmarks/perplexity.py --models small.gguf --formats stored q4

`numbers` is the model's in float32, GGUF files dequantised. `weights` has the weights of a format,
dequantised, in float32: what fewer bits cost. `executed` is that format as it runs, tokens rounded
to 8 bits; what the arithmetic costs in addition is `executed` over `weights`. A file's own blocks
are the format `stored`, which is the default. The text is corpora/heldout.jsonl.gz, conversations
and books as they come, read in windows; every token after a window's first counts. The interval of
that ratio is a 95 % bootstrap over windows: rounding moves a perplexity up or down, by chance, more
than it adds to it.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import shared
import torch

from foretoken.bench.measure.bootstrap import Floats, interval
from foretoken.bench.suites.data import folder
from foretoken.errors import ForetokenError
from foretoken.models import gguf
from foretoken.models.feed import chain_feed
from foretoken.models.load import find, load_model, load_tokenizer, read_config, weights
from foretoken.models.model import CausalLM
from foretoken.models.native.backends import quantise
from foretoken.models.native.build import build_native

STORED = "stored"
WANTED = 1.005
"""How much the arithmetic may cost."""
CPU = torch.device("cpu")


def main() -> None:
    parser = shared.options(__doc__)
    parser.add_argument("--models", nargs="+", required=True, metavar="MODEL")
    known = [STORED, *quantise.BACKENDS]
    parser.add_argument(
        "--formats", nargs="+", default=[STORED], choices=known, help=f"{STORED}, {names()}"
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
    windows = cut(source, given.tokens, given.window)
    numbers = losses(load_model(source, device=CPU, dtype="float32"), windows)
    for name in given.formats:
        if name == STORED and not gguf.is_named(find(source)):
            raise ForetokenError(f"{source} is no GGUF file; give --formats as {names()}.")
        exact = numbers if name == STORED else losses(dequantised(source, name), windows)
        model = load_model(source, device=CPU, backend="blocks" if name == STORED else name)
        found = losses(model, windows)
        low, high = ratio_interval(exact, found)
        yield {
            "model": Path(source).stem,
            "format": name,
            "mb": model.bytes_read / 1e6,
            "numbers": perplexity(numbers),
            "weights": perplexity(exact),
            "executed": perplexity(found),
            "arithmetic": perplexity(found) / perplexity(exact),
            "low": low,
            "high": high,
        }


def names() -> str:
    return ", ".join(quantise.BACKENDS)


def cut(source: str, tokens: int, window: int) -> list[list[int]]:
    """So many tokens in windows. Raises `ForetokenError` for a text that is too short."""
    tokenizer = load_tokenizer(source)
    ids = tokenizer(text(8 * tokens), add_special_tokens=False)["input_ids"][:tokens]
    if len(ids) < tokens:
        raise ForetokenError(f"The held-out text has {len(ids)} tokens; ask for no more.")
    first = [] if tokenizer.bos_token_id is None else [tokenizer.bos_token_id]
    return [first + ids[start : start + window] for start in range(0, tokens, window)]


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


def dequantised(source: str, name: str) -> CausalLM:
    """The model with a format's numbers, in float32."""
    place, quantiser = find(source), quantise.BACKENDS[name]
    stored = weights(place, narrow=False)

    def read(name: str) -> Any:
        tensor = quantiser.stored(stored(name))
        return tensor if tensor is None or len(tensor.shape) != 2 else whole(tensor)

    config = gguf.native_config_of(place) if gguf.is_named(place) else read_config(place)
    return build_native(config, read, torch.float32, CPU, "panels")


def whole(blocks: Any) -> torch.Tensor:
    matrix: torch.Tensor = blocks(torch.arange(len(blocks)))
    return matrix


@torch.inference_mode()
def losses(model: CausalLM, windows: Sequence[Sequence[int]]) -> Floats:
    """[windows, 2]: the sum of what its tokens after the first are worth, -ln p, and their
    number."""
    found = []
    for window in windows:
        cache = model.new_cache(1, len(window) + 1)
        feed = chain_feed(cache, [cache.acquire(0)], [list(window)])
        feed.last = None  # logits of all
        logits = model.forward(feed, cache).logits
        assert logits is not None
        targets = torch.tensor(window[1:])
        total = torch.nn.functional.cross_entropy(logits[0, :-1], targets, reduction="sum")
        found.append((float(total), len(targets)))
    return np.array(found, dtype=np.float64)


def perplexity(found: Floats) -> float:
    """Of the losses of windows."""
    total, count = found.sum(0)
    return math.exp(total / count)


def ratio_interval(exact: Floats, found: Floats) -> tuple[float, float]:
    """95 % of the second perplexity over the first, over windows. NaN for a single window."""
    groups = np.stack([found[:, 0] - exact[:, 0], exact[:, 1]], 1)

    def ratio(totals: Floats) -> Floats:
        return np.asarray(np.exp(totals[..., 0] / totals[..., 1]))

    return interval(groups, ratio, tail=0.025, resamples=2000) or (math.nan, math.nan)


if __name__ == "__main__":
    main()
