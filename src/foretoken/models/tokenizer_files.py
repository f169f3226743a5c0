"""Which files of a folder or a repository are a tokenizer's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

WANTED = ("*.json", "*.model", "*.txt", "*.jinja", "*.py", "*.tiktoken")
"""Patterns of a repository's files that a tokenizer may read; code in it runs where it may."""
_OWN = ("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "tekken.json")


def means_one(folder: Path) -> bool:
    """Whether a folder is to have a tokenizer, whether or not it can be read."""
    return any((folder / name).is_file() for name in _OWN)


def has_vocabulary(folder: Path, files: Mapping[str, str] | None) -> bool:
    """Whether a folder has a file of a vocabulary, of a tokenizer that reads `files`: without one
    transformers makes an empty tokenizer, which knows special tokens only, numbered from 0."""
    if not files:  # a tokenizer of bytes needs none
        return True
    names = {*files.values(), "tokenizer.json", "tokenizer.model", "tekken.json"}
    return any((folder / name).is_file() for name in names) or any(folder.glob("*.tiktoken"))
