"""Grammars are compiled once, in the background, in a bounded number of threads."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import time
import weakref

import pytest

from foretoken import ForetokenError, StructuredOutputsParams
from foretoken.errors import Overloaded
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
            self.go.wait(60)
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
    compiler = Compiler(lambda: backend, seconds=1)
    late = [compiler.compile(form("slow")) for _ in range(3)]
    others = [compiler.compile(form(f"{n}")) for n in range(20)]
    late[0].wait(1.1)
    assert late[0].settled
    with pytest.raises(ForetokenError, match="within 1 s"):
        late[0].result()
    assert len(compiler._staff.threads) <= compiling.THREADS
    backend.go.set()
    others[-1].wait(5)
    assert others[-1].result() is START


class Endless(Counting):
    """A backend to which most grammars are endless."""

    def compile(self, form: StructuredOutputsParams) -> compiling.Start:
        self.asked.append(form.text)
        if not form.text.startswith("short"):
            self.go.wait(60)
        return START


def settled(pending: compiling.Pending) -> compiling.Pending:
    """As the engine waits."""
    while not pending.settled:
        pending.wait(0.01)
    return pending


def test_grammars_that_never_end_keep_no_other_from_being_compiled() -> None:
    """Until there are too many of them, when the rest is refused at once; those that are compiled
    already are served, and where some of the endless ones end, all are again."""
    backend = Endless()
    compiler = Compiler(lambda: backend, seconds=1)
    for texts in ("ab", "cd", "ef"):
        late = [compiler.compile(form(text)) for text in texts]
        waiting = compiler.compile(form(f"short, beside {texts}"))
        for pending in late:
            with pytest.raises(ForetokenError, match="within 1 s"):
                settled(pending).result()
        if texts != "ef":
            assert settled(compiler.compile(form(f"short, after {texts}"))).result() is START
            waiting.wait(5)
            assert waiting.result() is START
    with pytest.raises(Overloaded, match=r"6 grammars .* don't come to an end"):
        settled(waiting).result()
    assert len(compiler._staff.threads) <= compiling.MOST_THREADS
    time.sleep(0.4)
    with pytest.raises(Overloaded, match=r"6 grammars .* don't come to an end"):
        compiler.compile(form("short, too late"))
    assert compiler.compile(form("short, after ab")).result() is START
    backend.go.set()
    for _ in range(500):
        if len(compiler._staff.threads) == compiling.THREADS:
            break
        time.sleep(0.01)
    assert len(compiler._staff.threads) == compiling.THREADS
    assert settled(compiler.compile(form("short, again"))).result() is START
    assert compiler.compile(form("a")).result() is START


def begun(backend: Counting, count: int) -> None:
    """Wait until so many are being compiled."""
    while len(backend.asked) < count:
        time.sleep(0.01)


def test_what_nobody_waits_for_any_more_is_not_begun() -> None:
    """Requests that have ended leave it; where it is asked for anew, it is compiled."""
    backend = Endless()
    compiler = Compiler(lambda: backend)
    for text in "ab":
        compiler.compile(form(text))
    begun(backend, 2)
    left = [compiler.compile(form(f"short {n}")) for n in range(9)]
    shared = compiler.compile(form("short 8"))
    for pending in left * 2:
        pending.leave()
    anew = compiler.compile(form("short 6"))
    backend.go.set()
    for pending in (shared, anew):
        assert settled(pending).result() is START
        pending.leave()
    assert sorted(backend.asked) == ["a", "b", "short 6", "short 8"]
    assert compiler.compile(form("short 8")).result() is START


class Slow(Counting):
    """A backend that takes long, and not too long."""

    def compile(self, form: StructuredOutputsParams) -> compiling.Start:
        time.sleep(0.3)
        return START


def test_what_waits_for_others_is_not_late() -> None:
    """Its time begins with its turn."""
    compiler = Compiler(Slow, seconds=0.6)
    *_, last = [compiler.compile(form(text)) for text in "abcde"]
    assert settled(last).result() is START


def compiling_still(threads: set[threading.Thread]) -> list[threading.Thread]:
    """Those that are left of two, once the other one has ended."""
    for _ in range(500):
        left = [thread for thread in threads if thread.is_alive()]
        if len(left) < 2:
            break
        time.sleep(0.01)
    return left


def test_the_threads_end_with_the_compiler() -> None:
    """At once those that wait, and each other one after what it compiles."""
    backend, before = Counting(), set(threading.enumerate())
    compiler = Compiler(lambda: backend)
    pending = compiler.compile(form("slow"))
    compiler.compile(form("a")).wait(5)
    begun(backend, 2)
    threads = set(threading.enumerate()) - before
    assert len(threads) == compiling.THREADS
    freed = weakref.ref(compiler)
    del compiler
    assert freed() is None
    [busy] = compiling_still(threads)
    backend.go.set()
    pending.wait(5)
    busy.join(5)
    assert pending.result() is START and not busy.is_alive()


def test_the_interpreter_does_not_wait_for_a_grammar() -> None:
    """It ends quietly, whatever is being compiled."""
    code = """
import threading, time
from foretoken import StructuredOutputsParams
from foretoken.grammar.compiling import Compiler
begun = threading.Event()
class Endless:
    def compile(self, form):
        begun.set()
        time.sleep(600)
compiler = Compiler(Endless)
compiler.compile(StructuredOutputsParams(regex="a"))
begun.wait()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")


def test_waiting_leaves_nothing_behind() -> None:
    """An idle engine waits a hundred times a second."""
    backend = Endless()
    pending = Compiler(lambda: backend).compile(form("a"))
    begun(backend, 1)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(500):
        pending.wait(0)
    gc.collect()
    assert len(gc.get_objects()) - before < 250
    backend.go.set()


def test_a_system_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks is told. Who waits already goes on, until there is one. One thread is enough."""
    backend, start, left = Endless(), threading.Thread.start, [True]

    def limited(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    compiler = Compiler(lambda: backend, seconds=0.2)
    late = [compiler.compile(form(text)) for text in "ab"]
    waiting = compiler.compile(form("short"))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", limited)
        assert settled(Compiler(Counting).compile(form("a"))).result() is START
        for pending in late:
            with pytest.raises(ForetokenError, match=r"within 0\.2 s"):
                settled(pending).result()
        assert not waiting.settled
        with pytest.raises(RuntimeError, match="start new thread"):
            compiler.compile(form("short too"))
        assert len(compiler._staff.threads) == 2
    assert settled(waiting).result() is START
    backend.go.set()


def test_long_texts_are_forgotten_earlier(monkeypatch: pytest.MonkeyPatch) -> None:
    """A grammar's size goes by its text's. The last one stays, whatever its size."""
    monkeypatch.setattr(compiling, "KEPT_CHARACTERS", 10, raising=False)
    backend = Counting()
    compiler = Compiler(lambda: backend)
    texts = ("aaaa", "bbbb", "aaaa", "cccc", "aaaa", "bbbb", "d" * 20, "d" * 20, "bbbb", "aaaa")
    for text in texts:
        compiler.compile(form(text)).wait(5)
    assert backend.asked == ["aaaa", "bbbb", "cccc", "bbbb", "d" * 20, "bbbb", "aaaa"]


def test_a_pattern_of_white_space_is_a_part_of_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """By whose size grammars are forgotten."""
    monkeypatch.setattr(compiling, "KEPT_CHARACTERS", 40)
    backend = Counting()
    compiler = Compiler(lambda: backend)
    spaced = StructuredOutputsParams(json_object=True, whitespace_pattern=" " * 30)
    for asked in (form("aaaa"), spaced, form("aaaa")):
        compiler.compile(asked).wait(5)
    assert backend.asked.count("aaaa") == 2


def test_compiled_grammars_hold_no_texts() -> None:
    compiler, given = Compiler(Counting), form("a")
    held = weakref.ref(given)
    compiler.compile(given).wait(5)
    del given
    for _ in range(200):
        gc.collect()
        if held() is None:
            break
        time.sleep(0.01)
    assert held() is None


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
