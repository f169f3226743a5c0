"""Where rows come from: files, the hub, a download; and what is wrong with each."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foretoken import ForetokenError
from foretoken.bench.suites.suite import find_suite
from suite_files import OWN, describe, write


def test_bytes_that_are_no_text_are_named(tmp_path: Path) -> None:
    """By their line."""
    path = tmp_path / "some.jsonl"
    path.write_bytes(json.dumps(OWN).encode() + b'\n{"id": "\xff"}')
    with pytest.raises(ForetokenError, match=r"some\.jsonl, line 2: not JSON"):
        find_suite(path)


def test_no_file_no_prompts(tmp_path: Path) -> None:
    """A missing, an empty and a broken file are told apart."""
    with pytest.raises(ForetokenError, match=r"none\.jsonl can't be read: No such file"):
        find_suite(tmp_path / "none.jsonl")
    with pytest.raises(ForetokenError, match=r"some\.jsonl holds no prompts"):
        find_suite(write(tmp_path / "some.jsonl", ["", " "]))
    (tmp_path / "some.jsonl.gz").write_bytes(b"not gzip")
    with pytest.raises(ForetokenError, match=r"some\.jsonl\.gz can't be unpacked"):
        find_suite(tmp_path / "some.jsonl.gz")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A datasets library that notes how it is called and has two rows."""
    calls: list[Any] = []

    def load_dataset(*args: Any, **options: Any) -> list[dict[str, Any]]:
        calls.append((args, options))
        if args[0] == "gone":
            raise ConnectionError("no route")
        return [{**OWN, "id": i} for i in (1, 2)]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    return calls


def test_a_hub_dataset(tmp_path: Path, hub: list[Any]) -> None:
    """It is asked for as described; an error of the hub is one sentence."""
    source = {"dataset": "who/what", "config": "small", "split": "test", "revision": "1234"}
    found = find_suite(describe(tmp_path / "h.yml", name="h", source=source))
    assert hub == [(("who/what", "small"), {"split": "test", "revision": "1234"})]
    assert [p.id for p in found.prompts] == ["1", "2"] and len(found.sha256) == 64
    source["dataset"] = "gone"
    with pytest.raises(ForetokenError, match="The dataset gone can't be read: no route"):
        find_suite(describe(tmp_path / "h.yml", name="h", source=source))


def test_a_parquet_file(tmp_path: Path, hub: list[Any]) -> None:
    """It is read through the datasets library, if it exists."""
    with pytest.raises(ForetokenError, match=r"There is no file .*x\.parquet"):
        find_suite(tmp_path / "x.parquet")
    (tmp_path / "x.parquet").touch()
    assert len(find_suite(tmp_path / "x.parquet").prompts) == 2


def test_the_hub_needs_its_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence says what to install."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ForetokenError, match="pip install datasets"):
        find_suite("speed-bench-throughput")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, bytes]]]:
    """A web server on this machine: its address and the files that it has."""
    files: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path in files else 404)
            self.end_headers()
            self.wfile.write(files.get(self.path, b""))

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield f"http://127.0.0.1:{server.server_port}", files
    server.shutdown()
    server.server_close()


def test_a_file_is_downloaded_once(tmp_path: Path, home: tuple[str, dict[str, bytes]]) -> None:
    """Into the cache, from which it is read later; not where downloading is off."""
    address, files = home
    content = files["/q.jsonl.gz"] = gzip.compress(json.dumps(OWN).encode())
    sha256 = hashlib.sha256(content).hexdigest()
    source = {"file": "q.jsonl.gz", "url": f"{address}/q.jsonl.gz", "sha256": sha256}
    path, cache = describe(tmp_path / "d.yaml", name="d", source=source), tmp_path / "cache"
    with pytest.raises(ForetokenError, match="downloading it is switched off"):
        find_suite(path, cache=cache, download=False)
    found = find_suite(path, cache=cache)
    assert found.sha256 == sha256 and [p.id for p in found.prompts] == ["a"]
    assert [p.name for p in (cache / "suites").iterdir()] == [f"{sha256[:16]}-q.jsonl.gz"]
    files.clear()
    assert find_suite(path, cache=cache, download=False) == found


def test_a_wrong_download_leaves_nothing(
    tmp_path: Path, home: tuple[str, dict[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a missing page nor a file with another sha256 comes to the cache."""
    address, files = home
    monkeypatch.setenv("FORETOKEN_CACHE", str(tmp_path / "cache"))
    source = {"file": "q.jsonl", "url": f"{address}/q.jsonl", "sha256": "0" * 64}
    path = describe(tmp_path / "d.yaml", name="d", source=source)
    with pytest.raises(ForetokenError, match=r"can't be downloaded .*Not Found.*NAME=PATH"):
        find_suite(path)
    files["/q.jsonl"] = json.dumps(OWN).encode()
    with pytest.raises(ForetokenError, match=r"q\.jsonl has the sha256 .* published file has 0000"):
        find_suite(path)
    assert not (tmp_path / "cache").exists()


def test_a_file_beside_its_description_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before one of the same name in the folder of texts."""
    for name in ("beside", "texts"):
        (tmp_path / name).mkdir()
        write(tmp_path / name / "q.jsonl", [{**OWN, "id": name}])
    monkeypatch.setenv("FORETOKEN_DATA", str(tmp_path / "texts"))
    path = describe(tmp_path / "beside" / "d.yaml", name="d", source={"file": "q.jsonl"})
    assert [p.id for p in find_suite(path).prompts] == ["beside"]
    (tmp_path / "beside" / "q.jsonl").unlink()
    assert [p.id for p in find_suite(path).prompts] == ["texts"]


def test_a_dataset_without_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = SimpleNamespace(load_dataset=lambda *args, **options: [])
    monkeypatch.setitem(sys.modules, "datasets", empty)
    path = describe(tmp_path / "d.yaml", name="d", source={"dataset": "a/b", "split": "test"})
    with pytest.raises(ForetokenError, match="The dataset a/b holds no prompts"):
        find_suite(path)
