"""Vicuna's template, in which Spec-Bench asks every target.

Source: FastChat's template `vicuna_v1.1`, which Spec-Bench's evaluation/eval.py takes whatever the
model is.
"""

from __future__ import annotations

from collections.abc import Sequence as Seq

NAME = "vicuna"
SYSTEM = (
    "A chat between a curious user and an artificial intelligence assistant. The assistant gives "
    "helpful, detailed, and polite answers to the user's questions."
)


def written(turns: Seq[str], answers: Seq[str], system: str | None = None) -> str:
    """A conversation up to where the next answer begins; there is one answer fewer than turns.
    system: instead of the template's own."""
    asked = [f"USER: {turn} ASSISTANT:" for turn in turns]
    said = [f" {answer.strip()}</s>" for answer in answers]
    return f"{system or SYSTEM} " + "".join(
        turn + answer for turn, answer in zip(asked, [*said, ""], strict=True)
    )
