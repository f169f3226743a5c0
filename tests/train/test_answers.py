"""What a model writes to prompts is kept in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.train.answers import write
from foretoken.train.data import read_conversations
from trainings import WORDS


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
