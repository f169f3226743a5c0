"""Whether methods write plain decoding's tokens on a checkpoint as it is stored, to the last one.

Every row of the method table that is lossless and needs no trained weights, greedy: one prompt at
a time and several together, against plain decoding one at a time. Where rows have the same bits
alone and among others, as blocks of GGUF files have, no near tie is an excuse. What is done is kept
in --work; the same command goes on there, as long as source and models are the same. Example:

    python benchmarks/lossless.py --model large.gguf --draft-model small.gguf --check
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from identity import Texts, compare, write
from kept import Kept, code
from shared import bundled, options, save, table

from foretoken import LLM, SamplingParams
from foretoken.files import fingerprint
from foretoken.machine import cache_folder
from foretoken.methods import METHODS, Method, Need
from foretoken.models.load import find, load_model, load_tokenizer
from foretoken.progress import track
from foretoken.registry import BASELINE

_NEEDS = Need.NOTHING | Need.DRAFT_MODEL
_LEFT_OUT = {BASELINE, "online", "speed"}
"""Plain decoding, what learns from earlier answers at its own pace, and what needs a model whose
layers repeat."""
BATCHES = (1, 4)
PLAIN = "plain"


class Bench:
    """The models, and the prompts as ids."""

    def __init__(self, given: Namespace) -> None:
        self.target, self.tokenizer = load_model(given.model), load_tokenizer(given.model)
        self.draft = load_model(given.draft_model, backend=given.draft_backend)
        self.of_draft = load_tokenizer(given.draft_model)
        self.params = SamplingParams(temperature=0, max_tokens=given.max_tokens)
        plain = self.llm(None, 1)
        self.prompts = [
            plain.chat_prompt([{"role": "user", "content": prompt.turns[0]}])
            for prompt in bundled()[: given.prompts]
        ]

    def llm(self, config: dict[str, Any] | None, batch: int) -> LLM:
        return LLM(
            self.target,
            tokenizer=self.tokenizer,
            speculative_config=config,
            max_num_seqs=batch,
            max_model_len=2048,
        )

    def texts(self, config: dict[str, Any] | None, batch: int) -> tuple[Texts, float]:
        """See `write`."""
        return write(self.llm(config, batch), self.prompts, [self.params] * len(self.prompts))

    def config(self, row: Method) -> dict[str, Any]:
        config: dict[str, Any] = {"method": row.name}
        if Need.DRAFT_MODEL in row.needs or row.name == "auto":
            config["model"] = self.draft
        if row.name in ("tli", "slem"):
            config["tokenizer"] = self.of_draft
        return config


def rows(given: Namespace) -> list[Method]:
    """The methods to compare, in the order of their table."""
    fitting = (row for row in METHODS.values() if row.lossless and not row.needs & ~_NEEDS)
    there = (row for row in fitting if row.name not in _LEFT_OUT)
    return [row for row in there if not given.methods or row.name in given.methods]


def measured(given: Namespace) -> Iterator[dict[str, Any]]:
    """A cell for each method and batch size."""
    bench, done = Bench(given), kept(given)
    cells = [(row, batch) for row in rows(given) for batch in given.batches]
    with track("Methods", 1 + len(cells), True) as advance:
        wanted = done.get(PLAIN) or done.keep(PLAIN, bench.texts(None, 1)[0])
        advance()
        for row, batch in cells:
            name = f"{row.name}, batch {batch}"
            if (cell := done.get(name)) is None:
                cell = compare(name, wanted, *bench.texts(bench.config(row), batch))
                done.keep(name, cell)
            yield cell
            advance()


def kept(given: Namespace) -> Kept:
    """What has been found with the same source, models and options."""
    places = {name: find(getattr(given, name)) for name in ("model", "draft_model")}
    models = {name: [place.name, fingerprint(place)] for name, place in places.items()}
    options = ("prompts", "max_tokens", "draft_backend")
    scripts = Path(__file__), Path(__file__).with_name("identity.py")
    plan = {"code": code(*scripts)} | models | {name: getattr(given, name) for name in options}
    return Kept(given.work, plan)


def main() -> int:
    parser = options(__doc__)
    parser.add_argument("--draft-backend", default="q4", help="how the draft model runs (q4)")
    parser.add_argument("--prompts", type=int, default=60, help="bundled ones (60)")
    parser.add_argument("--max-tokens", type=int, default=64, help="of an answer (64)")
    parser.add_argument("--methods", nargs="*", default=[], help="default: all")
    parser.add_argument(
        "--batches", nargs="+", type=int, default=BATCHES, help="prompts at a time (1 4)"
    )
    work = cache_folder() / "lossless.jsonl"
    parser.add_argument("--work", type=Path, default=work, help="what is done so far")
    parser.add_argument("--check", action="store_true", help="fail where a token differs")
    given = parser.parse_args()
    cells = []
    for cell in measured(given):
        cells.append(cell)
        print(*line(cell), sep=", ", flush=True)
    print()
    table([["", "identical", "mean length"], *map(line, cells)])
    met = all(cell["identical"] == cell["prompts"] for cell in cells)
    print("\nEvery token is the same." if met else "\nSome text differs.")
    about = {"draft_backend": given.draft_backend, "max_tokens": given.max_tokens}
    save("lossless", given, {**about, "batches": given.batches, "met": met, "cells": cells})
    return 1 if given.check and not met else 0


def line(cell: dict[str, Any]) -> list[str]:
    same = f"{cell['identical']}/{cell['prompts']}"
    return [cell["cell"], same, f"{cell['mean_acceptance_length']:.2f}"]


if __name__ == "__main__":
    sys.exit(main())
