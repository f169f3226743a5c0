"""What texts begin with: the generation settings first, then the configuration."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken.errors import ForetokenError
from foretoken.models.seq2seq.beginning import beginning, read_beginning


def config(**given: Any) -> Any:
    return SimpleNamespace(vocab_size=10, **given)


def test_settings_come_before_the_configuration(tmp_path: Path) -> None:
    there = config(decoder_start_token_id=3)
    (tmp_path / "config.json").write_text(json.dumps({"forced_bos_token_id": 7}))
    assert read_beginning(tmp_path, there) == ((3, 7), ())
    (tmp_path / "generation_config.json").write_text("{}")
    assert read_beginning(tmp_path, there) == ((3,), ())
    given = {"decoder_start_token_id": 4, "forced_bos_token_id": 0, "bad_words_ids": [[9], [8]]}
    (tmp_path / "generation_config.json").write_text(json.dumps(given))
    assert read_beginning(tmp_path, there) == ((4, 0), (9, 8))


def test_the_start_is_the_beginning_of_texts_where_none_is_named() -> None:
    assert beginning({"bos_token_id": 2}, config()).opening == (2,)
    assert beginning({"bos_token_id": 2}, config(decoder_start_token_id=3)).opening == (3,)
    assert beginning({}, config(bos_token_id=5)).opening == (5,)


def test_how_a_text_is_searched_for_is_left_to_the_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And said; settings that change nothing, or that a server reads, are not."""
    idle = {"decoder_start_token_id": 4, "num_beams": 1, "min_length": 0, "suppress_tokens": None}
    file = tmp_path / "generation_config.json"
    file.write_text(json.dumps({**idle, "temperature": 0.5}))
    assert read_beginning(tmp_path, config()).opening == (4,)
    assert not caplog.text
    asked = {"num_beams": 4, "no_repeat_ngram_size": 3, "encoder_repetition_penalty": 1.3}
    file.write_text(json.dumps({**idle, **asked}))
    assert read_beginning(tmp_path, config()).opening == (4,)
    told = "num_beams=4, no_repeat_ngram_size=3, encoder_repetition_penalty=1.3,"
    assert f"asks for {told}" in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "write decoder_start_token_id into"),
        ({"decoder_start_token_id": 10}, "the token 10"),
        ({"decoder_start_token_id": 1, "forced_bos_token_id": True}, "the token True"),
        ({"decoder_start_token_id": 1, "bad_words_ids": [[1, 2]]}, "only single ids"),
        ({"decoder_start_token_id": 1, "bad_words_ids": 5}, "only single ids"),
        ({"decoder_start_token_id": 1, "bad_words_ids": [5]}, "only single ids"),
        ({"decoder_start_token_id": 1, "bad_words_ids": [[-1]]}, "the token -1"),
    ],
)
def test_what_is_no_beginning(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ForetokenError, match=said):
        beginning(given, config())
