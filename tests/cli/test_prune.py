"""`foretoken prune`: a folder that can be trained and serves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

import stored_models
from foretoken import LLM, ForetokenError, SamplingParams
from foretoken.cli.commands import app
from foretoken.cli.prune import _texts
from foretoken.spellings import conversation


def test_a_small_model(checkpoints: tuple[Path, Path], tmp_path: Path) -> None:
    """Of the size that is asked for, with the tokenizer; it drafts without changing the text."""
    lines = [{"messages": [{"role": "user", "content": word}]} for word in ("the sea", "a house")]
    data = tmp_path / "prompts.jsonl"
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    out = tmp_path / "small"
    given = ["prune", str(checkpoints[0]), "--data", str(data), "--out", str(out)]
    sizes = ["--layers", "1", "--intermediate-size", "32"]
    done = CliRunner().invoke(app, [*given, *sizes], catch_exceptions=False)
    assert done.exit_code == 0 and "M parameters of" in done.output, done.output
    config = json.loads((out / "config.json").read_text())
    assert (config["num_hidden_layers"], config["intermediate_size"]) == (1, 32)
    params = SamplingParams(temperature=0, max_tokens=16)
    config = {"method": "sps", "model": str(out), "num_speculative_tokens": 2}
    [output] = LLM(checkpoints[0], speculative_config=config).generate("the sea", params)
    assert output.token_ids == LLM(checkpoints[0]).generate("the sea", params)[0].token_ids
    assert output.stats.drafted
    again = CliRunner().invoke(app, [*given, *sizes])
    assert again.exit_code and "is not an empty folder" in f"{again.exception} {again.output}"


def test_where_nothing_can_be_written(tmp_path: Path) -> None:
    """It is found out before a model is loaded."""
    (file := tmp_path / "file").write_text("kept")
    asked = ["prune", "./nowhere", "--data", "bundled", "--out", str(file / "out")]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 1 and str(file / "out") in done.stderr


def test_code_that_comes_with_a_model(tmp_path: Path) -> None:
    """No such model is trained as a drafter, so none is cut; the line names no option that is
    missing here."""
    own = stored_models.with_code(tmp_path / "own")
    asked = ["prune", str(own), "--data", "bundled", "--out", str(tmp_path / "out")]
    done = CliRunner().invoke(app, asked)
    said = " ".join(done.stderr.split())
    assert done.exit_code == 1 and "code that comes with it, and doesn't run natively" in said
    assert "trust" not in said


def test_prompts_that_the_template_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    """They are left out, unless all are."""
    llm = LLM("mini")
    llm.tokenizer.chat_template = (  # type: ignore[union-attr]
        "{% if messages|length > 1 %}{{ raise_exception('one turn') }}{% endif %}"
        "{{ messages[0].content }}"
    )
    one, two = {"role": "user", "content": "sea"}, {"role": "system", "content": "no"}
    good, bad = (conversation({"messages": turns}) for turns in ([one], [two, one]))
    assert _texts(llm, [bad, good]) == [llm.chat_prompt([one])]
    assert "1 conversations are left out" in capsys.readouterr().err
    with pytest.raises(ForetokenError, match="one turn"):
        _texts(llm, [bad])


def test_a_text_for_each_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    """By its beginning, however long the prompt is and however many turns there are."""
    monkeypatch.setattr("foretoken.cli.prune._LENGTH", 30)
    llm = LLM("mini")
    asked, told = {"role": "user", "content": "sea"}, {"role": "assistant", "content": "a wave"}
    long = {"role": "user", "content": "a house by the sea " * 9}
    rows = [[long, told], [asked, told] * 9, [asked]]
    texts = _texts(llm, [conversation({"messages": turns}) for turns in rows])
    assert list(map(len, texts))[:2] == [30, 30] and len(texts) == 3
    assert texts[0] == llm.chat_prompt([long])[:30] and texts[2] == llm.chat_prompt([asked])
    [text] = _texts(llm, [conversation({"text": words}) for words in ("", "sea")])
    assert llm.tokenizer.decode(text) == "sea"  # type: ignore[union-attr]
