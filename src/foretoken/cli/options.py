"""Options that several commands share, under the names of vLLM and transformers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    from foretoken.engine.stats import AcceptanceStats
    from foretoken.llm import LLM

_NEED_A_MODEL = {
    "sps",
    "draft_model",
    "small_lm",
    "bild",
    "specinfer",
    "spectr",
    "mcsd",
    "sequoia",
    "small_tree",
    "staged",
    "cs_drafting",
    "cascade",
}
_MODEL_NAMES = {"model", "models", "draft_model", "assistant_model"}
_WHAT, _HOW, _TEXT = "Model", "Speculation", "Sampling"


def _option(panel: str, *names: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, **settings)


Model = Annotated[
    str, _option(_WHAT, "--model", "-m", help="Checkpoint folder, hub id or bundled name.")
]
Tokenizer = Annotated[
    str | None, _option(_WHAT, "--tokenizer", help="Where to find another tokenizer.")
]
Dtype = Annotated[str, _option(_WHAT, "--dtype", help="auto, float32, bfloat16, float16, float64.")]
Device = Annotated[str, _option(_WHAT, "--device", help="auto, cpu, cuda …")]
Backend = Annotated[str, _option(_WHAT, "--backend", help="How linear layers run.")]
ModelImpl = Annotated[
    str, _option(_WHAT, "--model-impl", help="auto, native, or transformers' own code.")
]
MaxModelLen = Annotated[
    int | None, _option(_WHAT, "--max-model-len", help="Context: prompt and output together.")
]
Method = Annotated[
    str | None, _option(_HOW, "--method", help="Decoding method; see 'foretoken methods'.")
]
DraftModel = Annotated[
    str | None, _option(_HOW, "--draft-model", help="The model that drafts, for methods with one.")
]
NumSpeculativeTokens = Annotated[
    int | None, _option(_HOW, "--num-speculative-tokens", help="Tokens drafted in a step.")
]
SpeculativeConfig = Annotated[
    str | None,
    _option(
        _HOW, "--speculative-config", "-sc", help="All of a method's options as one JSON object."
    ),
]
Temperature = Annotated[float, _option(_TEXT, "--temperature", help="0 is greedy.")]
TopP = Annotated[float, _option(_TEXT, "--top-p", help="Sample from this share of the mass.")]
TopK = Annotated[int, _option(_TEXT, "--top-k", help="Sample from the k likeliest; 0 is all.")]
MinP = Annotated[float, _option(_TEXT, "--min-p", help="Least probability relative to the best.")]
RepetitionPenalty = Annotated[
    float, _option(_TEXT, "--repetition-penalty", help="Above 1 discourages repeats.")
]
Seed = Annotated[int | None, _option(_TEXT, "--seed", help="Makes the text repeatable.")]
MaxTokens = Annotated[int, _option(_TEXT, "--max-tokens", help="Most tokens to write.")]


def speculative_config(
    config: str | None, method: str | None, draft_model: str | None, tokens: int | None
) -> dict[str, Any] | None:
    """One speculative_config from the JSON and the single options, which win over it."""
    found: dict[str, Any] = {}
    if config is not None:
        try:
            found = json.loads(config)
        except json.JSONDecodeError as error:
            raise ForetokenError(f"--speculative-config is not JSON: {error}.") from error
        if not isinstance(found, dict):
            raise ForetokenError(
                '--speculative-config must be a JSON object, e.g. \'{"method": "pld"}\'.'
            )
    given = {"method": method, "model": draft_model, "num_speculative_tokens": tokens}
    found |= {key: value for key, value in given.items() if value is not None}
    if found.get("method") in _NEED_A_MODEL and not _MODEL_NAMES & found.keys():
        raise ForetokenError(
            f"Method {found['method']!r} drafts with a small model; name it, e.g. "
            "--draft-model mini-draft."
        )
    return found or None


def acceptance(stats: AcceptanceStats, seconds: float) -> str:
    """One line on how the drafting went."""
    parts = [f"{stats.tokens} tokens", f"{stats.tokens / seconds:,.0f} tokens/s" if seconds else ""]
    if stats.drafted:
        parts += [
            f"mean acceptance length {stats.mean_acceptance_length:.2f}",
            f"{stats.draft_acceptance_rate:.0%} of {stats.drafted} drafted tokens accepted",
        ]
    return " · ".join(part for part in parts if part)


def has_chat_template(llm: LLM) -> bool:
    return bool(getattr(llm.tokenizer, "chat_template", None))
