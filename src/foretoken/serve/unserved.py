"""Fields that OpenAI's and vLLM's clients know and this server doesn't act on.

Each is refused by a sentence, except for values that ask for nothing else than what is done anyway.
What is built takes its row away, and adds its field to `schema.py`.
"""

from __future__ import annotations

from typing import Any

from foretoken.serve.errors import ApiError

ANY = object()
"""Every value is the same to us."""

_GUIDED = "it was replaced; use structured_outputs, or response_format"
_TOOLS = "it was replaced; use tools and tool_choice"
_TEXT = "only text is read and written; leave it out"
_LENGTH = "the model's own length is not bounded so; use max_tokens or a prompt"

UNSERVED: dict[str, tuple[tuple[Any, ...], str]] = {
    "user metadata service_tier safety_identifier store moderation": ((ANY,), ""),
    "prompt_cache_key prompt_cache_options prompt_cache_retention": ((ANY,), ""),
    "session_id include_reasoning": ((ANY,), ""),
    "functions": (([],), _TOOLS),
    "function_call": (("none", "auto"), _TOOLS),
    "guided_json guided_regex guided_choice guided_grammar": ((), _GUIDED),
    "guided_decoding_backend guided_whitespace_pattern": ((), _GUIDED),
    "modalities": ((["text"],), _TEXT),
    "audio mm_processor_kwargs web_search_options": ((), _TEXT),
    "suffix": (("",), "text is only written at the end; leave it out"),
    "best_of": ((1,), "samples aren't ranked; use n"),
    "use_beam_search": ((False,), "texts are sampled; use n and temperature"),
    "length_penalty": ((1, 1.0), "there are no beams; leave it out"),
    "reasoning_effort": ((), "give it in chat_template_kwargs, for templates that read it"),
    "verbosity thinking_token_budget": ((), _LENGTH),
    "priority": ((0,), "requests are served in their order; leave it out"),
    "stream_interval": ((1,), "a stream gets what each step wrote; leave it out"),
    "spaces_between_special_tokens": ((True,), "the tokenizer decides; leave it out"),
    "truncate_prompt_tokens truncation_side": ((), "prompts are read whole; shorten it"),
    "logprob_token_ids": ((), "log-probabilities are of the likeliest; use top_logprobs"),
    "chat_template": ((), "the model's own template is used; send a ready prompt to completions"),
    "repetition_detection watermarking vllm_xargs kv_transfer_params": ((), "leave it out"),
    "return_prompt_text": ((False,), "the prompt is the client's own; leave it out"),
}
"""Names -> the values that change nothing, and what to do instead of others."""

_ROWS = {name: row for names, row in UNSERVED.items() for name in names.split()}


def without_unserved(given: dict[str, Any]) -> dict[str, Any]:
    """The fields that are left. Raises `ApiError` for one that isn't served."""
    left = {}
    for name, value in given.items():
        if name not in _ROWS:
            left[name] = value
            continue
        harmless, remedy = _ROWS[name]
        if ANY not in harmless and not any(value == other for other in harmless):
            raise ApiError(400, f"{name} isn't served: {remedy}.", name)
    return left
