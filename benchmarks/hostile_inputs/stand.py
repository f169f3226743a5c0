"""What hostile inputs are tried on: an LLM, and good requests beside them whose texts are known."""

from __future__ import annotations

import string
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from foretoken import LLM, SamplingParams
from foretoken.testing import ByteTokenizer, native, related, tiny_transformers
from hostile_inputs.case import Case, Outcome

VOCAB = 97
SLOTS = 4
GOOD: list[Any] = ["the cat, the cat", [5, 9, 2, 5, 9, 2, 5]]
BESIDE = "a b a b a"
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}: {{ m['content'] }}\n{% endfor %}a: "
METHODS = ("autoregressive", "pld", "sps", "token_recycling", "suffix", "pld|sps", "lookahead")
"""Methods that the LLMs decode by, in turn."""


class Stand:
    """Tiny models, made once, and the LLM in use. folder: for files that cases write."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._number = 0
        self._llms: dict[str, LLM] = {}
        self._texts: dict[bool, list[list[int]]] = {}

    @cached_property
    def transformers(self) -> Any:
        return tiny_transformers(VOCAB)

    @cached_property
    def target(self) -> Any:
        return native(self.transformers)

    @cached_property
    def draft(self) -> Any:
        return native(related(self.transformers))

    @cached_property
    def letters(self) -> Any:
        """A transformers tokenizer with a token for each printable ASCII character."""
        return letters()

    def place(self) -> Path:
        """A new folder."""
        self._number += 1
        path = self.folder / f"case-{self._number}"
        path.mkdir(parents=True)
        return path

    def new(self, method: str = "autoregressive", **options: Any) -> LLM:
        """A new LLM of the tiny model."""
        config: dict[str, Any] = {"method": method}
        if "sps" in method:
            config["model"] = self.draft
        given: dict[str, Any] = {
            "tokenizer": self.letters,
            "speculative_config": config,
            "max_num_seqs": SLOTS,
            **options,
        }
        return LLM(self.target, **given)

    def llm(self, method: str = "autoregressive") -> LLM:
        """The LLM of this method that all cases share."""
        if method not in self._llms:
            self._llms[method] = self.new(method)
        return self._llms[method]

    def drop(self, method: str) -> None:
        """Take a new LLM from now on."""
        self._llms.pop(method, None)

    @cached_property
    def expected(self) -> list[list[int]]:
        """The texts of `GOOD` and `BESIDE`, by plain decoding."""
        llm = self.new()
        texts = [output.token_ids for output in llm.generate(GOOD, GREEDY)]
        return [*texts, llm.generate(BESIDE, LONG)[0].token_ids]

    def serves(self, llm: LLM, outcome: Outcome) -> None:
        """Blame an LLM that doesn't serve the good requests as ever, and is idle then."""
        try:
            texts = [output.token_ids for output in llm.generate(GOOD, GREEDY)]
            if texts != self.expected[:2]:
                outcome.blame("unusable", "the next good requests got other texts")
            if not idle(llm):
                outcome.blame("unusable", "a slot is lost, or something still runs")
        except BaseException as error:
            outcome.blame("unusable", f"{type(error).__name__}: {error}")

    @contextmanager
    def neighbour(self, llm: LLM, outcome: Outcome) -> Iterator[None]:
        """A good stream that runs meanwhile; blames whoever changes it, or the LLM."""
        stream, last = llm.stream(BESIDE, LONG), None
        try:
            last = next(stream)
            yield
            *_, last = (last, *stream)
            if last.error is not None or last.token_ids != self.expected[2]:
                outcome.blame("harmed", f"a stream beside it: {last.error or 'another text'}")
        except BaseException as error:
            outcome.blame("harmed", f"a stream beside it: {type(error).__name__}: {error}")
        finally:
            stream.close()
        self.serves(llm, outcome)

    def together(
        self, llm: LLM, prompts: list[Any], params: list[Any], outcome: Outcome
    ) -> list[Any]:
        """Serve hostile requests in one call with good ones around them; the hostile outputs."""
        call = lambda: llm.generate([GOOD[0], *prompts, GOOD[1]], [GREEDY, *params, GREEDY])  # noqa: E731
        outputs = outcome.attempt(call)
        if outputs is None:
            outcome.blame("harmed", "a good request of the same call got no answer")
            return []
        first, *middle, last = outputs
        for output, text in zip((first, last), self.expected, strict=False):
            if output.error is not None or output.token_ids != text:
                why = output.error or "another text"
                outcome.blame("harmed", f"a good request of the same call: {why}")
        self.note(middle, outcome)
        return middle

    def note(self, outputs: list[Any], outcome: Outcome) -> None:
        """Take outputs of hostile requests into the outcome."""
        outcome.errors += [output.error for output in outputs if output.error is not None]
        outcome.served |= any(output.error is None for output in outputs)

    def close(self) -> None:
        for llm in self._llms.values():
            llm.close()


def idle(llm: LLM) -> bool:
    """Whether nothing runs and all slots are free, at once or soon."""
    for _ in range(200):
        if not llm.engine.busy and llm.engine.target.free == SLOTS:
            return True
        time.sleep(0.01)
    return False


def letters() -> Any:
    from tokenizers import Tokenizer, decoders, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {
        letter: i for i, letter in enumerate(["<unk>", "\n", " ", *string.printable[:94]])
    }
    inner = Tokenizer(models.BPE(vocabulary, [], unk_token="<unk>"))
    inner.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=TEMPLATE)


def byte_tokenizer() -> ByteTokenizer:
    return ByteTokenizer(VOCAB)


def tried(case: Case, stand: Stand) -> Outcome:
    """Run a case and judge it."""
    outcome = Outcome()
    try:
        case.run(stand, outcome)
    except BaseException as error:
        outcome.blame("raw", f"{type(error).__name__}: {error}")
    torch.set_num_threads(1)
    case.judge(outcome)
    return outcome


Work = Callable[[LLM], Any]
