"""Corpus to texts and a tokenizer for each task: `python prepare.py --work WORK`.

The tokenizer is a byte-level BPE of 8,192 ids. A text ends with `</s>`; a decoder begins with
`<pad>`, as T5's do; `<mask>` is what a block drafter reads in place of tokens that it guesses.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pairs
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from foretoken.files import read_json, write_json

PAD, EOS, MASK = "<pad>", "</s>", "<mask>"
PAD_ID, EOS_ID, MASK_ID = range(3)
VOCAB = 8192
LENGTH = 256  # tokens of a text, at most


def train(texts: list[str]) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=[PAD, EOS, MASK],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {EOS}", special_tokens=[(EOS, EOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        mask_token=MASK,
        model_max_length=LENGTH,
        clean_up_tokenization_spaces=False,
    )


def prepare(work: Path, folder: Path, task: str, most: int | None = None) -> None:
    """Write the texts of both splits, then the tokenizer, last: it shows that all is there. most:
    texts to train on, evenly spread. Ends the program where others were asked for there."""
    note, asked = work / task / "prepared.json", {"data": str(folder.resolve()), "most": most}
    before = read_json(note, "what was prepared") if note.exists() else asked
    if before != asked:
        raise SystemExit(
            f"{work / task} was prepared with {before} and is asked for with {asked}; delete it, "
            "or give another --work."
        )
    if (work / task / "tokenizer" / "tokenizer.json").exists():
        return
    write_json(note, asked)
    read: Any = pairs.sentences if task == "corrector" else pairs.translations
    rows = {split: read(folder, split) for split in ("train", "heldout")}
    known = set(rows["heldout"])
    rows["train"] = [row for row in rows["train"] if row not in known]
    count = len(rows["train"])
    if most is not None and most < count:
        rows["train"] = [rows["train"][i * count // most] for i in range(most)]
    for split, kept in rows.items():
        pairs.write(work, task, split, kept)
        print(f"{task} {split}: {len(kept)} texts", flush=True)
    texts = rows["train"]
    if task == "translator":
        texts = [text for pair in texts for text in pair]
    train(texts[:: max(1, len(texts) // 200_000)]).save_pretrained(work / task / "tokenizer")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of {train,heldout}.jsonl.gz")
    parser.add_argument("--work", type=Path, required=True, help="folder for work files")
    parser.add_argument("--most", type=int, help="texts of each task to train on; default: all")
    given = parser.parse_args()
    if given.most is not None and given.most < 1:
        raise SystemExit(f"--most is {given.most}; it must be at least 1.")
    for task in pairs.TASKS:
        prepare(given.work, pairs.corpora(given.data), task, given.most)


if __name__ == "__main__":
    main()
