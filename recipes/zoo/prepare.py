"""Corpus to tokenizer and token arrays: `python prepare.py --data CORPORA --work WORK`."""

from __future__ import annotations

import argparse
from pathlib import Path

import corpus
import tokenizer as bpe
from tokenizers import Tokenizer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of {train,heldout}.jsonl.gz")
    parser.add_argument("--work", type=Path, required=True, help="folder for work files")
    args = parser.parse_args()
    data = args.data or corpus.default_folder()
    folder = args.work / "tokenizer"
    for split in ("train", "heldout"):
        records = corpus.records_by_source(data, split)
        if not (folder / "tokenizer.json").exists():
            texts = {name: [corpus.text_of(r) for r in rs] for name, rs in records.items()}
            bpe.save(bpe.train(bpe.balanced(texts, per_source=600_000)), folder)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        packed = {name: corpus.pack(rs, tokenizer) for name, rs in records.items()}
        corpus.save(packed, args.work / f"{split}.npz")
        print(split, sum(len(p.tokens) for p in packed.values()), "tokens", flush=True)


if __name__ == "__main__":
    main()
