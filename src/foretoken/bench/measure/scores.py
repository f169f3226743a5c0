"""How right an answer is, where its question has a reference.

Which score an answer gets follows from its question's category:

- mathematics (math, math_reasoning): `accuracy`, 1 where the last number of the answer is the
  reference's final answer, else 0. The final answer stands after GSM8K's `####`, or is the whole
  reference; a reference of another form (several of MT-Bench's are remarks to a judge) is compared
  as any other text.
- translation: `bleu` (Papineni et al., 2002) by sacrebleu with its own tokenisation, 0 to 100. An
  answer's own is smoothed, with as many orders as it has n-grams; the metric proper is the corpus
  BLEU, which `corpus` gives.
- qa, rag: `accuracy`, 1 where the answer holds one of the right answers, both in lower case and
  without punctuation and articles (as in Mallen et al., 2023, §3). Right answers are names of a few
  words and answers are sentences, so ROUGE-L, reported too, says more about length there.
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
_NOISE = re.compile(r"\b(?:a|an|the)\b|[" + re.escape(string.punctuation) + "]")


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
    found: dict[str, list[float]] = {}
    for text, right in pairs:
        for name, value in _scores(category, text, right).items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def numbers(text: str) -> list[Fraction]:
    """The numbers in a text, in order: $1,234.50 is one, and so is -5 (but not the 5 of 10-5)."""
    plain = text.replace("$", "").replace("−", "-")
    return [Fraction(found.replace(",", "")) for found in _NUMBER.findall(plain)]


def final_answer(reference: str) -> Fraction | None:
    """The number after ####, or the whole reference where it is a number (with $ or %)."""
    last = reference.rpartition("####")[2].strip().replace("$", "").removesuffix("%")
    return numbers(last)[0] if _NUMBER.fullmatch(last) else None


def _mathematics(text: str, references: tuple[str, ...]) -> dict[str, float]:
    finals = [final for final in map(final_answer, references) if final is not None]
    if not finals:
        return _overlap(text, references)
    found = numbers(text)
    return {"accuracy": float(bool(found) and found[-1] in finals)}


def _translation(text: str, references: tuple[str, ...]) -> dict[str, float]:
    bleu = library("sacrebleu").sentence_bleu(text, list(references))
    return {"bleu": float(bleu.score)}


def _short(text: str, references: tuple[str, ...]) -> dict[str, float]:
    answer = f" {_words(text)} "
    held = any(f" {words} " in answer for words in map(_words, references) if words)
    return {"accuracy": float(held), **_overlap(text, references)}


def _overlap(text: str, references: tuple[str, ...]) -> dict[str, float]:
    return {"rouge_l": rouge_l(text, references)}


def _scores(category: str, text: str, references: tuple[str, ...]) -> dict[str, float]:
    return _OF_CATEGORY.get(category, _overlap)(text, references)


_OF_CATEGORY: dict[str, Callable[[str, tuple[str, ...]], dict[str, float]]] = {
    "math": _mathematics,
    "math_reasoning": _mathematics,
    "translation": _translation,
    "qa": _short,
    "rag": _short,
}


def _words(text: str) -> str:
    return " ".join(_NOISE.sub(" ", text.lower()).split())


def _corpus_bleu(pairs: Seq[tuple[str, tuple[str, ...]]]) -> float:
    """sacrebleu wants all first references, all second ones …, with None for one that is not."""
    most = max(len(right) for _, right in pairs)
    columns = [[r[i] if i < len(r) else None for _, r in pairs] for i in range(most)]
    return float(library("sacrebleu").corpus_bleu([text for text, _ in pairs], columns).score)
