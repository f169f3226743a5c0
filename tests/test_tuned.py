"""Files of tuned options are read, or refused in one sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretoken import ForetokenError
from foretoken.tuned import from_anywhere, read_tuned, resolve_tuned, tuned_path


def test_a_file_that_is_none(tmp_path: Path) -> None:
    """Another file, one of another schema, and none."""
    path = tmp_path / "bad.json"
    path.write_text("{}")
    with pytest.raises(ForetokenError, match="as a file of foretoken tune: it has schema None"):
        read_tuned(path)
    with pytest.raises(ForetokenError, match="make it with foretoken tune"):
        read_tuned(tmp_path / "none.json")


def test_given_options_win(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tuned name stands for its options; those that are given with it replace them."""
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path))
    tuned_path("fast").parent.mkdir()
    options = {"method": "pld", "prompt_lookup_max": 2}
    tuned_path("fast").write_text(json.dumps({"schema": 1, "speculative_config": options}))
    assert resolve_tuned({"tuned": "fast", "prompt_lookup_max": 5}) == {
        **options,
        "prompt_lookup_max": 5,
    }
    assert resolve_tuned({"method": "sps"}) == {"method": "sps"}
    assert resolve_tuned({"tuned": "fast", "max_matching_ngram_size": 5}) == {
        "method": "pld",
        "max_matching_ngram_size": 5,
    }
    with pytest.raises(ForetokenError, match=r"Unknown tuned method 'fats'\. Did you mean 'fast'"):
        read_tuned("fats")
    tuned_path("bare").write_text('{"schema": 1}')
    with pytest.raises(ForetokenError, match="it has no speculative_config"):
        read_tuned("bare")


def test_paths_lead_there_from_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Paths of what is there are whole, in a part's options and lists too; names, hub ids, texts
    and models that are loaded stay as they are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small").mkdir()
    (tmp_path / "set.npz").touch()
    loaded = object()
    config = {
        "method": "small",
        "draft_model": "small",
        "models": ["./small", "mini-draft"],
        "assistant_tokenizer": Path("small"),
        "datastore": "org/name",
        "corpus": ["x" * 5000, "a\0b"],
        "draft_verify": {"skip": "set.npz", "model": loaded},
        "num_speculative_tokens": 3,
    }
    whole = str(tmp_path / "small")
    assert from_anywhere(config) == {
        **config,
        "draft_model": whole,
        "models": [whole, "mini-draft"],
        "assistant_tokenizer": whole,
        "draft_verify": {"skip": str(tmp_path / "set.npz"), "model": loaded},
    }
