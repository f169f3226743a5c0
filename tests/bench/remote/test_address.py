"""A server's address and key: sent to the server, shown to nobody."""

from __future__ import annotations

import os
import traceback
from base64 import b64encode
from http.server import BaseHTTPRequestHandler

import pytest

from fake_server import KEY, PARAMS, PROMPT, WORD, answering, asked, head, plan, serving
from foretoken.bench.plan import Unit
from foretoken.bench.remote import address
from foretoken.bench.remote.openai import Endpoint
from foretoken.bench.remote.runner import RemoteRunner
from foretoken.errors import ForetokenError


@pytest.mark.parametrize("end", ["\n", "\r\nX: y", " ", "\x00", "é", "€", "\udce9"], ids=ascii)
def test_a_key_that_no_header_carries(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is refused before a request is made, and nothing that could be printed holds it."""
    with serving() as (fake, endpoint):
        # The environment itself holds no NUL, but a mapping in its place may.
        monkeypatch.setattr(os, "environ", {address.KEY: KEY + end})
        with pytest.raises(ForetokenError) as raised:
            RemoteRunner(plan(), Endpoint(endpoint.base_url, "m")).serve(Unit((PROMPT,), 1, 0.0))
        monkeypatch.undo()
    assert "OPENAI_API_KEY can't be sent: its character 20 is" in str(raised.value)
    assert KEY not in "".join(traceback.format_exception(raised.value))
    assert fake.asked == []


@pytest.mark.parametrize(
    "url",
    [
        "//me:sk-0123456789abcdef@localhost:0/v1",
        "me:sk-0123456789abcdef@localhost",
        "//me:sk-0123456789abcdef@host:port",
        "//me:sk-0123456789abcdef@[::1/v1",
        "//host:port/v1?api_key=sk-0123456789abcdef",
        "//host/v1?api_key=sk-0123456789abcdef\nHost: other",
        "//me:sk-0123456789abcdef@ho st/v1",
        "//me:sk-0123456789abcdef@a..b/v1",
        "//host/vé/v1?api_key=sk-0123456789abcdef",
        "///v1?api_key=sk-0123456789abcdef",
    ],
)
def test_a_wrong_address_is_told_without_its_secrets(url: str) -> None:
    """Also where it can't be taken apart."""
    with pytest.raises(ForetokenError, match="A server's address is like") as raised:
        Endpoint(url if url[:1] != "/" else f"http:{url}", "m")
    assert KEY not in "".join(traceback.format_exception(raised.value))


def test_a_password_and_a_query_go_to_the_server_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither is in what represents the endpoint, nor in what a server says that echoes them."""
    monkeypatch.delenv(address.KEY, raising=False)
    seen = []

    def echo(to: BaseHTTPRequestHandler) -> None:
        seen.append((to.path, to.headers["Authorization"]))
        head(to, 500, Content_Type="text/plain")
        to.wfile.write(f"no {to.path} for {to.headers['Authorization']}: pass/0123".encode())

    with answering(echo) as url:
        endpoint = Endpoint(f"{url}/v1/?key={KEY}".replace("//", "//me:pass%2F0123@", 1), "m")
        error = endpoint.ask([], PARAMS).error
    login = "Basic bWU6cGFzcy8wMTIz"
    assert seen == [(f"/v1/chat/completions?key={KEY}", login)]
    assert error is not None and "status 500: no /v1/chat/completions?key=*** for " in error
    for secret in (KEY, "0123", login[6:]):
        assert secret not in error + repr(endpoint) + endpoint.root


@pytest.mark.parametrize(
    "body", ["%s", '{"error": {"message": "bad key %s"}}', '["%s"]', "x%s" * 99]
)
def test_errors_that_echo_the_key_are_kept_without_it(
    body: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an error's text, and in an answer's."""
    monkeypatch.setenv(address.KEY, KEY)

    def echo(to: BaseHTTPRequestHandler) -> None:
        head(to, 401)
        to.wfile.write((body.replace("%s", KEY) + " " * 5000).encode())

    def say(to: BaseHTTPRequestHandler) -> None:
        head(to)
        to.wfile.write(WORD.replace(b"word", KEY.encode()).replace(b"stop", KEY.encode()))
        to.wfile.write(b"data: [DONE]\n\n")

    with answering(echo) as url:
        error = asked(url).error
    assert error is not None and "status 401: " in error and "***" in error
    assert "sk-0" not in error and len(error) < 400
    with answering(say) as url:
        reply = asked(url)
    assert reply.error is None and reply.text == "***"
    assert KEY not in repr(reply)


def test_ports_that_are_not_named() -> None:
    assert [address.read_address(f"{kind}://host/v1").port for kind in ("http", "https")] == [
        80,
        443,
    ]


def test_a_secret_in_each_way_in_which_it_is_written() -> None:
    """As it is, and as URLs write it, with a slash as one or as an escape."""
    found = address.read_address("//".join(("http:", "me:pass%2Fword%201@host/v1")))
    said = "pass/word 1, pass%2Fword%201 and pass/word%201"
    assert found.redacted(said) == "***, *** and ***"


@pytest.mark.parametrize(
    ("login", "sent"),
    [("me:word@", "me:word"), ("me@", "me:"), (":word@", ":word"), ("", None), (":@", None)],
)
def test_a_login_without_a_name_or_a_word(login: str, sent: str | None) -> None:
    """Each stays where it stood."""
    found = address.read_address("//".join(("http:", f"{login}host/v1"))).headers
    wanted = sent and f"Basic {b64encode(sent.encode()).decode()}"
    assert found.get("Authorization") == wanted


def test_an_address_is_stored_as_it_was_given() -> None:
    """But for what is secret, and a slash at its end."""
    root = "http://127.0.0.1/api"
    for given in (root.replace("127", "me:word@127"), f"{root}/?key=1"):
        assert address.public(given) == root
        assert address.public(given.replace("/api", "/api/v1")) == f"{root}/v1"


def test_short_secrets_are_hidden_where_they_are_words() -> None:
    """Of an error alone: an answer may hold them by chance, and a short value of a query is none.
    Of secrets that begin alike the longest is hidden."""
    found = address.read_address("http://127.0.0.1/v1?version=2", "abc")
    assert found.redacted_error("abc: no abcd by 2") == "***: no abcd by 2"
    assert found.redacted("abc") == "abc"
    found = address.read_address("//".join(("http:", "secret-1:secret-12@host/v1")))
    assert found.redacted("secret-1 and secret-12") == "*** and ***"
