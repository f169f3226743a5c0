"""Texts of both tasks: what is taken from the corpus, batches, held-out pairs."""

from __future__ import annotations

from pathlib import Path

import pytest


def test_sentences_and_translations(corpus: Path) -> None:
    import pairs

    found = pairs.sentences(corpus, "train")
    assert found == sorted(set(found)) and len(found) > 300
    assert all(text[0].isupper() and text.endswith(".") for text in found)
    assert "Train 7 cats see the dog." not in found  # too short for a sentence to be broken
    both = pairs.translations(corpus, "train")
    assert len(both) == 300  # the pair of documentation is left out
    assert ("train 7 Katzen sehen den Hund.", "Train 7 cats see the dog.") in both


def test_batches_are_a_function_of_their_number() -> None:
    """One that resumes gets the same ones; about as long as each other."""
    import pairs

    texts = [f"The man has {'very ' * (i % 40)}old books number {i}." for i in range(500)]
    batches = pairs.Batches(texts, 8)
    assert batches.batch(37) == pairs.Batches(texts, 8).batch(37) != batches.batch(38)
    assert batches.batch(37) != pairs.Batches(texts, 8, seed=1).batch(37)
    for number in range(5):
        lengths = [len(clean) for _, clean in batches.batch(number)]
        assert max(lengths) - min(lengths) < 60 and len(lengths) == 8
    given = [("eins", "one"), ("zwei", "two")]
    assert set(pairs.Batches(given, 4).batch(0)) <= set(given)


@pytest.mark.parametrize("task", ["corrector", "translator"])
def test_held_out_texts(corpus: Path, tmp_path: Path, task: str) -> None:
    """None of them is among those to learn from; every sentence is broken."""
    import pairs
    import prepare

    prepare.prepare(tmp_path, corpus, task)
    asked = pairs.held_out(tmp_path, task, 20)
    assert len(asked) == 20 == len(set(asked))
    assert asked == pairs.held_out(tmp_path, task, 20)
    assert all(source != wanted for source, wanted in asked)
    learned = pairs.read(tmp_path, task, "train")
    wanted = {wanted if task == "corrector" else (source, wanted) for source, wanted in asked}
    assert not wanted & {text if isinstance(text, str) else tuple(text) for text in learned}


def test_no_more_texts_than_asked_for(corpus: Path, tmp_path: Path) -> None:
    """Evenly spread; held-out texts stay."""
    import pairs
    import prepare

    prepare.prepare(tmp_path / "all", corpus, "translator")
    prepare.prepare(tmp_path / "few", corpus, "translator", most=100)
    every, few = (pairs.read(tmp_path / n, "translator", "train") for n in ("all", "few"))
    assert few == every[::3] and len(every) == 300
    held = [pairs.read(tmp_path / n, "translator", "heldout") for n in ("all", "few")]
    assert held[0] == held[1]


def test_the_tokenizer(corpus: Path, tmp_path: Path) -> None:
    """Any text comes back, and ends with its mark."""
    import model
    import prepare

    prepare.prepare(tmp_path, corpus, "corrector")
    before = (tmp_path / "corrector" / "tokenizer" / "tokenizer.json").stat().st_mtime_ns
    prepare.prepare(tmp_path, corpus, "corrector")  # done is done
    after = (tmp_path / "corrector" / "tokenizer" / "tokenizer.json").stat().st_mtime_ns
    assert before == after
    for changed in ({"most": 9}, {"folder": tmp_path}):
        with pytest.raises(SystemExit, match=r"was prepared with .* and is asked for with"):
            prepare.prepare(**{"work": tmp_path, "folder": corpus, "task": "corrector"} | changed)
    tokenizer = model.tokenizer_of(tmp_path, "corrector")
    for text in ("The old man is reading.", "Größe: 5 € – 日本", "  two  spaces "):
        ids = tokenizer(text)["input_ids"]
        assert ids[-1] == prepare.EOS_ID and prepare.PAD_ID not in ids
        assert tokenizer.decode(ids, skip_special_tokens=True) == text
