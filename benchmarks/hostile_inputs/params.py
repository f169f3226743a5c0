"""`SamplingParams`: every field with every wrong value, and processors of every bad habit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import numpy as np
import torch

from foretoken import LLM, ForetokenError, SamplingParams
from hostile_inputs.case import Case, Outcome, shown
from hostile_inputs.stand import GOOD, GREEDY, METHODS, VOCAB, Stand
from hostile_inputs.values import NOT_NUMBERS, NUMBERS, VALUES, Make, kind

Processor = Callable[[LLM, torch.Tensor, torch.Tensor], Any]

NUMERIC = set(
    [
        "n",
        "max_draft_tokens",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "seed",
        "max_tokens",
        "min_tokens",
        "logprobs",
        "prompt_logprobs",
        "timeout",
    ]
)
_ALSO = {
    "stop": "stop string",
    **dict.fromkeys(("bad_token_ids", "allowed_token_ids", "stop_token_ids"), "token id"),
    "logit_bias": "token id",
    **dict.fromkeys(("logits_processors", "logits_processor_factories"), "processor"),
}
"""Other words for fields."""
FLAGS = {"include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "return_drafts"}
MORE: dict[str, list[Any]] = {
    "n": [0, 10**9, 257],
    "logprobs": [9000, VOCAB, VOCAB + 1, -1],
    "prompt_logprobs": [9000, VOCAB, VOCAB + 1, -1],
    "bad_words": [
        "text",
        [1, 2],
        [[VOCAB]],
        [["a"]],
        [None],
        ["\ud800"],
        [b"a"],
        [[]],
        [""],
        [" "],
    ],
    "logits_processor_factories": [[None], [5], "abc", [[]], [print], [int], [dict], print],
    "top_p": [0, 1.0000001, 1e-300],
    "structured_outputs": [
        {},
        {"regex": "(" * 50_000 + ")" * 50_000},
        {"regex": "((a{1,1000}){1,1000}){1,1000}"},
        {"regex": "a" * 1_000_000},
        {"regex": "(?=a)b"},
        {"choice": ["\ud800"]},
        {"choice": [""]},
        {"choice": ["a" * 2_000_000]},
        {"choice": [f"x{i}" for i in range(5_000)]},
        {"json": '{"items":' * 100_000 + "{}" + "}" * 100_000},
        {"json": '{"items":' * 150 + "{}" + "}" * 150},
        {"json": {"$ref": "#"}},
        {"json": {"$ref": "http://127.0.0.1/schema.json"}},
        {"json": {"type": "array", "uniqueItems": True}},
        {"json": {"type": "string", "minLength": 10**8}},
        {"json": {"type": "colour"}},
        {"json": [float("nan")]},
        {"grammar": "start: " + "(" * 20_000 + '"a"' + ")" * 20_000},
        {"grammar": "start: start"},
        {"grammar": "root ::= " + "(" * 20_000 + '"a"' + ")" * 20_000},
        {"structural_tag": {"type": "x"}},
        {"regex": "a", "reasoning_end": [VOCAB]},
    ],
    "stop": [["a", ""], ["a"] * 10_000, "\ud800", ["a", None], {"a": 1}, "a" * 100_000],
    "stop_token_ids": [[VOCAB], [-1], ["a"], [1.5], 5, [2**70]],
    "logit_bias": [{VOCAB: 1.0}, {1: "a"}, {1: float("nan")}, {1: float("inf")}, [1], {1: None}],
    "allowed_token_ids": [[], [VOCAB], ["a"], [1.0], [True], list(range(VOCAB)), 7],
    "bad_token_ids": [list(range(VOCAB)), [VOCAB], [None], "abc"],
    "references": ["text", [1, 2], [[VOCAB]], [["a"]], [None], ["\ud800"], [b"a"], [[]], [""]],
    "logits_processors": [[None], [5], "abc", [[]], [print, None], print, {1: print}, [int]],
    "max_tokens": [0, -5, 10**30, 1.5],
    "min_tokens": [17, -1, 10**30],
    "timeout": [0, -1, 1e-9, float("nan"), 1e400],
    "temperature": [1e-320, 1e308, -1e-9],
    "seed": [-1, 2**200, "a", 1.5],
    "top_k": [-2, VOCAB, 10**9],
}
"""Further values that fit a field's kind and little else."""


def cases(random: Random, count: int) -> Iterator[Case]:
    own = [*_processors(), *_arguments(), *_more()]
    every = [*_fields()]
    random.shuffle(own)
    own = own[: count // 2]
    yield from own
    for field, label, make in random.sample(every, min(len(every), count - len(own))):
        yield _field_case(field, label, make, random.choice(METHODS))


def _fields() -> Iterator[tuple[str, str, Make]]:
    for field in dataclasses.fields(SamplingParams):
        for label, make in VALUES.items():
            yield field.name, label, make


def _more() -> Iterator[Case]:
    methods = iter(METHODS * 99)
    for field, values in MORE.items():
        for value in values:
            yield _field_case(field, shown(value), lambda value=value: value, next(methods), "")


def _must(field: str, label: str) -> str:
    """What makes no sense, whatever one allows."""
    if field in NUMERIC and label in NOT_NUMBERS and label not in ("'1'", "'nan'"):
        return "" if label.startswith(("Raises", "np.array", "torch")) else "refuse"
    if label in ("nan", "np.float32(nan)", "Decimal('NaN')"):
        return "refuse"
    if field in NUMERIC and label in ("-inf", "-2", "-10**30") and "penalty" not in field:
        return "" if field == "seed" else "refuse"
    if field not in NUMERIC | FLAGS and label in NUMBERS:
        return "refuse"
    return ""


def _field_case(field: str, label: str, make: Make, method: str, must: str | None = None) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        value = make()
        given = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, field: value}
        params = outcome.attempt(lambda: SamplingParams(**given))
        if params is not None:
            _serve(stand, params, method, outcome)

    chosen = _must(field, label) if must is None else must
    label = f"SamplingParams({field}={shown(label)}), {method}"
    return Case(label, run, (field, _ALSO.get(field, "")), chosen)


def _serve(stand: Stand, params: SamplingParams, method: str, outcome: Outcome) -> None:
    llm = stand.llm(method)
    with stand.neighbour(llm, outcome):
        stand.together(llm, [GOOD[0]], [params], outcome)


# --- what is given in place of parameters ---


def _arguments() -> Iterator[Case]:
    methods = iter(METHODS * 99)
    for label, make in VALUES.items():
        if label == "None":
            continue
        yield _argument_case(label, make, next(methods))
    lists: dict[str, Make] = {
        "too few": lambda: [GREEDY],
        "too many": lambda: [GREEDY] * 9,
        "a None among them": lambda: [GREEDY, None],
        "a dict among them": lambda: [GREEDY, {"temperature": 0}],
        "the class": lambda: [GREEDY, SamplingParams],
        "a generator": lambda: (GREEDY for _ in range(2)),
        "a tuple": lambda: (GREEDY, GREEDY),
        "changed behind its back": lambda: [GREEDY, _bent(temperature="hot")],
        "a bent n": lambda: [GREEDY, _bent(n=0)],
        "bent stops": lambda: [GREEDY, _bent(stop=[None])],
    }
    for label, make in lists.items():
        yield _argument_case(label, make, next(methods))


def _bent(**fields: Any) -> SamplingParams:
    """Parameters that were changed after they had been checked."""
    params = SamplingParams(temperature=0, max_tokens=4)
    for name, value in fields.items():
        object.__setattr__(params, name, value)
    return params


def _argument_case(label: str, make: Make, method: str) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        llm = stand.llm(method)
        with stand.neighbour(llm, outcome):
            outputs = outcome.attempt(lambda: llm.generate([GOOD[0], GOOD[1]], make()))
        stand.note(outputs or [], outcome)

    names = ("sampling_params", "SamplingParams", *((kind(make()),) if label in VALUES else ()))
    if label.startswith(("bent", "a bent", "changed")):
        names = ()
    return Case(f"generate(…, sampling_params={shown(label)}), {method}", run, names)


# --- processors ---


class Unspeakable(Exception):
    """An error whose message raises."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Odd(BaseException):
    """No `Exception`."""


def _raises(error: Callable[[], BaseException]) -> Processor:
    def process(llm: LLM, ids: torch.Tensor, scores: torch.Tensor) -> Any:
        raise error()

    return process


def _calls(work: Callable[[LLM], Any]) -> Processor:
    def process(llm: LLM, ids: torch.Tensor, scores: torch.Tensor) -> Any:
        work(llm)
        return scores

    return process


def _returns(work: Callable[[torch.Tensor, torch.Tensor], Any]) -> Processor:
    return lambda llm, ids, scores: work(ids, scores)


def _recurse(depth: int = 0) -> int:
    return _recurse(depth + 1) + 1


def _filled(value: float) -> Processor:
    return _returns(lambda _, s: torch.full_like(s, value))


RAISING: dict[str, Processor] = {
    "ValueError": _raises(lambda: ValueError("a\nb")),
    "KeyError": _raises(lambda: KeyError("x")),
    "a ForetokenError": _raises(lambda: ForetokenError("My processor\nfails.")),
    "StopIteration": _raises(StopIteration),
    "GeneratorExit": _raises(GeneratorExit),
    "SystemExit": _raises(lambda: SystemExit(3)),
    "KeyboardInterrupt": _raises(KeyboardInterrupt),
    "MemoryError": _raises(MemoryError),
    "RecursionError": _returns(lambda *_: _recurse()),
    "an unspeakable error": _raises(Unspeakable),
    "an odd error": _raises(Odd),
    "a long error": _raises(lambda: ValueError("x" * 10_000)),
    "an error with escapes": _raises(lambda: ValueError("\x1b[31m\ud800\x00")),
    "OSError": _raises(lambda: OSError(28, "No space left on device")),
    "torch's error": _returns(lambda _, s: s @ s),
    "int": _returns(lambda *_: int("x")),
    "None": _returns(lambda *_: None),
    "5": _returns(lambda *_: 5),
    "a str": _returns(lambda *_: "abc"),
    "a list": _returns(lambda _, s: [None]),
    "[V - 1]": _returns(lambda _, s: s[:, 1:]),
    "[2V]": _returns(lambda _, s: torch.cat([s, s], 1)),
    "[0]": _returns(lambda _, s: s[:0]),
    "[7, V]": _returns(lambda _, s: s.expand(7, -1)),
    "[1, 1, V, 1]": _returns(lambda _, s: s[None, ..., None]),
    "a str of the ids": _returns(lambda ids, _: str(ids)),
    "NaN": _filled(float("nan")),
    "one NaN": _returns(lambda _, s: s.index_fill(1, torch.tensor([3]), float("nan"))),
    "all -inf": _filled(float("-inf")),
    "all inf": _filled(float("inf")),
    "complex": _returns(lambda _, s: s * 1j),
    "on meta": _returns(lambda _, s: s.to("meta")),
    "generate": _calls(lambda llm: llm.generate([GOOD[1]], GREEDY)),
    "stream": _calls(lambda llm: next(llm.stream(GOOD[1], GREEDY))),
    "chat": _calls(lambda llm: llm.chat([{"role": "user", "content": "a"}], GREEDY)),
    "reset_stats": _calls(lambda llm: llm.reset_stats()),
}
"""Each ends its own request by an error, and nothing else."""

BENDING: dict[str, Processor] = {
    "[V]": _returns(lambda _, s: s[0]),
    "ints": _returns(lambda _, s: s.long()),
    "bools": _returns(lambda _, s: s > 0),
    "halves": _returns(lambda _, s: s.half()),
    "numpy": _returns(lambda _, s: s.numpy()),
    "numpy's copy": _returns(lambda _, s: np.array(s)),
    "sparse": _returns(lambda _, s: s.to_sparse()),
    "with grad": _returns(lambda _, s: torch.zeros(s.shape, requires_grad=True)),
    "huge": _filled(1e308),
    "one inf": _returns(lambda _, s: s.index_fill(1, torch.tensor([3]), float("inf"))),
    "equal": _filled(0.0),
    "ids in place": _returns(lambda ids, s: (ids.zero_(), s)[1]),
    "scores in place": _returns(lambda _, s: s.mul_(0)),
    "NaN in place, returned as they were": _returns(lambda _, s: (s.clone(), s.fill_(np.nan))[0]),
    "scores resized": _returns(lambda _, s: s.resize_(1, 5)),
    "ids out of the vocabulary": _returns(lambda ids, s: (ids.fill_(10**9), s)[1]),
    "other threads": _calls(lambda _: torch.set_num_threads(2)),
    "a seed": _calls(lambda _: torch.manual_seed(0)),
    "grad on": _calls(lambda _: torch.set_grad_enabled(True)),
    "deterministic": _calls(lambda _: torch.use_deterministic_algorithms(False)),
    "a warning": _calls(lambda _: __import__("warnings").warn("w", stacklevel=1)),
    "repr of the LLM": _calls(repr),
}
"""Each may do, as long as it keeps to its own request."""


def _processors() -> Iterator[Case]:
    methods = iter(METHODS * 99)
    for when in (0, 3):
        for label, process in (RAISING | BENDING).items():
            must = "refuse" if label in RAISING else ""
            yield _processor_case(label, process, when, next(methods), must)


def _processor_case(label: str, process: Processor, when: int, method: str, must: str) -> Case:
    """The processor does its worst from the `when`-th token on."""

    def run(stand: Stand, outcome: Outcome) -> None:
        llm, start = stand.llm(method), len(GOOD[1])

        def called(ids: torch.Tensor, scores: torch.Tensor) -> Any:
            late = ids.shape[-1] >= start + when
            return process(llm, ids, scores) if late else scores

        params = SamplingParams(
            temperature=0, max_tokens=8, ignore_eos=True, logits_processors=[called]
        )
        with stand.neighbour(llm, outcome):
            stand.together(llm, [GOOD[1]], [params], outcome)
        torch.set_grad_enabled(True)

    label = f"logits_processors=[{label}], from token {when}, {method}"
    return Case(label, run, ("processor",), must)
