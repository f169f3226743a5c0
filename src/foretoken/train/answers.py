"""Has a model answer prompts, a block of conversations at a time.

A drafter drafts for the text that its target writes, so that is what it usually learns from
(sequence-level distillation, Kim and Rush 2016; the sources are compared by Zhou et al. 2024,
DistillSpec). Each block is a file, so a resumed run continues with the next block.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foretoken.errors import ForetokenError
from foretoken.files import read_arrays, write_arrays
from foretoken.llm import LLM
from foretoken.progress import track
from foretoken.sampling.params import SamplingParams
from foretoken.spellings import Conversation, Message
from foretoken.train import processes
from foretoken.train.records import Records
from foretoken.train.turns import prompt_ids

_log = logging.getLogger(__name__)

_BLOCK = 256  # conversations in a file, which are answered together
_KIND = "block of answers"


def write(
    llm: LLM,
    conversations: Seq[Conversation],
    folder: Path,
    params: SamplingParams,
    longest: int,
    *,
    weights: str = "",
    show: bool = True,
) -> Records:
    """The model's answers to prompts of at most `longest` tokens, from `folder` if written before.

    params: temperature, max_tokens and a seed, from which each answer's seed is made. weights: what
    tells the model from others of its shape. show: a progress bar. Prompts that the chat template
    can't write, or the model can't answer, are left out, and the log says so. Raises
    `ForetokenError` where all prompts are longer or can't be written, and where the folder has
    answers to others or of another model.
    """
    folder.mkdir(parents=True, exist_ok=True)
    prompted = _prompted(conversations)
    blocks = [prompted[i : i + _BLOCK] for i in range(0, len(prompted), _BLOCK)]
    writer = _Writer(llm, params, longest, weights)
    files = files_of(conversations, folder)
    mine = [number for number in range(len(blocks)) if processes.is_mine(number)]
    with track("Writing answers", len(mine), show and processes.is_first()) as advance:
        for number in mine:  # before it waits for the others'
            writer.records(blocks[number], number, files[number])
            advance()
    parts = [writer.records(block, n, files[n]) for n, block in enumerate(blocks)]
    if not sum(map(len, parts)):
        raise ForetokenError(
            f"None of the {len(prompted)} prompts has {longest} tokens or fewer; give shorter ones."
        )
    written = Records.joined(parts)
    asked = sum(1 + len(each.later) for each in prompted)
    if len(written) < asked and processes.is_first():
        _log.warning(
            "%d of %d turns have no answer: what is before them has more than %d tokens, or can't "
            "be written or answered",
            asked - len(written),
            asked,
            longest,
        )
    return written


def files_of(conversations: Seq[Conversation], folder: Path) -> list[Path]:
    """The file of each block of answers."""
    count = -(-len(_prompted(conversations)) // _BLOCK)
    return [folder / f"answers-{number:05d}.npz" for number in range(count)]


def _prompted(conversations: Seq[Conversation]) -> list[Conversation]:
    """Those that have a prompt."""
    return [each for each in conversations if each.messages]


def _said(conversation: Conversation) -> list[Any]:
    """What a conversation's prompts follow from."""
    said = [conversation.messages, conversation.later, conversation.raw]
    return [*said, conversation.tools] if conversation.tools else said


def warn_of(errors: Seq[str]) -> None:
    """Of answers that a model couldn't write."""
    if errors:
        _log.warning("%d prompts are left out, the first as: %s", len(errors), errors[0])


@dataclass
class _Dialogue:
    """A conversation that is being written. number: within its block; messages: so far; later: the
    user's turns to come; prompt: the messages' token ids."""

    number: int
    conversation: Conversation
    messages: list[Message]
    later: list[str]
    prompt: list[int]


@dataclass(frozen=True)
class _Writer:
    """Writes blocks of answers; the fields are as in `write`."""

    llm: LLM
    params: SamplingParams
    longest: int
    weights: str = ""

    def records(self, block: Seq[Conversation], number: int, path: Path) -> Records:
        """The block's records, from its file if there is one."""
        made_for, limit = self._made_for(block), self.params.max_tokens or 0
        if not processes.is_mine(number):
            processes.wait_for(path)
        if path.exists():
            arrays = read_arrays(path, _KIND, made_for, Records.ARRAYS)
            return Records(**arrays, limit=limit)
        records = Records.of(self._answers(block, number), limit, self.llm.model.vocab_size)
        write_arrays(path, _KIND, made_for, records.arrays)
        return records

    def _made_for(self, block: Seq[Conversation]) -> dict[str, int | str]:
        """The settings that a block's file must have been written with."""
        prompts = json.dumps([_said(each) for each in block])
        return {
            "vocab_size": self.llm.model.vocab_size,
            "model parameters": self.llm.model.parameters,
            "weights": self.weights,
            "prompts": hashlib.sha256(prompts.encode()).hexdigest()[:16],
            "longest prompt": self.longest,
            "max_tokens": self.params.max_tokens or 0,
            "temperature": str(self.params.temperature),
            "seed": self.params.seed or 0,
        }

    def _answers(self, block: Seq[Conversation], number: int) -> list[tuple[list[int], list[int]]]:
        """Prompts and answers, turn by turn: later turns see the model's own earlier answers."""
        pairs: list[tuple[list[int], list[int]]] = []
        dialogues = [
            _Dialogue(i, each, list(each.messages), list(each.later), [])
            for i, each in enumerate(block)
        ]
        turn = 0
        while dialogues:
            errors = self._write_prompts(dialogues)
            none = not turn and len(errors) == len(block)
            if none and (not number or len(block) == _BLOCK):  # no strange line now and then
                raise errors[0]
            warn_of([str(error) for error in errors])
            dialogues = [each for each in dialogues if 0 < len(each.prompt) <= self.longest]
            first = ((self.params.seed or 0) << 20) + turn
            seeds = [first + ((number * _BLOCK + dialogue.number) << 4) for dialogue in dialogues]
            params = [replace(self.params, seed=seed) for seed in seeds]
            outputs = self.llm.generate([dialogue.prompt for dialogue in dialogues], params)
            warn_of([output.error for output in outputs if output.error])
            for dialogue, output in zip(dialogues, outputs, strict=True):
                if output.error:
                    dialogue.later = []
                    continue
                pairs.append((dialogue.prompt, list(output.token_ids)))
                if dialogue.later:
                    dialogue.messages.append({"role": "assistant", "content": output.text})
                    dialogue.messages.append({"role": "user", "content": dialogue.later[0]})
            dialogues = [
                replace(dialogue, later=dialogue.later[1:])
                for dialogue in dialogues
                if dialogue.later
            ]
            turn += 1
        return pairs

    def _write_prompts(self, dialogues: Seq[_Dialogue]) -> list[ForetokenError]:
        """Give each dialogue its prompt's ids, and none where the template can't write it; the
        errors of those."""
        errors = []
        for dialogue in dialogues:
            try:
                dialogue.prompt = prompt_ids(self.llm, dialogue.conversation, dialogue.messages)
            except ForetokenError as error:
                dialogue.prompt = []
                errors.append(error)
        return errors
