"""Options that several commands share, under the names of vLLM and transformers."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, get_type_hints

import typer

from foretoken.errors import ForetokenError, shown

if TYPE_CHECKING:
    from foretoken.engine.stats import AcceptanceStats
    from foretoken.llm import LLM
    from foretoken.sampling.params import SamplingParams

_Number = TypeVar("_Number", int, float)

BUNDLED_DRAFTS = {"mini": "mini-draft"}
"""A bundled target -> the bundled model that drafts for it."""

_WHAT, _HOW, _TEXT = "Model", "Speculation", "Sampling"


def in_panel(panel: str, *names: str, **settings: Any) -> Any:
    """An option that --help shows under this heading."""
    return typer.Option(*names, rich_help_panel=panel, **settings)


Model = Annotated[
    str,
    in_panel(_WHAT, "--model", "-m", help="Checkpoint folder, GGUF file, hub id or bundled name."),
]
GGUFFile = Annotated[
    str | None,
    in_panel(_WHAT, "--gguf-file", help="The GGUF file to take in the folder or repository."),
]
Tokenizer = Annotated[
    str | None, in_panel(_WHAT, "--tokenizer", help="Where to find another tokenizer.")
]
Dtype = Annotated[
    str, in_panel(_WHAT, "--dtype", help="auto, float32, bfloat16, float16, float64.")
]
Device = Annotated[str, in_panel(_WHAT, "--device", help="auto, cpu, cuda …")]
Backend = Annotated[str, in_panel(_WHAT, "--backend", help="How linear layers run.")]
ModelImpl = Annotated[
    str, in_panel(_WHAT, "--model-impl", help="auto, native, or transformers' own code.")
]
Threads = Annotated[
    int | None,
    in_panel(_WHAT, "--threads", min=1, help="CPU threads; by default as many as torch takes."),
]
MaxModelLen = Annotated[
    int | None,
    in_panel(_WHAT, "--max-model-len", min=1, help="Context: prompt and output together."),
]
KVCacheMemory = Annotated[
    str | None,
    in_panel(
        _WHAT, "--kv-cache-memory", help="What caches may fill: 4GiB, or 0.5 of the free memory."
    ),
]
WeightsMemory = Annotated[
    str | None,
    in_panel(
        _WHAT, "--weights-memory", help="What the model's weights may take: 4GiB; reads the rest."
    ),
]
TrustRemoteCode = Annotated[
    bool, in_panel(_WHAT, "--trust-remote-code", help="Run code that comes with a checkpoint.")
]
Method = Annotated[
    str | None, in_panel(_HOW, "--method", help="Decoding method; see 'foretoken methods'.")
]
DraftModel = Annotated[
    str | None, in_panel(_HOW, "--draft-model", help="The model that drafts, for methods with one.")
]
DraftBackend = Annotated[
    str | None,
    in_panel(_HOW, "--draft-backend", help="How its layers run, e.g. q4; default: as the model's."),
]
NumSpeculativeTokens = Annotated[
    int | None, in_panel(_HOW, "--num-speculative-tokens", help="Tokens drafted in a step.")
]
SpeculativeConfig = Annotated[
    str | None,
    in_panel(
        _HOW,
        "--speculative-config",
        "-sc",
        help="All of a method's options as one JSON object; single options win over it.",
    ),
]
Temperature = Annotated[float, in_panel(_TEXT, "--temperature", help="0 is greedy.")]
TopP = Annotated[float, in_panel(_TEXT, "--top-p", help="Sample from this share of the mass.")]
TopK = Annotated[int, in_panel(_TEXT, "--top-k", help="Sample from the k likeliest; 0 is all.")]
MinP = Annotated[float, in_panel(_TEXT, "--min-p", help="Least probability relative to the best.")]
RepetitionPenalty = Annotated[
    float, in_panel(_TEXT, "--repetition-penalty", help="Above 1 discourages repeats.")
]
Seed = Annotated[int | None, in_panel(_TEXT, "--seed", help="Makes the text repeatable.")]
MaxTokens = Annotated[int, in_panel(_TEXT, "--max-tokens", help="Most tokens to write.")]


@dataclass(frozen=True)
class Drafting:
    """The method that runs, in commands that run one, and what is most often said of it."""

    method: Method = None
    draft_model: DraftModel = None
    num_speculative_tokens: NumSpeculativeTokens = None


@dataclass(frozen=True)
class ModelOptions:
    """How a target runs and by which method it decodes: every command that loads one takes
    these."""

    gguf_file: GGUFFile = None
    dtype: Dtype = "auto"
    device: Device = "auto"
    backend: Backend = "auto"
    threads: Threads = None
    max_model_len: MaxModelLen = None
    kv_cache_memory: KVCacheMemory = None
    weights_memory: WeightsMemory = None
    trust_remote_code: TrustRemoteCode = False
    draft_backend: DraftBackend = None
    speculative_config: SpeculativeConfig = None

    def llm(self, model: str | Path, config: Mapping[str, Any] | None, **others: Any) -> LLM:
        """An `LLM` by these options; `others`: more of its arguments."""
        from foretoken.llm import LLM

        self.use_threads()
        return LLM(
            model,
            speculative_config=config,
            gguf_file=self.gguf_file,
            dtype=self.dtype,
            device=self.device,
            backend=self.backend,
            max_model_len=self.max_model_len,
            kv_cache_memory=self.kv_cache_memory,
            weights_memory=self.weights_memory,
            trust_remote_code=self.trust_remote_code,
            **others,
        )

    def named(self, model: str) -> str:
        """The model, or the GGUF file that is to be taken of it, by one name."""
        from foretoken.models.load import in_checkpoint

        return model if self.gguf_file is None else in_checkpoint(model, self.gguf_file)

    def check_no_gguf_file(self) -> None:
        """Raise `ForetokenError` in a command whose models have a file each, if any."""
        if self.gguf_file is not None:
            raise ForetokenError(
                "--gguf-file goes with a command that loads one model; name the file in --model, "
                "e.g. org/name/model.gguf."
            )

    def check_no_weights_memory(self) -> None:
        """Raise `ForetokenError` in a command that needs its models in memory."""
        if self.weights_memory is not None:
            raise ForetokenError(
                "--weights-memory is for generate, chat, bench and other commands that measure or "
                "run one model; leave it out here."
            )

    def check_no_draft_backend(self) -> None:
        """Raise `ForetokenError` in a command whose methods are several."""
        if self.draft_backend is not None:
            raise ForetokenError(
                "--draft-backend goes with a command that runs one method; measure it by foretoken "
                'bench --method-config \'{"mine": {"method": "sps", "model": …, "draft_backend": '
                f'"{self.draft_backend}"}}}}\'.'
            )

    def use_threads(self) -> None:
        """Compute with as many threads as were asked for."""
        import torch

        if self.threads is not None:
            torch.set_num_threads(self.threads)

    def config(self, drafting: Drafting) -> dict[str, Any] | None:
        """One `speculative_config` from -sc and the single options, which win over it."""
        from foretoken.registry import replaced

        single = {
            "method": drafting.method,
            "model": drafting.draft_model,
            "draft_backend": self.draft_backend,
            "num_speculative_tokens": drafting.num_speculative_tokens,
        }
        chosen = {key: value for key, value in single.items() if value is not None}
        config = replaced(self.given_config(), chosen)
        if isinstance(config.get("method"), str):
            _check_draft_model(config)
        return config or None

    def given_config(self) -> dict[str, Any]:
        """What -sc holds, "tuned" replaced by the options of that name. Raises `ForetokenError`
        where that is no JSON object."""
        from foretoken.tuned import resolve_tuned

        if self.speculative_config is None:
            return {}
        try:
            config = json.loads(self.speculative_config)
        except json.JSONDecodeError as error:
            raise ForetokenError(f"--speculative-config is not JSON: {error}.") from error
        if not isinstance(config, dict):
            raise ForetokenError(
                '--speculative-config must be a JSON object, e.g. \'{"method": "pld"}\'.'
            )
        return resolve_tuned(config)


@dataclass(frozen=True)
class SamplingOptions:
    """How tokens are chosen from the target's distribution."""

    temperature: Temperature = 0.0
    top_p: TopP = 1.0
    top_k: TopK = 0
    min_p: MinP = 0.0
    repetition_penalty: RepetitionPenalty = 1.0

    def params(self, **others: Any) -> SamplingParams:
        """`SamplingParams` by these options; `others`: more of its arguments."""
        from foretoken.sampling.params import SamplingParams

        return SamplingParams(**dataclasses.asdict(self), **others)


def _check_draft_model(config: Mapping[str, Any]) -> None:
    from foretoken.config import unmet_needs
    from foretoken.methods import Need

    if Need.DRAFT_MODEL in unmet_needs(config):
        raise ForetokenError(
            f"Method {config['method']!r} drafts with a small model; name it, e.g. "
            "--draft-model mini-draft."
        )


def numbers(text: str, kind: type[_Number], option: str) -> list[_Number]:
    """The numbers of an option's list. Raises `ForetokenError` for anything else, also for one
    that is not finite."""
    try:
        found = [kind(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(-math.inf < number < math.inf for number in found):
        raise ForetokenError(f"{option} is {shown(text)}; give numbers by comma, as 1,4.")
    return found


def grouped(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its dataclass parameters as options in their place.

    A field's default is the parameter's default's, where it has one, else the class's.
    """
    hints = get_type_hints(command, include_extras=True)
    parameters = inspect.signature(command).parameters
    groups = {
        name: (hints[name], parameter.default)
        for name, parameter in parameters.items()
        if dataclasses.is_dataclass(hints[name])
    }

    @functools.wraps(command)
    def run(**given: Any) -> None:
        for name, (group, _) in groups.items():
            own = {field.name: given.pop(field.name) for field in dataclasses.fields(group)}
            given[name] = group(**own)
        command(**given)

    flat: list[inspect.Parameter] = []
    for name, parameter in parameters.items():
        if name in groups:
            flat += _fields_as_parameters(*groups[name])
        else:
            flat.append(
                parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
            )
    run.__signature__ = inspect.Signature(flat)  # type: ignore[attr-defined]
    return run


def _fields_as_parameters(group: type[Any], default: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    given = vars(default) if isinstance(default, group) else {}
    return [
        inspect.Parameter(
            field.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=given.get(field.name, field.default),
            annotation=hints[field.name],
        )
        for field in dataclasses.fields(group)
    ]


def acceptance(stats: AcceptanceStats, seconds: float) -> str:
    """One line on how the drafting went."""
    parts = [f"{stats.tokens} tokens", f"{stats.tokens / seconds:,.0f} tokens/s" if seconds else ""]
    if stats.drafted:
        parts += [
            f"mean acceptance length {stats.mean_acceptance_length:.2f}",
            f"{stats.draft_acceptance_rate:.0%} of {stats.drafted} drafted tokens accepted",
        ]
    return " · ".join(part for part in parts if part)
