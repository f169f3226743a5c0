"""`LLM(…)` and its methods: every keyword with every wrong value."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

from foretoken import LLM
from hostile_inputs import makings
from hostile_inputs.case import Case, Outcome, shown
from hostile_inputs.stand import GOOD, GREEDY, SLOTS, VOCAB, Stand
from hostile_inputs.values import NOT_NUMBERS, VALUES, Make, kind

COUNTS = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_queued")
ALSO = {
    "model": ["checkpoint", "folder"],
    "tokenizer": ["checkpoint", "token"],
    "eos_ids": ["token id", "ids"],
    "speculative_config": ["method", "option"],
    "dtype": ["float"],
    "backend": ["linear"],
}
MORE: dict[str, list[Any]] = {
    "dtype": ["int8", "int64", "bool", "float8_e4m3fn", "complex64", "float31", "save", "nn", ""],
    "device": ["cuda", "cuda:99", "mps", "meta", "xpu", "tpu", "cpu:1", "cpu:-1", "gpu", "", "hpu"],
    "backend": [
        "int8+int8",
        "nope+plain",
        "compiled+nope",
        "+plain",
        "cuda_graphs+plain",
        "int4",
        "x",
    ],
    "model_impl": ["Native", "vllm", "", "hf"],
    "max_model_len": [1, 2, 257, 10**9, 0, -1, 2**63],
    "max_num_seqs": [0, -1, 10**9, 10**12, 1.5, "4"],
    "max_num_batched_tokens": [0, -1, 1, 10**30],
    "max_queued": [0, -1, 10**30],
    "eos_ids": [[VOCAB], [-1], ["a"], "abc", 5, [None], [2**70], {1: 2}, [[1]]],
    "trust_remote_code": ["yes", 1, None],
    "tensor_parallel_size": [2, 0],
    "gpu_memory_utilization": [2.0, "a"],
}
"""Further values, also of keywords that don't exist."""

VERBS: dict[str, Callable[[LLM, Any], Any]] = {
    "generate(use_tqdm)": lambda llm, v: llm.generate(GOOD, GREEDY, use_tqdm=v),
    "generate(raise_on_error)": lambda llm, v: llm.generate(GOOD, GREEDY, raise_on_error=v),
    "stream(params)": lambda llm, v: list(llm.stream(GOOD[0], v))[-1:],
    "chat(params)": lambda llm, v: llm.chat([{"role": "user", "content": "hi"}], v),
    "chat_prompt": lambda llm, v: llm.generate(llm.chat_prompt(v), GREEDY),
}


def cases(random: Random, count: int) -> Iterator[Case]:
    given = [name for name in inspect.signature(LLM).parameters if name != "speculative_config"]
    every = [_case(n, label, make) for n in given for label, make in VALUES.items()]
    own = [_case(n, shown(v), lambda v=v: v) for n, values in MORE.items() for v in values]
    own += [_verb(verb, label, make) for verb in VERBS for label, make in VALUES.items()][::4]
    random.shuffle(own)
    own = own[: count // 2]
    yield from own
    yield from random.sample(every, count - len(own))


def _case(keyword: str, label: str, make: Make) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        given: dict[str, Any] = {
            "model": stand.target,
            "tokenizer": stand.letters,
            "max_num_seqs": SLOTS,
            "max_model_len": 64,
        }
        if keyword in ("dtype", "device", "backend", "model_impl", "trust_remote_code"):
            given["model"] = str(makings.draft_folder(stand))
        given[keyword] = make()
        with stand.neighbour(stand.llm(), outcome):
            llm = outcome.attempt(lambda: LLM(**given))
            if llm is not None:
                with llm:
                    outputs = outcome.attempt(lambda: llm.generate([GOOD[1]], GREEDY)) or []
                stand.note(outputs, outcome)

    names = (keyword, *ALSO.get(keyword, ()), *([kind(make())] if keyword in ALSO else []))
    unclear = label.startswith(("Raises", "np.array", "torch")) or label in ("'1'", "'nan'")
    wrong = label in NOT_NUMBERS or label in ("nan", "-inf", "-1", "-2", "1.5", "-0.5", "inf")
    must = "refuse" if keyword in COUNTS and wrong and not unclear else ""
    return Case(f"LLM({keyword}={shown(label)})", run, names, must)


def _verb(verb: str, label: str, make: Make) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        llm = stand.llm()
        with stand.neighbour(llm, outcome):
            outputs = outcome.attempt(lambda: VERBS[verb](llm, make()))
        stand.note(outputs or [], outcome)

    names = {"stream(params)": "sampling", "chat(params)": "sampling", "chat_prompt": "message"}
    word = names.get(verb, verb.partition("(")[2].strip(")"))
    extra = ("conversation", "prompt", "chat", "list") if verb == "chat_prompt" else ()
    return Case(f"{verb} = {shown(label)}", run, (word, kind(make()), *extra))
