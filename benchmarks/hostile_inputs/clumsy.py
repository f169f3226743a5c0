"""Clumsy and malicious users: numbers of other libraries, objects that change or raise half-way,
copies and pickles, two LLMs of one model, cancelling twice, streams of many samples."""

from __future__ import annotations

import copy
import dataclasses
import decimal
import gc
import pickle
import threading
import unicodedata
from array import array
from collections import ChainMap, OrderedDict, UserDict, UserList, deque, namedtuple
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path, PurePosixPath
from random import Random
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from foretoken import LLM, SamplingParams
from foretoken.drafters.prompt_lookup import PromptLookup
from foretoken.protocols import Verifier
from foretoken.verify.target_only import TargetOnly
from hostile_inputs.case import Case, Outcome
from hostile_inputs.stand import BESIDE, GOOD, GREEDY, LONG, METHODS, SLOTS, VOCAB, Stand, idle
from hostile_inputs.values import Make

Act = Callable[[Stand, LLM, Outcome], Any]
"""Does something to an LLM that is in use; outputs of requests are noted."""


class Text(str):
    """A text whose own methods raise."""

    def encode(self, *_: Any, **__: Any) -> bytes:
        raise RuntimeError("no encode")

    def __len__(self) -> int:
        raise RuntimeError("no len")


class Number(int):
    """A number that says it is another."""

    def __eq__(self, other: object) -> bool:
        return True

    def __lt__(self, other: object) -> bool:
        raise RuntimeError("no order")

    __le__ = __gt__ = __ge__ = __lt__  # type: ignore[assignment]
    __hash__ = int.__hash__


class Growing(list):  # type: ignore[type-arg]
    """Has one more id each time that its length is asked for."""

    def __len__(self) -> int:
        if super().__len__() < 1000:
            self.append(5)
        return super().__len__()


class Ids(list):  # type: ignore[type-arg]
    """Raises in the middle of its ids."""

    def __iter__(self) -> Iterator[int]:
        yield 5
        raise RuntimeError("half-way")


class Changing(UserDict):  # type: ignore[type-arg]
    """Gives another value each time that it is read."""

    def __getitem__(self, key: Any) -> Any:
        self.data[key], value = None, self.data[key]
        return value


class Key(str):
    """Equal to every name."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


class Params(SamplingParams):
    """Parameters with a field of their own."""

    @property
    def greedy(self) -> bool:
        raise RuntimeError("no greedy")


class Lists(SamplingParams):
    """Another class of parameters, with nothing wrong in it."""


def raising() -> Iterator[Any]:
    yield GOOD[0]
    raise RuntimeError("half-way")


def endless() -> Iterator[Any]:
    while True:
        yield 5


Pair = namedtuple("Pair", ["prompt", "params"])
FIELD = "\u0054\u0045\u004d\u0050"

PROMPTS: dict[str, Make] = {
    "a str whose encode raises": lambda: Text("hello"),
    "ids that say they are equal": lambda: [Number(5), Number(900)],
    "ids that grow": lambda: Growing([5]),
    "ids that raise half-way": lambda: Ids([5, 6]),
    "prompts that raise half-way": raising,
    "prompts without an end": endless,
    "a deque of ids": lambda: deque([5, 9]),
    "a UserList of ids": lambda: UserList([5, 9]),
    "a UserDict": lambda: UserDict(prompt="hello"),
    "a ChainMap": lambda: ChainMap({"prompt": "hello"}),
    "a MappingProxyType": lambda: MappingProxyType({"prompt": "hello"}),
    "an OrderedDict": lambda: OrderedDict(prompt_token_ids=[5, 9]),
    "a mapping that changes": lambda: Changing(prompt="hello"),
    "a namespace": lambda: SimpleNamespace(prompt="hello"),
    "a namedtuple": lambda: Pair("hello", None),
    "a 0-d array": lambda: np.array(5),
    "a 0-d tensor": lambda: torch.tensor(5),
    "a list of 0-d arrays": lambda: [np.array(5), np.array(9)],
    "a list of 0-d tensors": lambda: [torch.tensor(5), torch.tensor(9)],
    "a list of 1-d tensors": lambda: [torch.tensor([5]), torch.tensor([9, 2])],
    "a masked array": lambda: np.ma.array([5, 9], mask=[True, False]),
    "a record array": lambda: np.array([(5, 9)], dtype=[("a", int), ("b", int)]),
    "a read-only array": lambda: np.broadcast_to(np.array([5, 9]), (1, 2))[0],
    "a memmap's view": lambda: np.frombuffer(array("q", [5, 9]).tobytes(), np.int64),
    "big-endian": lambda: np.array([5, 9], ">i8"),
    "a path": lambda: Path("hello"),
    "a pure path": lambda: PurePosixPath("/etc/passwd"),
    "decomposed": lambda: unicodedata.normalize("NFD", "h\u00e4\u00dflich"),
    "compatible": lambda: "\uff48\uff49 \ufb01",
    "a byte order mark": lambda: "\ufeffhello",
    "unassigned": lambda: "\U000e0fff\U0010ffff\ufdd0",
    "NUL alone": lambda: "\x00",
    "mixed kinds": lambda: ["hello", [5, 9], np.array([5]), {"prompt": "hi"}],
    "mixed kinds, one bad": lambda: ["hello", [5, -9], np.array([5.5]), {"prompt": 1}],
    "mixed lengths": lambda: [[5] * n for n in (1, 100, 7, 255, 256)],
    "a thousand prompts": lambda: [[5]] * 1000,
    "strings of ids": lambda: ["5", "9"],
    "a string of digits": lambda: "5 9 2",
    "a Decimal id": lambda: [decimal.Decimal(5)],
    "a numpy bool": lambda: [np.bool_(True)],
    "a complex whole": lambda: [5 + 0j],
    "keys of another case": lambda: {"Prompt": "hello"},
    "a key equal to all": lambda: {Key("zzz"): "hello"},
    "a prompt of a prompt": lambda: {"prompt": {"prompt": "hello"}},
    "ids in two axes": lambda: {"prompt_token_ids": [[5, 9]]},
    "embeddings": lambda: {"prompt_embeds": torch.zeros(3, 8)},
    "an exception": lambda: ValueError("hello"),
    "an LLM": lambda: LLM,
    "a lambda": lambda: lambda: "hello",
    "params in place of a prompt": lambda: GREEDY,
}
"""What is given as prompts; each is served or refused, and leaves its neighbours alone."""

FIELDS: dict[str, dict[str, Make]] = {
    "n": {
        "Number(2)": lambda: Number(2),
        "2**64": lambda: 2**64,
        "True": lambda: True,
        "0-d": lambda: np.array(2),
    },
    "max_tokens": {
        "2**31": lambda: 2**31,
        "np.uint64": lambda: np.uint64(2**63),
        "a 0-d tensor": lambda: torch.tensor(4),
        "Decimal(4)": lambda: decimal.Decimal(4),
    },
    "temperature": {
        "-0.0": lambda: -0.0,
        "np.float16": lambda: np.float16(0.1),
        "a 1-d array": lambda: np.array([0.1]),
        "5e-324": lambda: 5e-324,
        "1e6": lambda: 1e6,
    },
    "logit_bias": {
        "keys of np": lambda: {np.int64(3): np.float32(1)},
        "a UserDict": lambda: UserDict({3: 1.0}),
        "keys of text": lambda: {"3": 1.0},
        "huge": lambda: {3: 1e6, 4: -1e6},
        "changes": lambda: Changing({3: 1.0}),
        "a key equal to all": lambda: {Key("3"): 1.0},
    },
    "stop": {
        "a generator": raising,
        "a set": lambda: {"a"},
        "decomposed": lambda: unicodedata.normalize("NFD", "\u00e4"),
        "a str whose len raises": lambda: Text("a"),
        "bytes": lambda: [b"a"],
    },
    "seed": {
        "2**1000": lambda: 2**1000,
        "-(2**1000)": lambda: -(2**1000),
        "np.int64(-1)": lambda: np.int64(-1),
    },
    "logits_processors": {
        "a generator": raising,
        "one that isn't there": lambda: [None],
        "a class": lambda: [dict],
        "a module": lambda: [torch.nn.Identity()],
        "an async one": lambda: [_async],
        "a generator function": lambda: [_yields],
    },
    "references": {
        "a string": lambda: "hello",
        "mixed": lambda: ["hello", [5, 9], np.array([5])],
        "ten thousand": lambda: ["hello"] * 10_000,
        "a generator": raising,
    },
    "priority": {"5": lambda: 5},
    FIELD: {"0.5": lambda: 0.5},
}
"""Values of fields; some are good, and there are fields that don't exist."""


async def _async(ids: Any, scores: Any) -> Any:
    return scores


def _yields(ids: Any, scores: Any) -> Any:
    yield scores


def cases(random: Random, count: int) -> Iterator[Case]:
    """All of them, with methods by chance; fewer by chance."""
    every = [_prompt(label, make, random) for label, make in PROMPTS.items()]
    every += [
        _field(field, label, make, random)
        for field, values in FIELDS.items()
        for label, make in values.items()
    ]
    every += [_act(label, act, random) for label, act in ACTS.items()]
    every += [_rule(label, make) for label, make in RULES.items()]
    every += [_config(label, make) for label, make in CONFIGS.items()]
    random.shuffle(every)
    yield from every[:count]


def _prompt(label: str, make: Make, random: Random) -> Case:
    method, alone = random.choice(METHODS), random.random() < 0.5

    def run(stand: Stand, outcome: Outcome) -> None:
        llm = stand.llm(method)
        with stand.neighbour(llm, outcome):
            if alone:
                given = make()
                stand.note(outcome.attempt(lambda: llm.generate(given, GREEDY)) or [], outcome)
            else:
                stand.together(llm, [make()], [GREEDY], outcome)

    how = "alone" if alone else "beside others"
    names = ("prompt", "token", "text", "conversation", "context")
    return Case(f"a prompt: {label}, {how}, {method}", run, names)


def _field(field: str, label: str, make: Make, random: Random) -> Case:
    method = random.choice(METHODS)

    def run(stand: Stand, outcome: Outcome) -> None:
        given = {"temperature": 0, "max_tokens": 6, "ignore_eos": True, field: make()}
        params = outcome.attempt(lambda: SamplingParams(**given))
        if params is not None:
            llm = stand.llm(method)
            with stand.neighbour(llm, outcome):
                stand.together(llm, [GOOD[0]], [params], outcome)

    return Case(f"{field}: {label}, {method}", run, (field, "processor", "parameter"))


# --- acts ---


def copied(make: Callable[[LLM], Any], stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """A copy serves, or says why it doesn't; the original goes on."""
    other = outcome.attempt(lambda: make(llm))
    if other is not None:
        outputs = outcome.attempt(lambda: other.generate(GOOD, GREEDY)) or []
        stand.note(outputs, outcome)
        texts = [output.token_ids for output in outputs if output.error is None]
        if texts and texts != stand.expected[:2]:
            outcome.blame("wrong", "a copy wrote another text")


def copied_params(make: Callable[[Any], Any], stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """Parameters that were copied mean the same."""
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, stop=["\n\n"])
    _ = params.stops, params.edits  # what they remember goes along
    outputs = outcome.attempt(lambda: llm.generate([GOOD[1]], make(params))) or []
    stand.note(outputs, outcome)
    if outputs and outputs[0].token_ids != stand.expected[1]:
        outcome.blame("wrong", "copied parameters gave another text")


def copied_output(make: Callable[[Any], Any], stand: Stand, llm: LLM, outcome: Outcome) -> None:
    [output] = llm.generate([GOOD[1]], GREEDY)
    [failed] = llm.generate([[VOCAB]], GREEDY)
    for one in (output, failed):
        other = outcome.attempt(lambda one=one: make(one))
        if other is not None and (other.error, other.outputs) != (one.error, one.outputs):
            outcome.blame("wrong", "a copied output is another")
    outcome.served = True


def copied_error(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """An error goes to another process as it is."""
    try:
        llm.generate([VOCAB], GREEDY)
    except Exception as error:
        if str(pickle.loads(pickle.dumps(error))) != str(error):
            outcome.blame("wrong", "a pickled error says something else")
        outcome.errors.append(str(error))


def changed_in_a_stream(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """Parameters and prompts that change while their stream runs: it writes what was asked for."""
    prompt, params = list(GOOD[1]), dataclasses.replace(GREEDY)
    stream = llm.stream(prompt, params)
    next(stream)
    prompt[:] = [VOCAB] * 9
    for name, value in (("max_tokens", "x"), ("temperature", None), ("n", 5)):
        object.__setattr__(params, name, value)
    *_, last = stream
    if last.error is None and last.token_ids != stand.expected[1]:
        outcome.blame("harmed", "a stream followed what was changed later")
    stand.note([last], outcome)


def outputs_changed(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """What a stream has given is the caller's."""
    stream = llm.stream(GOOD[1], GREEDY)
    for output in stream:
        last = list(output.outputs[0].token_ids)
        output.outputs[0].token_ids.clear()
        output.prompt_token_ids.clear()
        output.outputs.clear()
    if last != stand.expected[1]:
        outcome.blame("harmed", "a stream read back what was changed in its outputs")


def many_samples_streamed(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """More samples than slots, in streams that are left at every stage."""
    params = SamplingParams(temperature=1, n=7, max_tokens=6, ignore_eos=True, seed=3)
    whole = [list(o.token_ids) for o in llm.generate([GOOD[1]], params)[0].outputs]
    for stop in (1, 3, 9):
        stream = llm.stream(GOOD[1], params)
        for _ in range(stop):
            next(stream, None)
        stream.close()
    *_, last = llm.stream(GOOD[1], params)
    if [list(o.token_ids) for o in last.outputs] != whole:
        outcome.blame("wrong", "the samples of a stream are others")
    outcome.served = True


def closed_twice(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """A stream that is closed, closed again, and read on."""
    stream = llm.stream(BESIDE, LONG)
    next(stream)
    stream.close()
    stream.close()
    if list(stream):
        outcome.blame("wrong", "a closed stream went on")
    request = llm.stream(BESIDE, LONG)
    request.close()  # before it began
    outcome.served = True


def cancelled_twice(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """Ids that are over, that never were, and twice the same."""
    stream = llm.stream(BESIDE, LONG)
    first = next(stream)
    for _ in range(2):
        llm._worker.cancel([first.request_id, first.request_id, -1, 10**9])
    stream.close()
    outcome.served = True


def thrown_into(error: type[BaseException], stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """An exception that is thrown into a stream comes out of it, and the slot is free."""
    stream: Any = llm.stream(BESIDE, LONG)
    next(stream)
    try:
        stream.throw(error("thrown"))
    except error:
        outcome.served = True


def shared_model(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """Two LLMs of one model, one closed while the other streams."""
    other = stand.new("suffix")
    stream = llm.stream(BESIDE, LONG)
    next(stream)
    other.generate(GOOD, GREEDY)
    other.close()
    *_, last = stream
    if last.token_ids != stand.expected[2]:
        outcome.blame("harmed", "closing another LLM changed a text")
    outcome.served = True


def shared_drafter(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """One drafter object in two LLMs, in turns."""
    drafter = PromptLookup()
    made = [
        outcome.attempt(partial(stand.new, speculative_config={"method": drafter}))
        for _ in range(2)
    ]
    for one in (made[0], made[1], made[0]):
        if one is not None:
            outputs = outcome.attempt(lambda one=one: one.generate(GOOD, GREEDY)) or []
            stand.note(outputs, outcome)
            if [o.token_ids for o in outputs] not in ([], stand.expected[:2]):
                outcome.blame("wrong", "a shared drafter changed a text")
    for one in made:
        if one is not None:
            one.close()


def shared_config(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """A config that is used twice is as it was."""
    config: dict[str, Any] = {"method": "pld+suffix", "pld": {"prompt_lookup_max": 2}}
    before = copy.deepcopy(config)
    for _ in range(2):
        stand.new(speculative_config=config).close()
    if config != before:
        outcome.blame("wrong", "the caller's config was changed")
    outcome.served = True


def closed_while_generating(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """Threads that close in the middle of calls of several samples."""
    own = stand.new("pld")
    params = SamplingParams(n=3, max_tokens=30, ignore_eos=True, seed=1)
    calls = [
        threading.Thread(
            target=lambda: stand.note(
                outcome.attempt(lambda: own.generate(GOOD, params)) or [], outcome
            )
        )
        for _ in range(3)
    ]
    closes = [threading.Thread(target=own.close) for _ in range(3)]
    for thread in (*calls, *closes):
        thread.start()
    for thread in (*calls, *closes):
        thread.join(20)
        if thread.is_alive():
            outcome.blame("crashed", "a thread never came back")


def entered_twice(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    own = stand.new()
    with own, own:
        own.generate(GOOD, GREEDY)
    outcome.attempt(lambda: own.generate(GOOD, GREEDY))
    outcome.attempt(lambda: own.__enter__().generate(GOOD, GREEDY))


def a_stream_outlives(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """The LLM's last name goes while its stream runs, and the stream's while it runs."""
    own: Any = stand.new()
    stream = own.stream(BESIDE, LONG)
    next(stream)
    del own
    gc.collect()
    *_, last = stream
    if last.token_ids != stand.expected[2]:
        outcome.blame("harmed", "a stream without its LLM wrote another text")
    outcome.served = True


def parameters_of_a_class(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    for kind in (Params, Lists):
        params = outcome.attempt(partial(kind, temperature=0, max_tokens=8, ignore_eos=True))
        if params is not None:
            stand.together(llm, [GOOD[1]], [params], outcome)


def a_processor_of_state(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """One processor object for many requests, which counts, raises at the tenth call, and goes."""
    calls = [0]

    def process(ids: Any, scores: Any) -> Any:
        calls[0] += 1
        if calls[0] % 10 == 0:
            raise RuntimeError("the tenth")
        return scores

    params = SamplingParams(
        temperature=0, max_tokens=6, ignore_eos=True, logits_processors=[process, process]
    )
    stand.together(llm, [GOOD[0]] * 4, [params] * 4, outcome)


def a_warning_is_an_error(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stand.together(llm, [GOOD[0]], [GREEDY], outcome)


def another_default(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """torch's defaults are other ones during a call."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float16)
    try:
        stand.together(llm, [GOOD[0]], [GREEDY], outcome)
        with torch.enable_grad(), torch.autograd.set_detect_anomaly(True):
            stand.together(llm, [GOOD[1]], [GREEDY], outcome)
    finally:
        torch.set_default_dtype(before)


def stats_are_spoiled(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    """What the properties give back is looked at, changed, reset in the middle."""
    stream = llm.stream(BESIDE, LONG)
    next(stream)
    llm.reset_stats()
    repr(llm), str(llm.stats), copy.deepcopy(llm.stats)
    *_, last = stream
    if last.token_ids != stand.expected[2]:
        outcome.blame("harmed", "reading statistics changed a text")
    outcome.served = True


def attributes_are_set(stand: Stand, llm: LLM, outcome: Outcome) -> None:
    own = stand.new()
    own.method = None  # type: ignore[assignment]
    own.tokenizer = None
    outputs = outcome.attempt(lambda: own.generate(GOOD, GREEDY)) or []
    stand.note(outputs, outcome)
    own.close()


def _pickled(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


def _acts() -> Iterator[tuple[str, Act]]:
    copies = {"deepcopy": copy.deepcopy, "copy": copy.copy, "pickle": _pickled}
    for name, make in copies.items():
        yield f"{name} of an LLM", partial(copied, make)
        yield f"{name} of SamplingParams", partial(copied_params, make)
        yield f"{name} of an output", partial(copied_output, make)
    for error in (ValueError, SystemExit, KeyboardInterrupt, GeneratorExit):
        yield f"{error.__name__} thrown into a stream", partial(thrown_into, error)
    plain: list[Act] = [
        copied_error,
        changed_in_a_stream,
        outputs_changed,
        many_samples_streamed,
        closed_twice,
        cancelled_twice,
        shared_model,
        shared_drafter,
        shared_config,
        closed_while_generating,
        entered_twice,
        a_stream_outlives,
        parameters_of_a_class,
        a_processor_of_state,
        a_warning_is_an_error,
        another_default,
        stats_are_spoiled,
        attributes_are_set,
    ]
    for act in plain:
        yield act.__name__.replace("_", " "), act


ACTS: dict[str, Act] = dict(_acts())


def _act(label: str, act: Act, random: Random) -> Case:
    method = random.choice(METHODS)

    def run(stand: Stand, outcome: Outcome) -> None:
        llm = stand.llm(method)
        with stand.neighbour(llm, outcome):
            act(stand, llm, outcome)
        if not idle(llm):
            outcome.blame("unusable", "a slot is lost")

    return Case(f"{label}, {method}", run)


# --- rules and configs ---


class Rule(TargetOnly):
    """A rule of a user's own; `does` makes its verdict another."""

    def __init__(self, does: Callable[[Any], Any]) -> None:
        self.does = does

    def __call__(self, trees: Any, scores: Any, draws: Any) -> Any:
        return self.does(super().__call__(trees, scores, draws))


def _fails(verdict: Any) -> Any:
    raise KeyError("rule")


RULES: dict[str, Callable[[Any], Any]] = {
    "raises": _fails,
    "gives None": lambda verdict: None,
    "gives a tuple": lambda verdict: (1, 2),
    "accepts too much": lambda v: v._replace(lengths=v.lengths + 99),
    "accepts less than nothing": lambda v: v._replace(lengths=v.lengths - 9),
    "writes ids too high": lambda v: v._replace(token=v.token + VOCAB),
    "writes negative ids": lambda v: v._replace(token=v.token - VOCAB),
    "writes floats": lambda v: v._replace(token=v.token + 0.5),
    "writes for too few": lambda v: v._replace(token=v.token[:0]),
    "walks past the tree": lambda v: v._replace(path=v.path + 99),
    "is on meta": lambda v: v._replace(token=v.token.to("meta")),
    "strays by None": lambda v: v._replace(strayed=v.token * 10**6),
}
"""What a rule of a user's own makes of a verdict."""


def _rule(label: str, does: Callable[[Any], Any]) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        rule: Verifier = Rule(does)
        config = {"method": "pld", "verifier": rule}
        llm = outcome.attempt(lambda: stand.new(speculative_config=config))
        if llm is None:
            return
        with llm, stand.neighbour(stand.llm(), outcome):
            for prompt in GOOD:
                stand.note(outcome.attempt(lambda p=prompt: llm.generate([p], GREEDY)), outcome)
            if llm.engine.target.free != SLOTS:
                outcome.blame("unusable", "a slot is lost")

    return Case(f"a rule that {label}", run, ("rule", "Rule", "verif", "token"))


CONFIGS: dict[str, Make] = {
    "a UserDict": lambda: UserDict(method="pld"),
    "a ChainMap": lambda: ChainMap({"method": "pld"}, {"prompt_lookup_max": 3}),
    "a mapping that changes": lambda: Changing(method="pld"),
    "a key equal to all": lambda: {Key("method"): "pld"},
    "a method of a str class": lambda: {"method": Text("pld")},
    "a list of pairs": lambda: [("method", "pld")],
    "JSON": lambda: '{"method": "pld"}',
    "a namespace": lambda: SimpleNamespace(method="pld"),
    "full width": lambda: {"method": "\uff50\uff4c\uff44"},
    "a Cyrillic letter": lambda: {"method": "\u0440ld"},
    "a zero-width space": lambda: {"method": "pld\u200b"},
    "a 0-d array": lambda: {"method": "pld", "prompt_lookup_max": np.array(3)},
    "a 0-d tensor": lambda: {"method": "pld", "prompt_lookup_max": torch.tensor(3)},
    "a bool for a count": lambda: {"method": "pld", "prompt_lookup_max": True},
    "2**63": lambda: {"method": "pld", "prompt_lookup_max": 2**63},
    "a path for a name": lambda: {"method": Path("pld")},
    "a path for a model": lambda: {"method": "sps", "model": Path("no/such")},
    "a URL for a model": lambda: {"method": "sps", "model": "file:/etc/passwd"},
    "a device for a model": lambda: {"method": "sps", "model": "/dev/null"},
    "a home for a model": lambda: {"method": "sps", "model": "~/no-such"},
    "a variable for a model": lambda: {"method": "sps", "model": "$HOME"},
    "the target's class": lambda: {"method": "sps", "model": torch.nn.Linear},
    "another module": lambda: {"method": "sps", "model": torch.nn.Linear(2, 2)},
    "itself": lambda: _itself(),
}
"""`speculative_config`s."""


def _itself() -> Any:
    config: dict[str, Any] = {"method": "pld+suffix"}
    config["pld"] = config
    return config


def _config(label: str, make: Make) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        with stand.neighbour(stand.llm(), outcome):
            llm = outcome.attempt(lambda: stand.new(speculative_config=make()))
            if llm is None:
                return
            with llm:
                outputs = outcome.attempt(lambda: llm.generate(GOOD, GREEDY)) or []
            stand.note(outputs, outcome)
            if any(o.error is None and o.token_ids not in stand.expected for o in outputs):
                outcome.blame("wrong", "it wrote another text than plain decoding")

    names = (
        "speculative_config",
        "method",
        "option",
        "prompt_lookup",
        "checkpoint",
        "model",
        "disk",
    )
    return Case(f"a config: {label}", run, names)
