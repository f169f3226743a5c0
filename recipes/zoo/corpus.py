"""Reads the training text and turns it into token arrays, once.

Records come from `{train,heldout}.jsonl.gz` (a JSON object a line with "src", "task" and either
"messages" or "text"), from the grammar corruptor and from Python's own standard library. Each
source becomes one uint16 array of tokens and one uint8 array that marks those of answers; records
lie one after another and begin at `starts`.
"""

from __future__ import annotations

import ast
import gzip
import json
import random
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizer as bpe
from numpy.typing import NDArray
from tokenizers import Tokenizer

import grammar
from foretoken.bench.suites import data

Record = dict[str, Any]
CODE_ASKS = ("Complete this function.\n\n{}", "Write the body of this Python function:\n\n{}")
DOC_ASKS = ("Write the docstring of this function.\n\n{}", "What does this function do?\n\n{}")


def default_folder() -> Path:
    root = data.folder()
    if root is None:
        raise SystemExit("Give the corpus folder with --data, or set FORETOKEN_DATA.")
    return root / "corpora"


def read(path: Path) -> Iterator[Record]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            record = json.loads(line)
            if "text" in record:
                record["text"] = record["text"].replace("\r\n", "\n")
            yield record


def _code_record(asked: str, answer: str) -> Record:
    turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
    return {"src": "stdlib_code", "task": "code", "messages": turns}


def _function_records(source: str, rng: random.Random) -> Iterator[Record]:
    for node in ast.walk(ast.parse(source)):
        text = ast.get_source_segment(source, node) if isinstance(node, ast.FunctionDef) else None
        if not text or not isinstance(node, ast.FunctionDef) or not 80 < len(text) < 1500:
            continue
        lines, doc = text.split("\n"), ast.get_docstring(node)
        if doc and len(doc) < 300:
            bare = ast.unparse(node).replace(ast.unparse(node.body[0]), "", 1)
            yield _code_record(rng.choice(DOC_ASKS).format(bare[:700]), doc)
        if len(lines) > 3:
            cut = rng.randrange(1, min(len(lines) - 1, 6))
            head, rest = "\n".join(lines[:cut]), "\n".join(lines[cut:])
            yield _code_record(rng.choice(CODE_ASKS).format(head), rest)


def code_records(limit: int, seed: int = 0) -> list[Record]:
    """Functions of the standard library, as "complete this" and "write the docstring" pairs."""
    rng = random.Random(seed)
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    records: list[Record] = []
    for file in files:
        try:
            records.extend(_function_records(file.read_text(encoding="utf-8"), rng))
        except (SyntaxError, UnicodeDecodeError):
            continue
    rng.shuffle(records)
    return records[:limit]


def records_by_source(folder: Path, split: str, made: int = 40_000) -> dict[str, list[Record]]:
    by_source: dict[str, list[Record]] = defaultdict(list)
    for record in read(folder / f"{split}.jsonl.gz"):
        by_source[record["src"]].append(record)
    english = [
        m["content"]
        for source in ("tatoeba_deu_eng", "tatoeba_opus_test")
        for r in by_source[source]
        for m in r["messages"]
        if m["role"] == "assistant"
        and " " in m["content"]
        and m["content"].isascii()
        and "English to German" not in r["messages"][0]["content"]
    ]
    by_source["grammar"] = grammar.pairs(english, made if split == "train" else made // 200)
    if split == "train":
        by_source["stdlib_code"] = code_records(6_000)
    return dict(by_source)


def text_of(record: Record) -> str:
    if "text" in record:
        return str(record["text"])
    return "\n".join(m["content"] for m in record["messages"])


def encode(record: Record, tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """Ids of one record, and 1 where an answer (its end-of-text included) stands."""
    if "text" in record:
        ids = [bpe.BOS_ID, *tokenizer.encode(record["text"]).ids, bpe.EOS_ID]
        return ids, [0] * len(ids)
    role_ids = {"user": bpe.USER_ID, "assistant": bpe.ASSISTANT_ID, "system": bpe.SYSTEM_ID}
    ids, answer = [bpe.BOS_ID], [0]
    for message in record["messages"]:
        content = tokenizer.encode(message["content"].strip()).ids
        ids.append(role_ids[message["role"]])
        answer.append(0)
        is_answer = message["role"] == "assistant"
        ids += content + [bpe.EOS_ID] * is_answer
        answer += [int(is_answer)] * (len(content) + is_answer)
    return ids, answer


@dataclass
class Packed:
    """One source: tokens [N] uint16, answer [N] uint8, starts [records + 1] int64."""

    task: str
    tokens: NDArray[np.uint16]
    answer: NDArray[np.uint8]
    starts: NDArray[np.int64]


def pack(records: list[Record], tokenizer: Tokenizer, seed: int = 0) -> Packed:
    order = list(records)
    random.Random(seed).shuffle(order)
    tokens: list[NDArray[np.uint16]] = []
    answers: list[NDArray[np.uint8]] = []
    starts = [0]
    for record in order:
        ids, answer = encode(record, tokenizer)
        tokens.append(np.array(ids, np.uint16))
        answers.append(np.array(answer, np.uint8))
        starts.append(starts[-1] + len(ids))
    return Packed(
        order[0]["task"], np.concatenate(tokens), np.concatenate(answers), np.array(starts)
    )


def save(packed: dict[str, Packed], path: Path) -> None:
    arrays: dict[str, Any] = {}
    for name, p in packed.items():
        arrays |= {f"{name}/tokens": p.tokens, f"{name}/answer": p.answer}
        arrays |= {f"{name}/starts": p.starts, f"{name}/task": np.array(p.task)}
    np.savez(path, **arrays)


def load(path: Path) -> dict[str, Packed]:
    with np.load(path) as arrays:
        names = sorted({key.split("/")[0] for key in arrays})
        return {
            n: Packed(
                str(arrays[f"{n}/task"]),
                arrays[f"{n}/tokens"],
                arrays[f"{n}/answer"],
                arrays[f"{n}/starts"],
            )
            for n in names
        }
