"""Runs methods beside one another: one target, one process, prompt by prompt.

Every method answers a prompt before any method sees the next one, in an order that rotates from
prompt to prompt, so a machine that drifts drifts for all. Later turns of a conversation continue
plain decoding's answer, so all methods always read the same prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from foretoken.bench import metrics
from foretoken.bench.environment import environment
from foretoken.bench.identity import compare
from foretoken.bench.memory import PeakMemory
from foretoken.bench.record import SCHEMA, Answer, Results, Target
from foretoken.bench.suite import Prompt, Suite
from foretoken.engine.outputs import RequestOutput
from foretoken.engine.stopping import TextTracker
from foretoken.errors import ForetokenError
from foretoken.llm import LLM
from foretoken.models.load import find, read_config
from foretoken.sampling import SamplingParams
from foretoken.tree import Kind

BASELINE = "autoregressive"
_WARM_UP_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run. `methods` maps a label to its speculative_config; plain decoding is added.

    name: the target's, as reported. inflated: the shape where its cost is blown up.
    """

    model: str | Path
    name: str
    methods: Mapping[str, Mapping[str, Any]]
    temperatures: tuple[float, ...] = (0.0, 1.0)
    max_tokens: int = 64
    seed: int = 0
    repeats: int = 1
    max_model_len: int = 2048
    inflated: str | None = None


class Runner:
    """The plan's methods, loaded once around one copy of the target's weights."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        room = min(plan.max_model_len, _context(plan.model))
        first = LLM(plan.model, max_model_len=room, max_num_seqs=1)
        self.llms: dict[str, LLM] = {BASELINE: first}
        for label, config in plan.methods.items():
            if label == BASELINE:
                continue
            llm = LLM(
                first.model, tokenizer=first.tokenizer, speculative_config=config,
                max_model_len=room, max_num_seqs=1,
            )  # fmt: skip
            llm.engine.eos_ids = first.engine.eos_ids
            self.llms[label] = llm
        self._memory = PeakMemory(first.model.device)
        self._turn = 0

    @property
    def target(self) -> Target:
        model = self.llms[BASELINE].model
        found: Target = {
            "name": self.plan.name,
            "parameters": model.parameters,
            "dtype": str(model.dtype).removeprefix("torch."),
            "backend": model.backend,
        }
        if self.plan.inflated is not None:
            found["inflated"] = self.plan.inflated
        return found

    def warm_up(self, prompt: Prompt) -> None:
        """Answer one prompt by every method, untimed: first passes allocate and pick kernels."""
        for llm in self.llms.values():
            for temperature in self.plan.temperatures:
                params = SamplingParams(
                    temperature=temperature, max_tokens=_WARM_UP_TOKENS, seed=self.plan.seed
                )
                llm.generate([self._ids([prompt.turns[0]], [])], params)

    def results(self, suite: Suite, answers: Seq[Answer]) -> Results:
        """The record of what was answered."""
        plain = [a for a in answers if a.method == BASELINE]
        first = plain[0].temperature
        left_out = metrics.looping(a for a in plain if a.temperature == first)
        once = {(a.id, a.turn) for a in plain}
        return {
            "schema": SCHEMA,
            "environment": environment(),
            "target": self.target,
            "suite": {
                "name": suite.name,
                "sha256": suite.sha256,
                "prompts": len({a.id for a in plain}),
                "turns": len(once),
                "max_tokens": self.plan.max_tokens,
                "distinct_4_threshold": metrics.DISTINCT_4,
                "left_out": left_out,
            },
            "runs": metrics.runs(answers, left_out, baseline=BASELINE, repeats=self.plan.repeats),
        }

    def prompt(self, prompt: Prompt) -> Iterator[Answer]:
        """All turns by all methods at all temperatures."""
        for temperature in self.plan.temperatures:
            said: list[str] = []
            for turn in range(len(prompt.turns)):
                ids = self._ids(prompt.turns[: turn + 1], said)
                answers = self._turn_answers(prompt, turn, ids, temperature)
                said.append(answers[BASELINE].text)
                yield from answers.values()

    def _turn_answers(
        self, prompt: Prompt, turn: int, ids: list[int], temperature: float
    ) -> dict[str, Answer]:
        params = SamplingParams(
            temperature=temperature, max_tokens=self.plan.max_tokens, seed=self.plan.seed + turn
        )
        labels = list(self.llms)
        found: dict[str, list[Answer]] = {label: [] for label in labels}
        for _ in range(self.plan.repeats):
            self._turn += 1
            at = self._turn % len(labels)
            for label in labels[at:] + labels[:at]:
                found[label].append(self._answer(label, prompt, turn, ids, params))
        middle = {label: _middle(answers) for label, answers in found.items()}
        self._judge(middle, ids, params)
        return middle

    def _answer(
        self, label: str, prompt: Prompt, turn: int, ids: list[int], params: SamplingParams
    ) -> Answer:
        llm = self.llms[label]
        llm.reset_stats()
        self._memory.reset()
        [out] = llm.generate([ids], params)
        if out.error is not None:
            raise ForetokenError(f"Prompt {prompt.id!r} failed with {label}: {out.error}")
        [sample], stats = out.outputs, llm.stats
        return Answer(
            target=self.plan.name, method=label, temperature=params.temperature, id=prompt.id,
            task=prompt.task, turn=turn, prompt=prompt.turns[turn], text=sample.text,
            finish_reason=sample.finish_reason or "", token_ids=list(sample.token_ids),
            pieces=_pieces(llm, sample.token_ids), accepted=list(sample.accepted),
            passes=stats.passes, drafted=stats.drafted, drafted_at=list(stats.drafted_at),
            accepted_at=list(stats.accepted_at), seconds=_seconds(llm, out),
            peak_memory_mib=self._memory.mib(),
        )  # fmt: skip

    def _judge(self, answers: dict[str, Answer], ids: list[int], params: SamplingParams) -> None:
        """Fill in how each answer compares with plain decoding's, where that is claimed."""
        plain = answers[BASELINE].token_ids
        for label, answer in answers.items():
            drawn = self.llms[label].engine.drafter.kinds - {Kind.CHOSEN, Kind.AUXILIARY}
            if params.greedy or not drawn:
                answer.sameness, answer.margin = compare(
                    self.llms[BASELINE], ids, params, plain, answer.token_ids
                )

    def _ids(self, turns: Seq[str], said: Seq[str]) -> list[int]:
        """The prompt of the last turn, after what was said; without a chat template, as text."""
        llm = self.llms[BASELINE]
        if getattr(llm.tokenizer, "chat_template", None):
            messages = []
            for i, turn in enumerate(turns):
                messages.append({"role": "user", "content": turn})
                if i < len(said):
                    messages.append({"role": "assistant", "content": said[i]})
            return llm.chat_prompt(messages)
        parts = [part for pair in zip(turns, [*said, ""], strict=False) for part in pair]
        ids: list[int] = llm.tokenizer("\n".join(parts[:-1]))["input_ids"]
        return ids


def run_prompts(
    runner: Runner,
    prompts: Iterable[Prompt],
    *,
    keep: Callable[[Answer], None],
    advance: Callable[[], None],
    budget: float | None = None,
) -> list[Answer]:
    """Answers to all prompts, or to as many of the first as fit into `budget` seconds.

    A prompt is begun only if the longest one so far would still fit; the first always is. So how
    many are measured depends on the time that all methods take together, and on no result.
    """
    began = perf_counter()
    answers: list[Answer] = []
    longest = 0.0
    for prompt in prompts:
        start = perf_counter()
        if budget is not None and answers and start - began + longest > budget:
            break
        for answer in runner.prompt(prompt):
            answers.append(answer)
            keep(answer)
        advance()
        longest = max(longest, perf_counter() - start)
    return answers


def _context(model: str | Path) -> int:
    length: int = read_config(find(model)).max_position_embeddings
    return length


def _middle(answers: list[Answer]) -> Answer:
    """The repeat with the median decoding time."""
    return sorted(answers, key=lambda a: a.decoding)[len(answers) // 2]


def _seconds(llm: LLM, out: RequestOutput) -> dict[str, float]:
    stats = llm.stats
    return {
        "prefill": stats.prefill_time,
        "draft": stats.draft_time,
        "verify": stats.verify_time,
        "other": stats.other_time,
        "ttft": out.stats.time_to_first_token or 0.0,
        "total": out.stats.total_time or 0.0,
    }


def _pieces(llm: LLM, tokens: Seq[int]) -> list[str]:
    """The text that each token added; a character of several tokens comes with its last one."""
    tracker = TextTracker(llm.tokenizer, skip_special_tokens=True)
    pieces = [tracker.append(token) for token in tokens]
    rest = tracker.finish()[len(tracker.text) :]
    if pieces:
        pieces[-1] += rest
    return pieces
