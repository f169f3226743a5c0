"""Drafters and tokenizers of a user's own that raise or give back what nobody asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from threading import Thread
from typing import Any

import numpy as np
import torch

from foretoken import LLM
from foretoken.access import Wants
from foretoken.protocols import BaseDrafter
from foretoken.tree import DraftTree, Kind, chains, empty
from hostile_inputs.case import Case, Outcome
from hostile_inputs.stand import GOOD, GREEDY, SLOTS, VOCAB, Stand, idle

MARK = 7
"""The prompt of the hostile request begins with this id; drafters do no harm to others."""

Draft = Callable[[Any, Any, Any], Any]


def _tree(tokens: Any, **fields: Any) -> Draft:
    """The same tree for every sequence."""

    def draft(sequences: Any, budgets: Any, draws: Any) -> Any:
        rows = torch.as_tensor(tokens)[None].repeat(len(sequences), 1)
        return DraftTree(rows, [rows.shape[1]] * len(sequences), **fields)

    return draft


def _raise(error: BaseException) -> Draft:
    def draft(*_: Any) -> Any:
        raise error

    return draft


REFUSED = set(
    [
        "a list",
        "None",
        "a tensor",
        "a dict",
        "too few rows",
        "too many rows",
        "ids too high",
        "ids of 2**40",
        "negative ids",
        "float ids",
        "tokens of three axes",
        "parents negative",
        "parents too high",
        "on meta",
    ]
)
"""Drafts that are none; the others may be served, as long as the text is the target's."""


DRAFTS: dict[str, Draft] = {
    "a list": lambda s, b, d: [[1, 2]] * len(s),
    "None": lambda s, b, d: None,
    "a tensor": lambda s, b, d: torch.tensor([[1, 2]] * len(s)),
    "a dict": lambda s, b, d: {},
    "the class": lambda s, b, d: DraftTree,
    "too few rows": lambda s, b, d: chains([[1]] * (len(s) - 1), torch.device("cpu")),
    "too many rows": lambda s, b, d: chains([[1]] * (len(s) + 1), torch.device("cpu")),
    "ids too high": lambda s, b, d: chains([[VOCAB]] * len(s), torch.device("cpu")),
    "ids of 2**40": lambda s, b, d: chains([[2**40]] * len(s), torch.device("cpu")),
    "negative ids": lambda s, b, d: chains([[-1]] * len(s), torch.device("cpu")),
    "more than the budget": lambda s, b, d: chains([[1] * 500] * len(s), torch.device("cpu")),
    "float ids": _tree([1.0, 2.0]),
    "int32 ids": _tree(np.array([1, 2], np.int32)),
    "bool ids": _tree([True, False]),
    "counts too high": lambda s, b, d: DraftTree(torch.ones(len(s), 1).long(), [9] * len(s)),
    "counts negative": lambda s, b, d: DraftTree(torch.ones(len(s), 1).long(), [-1] * len(s)),
    "counts too few": lambda s, b, d: DraftTree(torch.ones(len(s), 1).long(), []),
    "counts of None": lambda s, b, d: DraftTree(torch.ones(len(s), 1).long(), None),  # type: ignore[arg-type]
    "tokens of three axes": lambda s, b, d: DraftTree(
        torch.ones(len(s), 1, 1).long(), [1] * len(s)
    ),
    "parents ahead": _tree([1, 2], parents=torch.tensor([[2, 0]])),
    "parents of themselves": _tree([1, 2], parents=torch.tensor([[1, 2]])),
    "parents negative": _tree([1, 2], parents=torch.tensor([[-1, 0]])),
    "parents too high": _tree([1, 2], parents=torch.tensor([[0, 99]])),
    "kinds unknown": _tree([1, 2], kinds=torch.tensor([[9, 9]], dtype=torch.int8)),
    "an undeclared kind": _tree([1, 2], kind=Kind.INDEPENDENT),
    "NaN proposals": _tree([1], kind=Kind.INDEPENDENT, proposals=torch.full((1, 1, VOCAB), np.nan)),
    "negative proposals": _tree(
        [1], kind=Kind.INDEPENDENT, proposals=torch.full((1, 1, VOCAB), -1.0)
    ),
    "narrow proposals": _tree([1], kind=Kind.INDEPENDENT, proposals=torch.ones(1, 1, 3)),
    "rows too high": _tree(
        [1], kind=Kind.INDEPENDENT, proposals=torch.ones(1, 1, VOCAB), rows=torch.tensor([[5]])
    ),
    "on meta": _tree(torch.empty(2, dtype=torch.long, device="meta")),
    "changes the texts": lambda s, b, d: [x.tokens.append(1) for x in s],
    "empties the texts": lambda s, b, d: [x.tokens.clear() for x in s],
}
"""What `draft` gives back."""

RAISED: dict[str, Draft] = {
    "ValueError": _raise(ValueError("a\nb")),
    "KeyError": _raise(KeyError("x")),
    "SystemExit": _raise(SystemExit(2)),
    "KeyboardInterrupt": _raise(KeyboardInterrupt()),
    "MemoryError": _raise(MemoryError()),
    "StopIteration": _raise(StopIteration()),
    "an assertion": _raise(AssertionError()),
    "10,000 characters": _raise(RuntimeError("x" * 10_000)),
}
"""What any call may raise."""


LEAVING = ("SystemExit", "KeyboardInterrupt")
"""What ends the program where it is raised on the caller's own thread, as in `bind`."""


@dataclass(eq=False)
class Bad(BaseDrafter):
    """Drafts nothing, but does its worst at one call where a marked sequence takes part."""

    at: str
    does: Draft

    wants = Wants("b")
    trees = True
    kinds = frozenset({Kind.CHOSEN, Kind.INDEPENDENT})

    def bind(self, access: Any) -> None:
        self._device = access.device
        if self.at == "bind":
            self.does([], [], None)

    def begin(self, sequence: Any) -> None:
        self._maybe("begin", [sequence])

    def end(self, sequences: Any) -> None:
        self._maybe("end", sequences)

    def observe(self, sequences: Any, steps: Any) -> None:
        self._maybe("observe", sequences)

    def draft(self, sequences: Any, budgets: Any, draws: Any) -> Any:
        if self.at == "draft" and _marked(sequences):
            return self.does(sequences, budgets, draws)
        return empty(len(sequences), self._device)

    def _maybe(self, call: str, sequences: Any) -> None:
        if self.at == call and _marked(sequences):
            self.does(sequences, [], None)


def _marked(sequences: Any) -> bool:
    return any(sequence.tokens[:1] == [MARK] for sequence in sequences)


def cases(random: Random, count: int) -> Iterator[Case]:
    every = [_drafter(label, "draft", does) for label, does in DRAFTS.items()]
    for call in ("bind", "begin", "draft", "observe", "end"):
        for label, does in RAISED.items():
            if call != "bind" or label not in LEAVING:
                every.append(_drafter(label, call, does))
    every += [_missing(name) for name in ("draft", "bind", "wants", "kinds", "trees", "observe")]
    every += [_tokenizer(label, tokenizer) for label, tokenizer in TOKENIZERS.items()]
    random.shuffle(every)
    yield from every[:count]


def _drafter(label: str, call: str, does: Draft) -> Case:
    def run(stand: Stand, outcome: Outcome) -> None:
        drafter = Bad(call, does)
        build = lambda: stand.new(speculative_config={"method": drafter})  # noqa: E731
        llm = outcome.attempt(build)
        if llm is None:
            return
        with llm, stand.neighbour(llm, outcome):
            [output] = stand.together(llm, [[MARK, 9, 2, 5]], [GREEDY], outcome) or [None]
            if output and output.error is None and output.token_ids != _text(stand):
                outcome.blame("wrong", "it wrote another text than plain decoding")

    # `end` comes when the text is there.
    must = "refuse" if label in {*REFUSED, *RAISED} and call != "end" else ""
    return Case(f"a drafter's {call}: {label}", run, ("drafter", "Bad", "draft"), must)


def _text(stand: Stand) -> list[int]:
    """What the marked prompt's text is."""
    text: list[int] = stand.llm().generate([[MARK, 9, 2, 5]], GREEDY)[0].token_ids
    return text


def _missing(name: str) -> Case:
    """An object that has all of a drafter but this."""

    def run(stand: Stand, outcome: Outcome) -> None:
        inner = Bad("nothing", _raise(ValueError()))

        class Partial:
            def __getattr__(self, wanted: str) -> Any:
                if wanted == name:
                    raise AttributeError(wanted)
                return getattr(inner, wanted)

        config = {"method": Partial()}
        build = lambda: LLM(stand.target, speculative_config=config, max_num_seqs=SLOTS)  # noqa: E731
        llm = outcome.attempt(build)
        if llm is not None:
            with llm, stand.neighbour(stand.llm(), outcome):
                outputs = outcome.attempt(lambda: llm.generate([GOOD[1]], GREEDY)) or []
                stand.note(outputs, outcome)

    return Case(f"a drafter without {name}", run, ("drafter", "Partial", name))


class Tokenizer:
    """The good one, but for one method."""

    def __init__(self, good: Any, name: str, does: Callable[..., Any]) -> None:
        self._good, self._name, self._does = good, name, does

    def __call__(self, *given: Any, **options: Any) -> Any:
        return (self._does if self._name == "call" else self._good)(*given, **options)

    def __len__(self) -> int:
        return self._does() if self._name == "len" else len(self._good)

    def __getattr__(self, name: str) -> Any:
        return self._does if name == self._name else getattr(self._good, name)


def _fails(*_: Any, **__: Any) -> Any:
    raise KeyError("tokenizer\n")


def _gives(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


TOKENIZERS: dict[str, tuple[str, Callable[..., Any]]] = {
    "raises at a text": ("call", _fails),
    "raises at decoding": ("decode", _fails),
    "raises at a chat": ("apply_chat_template", _fails),
    "exits at decoding": ("decode", lambda *_, **__: (_ for _ in ()).throw(SystemExit(1))),
    "gives None": ("call", _gives(None)),
    "gives no input_ids": ("call", _gives({})),
    "gives input_ids of None": ("call", _gives({"input_ids": None})),
    "gives strings": ("call", _gives({"input_ids": ["a"]})),
    "gives floats": ("call", _gives({"input_ids": [1.5]})),
    "gives high ids": ("call", _gives({"input_ids": [10**6]})),
    "gives negative ids": ("call", _gives({"input_ids": [-5]})),
    "gives nested ids": ("call", _gives({"input_ids": [[1, 2]]})),
    "gives no ids": ("call", _gives({"input_ids": []})),
    "gives a text": ("call", _gives("abc")),
    "decodes to None": ("decode", _gives(None)),
    "decodes to bytes": ("decode", _gives(b"abc")),
    "decodes to 5": ("decode", _gives(5)),
    "decodes to a surrogate": ("decode", _gives("\ud800")),
    "decodes to nothing": ("decode", _gives("")),
    "decodes to ever less": ("decode", lambda ids, **_: "x" * max(0, 5 - len(ids))),
    "chats in None": ("apply_chat_template", _gives(None)),
    "chats in 5": ("apply_chat_template", _gives(5)),
    "chats in nothing": ("apply_chat_template", _gives("")),
    "has a template of 5": ("chat_template", _fails),
}
"""What a user's tokenizer does, and in which method."""


def _tokenizer(label: str, bad: tuple[str, Callable[..., Any]]) -> Case:
    """Its own requests may fail; those that ask for no text's ids are served."""

    def run(stand: Stand, outcome: Outcome) -> None:
        tokenizer = Tokenizer(stand.letters, *bad)
        llm = outcome.attempt(lambda: stand.new(tokenizer=tokenizer))
        if llm is None:
            return
        with llm:
            for ask in (
                lambda: llm.generate(["hello", [5, 9]], GREEDY),
                lambda: llm.chat([{"role": "user", "content": "hi"}], GREEDY),
                lambda: list(llm.stream("hello", GREEDY))[-1:],
            ):
                answers: list[Any] = []
                work = lambda ask=ask, answers=answers: answers.append(outcome.attempt(ask))  # noqa: E731
                thread = Thread(target=work)  # no program ends here that calls sys.exit
                thread.start()
                thread.join()
                stand.note(answers[0] or [], outcome)
            if bad[0] != "decode":
                ids = [output.token_ids for output in llm.generate([GOOD[1]], GREEDY)]
                if ids != stand.expected[1:2]:
                    outcome.blame("unusable", "a request of token ids got another text")
            elif not idle(llm):
                outcome.blame("unusable", "a slot is lost")

    return Case(f"a tokenizer that {label}", run, ("token", "chat", "prompt", "text"))
