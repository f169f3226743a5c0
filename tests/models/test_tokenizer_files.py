"""Which files a tokenizer is read from."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

from foretoken.models.tokenizer_files import WANTED, has_vocabulary, means_one


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("tokenizer.json", True),
        ("tokenizer.model", True),
        ("merges.txt", True),
        ("chat_template.jinja", True),
        ("tokenization_qwen.py", True),
        ("qwen.tiktoken", True),
        ("model.safetensors", False),
        ("pytorch_model.bin", False),
    ],
)
def test_what_is_fetched(file: str, wanted: bool) -> None:
    assert any(fnmatch(file, pattern) for pattern in WANTED) == wanted


def test_a_vocabulary(tmp_path: Path) -> None:
    """In a file that the tokenizer reads, or in a usual one; a tokenizer of bytes needs none."""
    files = {"vocab_file": "own.txt"}
    assert has_vocabulary(tmp_path, None) and not has_vocabulary(tmp_path, files)
    (tmp_path / "tokenizer_config.json").touch()
    assert means_one(tmp_path) and not has_vocabulary(tmp_path, files)
    (tmp_path / "own.txt").touch()
    assert has_vocabulary(tmp_path, files) and not has_vocabulary(tmp_path, {"v": "other.txt"})
    (tmp_path / "a.tiktoken").touch()
    assert has_vocabulary(tmp_path, {"v": "other.txt"})


def test_no_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "config.json").touch()
    assert not means_one(tmp_path)
