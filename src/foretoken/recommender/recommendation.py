"""What `recommend` found: the conclusion, how to use it, and the measurements."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from foretoken.bench.measure.environment import environment
from foretoken.bench.record import BASELINE
from foretoken.errors import ForetokenError
from foretoken.files import check_writable, write_json
from foretoken.recommender.elsewhere import for_vllm, their_name
from foretoken.recommender.prediction import Prediction
from foretoken.recommender.verdict import Row
from foretoken.tuned import SCHEMA, from_anywhere, tuned_path

_OF_VLLM = ("dtype", "max_model_len", "trust_remote_code")
"""Keywords of `LLM` that mean the same to vLLM."""


@dataclass(frozen=True)
class Recommendation:
    """model: the target's name. sentence: the conclusion. config: the `speculative_config` to use,
    None where plain decoding is fastest or nothing is certain. rows: what was timed, plain decoding
    first in each cell. chosen: the rows that the sentence recommends. screened: what was left out
    after screening, with predicted speedups. not_run: method -> why it couldn't run. notes: what
    else to know, a sentence each. interrupted: whether it was, before its time was over. options:
    how the target ran, as keywords of `LLM`, where that isn't the default."""

    model: str
    sentence: str
    config: Mapping[str, Any] | None
    rows: tuple[Row, ...]
    chosen: tuple[Row, ...]
    screened: tuple[Prediction, ...]
    not_run: Mapping[str, str]
    notes: tuple[str, ...]
    interrupted: bool
    options: Mapping[str, Any] = field(default_factory=dict)

    def usage(self, row: Row) -> list[tuple[str, str]]:
        """How to use a row's method: (where, what to paste)."""
        config = row.config or {"method": BASELINE}
        given = json.dumps(config, default=str)
        model = shlex.quote(self.model)
        named = "".join(f"{name}={value!r}, " for name, value in self.options.items())
        ours = f"--model {model}{_flags(self.options)} -sc {shlex.quote(given)}"
        lines = [
            ("Python", f"LLM({self.model!r}, {named}speculative_config={dict(config)!r})"),
            ("command line", f'foretoken generate "…" {ours}'),
        ]
        theirs = for_vllm(config, row.tokens_per_step)
        if theirs is not None:
            shared = {k: v for k, v in self.options.items() if k in _OF_VLLM}
            options = f"{_flags(shared)} --speculative-config {shlex.quote(json.dumps(theirs))}"
            lines.append(("vLLM", f"vllm serve {shlex.quote(their_name(self.model))}{options}"))
        return lines

    def data(self) -> dict[str, Any]:
        """All of it for JSON."""
        return {
            "model": self.model,
            "sentence": self.sentence,
            "speculative_config": self.config,
            "options": dict(self.options),
            "use": [{"method": row.method, **dict(self.usage(row))} for row in self.chosen],
            "timed": [asdict(row) for row in self.rows],
            "screened": [
                {
                    "method": one.best.label,
                    "predicted": [{**asdict(c), "speedup": s} for c, s in one.speedups.items()],
                }
                for one in self.screened
            ],
            "not_run": dict(self.not_run),
            "notes": list(self.notes),
            "interrupted": self.interrupted,
        }

    def save(self, name: str) -> Path:
        """Write it where `speculative_config={"tuned": name}` finds it: a name, or a path that ends
        in .json. Where nothing pays, that decodes plainly.

        Raises `ForetokenError` where it can't be written, and where nothing was concluded.
        """
        if not any(row.enough for row in self.rows):
            raise ForetokenError(f"Nothing is saved as {name!r}, as {self.sentence}.")
        path = saved_at(name)
        config = from_anywhere(self.config or {"method": BASELINE})
        about = {"schema": SCHEMA, "name": name, "method": config.get("method")}
        whole = {**self.data(), "speculative_config": config, "environment": environment()}
        write_json(path, {**about, **whole})
        return path


def _flags(options: Mapping[str, Any]) -> str:
    """Keywords of `LLM` as the command line has them, each after a space."""
    named = ((f"--{name.replace('_', '-')}", value) for name, value in options.items())
    return "".join(
        f" {flag}" if value is True else f" {flag} {shlex.quote(str(value))}"
        for flag, value in named
    )


def saved_at(name: str) -> Path:
    """Where `save` writes. Raises `ForetokenError` where that can't be done."""
    path = Path(name) if name.endswith(".json") else tuned_path(name)
    check_writable(path)
    return path
