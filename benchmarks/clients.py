"""Clients of a soak: requests of all kinds, of which many go wrong.

A rule that reads raw logits refuses processors and allowed tokens; that ends such a request too.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import replace
from queue import SimpleQueue
from random import Random
from typing import Any

from shared import bundled
from torch import Tensor

from foretoken import LLM, SamplingParams
from foretoken.engine.engine import Engine
from foretoken.engine.outputs import RequestOutput

KINDS = {
    "greedy": 34,
    "sampled": 32,
    "cancelled": 10,
    "left half read": 4,
    "processor raises": 4,
    "criterion raises": 3,
    "tokenizer raises": 3,
    "timeout": 5,
    "out of range": 5,
}
"""Kind of a request -> how many of a hundred."""


class Broken:
    """A processor or criterion that fails by design, once it was called this many times."""

    def __init__(self, after: int) -> None:
        self.after = after

    def __call__(self, ids: Any, scores: Tensor | None = None) -> Any:
        if self.after == 0:
            raise ValueError("it fails by design")
        self.after -= 1
        return scores if scores is not None else False


class Tokenizer:
    """A tokenizer that can't decode texts in which its last token stands twice."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.last = inner, len(inner) - 1

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.inner(*args, **options)

    def __len__(self) -> int:
        return len(self.inner)

    def decode(self, ids: list[int], **options: Any) -> Any:
        if ids.count(self.last) > 1:
            raise ValueError("it fails by design")
        return self.inner.decode(ids, **options)


class Clients:
    """Sends requests of all kinds; counts what came of them, and what shouldn't have."""

    def __init__(self, llm: LLM, seed: int) -> None:
        self.llm, self.seed = llm, seed
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        texts = [prompt.turns[0] for prompt in bundled()]
        self.texts: list[list[int]] = [llm.tokenizer(text)["input_ids"] for text in texts]
        self._lock = threading.Lock()
        self._any = 1.0 if llm.engine.verifier.sampling else 0.0
        """A temperature that the rule takes."""

    def one(self, number: int) -> None:
        """A request of a random kind, to its end."""
        random = Random(self.seed * 10**6 + number)
        kind = random.choices(list(KINDS), list(KINDS.values()))[0]
        text = random.choice(self.texts)
        start = random.randrange(max(1, len(text) - 8))
        prompt = text[start : start + random.randint(4, 90)]
        try:
            self._send(kind, prompt, random)
        except Exception as error:  # nothing but outputs may come back
            with self._lock:
                self.wrong.append(f"{kind}: {type(error).__name__}: {error}")
        with self._lock:
            self.outcomes[kind] += 1

    def _send(self, kind: str, prompt: list[int], random: Random) -> None:
        length = random.randint(2, 28)
        greedy = SamplingParams(temperature=0, max_tokens=length)
        sampled = SamplingParams(
            temperature=self._any, top_p=0.95, max_tokens=length, seed=random.getrandbits(30)
        )
        if kind in ("cancelled", "left half read"):
            self._stream(kind, prompt, random.choice((greedy, sampled)), random)
        elif kind == "processor raises":
            # Draft places count too, and are read again: so only the first call is sure to count.
            params = replace(sampled, logits_processors=[Broken(0)])
            self._expect(self.llm.generate([prompt], params), "error")
        elif kind == "criterion raises":
            self._expect([self._with_criterion(prompt, Broken(random.randrange(3)))], "error")
        elif kind == "tokenizer raises":
            token = self.llm.tokenizer.last
            params = replace(greedy, max_tokens=length + 1, allowed_token_ids=[token])
            self._expect(self.llm.generate([prompt], params), "error")
        elif kind == "timeout":
            params = replace(greedy, max_tokens=400, timeout=0.001, ignore_eos=True)
            self._expect(self.llm.generate([prompt], params), "timeout")
        elif kind == "out of range":
            prompt = random.choice(([], [10**9], prompt * 1000))
            self._expect(self.llm.generate([prompt], greedy), "error")
        else:
            params = greedy if kind == "greedy" else sampled
            self._expect(self.llm.generate([prompt], params), "stop", "length")

    def _expect(self, outputs: list[RequestOutput], *right: str) -> None:
        [output] = outputs
        reason = output.outputs[0].finish_reason
        if reason not in right or (output.error is None) == (reason == "error"):
            raise ValueError(f"{reason}: {output.error}")

    def _with_criterion(self, prompt: list[int], criterion: Broken) -> RequestOutput:
        """`LLM` takes no criterion, the hook does; this is what both do with one."""
        ended: SimpleQueue[RequestOutput] = SimpleQueue()
        worker = self.llm._worker

        def add(engine: Engine) -> None:
            params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
            request = engine.add(prompt, params, criterion=criterion)
            worker.follow(request.id, lambda output: output.finished and ended.put(output))

        worker.call(add)
        return ended.get()

    def _stream(self, kind: str, prompt: list[int], params: SamplingParams, random: Random) -> None:
        stream: Any = self.llm.stream(prompt, params)
        for _ in range(random.randint(1, 6)):
            next(stream, None)
        if kind == "cancelled":
            stream.close()
