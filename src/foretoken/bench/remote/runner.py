"""Measures servers with the OpenAI interface instead of our engine.

A server is timed from outside, so the network and its queue are in the times, and draft, verify
and other can't be separated; what it drafted is known from its counters alone, for groups and not
for requests. Without a second server that doesn't speculate there is no plain decoding to compare
with, and no speedup.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from foretoken.bench.measure.scores import score
from foretoken.bench.plan import Plan, Unit, seed_of
from foretoken.bench.record import BASELINE, Answer, Target
from foretoken.bench.remote.counters import Acceptance, acceptance_between
from foretoken.bench.remote.openai import Endpoint, Message, Reply
from foretoken.bench.run.answers import Question, median_repeat
from foretoken.bench.run.order import Order
from foretoken.bench.suites.suite import LEAST_ROOM, Prompt, room_left
from foretoken.engine.prompts import text_ids
from foretoken.errors import ForetokenError
from foretoken.sampling.params import SamplingParams

_WARM_UP_TOKENS = 8

Conversation = tuple[str, str]
"""A method and a prompt's id: a conversation."""


@dataclass(frozen=True)
class Request:
    """A question, and the messages that are sent to ask it."""

    question: Question
    messages: list[Message]


class RemoteRunner:
    """The plan's one method is the server's; `baseline` serves the same model without speculation.

    A batch size is a number of requests sent together. tokenizer: the served model's, for a server
    that doesn't count its tokens.

    Raises `ForetokenError` where a server can't be reached or doesn't serve its model.
    """

    def __init__(
        self, plan: Plan, server: Endpoint, baseline: Endpoint | None = None, tokenizer: Any = None
    ) -> None:
        [label] = plan.methods
        self.plan = plan if baseline else replace(plan, own_history=True)
        self.servers = {BASELINE: baseline, label: server} if baseline else {label: server}
        self.tokenizer = tokenizer
        self.not_run: dict[str, str] = {}
        contexts = [one.model_info().get("max_model_len") for one in self.servers.values()]
        self.context = min((c for c in contexts if type(c) is int and c > 0), default=None)
        self.target: Target = {
            "name": plan.name,
            "parameters": 0,
            "dtype": "unknown",
            "backend": "openai",
            "server": server.root,
        }
        self._order = Order()

    @property
    def labels(self) -> list[str]:
        return list(self.servers)

    def fitting(self, prompts: Seq[Prompt]) -> tuple[list[Prompt], list[str]]:
        """See `Server.fitting`: all fit, unless there is a tokenizer and the server's context is
        known."""
        fit = [prompt for prompt in prompts if self._fits(prompt)]
        return fit, [prompt.id for prompt in prompts if prompt not in fit]

    def _fits(self, prompt: Prompt) -> bool:
        if self.tokenizer is None or self.context is None:
            return True
        earlier = (len(prompt.turns) - 1) * _limit(prompt, self.plan.max_tokens)
        try:
            tokens = self._count("\n".join([prompt.system or "", *prompt.turns])) + earlier
        except ForetokenError as error:
            raise ForetokenError(f"Prompt {prompt.id!r}: {error}") from error
        return room_left(tokens, self.context) >= LEAST_ROOM

    def meter(self) -> None:
        """See `Server.meter`: what a pass costs can't be seen from outside."""

    def warm_up(self, prompt: Prompt) -> None:
        """See `Server.warm_up`. What is refused here would be refused every time, so it is an
        error."""
        for label in self.servers:
            for size in self.plan.batch_sizes:
                for temperature in self.plan.temperatures:
                    unit = Unit((prompt,), size, temperature)
                    [asked] = self._asked(label, unit, 0, {}, _WARM_UP_TOKENS)
                    for answer in self._group(label, [asked] * size):
                        if answer.error is not None:
                            raise ForetokenError(f"The server can't be measured: {answer.error}.")

    def serve(self, unit: Unit) -> list[Answer]:
        """See `Server.serve`. Where a turn fails the conversation is over; where plain decoding's
        does, so is the other's, as there is nothing to compare it with."""
        earlier: dict[Conversation, list[str]] = {}
        over: dict[Conversation, str] = {}
        unit_answers: list[Answer] = []
        for turn in range(max(len(p.turns) for p in unit.prompts)):
            asked = {
                (label, one.question.prompt.id): one
                for label in self.servers
                for one in self._asked(label, unit, turn, earlier, self.plan.max_tokens)
            }
            live = {key: one for key, one in asked.items() if key not in over}
            served = self._repeats(unit, turn, live)
            over |= self._ended(served)
            for key, one in asked.items():
                answer = one.question.failed(over[key]) if key in over else served[key]
                earlier.setdefault(key, []).append(answer.text)
                unit_answers.append(answer)
        return unit_answers

    def _ended(self, served: Mapping[Conversation, Answer]) -> dict[Conversation, str]:
        """The conversations that are over, and why."""
        over = {key: a.error for key, a in served.items() if a.error is not None}
        for label, prompt in list(over):
            if label == BASELINE:
                for other in self.servers.keys() - {BASELINE}:
                    over[other, prompt] = f"plain decoding failed: {over[label, prompt]}"
        return over

    def _asked(
        self, label: str, unit: Unit, turn: int, earlier: Mapping[Conversation, Seq[str]], most: int
    ) -> list[Request]:
        """The requests of a turn to one server."""
        history = label if self.plan.own_history else BASELINE
        requests = []
        for prompt in (p for p in unit.prompts if turn < len(p.turns)):
            params = SamplingParams(
                temperature=unit.temperature,
                max_tokens=_limit(prompt, most),
                stop=prompt.stop,
                seed=seed_of(self.plan.seed, prompt.id, turn),
            )
            question = Question(
                self.plan.name, self.target["dtype"], label, unit, prompt, turn, [], params
            )
            requests.append(
                Request(question, _conversation(prompt, earlier.get((history, prompt.id), ())))
            )
        return requests

    def _repeats(
        self, unit: Unit, turn: int, asked: Mapping[Conversation, Request]
    ) -> dict[Conversation, Answer]:
        """Each server's answers, those of its median repeat; the servers take turns."""
        tries: dict[str, list[list[Answer]]] = {label: [] for label, _ in asked}
        for _ in range(self.plan.repeats):
            for label in self._order.of(self.labels, unit, turn):
                requests = [one for (other, _), one in asked.items() if other == label]
                if requests:
                    tries[label].append(self._group(label, requests))
        chosen = [answer for repeats in tries.values() for answer in median_repeat(repeats)]
        return {(answer.method, answer.id): answer for answer in chosen}

    def _group(self, label: str, asked: Seq[Request]) -> list[Answer]:
        """The answers to requests that are sent together, and the counters around them."""
        endpoint = self.servers[label]
        before = endpoint.counters()
        with ThreadPoolExecutor(len(asked)) as pool:
            replies = list(pool.map(lambda a: endpoint.ask(a.messages, a.question.params), asked))
        after = endpoint.counters()
        counts = [self._tokens(label, reply) for reply in replies]
        answered = [reply for reply in replies if reply.error is None]
        counted = (
            acceptance_between(before, after, sum(counts), len(replies))
            if answered == replies and before  # else all since the server's start would be theirs
            else None
        )
        times = seconds(answered, sum(counts)) if answered else {}
        group_answers, member = [], 0
        for request, reply, count in zip(asked, replies, counts, strict=True):
            if reply.error is not None:
                group_answers.append(request.question.failed(reply.error))
                continue
            share = self._accepted(label, counted, count, member, len(answered))
            group_answers.append(_answer(request.question, reply, count, share, times))
            member += 1
        return group_answers

    def _tokens(self, label: str, reply: Reply) -> int:
        """How many tokens were written; 0, and the reply has failed, if nobody counts them."""
        if reply.error is not None:
            return 0
        usage = bool(reply.tokens or (reply.tokens == 0 and not reply.pieces))  # not 0 for a text
        if not usage and self.tokenizer is None:
            reply.error = "the server doesn't count tokens and --tokenizer is not given"
            return 0
        if label != BASELINE:
            self.target["tokens_from"] = "the server" if usage else "the tokenizer"
        try:
            return reply.tokens or 0 if usage else self._count("".join(reply.pieces))
        except ForetokenError as error:
            reply.error = str(error).removesuffix(".")
            return 0

    def _count(self, text: str) -> int:
        return len(text_ids(text, self.tokenizer, special=False))

    def _accepted(
        self, label: str, counted: Acceptance | None, count: int, member: int, members: int
    ) -> Acceptance:
        """A member's share of what was counted; of plain decoding it is known without counters."""
        if label == BASELINE:
            if counted is not None and counted.drafts:
                raise ForetokenError(
                    f"The baseline {self.servers[label].root} speculates, as its counters show; "
                    "give a server that doesn't."
                )
            return Acceptance("its definition", count)
        if counted is None:
            self.target.setdefault("acceptance_from", "nobody")
            return Acceptance("nobody", 0)
        self.target["acceptance_from"] = counted.source
        return counted.share(member, members)


def _limit(prompt: Prompt, most: int) -> int:
    return min(most, prompt.max_tokens or most)


def seconds(replies: Seq[Reply], tokens: int) -> dict[str, float]:
    """prefill and other (all of decoding) of a group, an equal share of each for every member.

    Between the first piece and the end lie all tokens but the first one, which came with the
    prompt, so it is counted with the others' average time. Where nothing lies between them prefill
    and decoding can't be separated, and all is decoding.
    """
    began, ended = min(r.began for r in replies), max(r.ended for r in replies)
    first = min((r.arrivals[0] for r in replies if r.arrivals), default=ended)
    decoding = (ended - first) * tokens / (tokens - 1) if tokens > 1 else 0.0
    if not 0.0 < decoding <= ended - began:
        decoding = ended - began
    share = 1 / len(replies)
    return {
        "prefill": (ended - began - decoding) * share,
        "draft": 0.0,
        "verify": 0.0,
        "other": decoding * share,
    }


def _answer(
    question: Question, reply: Reply, count: int, share: Acceptance, times: Mapping[str, float]
) -> Answer:
    first = reply.arrivals[0] if reply.arrivals else reply.ended
    return replace(
        question.failed(""),
        error=None,
        text=reply.text,
        finish_reason=reply.finish_reason or "",
        counted=count,
        prompt_tokens=reply.prompt_tokens or 0,
        passes=share.passes,
        drafted=share.drafted,
        accepted_at=list(share.accepted_at) if share.drafts else [],
        drafted_at=[share.drafts] * len(share.accepted_at) if share.drafts else [],
        decodings=[],
        seconds={**times, "ttft": first - reply.began, "total": reply.ended - reply.began},
        scores=score(question.prompt, question.turn, reply.text),
    )


def _conversation(prompt: Prompt, earlier: Seq[str]) -> list[Message]:
    """The messages up to the turn that follows the answers so far."""
    messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    for turn, answer in zip(prompt.turns, earlier, strict=False):
        messages.append({"role": "user", "content": turn})
        messages.append({"role": "assistant", "content": answer})
    return [*messages, {"role": "user", "content": prompt.turns[len(earlier)]}]
