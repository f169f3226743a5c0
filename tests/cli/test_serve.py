"""`foretoken serve` before it serves; tests/serve has the rest."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from command_line import one_sentence, run
from foretoken import ForetokenError
from foretoken.cli.options import ModelOptions
from foretoken.cli.replicas import ReplicaOptions


def test_a_gguf_file_of_a_repository_is_all_that_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the repository's other files, which may be the whole model once more: what a file says
    comes without a generation_config.json."""
    asked: list[tuple[str, ...]] = []

    def file(*names: str) -> str:
        asked.append(names)
        return str(tmp_path / names[-1])

    def loaded(running: ModelOptions, model: str, *_: Any, **__: Any) -> Any:
        raise ForetokenError(f"{model} with {running.gguf_file} would be loaded.")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", file)
    monkeypatch.setattr("foretoken.models.checkpoint.downloaded", lambda name, *_: 1 / 0)
    monkeypatch.setattr(ModelOptions, "llm", loaded)
    done = run("serve", "org/name", "--gguf-file", "a.gguf", "--port", 0)
    assert "org/name with a.gguf would be loaded" in done.stderr
    assert asked == [("org/name", "a.gguf")]


def test_the_backend_of_structured_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goes to the engine; a name that there isn't is refused before a model is loaded."""
    asked: list[str] = []

    def loaded(*_: Any, structured_outputs_backend: str, **__: Any) -> Any:
        asked.append(structured_outputs_backend)
        raise ForetokenError("It would be loaded.")

    monkeypatch.setattr(ModelOptions, "llm", loaded)
    for words in ((), ("--structured-outputs-backend", "xgrammar")):
        one_sentence(run("serve", "mini", "--port", 0, *words))
    wrong = run("serve", "mini", "--port", 0, "--structured-outputs-backend", "guidence")
    one_sentence(wrong)
    assert asked == ["auto", "xgrammar"] and "'guidance'" in wrong.stderr
    one_sentence(run("serve", "mini", "--port", 0, "--allow-credentials"))
    assert len(asked) == 2


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder, the current one, with a certificate, its key, and both in one file."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes certificates")
    monkeypatch.chdir(tmp_path)
    make = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    command = [*make.split(), "-keyout", "key.pem", "-out", "cert.pem"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    Path("both.pem").write_text(Path("cert.pem").read_text() + Path("key.pem").read_text())
    return tmp_path


def test_replicas_get_files_that_they_find(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray takes texts, and both files; it opens them in a folder of its own."""
    config = pytest.importorskip("ray.serve.config")
    addresses: list[dict[str, Any]] = []

    def served(self: ReplicaOptions, *_: Any, address: dict[str, Any], **others: Any) -> None:
        addresses.append(address)

    monkeypatch.setattr(ReplicaOptions, "serve", served)
    for files in (("cert.pem", "--ssl-keyfile", "key.pem"), ("both.pem",)):
        done = run("serve", "mini", "--replicas", 1, "--port", 0, "--ssl-certfile", *files)
        assert done.exit_code == 0, done.output
    first, second = (config.HTTPOptions(**address) for address in addresses)
    assert first.ssl_certfile == str(certificate / "cert.pem")
    assert first.ssl_keyfile == str(certificate / "key.pem")
    assert second.ssl_keyfile == second.ssl_certfile == str(certificate / "both.pem")


def test_files_for_https_that_cannot_be_used(
    certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are looked at before a model is loaded."""

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError

    monkeypatch.setattr(ModelOptions, "llm", never)
    Path("other.pem").write_text("none")
    for words in (
        ("--ssl-keyfile", "key.pem"),
        ("--ssl-certfile", "cert.pem"),
        ("--ssl-certfile", "cert.pem", "--ssl-keyfile", "nowhere.pem"),
        ("--ssl-certfile", "other.pem", "--ssl-keyfile", "key.pem"),
    ):
        one_sentence(run("serve", "mini", "--port", 0, *words))
