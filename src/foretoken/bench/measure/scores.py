"""Scores answers against the references of their questions.

The question's category decides the score:

- mathematics (math, math_reasoning): `accuracy`, 1 where the last number of the answer is the
  reference's final answer, else 0. The final answer stands after GSM8K's `####`, or is the whole
  reference; a reference of another form (several of MT-Bench's are remarks to a judge) is compared
  like any other text.
- translation: `bleu` (Papineni et al., 2002) by sacrebleu with its tokenisation, 0 to 100. That
  of a single answer is smoothed, with as many orders as it has n-grams; the metric proper is the
  corpus BLEU, which `corpus` gives.
- qa, rag: `accuracy`, 1 where the answer contains one of the right answers, both in lower case and
  without punctuation and articles (as in Mallen et al., 2023, §3). Right answers are names of a few
  words and answers are sentences, so ROUGE-L, reported too, depends more on length there.
- anything else (summarization, MT-Bench's remarks …): `rouge_l` (see `rouge.py`), 0 to 1,
  against the best of the references.

Code has no score, because nothing that a model wrote is ever run.
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable
from collections.abc import Sequence as Seq
from fractions import Fraction

from foretoken.bench.measure.library import library
from foretoken.bench.measure.rouge import rouge_l
from foretoken.bench.suites.suite import Prompt

_NUMBER = re.compile(
    r"(?:(?<![\w)])-)?"  # a minus after a word, a number or a bracket subtracts
    r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
)
_IGNORED = re.compile(r"\b(?:a|an|the)\b|[" + re.escape(string.punctuation) + "]")


def score(prompt: Prompt, turn: int, text: str) -> dict[str, float]:
    """The scores of an answer to a turn (from 0), by name; {} where there is no reference.

    Raises `ForetokenError` where the library that computes one is not installed.
    """
    right = prompt.reference[turn] if prompt.reference else ()
    return _scores(prompt.category, text, right) if right else {}


def corpus(category: str, texts: Seq[str], references: Seq[tuple[str, ...]]) -> dict[str, float]:
    """The scores of many answers together: corpus BLEU for translations, else means by name.

    references: the right answers of each text; those without any are left out.
    """
    pairs = [(text, right) for text, right in zip(texts, references, strict=True) if right]
    if category == "translation" and pairs:
        return {"bleu": _corpus_bleu(pairs)}
    values_by_name: dict[str, list[float]] = {}
    for text, right in pairs:
        for name, value in _scores(category, text, right).items():
            values_by_name.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in values_by_name.items()}


def numbers(text: str) -> list[Fraction]:
    """The numbers in a text, in order: $1,234.50 is one, and so is -5 (but not the 5 of 10-5)."""
    plain = text.replace("$", "").replace("−", "-")
    return [Fraction(number.replace(",", "")) for number in _NUMBER.findall(plain)]


def final_answer(reference: str) -> Fraction | None:
    """The number after ####, or the whole reference where it is a number (with $ or %)."""
    last = reference.rpartition("####")[2].strip().replace("$", "").removesuffix("%")
    return numbers(last)[0] if _NUMBER.fullmatch(last) else None


def _mathematics(text: str, references: tuple[str, ...]) -> dict[str, float]:
    finals = [final for final in map(final_answer, references) if final is not None]
    if not finals:
        return _rouge_l(text, references)
    written = numbers(text)
    return {"accuracy": float(bool(written) and written[-1] in finals)}


def _translation(text: str, references: tuple[str, ...]) -> dict[str, float]:
    bleu = library("sacrebleu").sentence_bleu(text, list(references))
    return {"bleu": float(bleu.score)}


def _short_answer(text: str, references: tuple[str, ...]) -> dict[str, float]:
    answer = f" {_normalized(text)} "
    right = any(f" {name} " in answer for name in map(_normalized, references) if name)
    return {"accuracy": float(right), **_rouge_l(text, references)}


def _rouge_l(text: str, references: tuple[str, ...]) -> dict[str, float]:
    return {"rouge_l": rouge_l(text, references)}


def _scores(category: str, text: str, references: tuple[str, ...]) -> dict[str, float]:
    return _OF_CATEGORY.get(category, _rouge_l)(text, references)


_OF_CATEGORY: dict[str, Callable[[str, tuple[str, ...]], dict[str, float]]] = {
    "math": _mathematics,
    "math_reasoning": _mathematics,
    "translation": _translation,
    "qa": _short_answer,
    "rag": _short_answer,
}


def _normalized(text: str) -> str:
    return " ".join(_IGNORED.sub(" ", text.lower()).split())


def _corpus_bleu(pairs: Seq[tuple[str, tuple[str, ...]]]) -> float:
    """sacrebleu wants all first references, all second ones …, with None for one that is not."""
    most = max(len(right) for _, right in pairs)
    columns = [[r[i] if i < len(r) else None for _, r in pairs] for i in range(most)]
    return float(library("sacrebleu").corpus_bleu([text for text, _ in pairs], columns).score)
