"""The tokenizer of the bundled models."""

from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer


def test_its_file_shows_that_all_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """prepare.py takes it for that, so it is written last, and whole."""
    import tokenizer

    made = tokenizer.train(iter(["the sea", "a house by the sea"]))
    kept, before = tokenizer.write_file, list[str]()

    def noting(path: Path, content: str) -> None:
        before.extend(sorted(file.name for file in tmp_path.iterdir()))
        kept(path, content)

    monkeypatch.setattr(tokenizer, "write_file", noting)
    tokenizer.save(made, tmp_path)
    others = ["chat_template.jinja", "special_tokens_map.json", "tokenizer_config.json"]
    assert before == others
    read = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert read.encode("a house").ids == made.encode("a house").ids
