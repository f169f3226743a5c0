"""Names that vLLM knows and foretoken doesn't: each is refused with what to use, except for values
that ask for nothing else than what is done anyway."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from numbers import Number
from typing import Any

from foretoken.errors import ForetokenError, shown, unknown

_ONE = "one device runs the model"
_MEMORY = "kv_cache_memory bounds the caches"
_WEIGHTS = "give the folder of the weights that you mean"

LLM_NAMES: dict[str, tuple[tuple[Any, ...], str]] = {
    "tensor_parallel_size pipeline_parallel_size data_parallel_size": ((1, None), _ONE),
    "distributed_executor_backend": ((None,), _ONE),
    "quantization": ((None,), "backend='q4', 'q8', 'int8' … quantises while loading"),
    "swap_space cpu_offload_gb": ((0, None), _MEMORY),
    "kv_cache_memory_bytes num_gpu_blocks_override": ((None,), _MEMORY),
    "block_size max_seq_len_to_capture": ((None,), _MEMORY),
    "enable_chunked_prefill": (
        (True, None),
        "prompts are read in chunks of max_num_batched_tokens",
    ),
    "tokenizer_mode": (("auto",), "give a tokenizer object as tokenizer"),
    "skip_tokenizer_init": ((False,), "prompts may be token ids whatever the tokenizer is"),
    "load_format": (("auto", "safetensors", None), "weights are read from *.safetensors, or *.bin"),
    "revision tokenizer_revision code_revision download_dir hf_token": ((None,), _WEIGHTS),
    "hf_overrides hf_config_path": ((None,), "change the folder's config.json"),
    "generation_config": (
        ("vllm",),
        "give SamplingParams; only the server reads the file",
    ),
    "task runner": (("auto", "generate", None), "text is generated, and nothing else"),
    "enable_lora max_loras lora_modules": ((False, None), "merge the adapter into the weights"),
    "guided_decoding_backend structured_outputs_config": (
        (None,),
        "structured_outputs_backend names it",
    ),
    "limit_mm_per_prompt mm_processor_kwargs": ((None,), "prompts are text"),
    "max_logprobs": ((None, -1), "any number up to the vocabulary's may be asked for"),
    "disable_log_stats disable_custom_all_reduce": ((True, False, None), ""),
    "logits_processors": ((None,), "they are SamplingParams' own"),
    "compilation_config": ((None,), "backend='compiled+…' or 'cuda_graphs+…' compile passes"),
    "stream_interval": ((1, None), "LLM.stream yields at every step"),
}
"""vLLM's keywords of `LLM` -> the values that are served, and what to do instead of others."""

CONFIG_NAMES: dict[str, tuple[tuple[Any, ...], str]] = {
    "draft_tensor_parallel_size tensor_parallel_size": ((1, None), _ONE),
    "max_model_len": ((None,), "LLM's max_model_len holds for the draft model too"),
    "disable_by_batch_size num_speculative_tokens_per_batch_size": (
        (None,),
        "method 'auto' drafts where it pays at the batch's size",
    ),
    "quantization": (
        (None,),
        "draft_backend='q4', 'q5', 'q6' or 'q8' quantises the draft model while it is loaded",
    ),
    "moe_backend attention_backend kv_cache_dtype draft_load_config": (
        (None,),
        "load the draft model as you want it, by foretoken.models.load.load_model, and give it "
        "as model",
    ),
    "revision code_revision": ((None,), _WEIGHTS),
    "suffix_decoding_max_cached_requests": (
        (None,),
        "max_cached_tokens bounds what is stored of earlier outputs",
    ),
    "rejection_sample_method acceptance_method spec_decoding_acceptance_method": (
        ("standard", "strict", "rejection_sampler", None),
        "verifier names the acceptance rule, as 'block' or 'typical'",
    ),
    "typical_acceptance_sampler_posterior_threshold typical_acceptance_sampler_posterior_alpha": (
        (None,),
        "method 'medusa_typical' accepts so",
    ),
    "synthetic_acceptance_rates synthetic_acceptance_length": (
        (None,),
        "'foretoken simulate' computes speeds for given rates",
    ),
    "draft_sample_method": ((None,), "drafts are drawn where the temperature is above 0"),
    "speculative_token_tree": ((None,), "tree takes rank paths"),
    "parallel_drafting": ((False, None), "method 'peagle', 'dflash' or 'pass' drafts in one pass"),
    "use_heterogeneous_vocab": ((False, None), "method 'tli' or 'slem' takes another tokenizer"),
    "enforce_eager disable_logprobs disable_padded_drafter_batch": ((True, False, None), ""),
}
"""vLLM's keys of `speculative_config`, in the same way."""


_OF_A_METHOD = ("method", "num_speculative_tokens", "draft_model", "assistant_model")
"""Names that are options of the command line or of a config, given to `LLM` itself."""


def without_vllm_names(
    given: Mapping[str, Any], names: Mapping[str, tuple[tuple[Any, ...], str]], where: str
) -> dict[str, Any]:
    """What is left without vLLM's names. Raises `ForetokenError` for a value that isn't served, and
    for names that are no texts, those of a nested mapping included.

    where: what they were given to, for the error.
    """
    left = {}
    for key, value in given.items():
        _check_texts([key], where)
        if isinstance(value, Mapping):
            _check_texts(value, f"{key} of {where}")
        entry = next((entry for words, entry in names.items() if key in words.split()), None)
        if entry is None:
            left[key] = value
        elif not any(_same(value, served) for served in entry[0]):
            served = " and ".join(shown(value) for value in entry[0])
            raise ForetokenError(
                f"{key} of {where} is {shown(value)}, and only {served} are served: {entry[1]}."
            )
    return left


def _same(value: Any, served: Any) -> bool:
    """Whether a value is one that is served; an array would answer by another array."""
    return value is served or (isinstance(value, str | Number) and bool(value == served))


def _check_texts(names: Collection[Any], where: str) -> None:
    for name in names:
        if not isinstance(name, str):
            raise ForetokenError(
                f"{where} has the key {shown(name)}; the names of options are texts."
            )


def check_keywords(given: Mapping[str, Any], known: Collection[str]) -> None:
    """Raise `ForetokenError` for keywords of `LLM` that neither it nor vLLM has, and for values of
    vLLM's that aren't served."""
    for name in without_vllm_names(given, LLM_NAMES, "LLM"):
        if name in _OF_A_METHOD:
            raise ForetokenError(
                f"LLM has no {name}: it is an option of the method, so put it into "
                "speculative_config, e.g. {'method': 'sps', 'model': 'folder-or-hub-id'}."
            )
        raise unknown("keyword of LLM", name, known)
