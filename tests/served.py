"""Servers on the tiny model, in this process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvicorn

from foretoken import LLM, AsyncLLM
from foretoken.serve.app import application
from foretoken.serve.run import listening
from foretoken.serve.settings import ServerSettings
from foretoken.testing import ByteTokenizer, native, related, tiny_transformers

VOCAB = 257
SLOTS = 4


class Served(NamedTuple):
    """A server: its address, and the `LLM` that it serves."""

    url: str
    llm: LLM


class Spaced(ByteTokenizer):
    """Puts a special token before a text, and writes numbers, with a space before each but a text's
    first."""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [self.eos_token_id, *self.encode(text)]}

    def decode(self, token_ids: Any, *given: Any, **options: Any) -> str:
        texts = [f" {token}" for token in token_ids if token != self.eos_token_id]
        return "".join(texts)[1:]


def toy(**options: Any) -> LLM:
    """A float64 model of random weights with a small model that drafts."""
    model = tiny_transformers(VOCAB)
    config = {"method": "sps", "model": native(related(model, 0.02)), "num_speculative_tokens": 3}
    own = {"max_num_seqs": SLOTS, "tokenizer": ByteTokenizer(VOCAB), "speculative_config": config}
    return LLM(model, **own | {"enable_prefix_caching": True} | options)


@contextmanager
def serving(llm: LLM, **settings: Any) -> Iterator[Served]:
    """Serve an `LLM` on a free port."""
    chosen = ServerSettings(**{"names": ("toy", "other")} | settings)
    opened = listening("127.0.0.1", 0)
    config = uvicorn.Config(
        application(AsyncLLM(llm), chosen), log_level="error", timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.01)
    try:
        yield Served(f"http://127.0.0.1:{opened.getsockname()[1]}", llm)
    finally:
        server.should_exit = True
        thread.join()
