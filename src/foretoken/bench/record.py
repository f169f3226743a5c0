"""The files of a measurement: results.json and samples.jsonl.

`Results` is the whole of results.json; other programs read it, so keep its keys. A
number that could not be measured is null. Files are replaced whole, so an interrupted write leaves
the old one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import (
    Any,
    NotRequired,
    TypedDict,
    cast,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from foretoken.errors import ForetokenError
from foretoken.errors.values import typed
from foretoken.files import read_json
from foretoken.registry import BASELINE as BASELINE  # for those who read records

SCHEMA = 1
LATENCIES = ("ttft_p50", "ttft_p99", "per_token_p50", "per_token_p99")


class Identity(TypedDict):
    """How many prompts got exactly plain decoding's tokens; see `identity.py`."""

    prompts: int
    identical: int
    near_tie: int
    different: int


class SpecBench(TypedDict):
    """The same run by Spec-Bench's definitions, for comparison with published tables; as there,
    prompts whose answer loops count too."""

    mean_accepted_tokens: float | None
    tokens_per_second: float | None
    speedup: float | None


class Ideal(TypedDict):
    """The speedup that a method's acceptance allows; see `ideal.py`."""

    from_pass_costs: float | None
    from_bytes: float | None


class Measured(TypedDict):
    """What was measured over some prompts; docs/metrics.md defines each number.

    nodes_per_step: number of drafted tokens -> steps that drafted as many. chosen: how many passes
    each drafter drafted for, of a method that chooses at every step. log_likelihood_per_token and
    stray_rate show what an approximate method costs; the first is also given for plain decoding,
    for comparison. kv_cache_mib: the most that caches held.
    """

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
    kv_cache_mib: NotRequired[float]
    identical_to_autoregressive: Identity | None
    nodes_per_step: NotRequired[dict[str, int]]
    chosen: NotRequired[dict[str, int]]
    spec_bench: SpecBench
    scores: dict[str, float]
    log_likelihood_per_token: float | None
    stray_rate: float | None
    energy_j_per_token: float | None
    ideal: Ideal | None


class Run(Measured):
    """One method at one temperature and batch size.

    prompts counts those averaged over, failed those that got no answer.
    """

    method: str
    temperature: float
    batch_size: int
    repeats: int
    prompts: int
    failed: int
    by_task: dict[str, Measured]


class Crossover(TypedDict):
    """The batch size from which speculation is slower, None where it is faster up to `up_to`.

    predicted: from the costs of passes, because fewer than two batch sizes were measured.
    """

    method: str
    temperature: float
    batch_size: float | None
    up_to: int
    predicted: bool


class Suite(TypedDict):
    """The prompts, and how they were served.

    left_out names those whose plain answer loops (see `metrics.py`), which is a smaller share of
    different 4-grams than the threshold: at 0 all count. skipped names those that
    leave less than `LEAST_ROOM` tokens of the context. history is "autoregressive" where every
    method continues plain decoding's answers, "own" where each continues its own. warm: what
    drafters learn was kept from prompt to prompt. planned: where the run is unfinished, how many
    prompts it is to have; None where its folder doesn't tell. No file of results has it.
    """

    name: str
    sha256: str
    prompts: int
    turns: int
    max_tokens: int
    distinct_4_threshold: float
    left_out: list[str]
    skipped: list[str]
    history: str
    warm: bool
    planned: NotRequired[int | None]


class _Model(TypedDict):
    name: str
    parameters: int
    dtype: str
    backend: str


class Target(_Model, total=False):
    """The model that was measured.

    inflated: the shape to whose cost it is inflated. device: "cpu" or "cuda"; not told by servers,
    nor by older records. server: the address, where it is not our engine; tokens_from and
    acceptance_from: who counted there.
    """

    inflated: str
    device: str
    server: str
    tokens_from: str
    acceptance_from: str


class Results(TypedDict):
    """results.json.

    costs: what passes cost on the machine (see `costs.py`). not_run: methods that were asked for
    and could not be run, with the reason. tuned: the options of those that `foretoken tune` chose.
    """

    schema: int
    environment: dict[str, Any]
    target: Target
    suite: Suite
    costs: Mapping[str, Any] | None
    not_run: NotRequired[dict[str, str]]
    tuned: NotRequired[dict[str, dict[str, Any]]]
    runs: list[Run]
    crossover: NotRequired[list[Crossover]]


@dataclass
class Answer:
    """One turn answered by one method, as measured; a line of samples.jsonl.

    The repeat with the median decoding time; decodings: that time of every repeat.
    seconds: prefill, draft, verify, other (of these the last three are decoding), ttft, total. In
    a batch the first four, engine_steps (passes over the whole batch) and energy_j are the group's,
    shared equally; ttft, total and all others are the request's.
    sameness: "identical", "near_tie" or "different" from plain decoding's tokens, None where
    equal tokens are not claimed. margin: how close the choice was at the first difference.
    group: the prompts served together. error: why there is no answer; all numbers are 0 then.
    scores: against the question's reference. log_likelihood: of the emitted tokens under the
    target at temperature 1, in nats. strayed: tokens that the lossless rule would have refused.
    counted: how many tokens a server wrote that does not send their ids; token_ids is empty then.
    chosen: the passes that each drafter drafted for, of a method that chooses at every step.
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
    dtype: str = "float32"
    batch_size: int = 1
    seed: int = 0
    prompt_tokens: int = 0
    category: str = ""
    error: str | None = None
    group: str = ""
    decodings: list[float] = field(default_factory=list)
    scores: dict[str, float] = field(default_factory=dict)
    log_likelihood: float | None = None
    strayed: int = 0
    energy_j: float | None = None
    engine_steps: float = 0.0
    counted: int | None = None
    kv_cache_mib: float | None = None
    chosen: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.category = self.category or self.task
        self.group = self.group or self.id
        self.decodings = self.decodings or [self.decoding]
        self.engine_steps = self.engine_steps or self.passes

    @property
    def key(self) -> tuple[str, str, str, float, int, str, int]:
        """Identifies the line; no two lines of a file share it."""
        return (
            self.target,
            self.dtype,
            self.method,
            self.temperature,
            self.batch_size,
            self.id,
            self.turn,
        )

    @property
    def tokens(self) -> int:
        """How many were emitted."""
        return len(self.token_ids) if self.counted is None else self.counted

    @property
    def decoding(self) -> float:
        """Seconds spent on anything but reading the prompt."""
        return self.seconds["draft"] + self.seconds["verify"] + self.seconds["other"]

    def line(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def parse(cls, line: str | bytes) -> Answer:
        """Raises `ForetokenError`, without a full stop, for a line that holds none."""
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ForetokenError(f"it is not JSON ({error})") from error
        if not isinstance(values, dict):
            raise ForetokenError("it is no JSON object")
        known = {key: value for key, value in values.items() if key in _answer_hints()}
        try:
            for key, value in known.items():
                _check_value(value, _answer_hints()[key], key)
            missing = [name for name in _required() if name not in known]
            if missing:
                raise ForetokenError(f"it lacks {', '.join(missing[:3])}")
            return cls(**known)
        except KeyError as error:
            raise ForetokenError(f"its seconds lack {error}") from error
        except ForetokenError as error:
            raise ForetokenError(str(error).rstrip(".")) from error


def read_results(path: Path) -> Results:
    """A results.json, checked."""
    results = read_json(path, "a benchmark's results")
    check(results, str(path))
    return cast(Results, results)


def check(results: Any, where: str = "results") -> None:
    """Raise `ForetokenError` where something is missing or of another schema."""
    _check_keys(results, Results, where)
    if results["schema"] != SCHEMA:
        raise ForetokenError(
            f"{where} has schema {results['schema']!r} and this version reads schema {SCHEMA}."
        )
    _check_value(results, Results, where)


def _check_value(value: Any, hint: Any, where: str) -> None:
    """Raise `ForetokenError` where a JSON value isn't of the type that an annotation names."""
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if is_typeddict(hint):
        _check_keys(value, hint, where)
        for key in value.keys() & _hints(hint).keys():
            _check_value(value[key], _hints(hint)[key], f"{where}: {key}")
    elif origin is list:
        if not all(type(item) is parts[0] for item in typed(where, value, list)):
            for place, item in enumerate(value):
                _check_value(item, parts[0], f"{where}[{place}]")
    elif origin is dict:
        for key, item in typed(where, value, dict).items():
            _check_value(item, parts[1], f"{where}[{key!r}]")
    elif not any(map(is_typeddict, parts)):
        typed(where, value, hint)
    elif value is not None:
        _check_value(value, parts[0], where)


def _required() -> list[str]:
    """The fields of an answer that have no default."""
    return [f.name for f in fields(Answer) if f.default is MISSING and f.default_factory is MISSING]


@cache
def _answer_hints() -> dict[str, Any]:
    return get_type_hints(Answer)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    """The declared types of a class's fields."""
    return get_type_hints(kind)


def _check_keys(values: Any, kind: Any, where: str) -> None:
    if not isinstance(values, dict):
        raise ForetokenError(f"{where} is not an object.")
    missing = sorted(kind.__required_keys__ - _optional(kind) - values.keys())
    if missing:
        raise ForetokenError(f"{where} lacks {', '.join(missing)}.")


@cache
def _optional(kind: Any) -> set[str]:
    """Keys marked `NotRequired`, which annotations kept as text hide from `__required_keys__`."""
    hints = get_type_hints(kind, include_extras=True)
    return {key for key, hint in hints.items() if get_origin(hint) is NotRequired}
