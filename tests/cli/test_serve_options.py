"""Options of `foretoken serve`: what the server is told of them, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from foretoken import ForetokenError
from foretoken.cli.serve_options import Address, Answers, Limits, base_url


def test_defaults_come_from_the_model_and_from_options(tmp_path: Path) -> None:
    settings = {"temperature": 0.6, "top_k": 20, "eos_token_id": 1, "max_new_tokens": 9}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    place = str(tmp_path)

    def answers(where: str, override: str) -> Answers:
        return Answers(generation_config=where, override_generation_config=override)

    found = answers(place, '{"top_k": 5}').defaults("mini")
    assert found == {"temperature": 0.6, "top_k": 5, "max_tokens": 9}
    told = '{"max_new_tokens": 7}'
    longest = [answers(where, told).longest("mini") for where in ("auto", "vllm", place)]
    assert longest == [7] * 3
    assert Answers().longest("mini") is None
    assert Answers().longest(place) is None and Answers().defaults(place)["max_tokens"] == 9
    assert "top_k" not in answers(place, '{"top_k": null}').defaults("mini")
    assert answers("vllm", "{}").defaults("mini") == {}
    with pytest.raises(ForetokenError, match="temperature"):
        answers(place, '{"temperature": -1}').defaults("mini")
    with pytest.raises(ForetokenError, match="beams"):
        answers(place, '{"beams": 1}').defaults("mini")
    with pytest.raises(ForetokenError, match="not JSON"):
        answers(place, "{").defaults("mini")
    with pytest.raises(ForetokenError, match="there is no"):
        answers(str(tmp_path / "none"), "{}").defaults("mini")


def test_where_clients_find_it() -> None:
    """By HTTPS where there is a certificate."""
    placed = {"host": "127.0.0.1", "port": 8000, **Address().common()}
    assert base_url(placed) == "http://127.0.0.1:8000/v1"
    assert base_url({**placed, "ssl_certfile": "cert.pem"}) == "https://127.0.0.1:8000/v1"
    assert urlsplit(base_url({**placed, "host": "::1"})).port == 8000


def test_origins() -> None:
    assert Address(allowed_origins='["*"]').origins() == ("*",)
    with pytest.raises(ForetokenError, match="JSON list"):
        Address(allowed_origins='"*"').origins()


@pytest.mark.parametrize("given", [(True, None), (False, "hermes")], ids=str)
def test_a_parser_and_its_switch_go_together(given: tuple[bool, str | None]) -> None:
    def parser(enabled: bool, name: str | None) -> str | None:
        return Answers(enable_auto_tool_choice=enabled, tool_call_parser=name).tool_parser()

    with pytest.raises(ForetokenError, match="does nothing alone"):
        parser(*given)
    assert parser(True, "hermes") == "hermes" and parser(False, None) is None


def test_a_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts where none is given."""
    monkeypatch.setenv("VLLM_API_KEY", "k")
    assert Address().keys() == ("k",) and Address(api_key=["a", "b"]).keys() == ("a", "b")
    monkeypatch.delenv("VLLM_API_KEY")
    assert Address().keys() == ()


def test_settings_are_of_answers_and_of_the_address() -> None:
    """Each under the server's name for it."""
    address = Address(api_key=["a"], allowed_origins='["x"]', allow_credentials=True)
    found = Answers(response_role="bot", sse_keep_alive_interval=2.0).settings(
        "mini", "mini", address
    )
    assert found.names == ("mini",) and found.api_keys == ("a",)
    assert found.allowed_origins == ("x",) and found.allow_credentials
    assert found.response_role == "bot" and found.keep_alive_interval == 2.0
    renamed = Answers(served_model_name=["one", "two"]).settings("mini", "mini", Address())
    assert renamed.names == ("one", "two")


def test_limits_under_the_names_of_the_engine() -> None:
    found = Limits(max_num_seqs=3, max_num_batched_tokens=9, max_num_queued_reqs=0).of_engine()
    assert found == {"max_num_seqs": 3, "max_num_batched_tokens": 9, "max_queued": 0}
