"""Grammars are compiled once, in the background, in a bounded number of threads."""

from __future__ import annotations

import threading

import pytest

from foretoken import ForetokenError, StructuredOutputsParams
from foretoken.grammar import compiling
from foretoken.grammar.compiling import Compiler, check_backend, found_backend
from foretoken.grammar.guidance import Guidance
from foretoken.grammar.xgrammar import XGrammar
from foretoken.testing import automaton

START = automaton(3, {0: {0: 0}}, whole={0}).start


class Counting:
    """A backend that can be held up."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.go = threading.Event()

    def compile(self, form: StructuredOutputsParams) -> compiling.Start:
        self.asked.append(form.text)
        if form.text == "slow":
            self.go.wait(5)
        if form.text == "wrong":
            raise ForetokenError("no such grammar")
        return START


def form(text: str) -> StructuredOutputsParams:
    return StructuredOutputsParams(regex=text)


def test_equal_grammars_are_compiled_once() -> None:
    """Also while the first is being compiled; what failed is tried again."""
    backend = Counting()
    compiler = Compiler(lambda: backend)
    for text in ("a", "a", "wrong", "a", "wrong"):
        pending = compiler.compile(form(text))
        pending.wait(5)
        assert pending.settled
    assert backend.asked == ["a", "wrong", "wrong"]
    with pytest.raises(ForetokenError, match="no such grammar"):
        pending.result()


def test_what_takes_too_long_fails_and_threads_stay_few() -> None:
    backend = Counting()
    compiler = Compiler(lambda: backend, seconds=0.05)
    before = threading.active_count()
    late = [compiler.compile(form("slow")) for _ in range(3)]
    others = [compiler.compile(form(f"{n}")) for n in range(20)]
    late[0].wait(0.1)
    assert late[0].settled
    with pytest.raises(ForetokenError, match=r"within 0\.05 s"):
        late[0].result()
    assert threading.active_count() - before <= compiling.THREADS
    backend.go.set()
    others[-1].wait(5)
    assert others[-1].result() is START


def test_the_least_recently_used_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "KEPT", 2)
    backend = Counting()
    compiler = Compiler(lambda: backend)
    for text in ("a", "b", "a", "c", "a", "b"):
        compiler.compile(form(text)).wait(5)
    assert backend.asked == ["a", "b", "c", "b"]


def test_backends_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """ "auto" is the first that is installed."""
    with pytest.raises(ForetokenError, match="Did you mean 'xgrammar'"):
        check_backend("xgrammer")
    assert check_backend("auto") == "auto"
    monkeypatch.setattr(compiling, "find_spec", lambda name: name)
    assert (found_backend("auto"), found_backend("xgrammar")) == (Guidance, XGrammar)
    monkeypatch.setattr(compiling, "find_spec", lambda name: name == "xgrammar" or None)
    assert found_backend("auto") is XGrammar
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    with pytest.raises(ForetokenError, match=r"foretoken\[xgrammar\]"):
        found_backend("xgrammar")
