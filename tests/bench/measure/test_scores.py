"""Scores of answers: each metric against values worked out by hand or by the metric's own rule."""

from __future__ import annotations

import sys
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foretoken import ForetokenError
from foretoken.bench.measure import scores
from foretoken.bench.suites.suite import Prompt

PAIRS = {  # of translation, both a little off
    "The house is very small today .": "The house is tiny today .",
    "A dog runs across the green field .": "A dog is running across the green field .",
}


def ask(category: str, *right: str) -> Prompt:
    return Prompt("1", "some task", ("Why?",), category, reference=(right,))


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("$1,234.50 and 7", ["1234.5", "7"]),
        ("1,000", ["1000"]),
        ("1,2,3 or 1234,567", ["1", "2", "3", "1234", "567"]),
        ("-5 or −5 or x=-3 or $-4 or -$4", ["-5", "-5", "-3", "-4", "-4"]),
        ("10-5 (2)-1", ["10", "5", "2", "1"]),
        ("It is **18.**", ["18"]),
        ("18.0, .5, 50%", ["18", "1/2", "50"]),
        ("none", []),
    ],
)
def test_numbers(text: str, wanted: list[str]) -> None:
    """Thousands, decimals, signs and currencies as people write them."""
    assert scores.numbers(text) == [Fraction(number) for number in wanted]


@given(st.integers(-(10**9), 10**9), st.sampled_from(["", "$"]), st.sampled_from(["", ".0", ".00"]))
def test_a_number_is_read_as_it_is_written(value: int, currency: str, decimals: str) -> None:
    """Any amount, among other numbers and after ####."""
    written = f"{'-' if value < 0 else ''}{currency}{abs(value):,}{decimals}"
    assert scores.numbers(f"So, of 3 things, it is {written}.") == [3, value]
    assert scores.final_answer(f"3 + 4 = <<3+4=7>>7\n#### {written}") == value


@pytest.mark.parametrize(
    ("reference", "wanted"),
    [
        ("2 + 2 = 4\n#### 2,125", 2125),
        ("19%", 19),
        ("$280", 280),
        ("Area is 3", None),
        ("5pi", None),
        ("19 integers (-14, ..., 4)", None),
    ],
)
def test_final_answer(reference: str, wanted: int | None) -> None:
    """The number after ####, or a reference that is a number; else none."""
    assert scores.final_answer(reference) == wanted


def test_mathematics_is_the_last_number() -> None:
    """The last number of the answer counts; a reference without one is compared as text."""
    prompt = ask("math_reasoning", "It takes 2/2=1 bolt.\n#### 3")
    assert scores.score(prompt, 0, "2 and 1 make 3.0 bolts.") == {"accuracy": 1}
    assert scores.score(prompt, 0, "There are 3, no, 4 bolts.") == {"accuracy": 0}
    assert scores.score(prompt, 0, "I don't know.") == {"accuracy": 0}
    assert scores.score(ask("math", "x = 2"), 0, "x = 2") == {"rouge_l": 1}


def test_translation_is_bleu() -> None:
    """sacrebleu's sentence BLEU, and the value worked out by hand."""
    import sacrebleu

    (text, right), *_ = PAIRS.items()
    [(name, found)] = scores.score(ask("translation", right), 0, text).items()
    assert name == "bleu" and found == sacrebleu.sentence_bleu(text, [right]).score
    # 5 of 7 words, 3 of 6 pairs, 1 of 5 triples, half of 1 of 4 (smoothing); longer, so no penalty
    assert found == pytest.approx(100 * (5 / 7 * 3 / 6 * 1 / 5 * 1 / 8) ** 0.25, abs=1e-6)


def test_corpus_bleu_is_of_the_whole() -> None:
    """Counts are added before they are divided, so it is not the mean of the sentences'."""
    import sacrebleu

    texts, right = list(PAIRS), [(r,) for r in PAIRS.values()]
    whole = scores.corpus("translation", texts, right)
    assert whole == {"bleu": sacrebleu.corpus_bleu(texts, [[r for (r,) in right]]).score}
    each = [scores.score(ask("translation", r), 0, text)["bleu"] for text, r in PAIRS.items()]
    assert whole["bleu"] != pytest.approx(sum(each) / 2, abs=0.5)
    more = [right[0] + (texts[0],), right[1]]  # a second right answer for the first alone
    assert scores.corpus("translation", texts, more)["bleu"] > whole["bleu"]


def test_other_corpora_are_means() -> None:
    """Over the answers with a reference."""
    right = [("#### 3",), ("#### 4",), ()]
    assert scores.corpus("math_reasoning", ["3", "5", "9"], right) == {"accuracy": 0.5}
    assert scores.corpus("translation", ["x"], [()]) == {}


def test_a_short_answer_is_held() -> None:
    """A right answer counts anywhere in the text, as whole words, without case and punctuation."""
    prompt = ask("rag", "The euro", "UNICEF 's  programs")
    found = scores.score(prompt, 0, "There, people pay with Euro, of course.")
    assert found["accuracy"] == 1 and 0 < found["rouge_l"] < 0.5
    assert scores.score(prompt, 0, "Money goes to UNICEF's programs.")["accuracy"] == 1
    assert scores.score(prompt, 0, "In European money.")["accuracy"] == 0  # no whole word
    assert scores.score(ask("qa", "the"), 0, "the end")["accuracy"] == 0  # nothing is left of it


def test_summaries_get_the_best_rouge_l() -> None:
    """Of several references the nearest counts."""
    prompt = ask("summarization", "nothing of it", "the cat sat on the mat")
    # the longest common subsequence has 4 words, of 5 and of 6
    assert scores.score(prompt, 0, "a cat sat on mat")["rouge_l"] == pytest.approx(8 / 11)
    assert scores.score(prompt, 0, "nothing of it") == {"rouge_l": 1}
    assert scores.score(prompt, 0, "") == {"rouge_l": 0}


def test_no_reference_no_score() -> None:
    """Neither for a prompt without any nor for a turn without one."""
    assert scores.score(Prompt("1", "math_reasoning", ("a",)), 0, "3") == {}
    two = Prompt("1", "math", ("a", "b"), reference=((), ("7",)))
    assert scores.score(two, 0, "7") == {} and scores.score(two, 1, "7") == {"accuracy": 1}


def test_a_missing_library_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says what to install."""
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ForetokenError, match=r"needs sacrebleu; .*foretoken\[bench\]"):
        scores.score(ask("translation", "x"), 0, "x")
