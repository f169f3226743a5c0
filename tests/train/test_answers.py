"""What a model writes to prompts is kept in a folder."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any

import pytest

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.spellings import Conversation
from foretoken.train import answers, processes
from foretoken.train.answers import write
from foretoken.train.data import read_conversations
from foretoken.train.turns import prompt_ids
from trainings import PROMPTS, WORDS


def test_answers_are_written_once(
    checkpoints: tuple[Path, Path], prompts: Path, tmp_path: Path
) -> None:
    """Turn by turn, in blocks that are read back; other prompts in the folder are refused."""
    llm, params = LLM(checkpoints[0]), SamplingParams(temperature=0, max_tokens=8)
    asked = read_conversations(prompts)
    first = write(llm, asked, tmp_path, params, 200, show=False)
    assert len(first) == 2 * len(WORDS) + len(WORDS) + 1
    second_turn = llm.tokenizer.decode(first.prompt(2 * len(WORDS) + 1))
    assert "more of" in second_turn
    for i in range(len(first)):
        plain = llm.generate([first.prompt(i)], params)[0].token_ids
        assert first.answer(i) == plain
    llm.generate = None  # type: ignore[method-assign, assignment]
    again = write(llm, asked, tmp_path, params, 200, show=False)
    assert (again.tokens == first.tokens).all() and (again.answers == first.answers).all()
    with pytest.raises(ForetokenError, match="made for prompts"):
        write(llm, asked[1:], tmp_path, params, 200, show=False)


def test_later_turns_see_the_models_own_answers(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    llm, params = LLM(checkpoints[0]), SamplingParams(temperature=0, max_tokens=4)
    talk, seen = dataclasses.replace(PROMPTS[0], later=("and then",)), list[list[Any]]()
    ids = prompt_ids

    def noting(llm: LLM, conversation: Conversation, messages: Any) -> list[int]:
        seen.append([message["content"] for message in messages])
        return ids(llm, conversation, messages)

    monkeypatch.setattr(answers, "prompt_ids", noting)
    found = write(llm, [talk], tmp_path, params, 64, show=False)
    own = llm.generate([found.prompt(0)], params)[0].text
    assert own and seen == [[WORDS[0]], [WORDS[0], own, "and then"]]


def test_answers_to_what_is_asked_in_another_way(
    checkpoints: tuple[Path, Path], tmp_path: Path
) -> None:
    """In the chat template, with tools, or with room for other prompts: refused."""
    llm, params = LLM(checkpoints[0]), SamplingParams(temperature=0, max_tokens=2)
    write(llm, PROMPTS[:1], tmp_path, params, 64, show=False)
    changes: list[dict[str, Any]] = [{"raw": False}, {"tools": ({"type": "function"},)}]
    for change in changes:
        other = dataclasses.replace(PROMPTS[0], **change)
        with pytest.raises(ForetokenError, match="made for prompts"):
            write(llm, [other], tmp_path, params, 64, show=False)
    with pytest.raises(ForetokenError, match="made for longest prompt 64"):
        write(llm, PROMPTS[:1], tmp_path, params, 63, show=False)


def test_each_answer_has_a_seed_of_its_own(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever block and turn it is of, and another one where the training's is another."""
    llm, seeds = LLM(checkpoints[0]), list[int]()
    generate, talk = llm.generate, dataclasses.replace(PROMPTS[0], later=("and then",))

    def noting(prompts: Any, params: Any) -> Any:
        seeds.extend(each.seed for each in params)
        return generate(prompts, params)

    monkeypatch.setattr(llm, "generate", noting)
    monkeypatch.setattr(answers, "_BLOCK", 2)
    for seed in (5, 6):
        params = SamplingParams(max_tokens=2, seed=seed)
        write(llm, [talk, *PROMPTS[1:4]], tmp_path / str(seed), params, 64, show=False)
    assert len(seeds) == 10 == len(set(seeds))


def test_a_prompt_that_cannot_be_answered(
    checkpoints: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Here one of tokens that the model doesn't have: it is no text to learn from, nor are the
    turns after it."""
    llm, params = LLM(checkpoints[0]), SamplingParams(temperature=0, max_tokens=2)
    talk = dataclasses.replace(PROMPTS[0], later=("and then",))
    written = prompt_ids

    def ids(llm: LLM, conversation: Conversation, messages: Any) -> list[int]:
        return [500] if conversation is talk else written(llm, conversation, messages)

    monkeypatch.setattr(answers, "prompt_ids", ids)
    with caplog.at_level(logging.WARNING):
        found = write(llm, [talk, *PROMPTS[1:3]], tmp_path, params, 64, show=False)
    assert [len(found.answer(i)) for i in range(len(found))] == [2, 2]
    told = "1 prompts are left out, the first as: The prompt has token ids outside"
    assert caplog.text.count(told) == 1  # and isn't asked about the next turn


def test_a_prompt_that_cannot_be_written(
    checkpoints: tuple[Path, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that the chat template refuses, as the first or as a later turn, is no text to learn
    from; where it refuses all that are asked together, that is the error, and none are kept."""
    llm, params = LLM(checkpoints[0]), SamplingParams(temperature=0, max_tokens=2)
    talk = dataclasses.replace(PROMPTS[0], later=("and then",))
    written = prompt_ids

    def ids(llm: LLM, conversation: Conversation, messages: Any) -> list[int]:
        if len(messages) > 1 or conversation is PROMPTS[1]:
            raise ForetokenError("Roles must alternate.")
        return written(llm, conversation, messages)

    monkeypatch.setattr(answers, "prompt_ids", ids)
    with caplog.at_level(logging.WARNING):
        found = write(llm, [talk, *PROMPTS[1:3]], tmp_path, params, 64, show=False)
    assert len(found) == 2
    assert caplog.text.count("1 prompts are left out, the first as: Roles must") == 2
    monkeypatch.setattr(answers, "_BLOCK", 2)
    found = write(llm, [talk, *PROMPTS[2:3], PROMPTS[1]], tmp_path / "rest", params, 64, show=False)
    assert len(found) == 2
    for block in ([PROMPTS[1]], [talk, talk, PROMPTS[1], PROMPTS[1]]):
        out = tmp_path / f"none of {len(block)}"
        with pytest.raises(ForetokenError, match="Roles must alternate"):
            write(llm, block, out, params, 64, show=False)
        assert len(list(out.iterdir())) == len(block) // 4


def test_prompts_that_are_too_long(
    checkpoints: tuple[Path, Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their number is told, also where the answers to the others are read."""
    llm, params = LLM(checkpoints[0]), SamplingParams(temperature=0, max_tokens=2)
    lengths = [len(prompt_ids(llm, each, each.messages)) for each in PROMPTS]
    talk = dataclasses.replace(PROMPTS[lengths.index(max(lengths))], later=("and then",))
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            write(llm, [*PROMPTS, talk], tmp_path, params, max(lengths) - 1, show=False)
        missing = lengths.count(max(lengths)) + 2
        assert f"{missing} of {len(PROMPTS) + 2} turns have no answer" in caplog.text


def test_answers_of_another_model(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Of the same shape: refused."""
    llm, params = LLM(checkpoints[0]), SamplingParams(temperature=0, max_tokens=2)

    def ask(**weights: str) -> int:
        return len(write(llm, PROMPTS[:2], tmp_path, params, 64, show=False, **weights))

    ask(weights="one")
    with pytest.raises(ForetokenError, match="was made for weights one"):
        ask(weights="two")


def test_a_process_writes_its_own_share_first(
    checkpoints: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it waits for the others', which write theirs meanwhile."""

    class Waited(Exception):
        pass

    def wait_for(file: Path) -> None:
        assert [path.name for path in tmp_path.iterdir()] == ["answers-00001.npz"]
        raise Waited(file.name)

    monkeypatch.setattr(processes, "wait_for", wait_for)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(answers, "_BLOCK", 2)
    params = SamplingParams(temperature=0, max_tokens=2, seed=0)
    with pytest.raises(Waited, match="answers-00000"):
        write(LLM(checkpoints[0]), PROMPTS[:4], tmp_path, params, 64, show=False)
