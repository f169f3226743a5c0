"""Who is measured, and with which options.

Rows of the same kind are compared: plain greedy decoding; prompt lookup of at most 10 tokens
after an n-gram of at most 3; a draft model writing 4 tokens at a time, always 4. Those are
foretoken's defaults. Where an engine has other defaults, another row has them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

ENGINES = {
    "foretoken": None,
    "transformers": "transformers",
    "openvino": "openvino",
    "llama.cpp": "llama.cpp",
    "llama-cpp-python": "llama.cpp",
}
"""The environment of each engine; foretoken runs in the driver's own."""

PLAIN, LOOKUP, DRAFT = "plain", "prompt lookup", "draft model"


@dataclass(frozen=True)
class Row:
    """One engine with one method. `options` are the engine's own, as its file in engines/ reads."""

    engine: str
    kind: str
    note: str = ""
    options: dict[str, Any] = field(default_factory=dict, compare=False)

    @property
    def method(self) -> str:
        return f"{self.kind}, {self.note}" if self.note else self.kind


ROWS = (
    Row("foretoken", PLAIN, "", {"method": "autoregressive"}),
    Row(
        "foretoken",
        LOOKUP,
        "",
        {
            "method": "pld",
            "num_speculative_tokens": 10,
            "prompt_lookup_max": 3,
        },
    ),
    Row("foretoken", DRAFT, "", {"method": "sps", "num_speculative_tokens": 4}),
    Row("transformers", PLAIN),
    Row(
        "transformers",
        LOOKUP,
        "",
        {
            "call": {"prompt_lookup_num_tokens": 10, "max_matching_ngram_size": 3},
        },
    ),
    Row(
        "transformers",
        DRAFT,
        "",
        {
            "assisted": True,
            "num_assistant_tokens": 4,
            "num_assistant_tokens_schedule": "constant",
            "assistant_confidence_threshold": 0.0,
        },
    ),
    Row("transformers", DRAFT, "its defaults", {"assisted": True}),
    Row("openvino", PLAIN),
    Row(
        "openvino",
        LOOKUP,
        "",
        {
            "drafts": "lookup",
            "num_assistant_tokens": 10,
            "max_ngram_size": 3,
        },
    ),
    Row("openvino", DRAFT, "", {"drafts": "model", "num_assistant_tokens": 4}),
    Row("llama.cpp", PLAIN),
    Row(
        "llama.cpp",
        LOOKUP,
        "",
        {
            "--spec-type": "ngram-simple",
            "--spec-ngram-simple-size-n": "3",
            "--spec-ngram-simple-size-m": "10",
        },
    ),
    Row("llama.cpp", LOOKUP, "its defaults", {"--spec-type": "ngram-simple"}),
    Row(
        "llama.cpp",
        DRAFT,
        "",
        {
            "--spec-type": "draft-simple",
            "--spec-draft-n-max": "4",
            "--spec-draft-p-min": "0",
        },
    ),
    Row("llama-cpp-python", PLAIN),
    Row("llama-cpp-python", LOOKUP, "", {"max_ngram_size": 3, "num_pred_tokens": 10}),
)


def like(row: Row) -> Row:
    """foretoken's row of the same kind."""
    return Row("foretoken", row.kind)


def plain(row: Row) -> Row:
    """The same engine's plain decoding."""
    return Row(row.engine, PLAIN)
