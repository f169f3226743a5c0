"""The recorded results as Markdown: one table per target, as measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lineup import DRAFT, LOOKUP, PLAIN

HEAD = (
    "| engine | tokens/s | whole call | over its own plain | foretoken over it | same tokens |",
    "|---|--:|--:|--:|--:|--:|",
)


def markdown(results: Mapping[str, Any]) -> str:
    """All tables and what they say."""
    parts = [_intro(results)]
    for target in results["targets"]:
        parts += [f"**{_title(target)}**", table(target)]
    for engine, reason in results["left_out"].items():
        parts.append(f"Left out: {engine}, because {reason}.")
    return "\n\n".join(parts)


def _intro(results: Mapping[str, Any]) -> str:
    machine = results["environment"]
    versions = {
        name: number for each in results["versions"].values() for name, number in each.items()
    }
    names = ", ".join(f"{name} {number}" for name, number in sorted(versions.items()))
    return (
        f"Greedy decoding in float32 with {results['threads']} threads on {machine['cpu']} "
        f"({machine['cores']} cores), at most {results['max_tokens']} tokens an answer, median of "
        f"{results['repeats']}; 95 % intervals over prompts. Prompt lookup copies up to 10 tokens, "
        f"a draft model writes 4. *tokens/s* is decoding alone, *whole call* includes the prompt. "
        f"{names}."
    )


def pair(results: Mapping[str, Any]) -> str:
    """The table of a record with one target, under what was asked of foretoken and one peer."""
    [target] = results["targets"]
    [peer] = [name for name in results["versions"] if name != "foretoken"]
    each = "one" if results["limit"] == 1 else results["limit"]
    return (
        f"**foretoken and {peer}** (at most {results['max_tokens']} tokens an answer, median of "
        f"{results['repeats']}; {each} of each task: {_asked(target)})\n\n{table(target)}"
    )


def _title(target: Mapping[str, Any]) -> str:
    name = "mini" if target["name"] == "mini" else f"mini at the cost of {target['name']}"
    return f"{name} ({target['parameters'] / 1e6:.0f} M parameters; {_asked(target)})"


def _asked(target: Mapping[str, Any]) -> str:
    left_out = len(target["left_out"])
    loops = f", {left_out} more left out because plain decoding loops" if left_out else ""
    return f"{target['prompts']} prompts{loops}"


def table(target: Mapping[str, Any]) -> str:
    """Rows of one kind stand together, the fastest in bold."""
    lines = list(HEAD)
    for kind in (PLAIN, LOOKUP, DRAFT):
        rows = [row for row in target["rows"] if row["kind"] == kind]
        best = max((row["decoding"]["tokens_per_second"] or 0.0 for row in rows), default=0.0)
        lines += [_line(row, best) for row in rows]
    return "\n".join(lines)


def _line(row: Mapping[str, Any], best: float) -> str:
    name = ", ".join(part for part in (row["engine"], row["kind"], row["note"]) if part)
    decoding, whole = row["decoding"], row["whole"]["tokens_per_second"]
    speed = decoding["tokens_per_second"]
    shown = _number(speed)
    cells = [
        name,
        f"**{shown}**" if speed and speed == best else shown,
        _number(whole),
        _ratio(decoding["over_own_plain"]) if row["kind"] != PLAIN else "–",
        _ratio(decoding["foretoken_over_it"]) if row["engine"] != "foretoken" else "–",
        _same(row),
    ]
    return f"| {' | '.join(cells)} |"


def _number(speed: float | None) -> str:
    return "–" if speed is None else f"{speed:.0f}" if speed >= 100 else f"{speed:.1f}"


def _ratio(results: Mapping[str, Any] | None) -> str:
    if results is None:
        return "–"
    interval = results["ci95"]
    return f"{results['ratio']:.2f}" + (
        f" ({interval[0]:.2f}–{interval[1]:.2f})" if interval is not None else ""
    )


def _same(row: Mapping[str, Any]) -> str:
    """How many answers are foretoken's plain ones; near ties and failures are named."""
    same = row["identity"]
    parts = [f"{same['identical']} of {row['prompts']}"]
    more = {"near ties": same["near_tie"], "different": same["different"], "failed": row["failed"]}
    return ", ".join([*parts, *(f"{name}: {count}" for name, count in more.items() if count)])
