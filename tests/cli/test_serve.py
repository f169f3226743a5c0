"""`foretoken serve` before it serves; tests/serve has the rest."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from foretoken import ForetokenError
from foretoken.cli import serve


def test_defaults_come_from_the_model_and_from_options(tmp_path: Path) -> None:
    settings = {"temperature": 0.6, "top_k": 20, "eos_token_id": 1, "max_new_tokens": 9}
    (tmp_path / "generation_config.json").write_text(json.dumps(settings))
    place = str(tmp_path)
    found = serve._defaults("mini", place, '{"top_k": 5}')
    assert found == {"temperature": 0.6, "top_k": 5, "max_tokens": 9}
    assert serve._defaults("mini", "vllm", "{}") == {}
    with pytest.raises(ForetokenError, match="temperature"):
        serve._defaults("mini", place, '{"temperature": -1}')
    with pytest.raises(ForetokenError, match="beams"):
        serve._defaults("mini", place, '{"beams": 1}')
    with pytest.raises(ForetokenError, match="not JSON"):
        serve._defaults("mini", place, "{")
    with pytest.raises(ForetokenError, match="there is no"):
        serve._defaults("mini", str(tmp_path / "none"), "{}")


def test_files_of_https_are_looked_for_before_the_model_is_loaded(tmp_path: Path) -> None:
    there, missing = tmp_path / "cert.pem", tmp_path / "none.pem"
    there.touch()
    with pytest.raises(ForetokenError, match="--ssl-keyfile does nothing alone"):
        serve._check_files(there, None)
    for pair, option in (((missing, there), "keyfile"), ((None, missing), "certfile")):
        with pytest.raises(ForetokenError, match=f"--ssl-{option}: there is no file"):
            serve._check_files(*pair)
    serve._check_files(None, there)  # its key may be in it
    serve._check_files(None, None)


def test_origins() -> None:
    assert serve._origins('["*"]') == ("*",)
    with pytest.raises(ForetokenError, match="JSON list"):
        serve._origins('"*"')


@pytest.mark.parametrize("given", [(True, None), (False, "hermes")], ids=str)
def test_a_parser_and_its_switch_go_together(given: tuple[bool, str | None]) -> None:
    with pytest.raises(ForetokenError, match="does nothing alone"):
        serve._tool_parser(*given)
    assert (
        serve._tool_parser(True, "hermes") == "hermes" and serve._tool_parser(False, None) is None
    )


def test_a_key_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_API_KEY", "k")
    assert serve._from_environment() == ("k",)
    monkeypatch.delenv("VLLM_API_KEY")
    assert serve._from_environment() == ()
