"""Acceptance as a server counts it, from the Prometheus text of its /metrics before and after.

- vLLM (and foretoken's own server, which uses the same names after another prefix) counts drafts,
  drafted and accepted tokens, and accepted tokens by position. A pass writes one token more than
  it accepts, so passes = tokens - accepted, passes without a draft included. Of the drafts that
  reach a position it only knows that they are no more than all of them.
- SGLang counts verifications when a request ends; the first token comes with the prompt, so
  passes = verifications + requests. It doesn't count what was drafted. Versions that count nothing
  have a gauge of the mean acceptance length in their last seconds, which is used as the next best.

Names: vllm/v1/spec_decode/metrics.py; sglang/srt/observability/metrics_collector.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

Series = Mapping[str, Mapping[str, float]]
"""Name without `_total` -> labels as written -> value."""

PREFIXES = ("foretoken", "vllm")
_LINE = re.compile(r"([A-Za-z_][\w:]*)(\{.*\})?\s+(\S+)")
_POSITION = re.compile(r'\bposition="(\d{1,4})"')
_MOST = 2.0**53  # as large as a count can be; more, NaN and infinity are none


@dataclass(frozen=True)
class Acceptance:
    """What was counted; `drafts` are passes with a draft, accepted_at[i] those that kept token i.

    source: whose counters, in words.
    """

    source: str
    passes: int
    drafts: int = 0
    drafted: int = 0
    accepted_at: tuple[int, ...] = ()

    def share(self, member: int, members: int) -> Acceptance:
        """One request's part of what was counted for all: as equal as whole numbers can be, and the
        drafted tokens in proportion to the drafts."""

        def up_to(total: int, member: int) -> int:
            return total // members * member + min(member, total % members)

        def part(total: int) -> int:
            return up_to(total, member + 1) - up_to(total, member)

        first, last = (up_to(self.drafts, m) * self.drafted for m in (member, member + 1))
        drafts = max(1, self.drafts)
        return Acceptance(
            self.source,
            part(self.passes),
            part(self.drafts),
            last // drafts - first // drafts,
            tuple(map(part, self.accepted_at)),
        )


def parse(text: str) -> Series:
    """The samples of a Prometheus text; other lines are skipped."""
    series: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        sample = _LINE.match(line)
        if sample is None:
            continue
        name, labels, value = sample.groups()
        try:
            number = float(value)
        except ValueError:
            continue
        if abs(number) < _MOST:
            series.setdefault(name.removesuffix("_total"), {})[labels or ""] = number
    return series


def acceptance_between(
    before: Series, after: Series, tokens: int, requests: int
) -> Acceptance | None:
    """What was counted while a server wrote this many tokens for this many requests and did nothing
    else; None where it doesn't count, was not speculating, or was restarted in between."""
    grown = _growth(before, after)
    if grown is None or not tokens:
        return None
    for prefix in PREFIXES:
        if f"{prefix}:spec_decode_num_drafts" in after:
            return _by_draft(prefix, grown, tokens)
    verified = round(sum(grown.get("sglang:spec_verify_calls", {}).values()))
    if verified:
        return Acceptance("SGLang's counters", verified + requests, verified)
    length = max(after.get("sglang:spec_accept_length", {}).values(), default=0.0)
    if length >= 1:
        passes = max(requests, round(tokens / length))
        return Acceptance("SGLang's gauge of the last seconds", passes, passes)
    return None


def _growth(before: Series, after: Series) -> dict[str, dict[str, float]] | None:
    """The difference of every counter of ours; None where one has fallen."""
    grown = {
        name: {at: value - before.get(name, {}).get(at, 0.0) for at, value in values.items()}
        for name, values in after.items()
        if ":spec_decode_num_" in name or name == "sglang:spec_verify_calls"
    }
    fallen = any(value < 0 for values in grown.values() for value in values.values())
    return None if fallen else grown


def _by_draft(prefix: str, grown: Series, tokens: int) -> Acceptance:
    def total(what: str) -> int:
        return round(sum(grown.get(f"{prefix}:spec_decode_num_{what}", {}).values()))

    positions: dict[int, float] = {}
    for labels, value in grown.get(f"{prefix}:spec_decode_num_accepted_tokens_per_pos", {}).items():
        if at := _POSITION.search(labels):
            positions[int(at[1])] = positions.get(int(at[1]), 0.0) + value
    return Acceptance(
        source=f"{prefix}'s counters",
        passes=max(1, total("drafts"), tokens - total("accepted_tokens")),
        drafts=total("drafts"),
        drafted=total("draft_tokens"),
        accepted_at=tuple(round(positions[at]) for at in sorted(positions)),
    )
