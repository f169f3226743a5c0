"""Errors: one sentence with a remedy."""

from __future__ import annotations

from threading import Thread
from weakref import ref

import pytest

from foretoken.errors import ForetokenError, caught, described, one_line, shown, unknown


def test_the_nearest_name_is_offered() -> None:
    """A slip of the pen is answered with what was meant, and all choices follow in order."""
    error = unknown("method", "medsua", ["pld", "medusa", "sps"])
    assert isinstance(error, ForetokenError) and isinstance(error, ValueError)
    assert str(error) == (
        "Unknown method 'medsua'. Did you mean 'medusa'? Choose one of: medusa, pld, sps."
    )


def test_letters_in_another_order_come_first() -> None:
    """Also before a name that shares as many, and comes later in the alphabet."""
    assert "Did you mean 'pld'?" in str(unknown("method", "pdl", ["ppd", "pld", "sps"]))


def test_capitals_are_no_other_name() -> None:
    """Names of papers, as EAGLE-2, are typed as they are printed there."""
    names = ["pld", "eagle2", "Q4_K"]
    for typed, meant in (("PLD", "pld"), ("EAGLE-2", "eagle2"), ("q4_k", "Q4_K"), ("PDL", "pld")):
        assert f"Did you mean {meant!r}?" in str(unknown("method", typed, names))
    many = [*(f"rule_{number}" for number in range(100)), *names]
    assert "pld" in str(unknown("method", "PL", many)).partition("Choose one of")[2]


def test_a_long_list_is_cut_to_the_nearest_names() -> None:
    """Two hundred names would hide the one that was meant."""
    names = [f"method_{number}" for number in range(200)]
    said = str(unknown("method", "methd_77", names))
    assert len(said) < 300 and "Did you mean 'method_77'?" in said and "(200 in all)." in said
    assert "(40 in all)." in str(unknown("method", "methd_7", names[:40]))
    assert len(str(unknown("method", "x" * 10_000, ["pld"]))) < 200
    assert "Choose one of: pld." in str(unknown("method", "", ["pld"]))


def test_an_error_is_one_printable_line() -> None:
    """Whatever is given: names and paths come from outside."""
    assert str(ForetokenError("No a\nb\x1b[31m\ud800.")) == "No a b\ufffd[31m\ufffd."


def test_a_path_without_end_is_cut_in_its_middle() -> None:
    long, path = "a" * 999, "/b" * 9000 + "/end"
    told = str(ForetokenError(f"{long} and {path} can't be written."))
    assert told.startswith(f"{long} and /b/b") and told.endswith("/b/b/end can't be written.")
    assert len(told) < 1600 and "…" in told


def test_nothing_near() -> None:
    """A name that is like no other is not answered with a guess."""
    assert "Did you mean" not in str(unknown("method", "xyzzy", ["pld", "sps"]))


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (KeyError(), "It raised KeyError: –"),
        (ValueError("one\ntwo"), "It raised ValueError: one"),
        (Mute(), "It raised Mute: –"),
        (ValueError("\x1b[31m\ud800"), "It raised ValueError: \ufffd[31m\ufffd"),
        (ValueError("x" * 9000), f"It raised ValueError: {'x' * 238} …"),
        (
            TypeError("got (<class 'int'>, <class 'a.B'>), <f at 0x7f12>"),
            "It raised TypeError: got (int, a.B), <f>",
        ),
        (ValueError(f"It is so. {'x' * 200}. And so. {'y' * 900}"), "x" * 200 + ". And so"),
    ],
    ids=lambda given: type(given).__name__,
)
def test_what_somebody_elses_code_raised(error: Exception, words: str) -> None:
    """In one printable sentence, whatever the error says and whether it can say it at all."""
    assert str(described("It", error)).endswith(words)
    assert one_line(error).isprintable() and one_line(error)


def test_interrupts_come_through_on_the_main_thread_only() -> None:
    """Ctrl-C and sys.exit reach no other."""
    elsewhere: list[type[BaseException]] = []
    thread = Thread(target=lambda: elsewhere.append(caught()))
    thread.start()
    thread.join()
    assert caught() is Exception and elsewhere == [BaseException]


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError


ENDLESS: list[object] = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (None, "None"),
        ("a\nb", r"'a\nb'"),
        ("\ud800", r"'\ud800'"),
        ("\x1b[2J", r"'\x1b[2J'"),
        (Rude(), "a value of type Rude"),
        (object(), "a value of type object"),
        ([1, Rude()], "a value of type list"),
        (ENDLESS, "a value of type list"),
        ({"a": (1, None)}, "{'a': (1, None)}"),
        (Rude, "the class Rude"),
        (10**5000, "a value of type int"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_in_a_sentence(value: object, words: str) -> None:
    """Printable on any terminal, whatever it is and whatever its own words do."""
    assert shown(value) == words


def test_a_long_value_is_cut() -> None:
    assert shown("x" * 500).endswith(" …") and len(shown("x" * 500)) == 80
    assert shown("x" * 78) == f"'{'x' * 78}'"  # which is as long as the other one


def test_what_another_error_says() -> None:
    """On one line without its full stop; its type where it says nothing."""
    assert one_line(ValueError("\n one\ntwo. ")) == "one two" and one_line(KeyError()) == "KeyError"


def test_values_on_the_way_are_let_go() -> None:
    """Those of a pass that failed are gone while its error is still kept, with the text of its
    traceback; also those of an error before it, and none of its caller's."""
    values: list[ref[Rude]] = []

    def held() -> Rude:
        values.append(ref(value := Rude()))
        return value

    def begins() -> None:
        _value = held()
        raise KeyError("first")

    def fails() -> None:
        _value = held()
        try:
            begins()
        except KeyError:
            raise RuntimeError("full") from None

    def tells() -> ForetokenError | None:
        _value = held()
        try:
            return fails()
        except RuntimeError as error:
            return described("It", error)

    try:
        raise ValueError("above")
    except ValueError as above:
        told = tells()
        assert above.__traceback__ is not None
    assert told is not None and isinstance(told.__cause__, RuntimeError)
    assert [value() for value in values] == [None] * 3
    assert "in fails" in told.__cause__.__notes__[0]
    assert "in tells" not in told.__cause__.__notes__[0]


def test_an_error_that_is_raised_again_has_one_note() -> None:
    same = RuntimeError("full")

    def fails() -> None:
        raise same

    for _ in range(3):
        try:
            fails()
        except RuntimeError as error:
            described("It", error)
    assert len(same.__notes__) == 1
