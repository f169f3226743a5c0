"""Names that sampling parameters have in other libraries and not here, and what to use."""

from __future__ import annotations

from collections.abc import Collection
from collections.abc import Sequence as Seq
from typing import Any

from foretoken.errors import ForetokenError, shown, unknown

REMEDIES = {
    "best_of": "ask for n samples and keep the one with the highest cumulative_logprob",
    "use_beam_search num_beams length_penalty early_stopping": "there is no beam search; ask for "
    "n samples",
    "detokenize": "read an output's token_ids and leave its text",
    "spaces_between_special_tokens": "decode an output's token_ids with your tokenizer",
    "truncate_prompt_tokens": "shorten the prompt's token ids before you give them",
    "bad_words_ids": "use bad_words, which takes texts and lists of token ids",
    "guided_decoding response_format": "use structured_outputs, e.g. {'json': schema}",
    "output_kind": "use LLM.stream for pieces and LLM.generate for whole outputs",
    "extra_args": "give each option by its own name",
    "max_new_tokens max_length max_completion_tokens": "use max_tokens, which counts output tokens",
    "min_new_tokens min_length": "use min_tokens, which counts output tokens",
    "stop_strings": "use stop",
    "eos_token_id": "use stop_token_ids",
    "num_return_sequences": "use n",
    "do_sample": "use temperature=0 for greedy decoding, and a temperature above it to sample",
}
"""Names of vLLM, transformers and OpenAI that we lack -> what to do instead."""


def check_names(given: Collection[Any], options: Collection[str], known: Seq[str]) -> None:
    """Raise `ForetokenError` for values without a name, and for unknown names."""
    if given:
        value = shown(next(iter(given)))
        raise ForetokenError(f"SamplingParams takes names only, and got {value}; write name=value.")
    for name in options:
        for names, remedy in REMEDIES.items():
            if name in names.split():
                raise ForetokenError(f"SamplingParams has no {name}: {remedy}.")
        if name not in known:
            raise unknown("sampling parameter", name, known)
