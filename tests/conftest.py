"""One thread a process, the same examples in every run, and the tiny models that tests share."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from foretoken.testing import Pair, native, related, tiny_pair, tiny_transformers

torch.set_num_threads(1)

hypothesis.settings.register_profile("fixed", derandomize=True, database=None, deadline=None)
hypothesis.settings.load_profile("fixed")

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}: {{ m['content'] }}\n{% endfor %}a: "


@pytest.fixture(scope="session")
def pair() -> Pair:
    """A native float64 target of 97 tokens, a related draft model, the target in transformers."""
    return tiny_pair()


@pytest.fixture(scope="session")
def deep() -> Pair:
    """A target of four layers whose upper ones change little, so that a part of it agrees with it
    now and then."""
    model = tiny_transformers(layers=4)
    with torch.no_grad():
        for layer in model.model.layers[1:]:
            layer.self_attn.o_proj.weight *= 0.2
            layer.mlp.down_proj.weight *= 0.2
    return Pair(native(model), native(model), model)


def letters() -> Any:
    """A transformers tokenizer with a token for each printable ASCII character."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        letter: i for i, letter in enumerate(["<unk>", "\n", " ", *string.printable[:94]])
    }
    inner = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    inner.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=TEMPLATE)


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of a tiny target and a related draft model, with a tokenizer and no end of text."""
    tokenizer, folder = letters(), tmp_path_factory.mktemp("checkpoints")
    target = tiny_transformers(len(tokenizer), max_length=4096, dtype=torch.float32)
    paths = folder / "target", folder / "draft"
    for path, model in zip(paths, (target, related(target, 0.02)), strict=True):
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    return paths


@pytest.fixture
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache folder."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
