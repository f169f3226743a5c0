"""Makes lines of samples.jsonl from an engine's outputs."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import dataclass, replace
from typing import Any

from foretoken.bench.plan import Unit
from foretoken.bench.record import Answer
from foretoken.bench.suites.suite import Prompt
from foretoken.engine.outputs import RequestOutput
from foretoken.engine.stats import EngineStats
from foretoken.engine.stopping import TextTracker
from foretoken.sampling.params import SamplingParams

_NO_TIME = dict.fromkeys(("prefill", "draft", "verify", "other", "ttft", "total"), 0.0)


@dataclass(frozen=True)
class Question:
    """One turn of one prompt for one method; `ids`: the target's whole input."""

    target: str
    dtype: str
    method: str
    unit: Unit
    prompt: Prompt
    turn: int
    ids: list[int]
    params: SamplingParams

    def failed(self, reason: str) -> Answer:
        """The answer of a turn that failed: no text, and zeros for all that was not measured."""
        return Answer(
            target=self.target,
            dtype=self.dtype,
            method=self.method,
            temperature=self.params.temperature,
            batch_size=self.unit.batch_size,
            group=self.unit.group,
            id=self.prompt.id,
            task=self.prompt.task,
            category=self.prompt.category,
            turn=self.turn,
            prompt=self.prompt.turns[self.turn],
            prompt_tokens=len(self.ids),
            seed=self.params.seed or 0,
            text="",
            finish_reason="error",
            token_ids=[],
            pieces=[],
            accepted=[],
            passes=0,
            drafted=0,
            drafted_at=[],
            accepted_at=[],
            seconds=dict(_NO_TIME),
            peak_memory_mib=None,
            error=reason,
        )


@dataclass(frozen=True)
class GroupUsage:
    """The time, steps, memory and energy of serving a whole group."""

    stats: EngineStats
    peak_memory_mib: float | None
    kv_cache_mib: float
    energy_j: float | None


def answers(
    questions: Seq[Question], outputs: Seq[RequestOutput], usage: GroupUsage, tokenizer: Any
) -> list[Answer]:
    """A group's answers; those without an error share the group's time and energy equally."""
    members = sum(out.error is None for out in outputs)
    return [
        question.failed(out.error)
        if out.error is not None
        else _answer(question, out, usage, members, tokenizer)
        for question, out in zip(questions, outputs, strict=True)
    ]


def _answer(
    question: Question, out: RequestOutput, usage: GroupUsage, members: int, tokenizer: Any
) -> Answer:
    [sample], stats = out.outputs, out.stats
    return replace(
        question.failed(""),
        error=None,
        text=sample.text,
        finish_reason=sample.finish_reason or "",
        token_ids=list(sample.token_ids),
        pieces=pieces(tokenizer, sample.token_ids),
        accepted=list(sample.accepted),
        passes=stats.passes,
        drafted=stats.drafted,
        drafted_at=list(stats.drafted_at),
        accepted_at=list(stats.accepted_at),
        strayed=stats.strayed,
        engine_steps=usage.stats.engine_steps / members,
        seconds=_seconds(out, usage, members),
        decodings=[],
        peak_memory_mib=usage.peak_memory_mib,
        kv_cache_mib=usage.kv_cache_mib,
        chosen=dict(stats.chosen),
        energy_j=None if usage.energy_j is None else usage.energy_j / members,
    )


def _seconds(out: RequestOutput, usage: GroupUsage, members: int) -> dict[str, float]:
    stats = usage.stats
    return {
        "prefill": stats.prefill_time / members,
        "draft": stats.draft_time / members,
        "verify": stats.verify_time / members,
        "other": stats.other_time / members,
        "ttft": out.stats.time_to_first_token or 0.0,
        "total": out.stats.total_time or 0.0,
    }


def pieces(tokenizer: Any, tokens: Seq[int]) -> list[str]:
    """The text that each token added; a character of several tokens comes with its last one."""
    tracker = TextTracker(tokenizer, skip_special_tokens=True)
    texts = [tracker.append(token) for token in tokens]
    rest = tracker.finish()[len(tracker.text) :]
    if texts:
        texts[-1] += rest
    return texts


def median_repeat(repeats: Seq[Seq[Answer]]) -> list[Answer]:
    """The group's repeat with the median decoding time; `decodings` gets the times of all repeats.

    A prompt that failed in one of them has failed.
    """
    chosen = sorted(repeats, key=lambda one: sum(a.decoding for a in one))[len(repeats) // 2]
    merged = []
    for index, answer in enumerate(chosen):
        same_prompt = [one[index] for one in repeats]
        failed = next((a for a in same_prompt if a.error is not None), None)
        merged.append(failed or replace(answer, decodings=[a.decoding for a in same_prompt]))
    return merged
