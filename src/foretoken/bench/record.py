"""What a measurement leaves behind: results.json (a contract) and samples.jsonl.

`Results` is the whole of results.json, so its keys are not to be renamed. A number that could not
be measured is null. Files are replaced whole, so an interrupted write leaves the old one.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypedDict

from foretoken.errors import ForetokenError

SCHEMA = 1
LATENCIES = ("ttft_p50", "ttft_p99", "per_token_p50", "per_token_p99")


class Identity(TypedDict):
    """How many prompts got plain decoding's very tokens; see `identity.py`."""

    prompts: int
    identical: int
    near_tie: int
    different: int


class Measured(TypedDict):
    """What was measured over some prompts."""

    tokens_per_second: float | None
    speedup: float | None
    speedup_ci95: list[float] | None
    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    acceptance_rate_per_position: list[float]
    ms_per_step: dict[str, float]
    target_passes: int
    tokens: int
    latency_ms: dict[str, float | None]
    peak_memory_mib: float | None
    identical_to_autoregressive: Identity | None


class Run(Measured):
    """One method at one temperature. `prompts` counts those averaged over."""

    method: str
    temperature: float
    batch_size: int
    repeats: int
    prompts: int
    by_task: dict[str, Measured]


class Suite(TypedDict):
    """Which prompts. `left_out` names those whose plain greedy answer loops (see `metrics.py`)."""

    name: str
    sha256: str
    prompts: int
    turns: int
    max_tokens: int
    distinct_4_threshold: float
    left_out: list[str]


class _Model(TypedDict):
    name: str
    parameters: int
    dtype: str
    backend: str


class Target(_Model, total=False):
    """The model that was measured; `inflated` names the shape where its cost is blown up."""

    inflated: str


class Results(TypedDict):
    """results.json."""

    schema: int
    environment: dict[str, Any]
    target: Target
    suite: Suite
    runs: list[Run]


@dataclass
class Answer:
    """One turn answered by one method, as measured; a line of samples.jsonl.

    seconds: prefill, draft, verify, other (of these the last three are decoding), ttft, total.
    sameness: "identical", "near_tie" or "different" from plain decoding's tokens, None where the
    very tokens are not claimed. margin: how close the call was at the first difference.
    """

    target: str
    method: str
    temperature: float
    id: str
    task: str
    turn: int
    prompt: str
    text: str
    finish_reason: str
    token_ids: list[int]
    pieces: list[str]
    accepted: list[bool]
    passes: int
    drafted: int
    drafted_at: list[int]
    accepted_at: list[int]
    seconds: dict[str, float]
    peak_memory_mib: float | None
    sameness: str | None = None
    margin: float | None = None

    @property
    def decoding(self) -> float:
        """Seconds spent on anything but reading the prompt."""
        return self.seconds["draft"] + self.seconds["verify"] + self.seconds["other"]

    def line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def parse(cls, line: str) -> Answer:
        found = json.loads(line)
        known = {f.name for f in fields(cls)}
        return cls(**{key: value for key, value in found.items() if key in known})


def write_text(path: Path, text: str) -> None:
    """Replace a file whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)


def write_json(path: Path, data: Mapping[str, Any]) -> None:
    """Replace a JSON file whole; NaN and infinity are refused, as JSON has none."""
    write_text(path, json.dumps(data, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_results(path: Path) -> Results:
    """A results.json, checked."""
    try:
        found: Results = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError) as error:
        raise ForetokenError(f"{path} can't be read as a benchmark's results: {error}.") from error
    check(found, str(path))
    return found


def check(found: Any, where: str = "results") -> None:
    """Raise `ForetokenError` where something is missing or of another schema."""
    _keys(found, Results, where)
    if found["schema"] != SCHEMA:
        raise ForetokenError(
            f"{where} has schema {found['schema']!r} and this version reads schema {SCHEMA}."
        )
    _keys(found["target"], Target, f"{where}: target")
    _keys(found["suite"], Suite, f"{where}: suite")
    for at, run in enumerate(found["runs"]):
        _keys(run, Run, f"{where}: runs[{at}]")
        for task, part in run["by_task"].items():
            _keys(part, Measured, f"{where}: runs[{at}].by_task[{task!r}]")


def _keys(found: Any, kind: Any, where: str) -> None:
    if not isinstance(found, dict):
        raise ForetokenError(f"{where} is not an object.")
    missing = sorted(kind.__required_keys__ - found.keys())
    if missing:
        raise ForetokenError(f"{where} lacks {', '.join(missing)}.")
