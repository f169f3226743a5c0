"""What drafters learn from: a file's own texts, or what a model writes to a file's prompts.

A drafter meets the text that its target writes, so that is the usual source (sequence-level
distillation, Kim and Rush 2016; the sources are compared by Zhou et al. 2024, DistillSpec). What is
written goes into a folder a block at a time, so that a run that was killed goes on with the next.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from foretoken.errors import ForetokenError
from foretoken.files import read_arrays, read_json_lines, write_arrays
from foretoken.llm import LLM
from foretoken.progress import track
from foretoken.sampling.params import SamplingParams
from foretoken.train.records import Records

_BLOCK = 64  # conversations whose answers are written at once
_KIND = "block of answers"

Message = dict[str, str]


@dataclass(frozen=True)
class Conversation:
    """Messages up to a user's turn, and the user's later turns; answer: what the file has next.

    raw: there is one message, which no chat template is put around.
    """

    messages: tuple[Message, ...]
    later: tuple[str, ...] = ()
    answer: str | None = None
    raw: bool = False


def read_conversations(path: Path) -> list[Conversation]:
    """The lines of a .jsonl or .jsonl.gz file: {"messages"}, {"turns"}, {"prompt"} or {"text"}.

    Raises `ForetokenError`, with the line, for anything else.
    """
    return [_conversation(row, f"{path}, line {number}") for number, row in _rows(path)]


def _rows(path: Path) -> Iterator[tuple[int, Any]]:
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            yield from read_json_lines(file, path)
    except OSError as error:
        raise ForetokenError(f"The prompts in {path} can't be read: {error}.") from error
    except UnicodeDecodeError as error:
        raise ForetokenError(f"{path} is not text in UTF-8: {error}.") from error


def _conversation(row: Any, where: str) -> Conversation:
    try:
        if "turns" in row:
            first, *later = map(str, row["turns"])
            return Conversation(({"role": "user", "content": first},), tuple(later))
        if "messages" in row:
            return _from_messages(row["messages"])
        if "prompt" in row:
            return Conversation(({"role": "user", "content": str(row["prompt"])},), raw=True)
        return Conversation((), answer=str(row["text"]), raw=True)
    except (KeyError, TypeError, ValueError) as error:
        raise ForetokenError(
            f'{where} has neither "messages", "turns", "prompt" nor "text" as they must be.'
        ) from error


def _from_messages(messages: Iterable[Any]) -> Conversation:
    """Up to the last user's turn, and what stands after it."""
    turns = [{"role": str(m["role"]), "content": str(m["content"])} for m in messages]
    last = max(i for i, turn in enumerate(turns) if turn["role"] == "user")
    answer = turns[last + 1]["content"] if last + 1 < len(turns) else None
    return Conversation(tuple(turns[: last + 1]), answer=answer)


def fixed(llm: LLM, conversations: Seq[Conversation], length: int) -> Records:
    """The file's own answers and texts, each record cut to `length` tokens."""
    end = sorted(llm.engine.eos_ids)[:1]
    pairs = []
    for each in conversations:
        if each.answer is not None:
            prompt = _prompt(llm, each, each.messages) if each.messages else []
            answer = llm.tokenizer(each.answer, add_special_tokens=False)["input_ids"] + end
            pairs.append((prompt[:length], answer[: max(0, length - len(prompt))]))
    return Records.of([pair for pair in pairs if pair[1]], length, llm.model.vocab_size)


def write(
    llm: LLM,
    conversations: Seq[Conversation],
    folder: Path,
    params: SamplingParams,
    longest: int,
    *,
    show: bool = True,
) -> Records:
    """What the model writes to prompts of at most `longest` tokens, from the folder or anew.

    params: temperature, max_tokens and a seed, from which each answer's own is made.
    """
    folder.mkdir(parents=True, exist_ok=True)
    asked = [each for each in conversations if each.messages]
    blocks = [asked[i : i + _BLOCK] for i in range(0, len(asked), _BLOCK)]
    parts: list[Records] = []
    with track("Writing answers", len(blocks), show) as advance:
        for number, block in enumerate(blocks):
            path = folder / f"answers-{number:05d}.npz"
            parts.append(_block(llm, block, path, params, longest, number))
            advance()
    if not sum(map(len, parts)):
        raise ForetokenError(
            f"None of the {len(asked)} prompts has {longest} tokens or fewer; give shorter ones."
        )
    return Records.joined(parts)


def _block(
    llm: LLM,
    block: Seq[Conversation],
    path: Path,
    params: SamplingParams,
    longest: int,
    number: int,
) -> Records:
    made_for = _made_for(llm, block, params, longest)
    if path.exists():
        arrays = read_arrays(path, _KIND, made_for, Records.ARRAYS)
        return Records(**arrays, limit=params.max_tokens or 0)
    pairs = _answers(llm, block, params, longest, number)
    records = Records.of(pairs, params.max_tokens or 0, llm.model.vocab_size)
    write_arrays(path, _KIND, made_for, records.arrays)
    return records


def _made_for(
    llm: LLM, block: Seq[Conversation], params: SamplingParams, longest: int
) -> dict[str, int | str]:
    asked = json.dumps([[each.messages, each.later, each.raw] for each in block])
    return {
        "vocab_size": llm.model.vocab_size,
        "model parameters": llm.model.parameters,
        "prompts": hashlib.sha256(asked.encode()).hexdigest()[:16],
        "longest prompt": longest,
        "max_tokens": params.max_tokens or 0,
        "temperature": str(params.temperature),
        "seed": params.seed or 0,
    }


def _answers(
    llm: LLM, block: Seq[Conversation], params: SamplingParams, longest: int, number: int
) -> list[tuple[list[int], list[int]]]:
    """Prompts and answers, turn by turn: later turns see the model's own earlier answers."""
    from dataclasses import replace

    pairs: list[tuple[list[int], list[int]]] = []
    open_ = [(i, each, list(each.messages), list(each.later)) for i, each in enumerate(block)]
    turn = 0
    while open_:
        asked = [(prompt, *rest) for *rest, prompt in _prompted(llm, open_, longest)]
        seeds = [
            ((params.seed or 0) << 20) + ((number * _BLOCK + i) << 4) + turn for _, i, *_ in asked
        ]
        each_params = [replace(params, seed=seed) for seed in seeds]
        outputs = llm.generate([prompt for prompt, *_ in asked], each_params)
        pairs += [(a[0], list(o.token_ids)) for a, o in zip(asked, outputs, strict=True)]
        open_ = [
            (
                i,
                each,
                [
                    *sent,
                    {"role": "assistant", "content": out.text},
                    {"role": "user", "content": later[0]},
                ],
                later[1:],
            )
            for (_, i, each, sent, later), out in zip(asked, outputs, strict=True)
            if later
        ]
        turn += 1
    return pairs


def _prompted(llm: LLM, open_: Seq[Any], longest: int) -> Iterator[tuple[Any, ...]]:
    for i, each, sent, later in open_:
        prompt = _prompt(llm, each, sent)
        if 0 < len(prompt) <= longest:
            yield i, each, sent, later, prompt


def _prompt(llm: LLM, each: Conversation, messages: Seq[Message]) -> list[int]:
    if not each.raw:
        return llm.chat_prompt(list(messages))
    ids: list[int] = llm.tokenizer(messages[0]["content"])["input_ids"]
    return ids


def sha_of(records: Records) -> str:
    """What tells these texts from others."""
    return hashlib.sha256(np.ascontiguousarray(records.tokens).tobytes()).hexdigest()[:16]
