"""Bodies of requests. A field that is null is one that was left out."""

from __future__ import annotations

from time import perf_counter
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PrivateAttr,
    Tag,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import from_json

from foretoken.errors import ForetokenError, shown, unknown
from foretoken.sampling.params import SamplingParams
from foretoken.serve.errors import ApiError
from foretoken.serve.guidance import constraint, predicted, sifted
from foretoken.serve.unserved import without_unserved

Whole = Annotated[int, Field(ge=-(2**63), lt=2**63)]
TokenId = Annotated[int, Field(ge=0, lt=2**31)]
_IdText = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]

MOST_SAMPLES = 128
MOST_LOGPROBS = 20
MOST_TEXTS = {"stop": 256, "bad_words": 10_000}
"""Texts of a request: each step of all requests looks for each, for stop strings token by token."""
MOST_BIASES = 10_000
"""Pairs of a `logit_bias`: each is looked at more than once before the request is queued."""
MOST_TOOLS = 1024
"""Functions of a request: each has a schema of its own."""
MOST_CHARACTERS = 100_000
"""Of a request's bad words together: each is tokenized twice."""


def _with_one_wrong(given: Any) -> Any:
    """A bias of logits with no more than one wrong pair."""
    if not isinstance(given, dict):
        return given
    wrong = (pair for pair in given.items() if not _is_bias(*pair))
    first = next(wrong, None)
    return given if first is None else dict([first])


def _with_few_tools(given: Any) -> Any:
    """No more than may be told of: the others are not looked at."""
    return given[: MOST_TOOLS + 1] if isinstance(given, list) else given


def _is_bias(token: str, value: Any) -> bool:
    return token.isascii() and token.isdigit() and len(token) < 10 and type(value) in (int, float)


def _form(prompt: Any) -> str:
    """Which of its forms a prompt has."""
    first = prompt[0] if isinstance(prompt, list) and prompt else None
    if isinstance(first, list):
        return "lists"
    if isinstance(first, str):
        return "texts"
    return "ids" if isinstance(prompt, list) else "text"


# A validator keeps each error that it finds, and a body of 64 MiB has room for millions; the first
# is all that is told. So lists fail fast, mappings have no more than one wrong pair.
Texts = Annotated[list[str], Field(fail_fast=True)]
TokenIds = Annotated[list[TokenId], Field(fail_fast=True)]
Bias = Annotated[dict[_IdText, float], BeforeValidator(_with_one_wrong)]
Objects = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
Prompt = Annotated[
    Annotated[str, Tag("text")]
    | Annotated[Texts, Tag("texts")]
    | Annotated[TokenIds, Tag("ids")]
    | Annotated[list[TokenIds], Field(fail_fast=True), Tag("lists")],
    Discriminator(_form),
]


class Part(BaseModel):
    """What bodies and their parts share: no unknown fields, unless the context of the validation is
    true, no conversions, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def sifted(cls, given: Any, info: ValidationInfo) -> Any:
        """Without what is null, and with no more than one unknown field, or without any."""
        if not isinstance(given, dict):
            return given
        told = {name: value for name, value in given.items() if value is not None}
        others = (name for name in told if name not in cls.model_fields)
        first = None if info.context else next(others, None)
        return {k: value for k, value in told.items() if k in cls.model_fields or k == first}


class Body(Part):
    """A body of any route."""

    model: str | None = None


class Function(Part):
    """What a model may call. strict: whether its arguments are constrained to its parameters'
    schema."""

    name: Annotated[str, Field(min_length=1)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Part):
    """A function that is offered to the model."""

    type: Literal["function"] = "function"
    function: Function


class Templated(Body):
    """How a conversation is written by the model's chat template."""

    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] = {}
    documents: Objects = []
    tools: Annotated[
        list[Tool], Field(fail_fast=True, max_length=MOST_TOOLS), BeforeValidator(_with_few_tools)
    ] = []


class StreamOptions(Part):
    """What a stream tells beside the text."""

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # taken and not done: the text isn't padded


class Extras(Part):
    """What answers tell that no other server does. blocks: what each step drafted and wrote."""

    blocks: bool = False


class Sampling(Body):
    """How a text is sampled: names and meanings are those of `SamplingParams`."""

    n: Annotated[int, Field(ge=1, le=MOST_SAMPLES)] = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: Whole = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Bias = {}
    allowed_token_ids: TokenIds = []
    bad_words: Texts = []
    seed: Whole | None = None
    stop: str | Texts = []
    stop_token_ids: TokenIds = []
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: Whole | None = None
    min_tokens: Whole = 0
    skip_special_tokens: bool = True
    prompt_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    max_draft_tokens: Whole | None = None
    cache_salt: str | None = None
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    prediction: dict[str, Any] | None = None

    stream: bool = False
    stream_options: StreamOptions = StreamOptions()
    request_id: Annotated[str, Field(pattern=r"^[\w.:=+/@-]{1,128}$")] | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    foretoken: Extras = Extras()

    _arrived: float = PrivateAttr(default_factory=perf_counter)

    @property
    def arrived(self) -> float:
        """When it was read, as `perf_counter` tells it."""
        return self._arrived

    @field_validator("response_format", "prediction")
    @classmethod
    def _sifted(cls, given: Any, info: ValidationInfo) -> Any:
        return given and sifted(str(info.field_name), given, bool(info.context))

    @model_validator(mode="after")
    def _streamed(self) -> Self:
        if "stream_options" in self.model_fields_set and not self.stream:
            raise ApiError(400, "stream_options needs stream; set it to true.", "stream_options")
        return self


class ChatBody(Sampling, Templated):
    """POST /v1/chat/completions."""

    messages: Objects
    max_completion_tokens: Whole | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] = 0
    echo: bool = False
    add_special_tokens: bool = False
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool = True


class CompletionBody(Sampling):
    """POST /v1/completions."""

    prompt: Prompt
    echo: bool = False
    logprobs: Annotated[int, Field(ge=0, le=MOST_LOGPROBS)] | None = None
    add_special_tokens: bool = True


class TokenizeBody(Templated):
    """POST /tokenize: a text, by default with the tokenizer's special tokens, or a conversation, by
    default with those of its template alone."""

    prompt: str | None = None
    messages: Objects | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool = False


class DetokenizeBody(Body):
    """POST /detokenize."""

    tokens: TokenIds


B = TypeVar("B", bound=Body)
_CONVERTED = {"prediction", "structured_outputs"}
_SAMPLED = set(SamplingParams.__dataclass_fields__) & set(Sampling.model_fields) - _CONVERTED
"""Fields that are sampling parameters under their own names."""


def read(kind: type[B], raw: bytes, ignore_unknown: bool = False) -> B:
    """A body. Raises `ApiError` for what is no JSON object, and for unknown or wrong fields."""
    try:
        given = from_json(raw, allow_inf_nan=False)
    except ValueError as error:
        raise ApiError(400, f"The body is not JSON: {error}.") from error
    if not isinstance(given, dict):
        raise ApiError(400, f"The body is {shown(given)}; it must be a JSON object.")
    left = without_unserved({name: value for name, value in given.items() if value is not None})
    if ignore_unknown:
        left = {name: value for name, value in left.items() if name in kind.model_fields}
    for name in left:
        if name not in kind.model_fields:
            raise ApiError(400, str(unknown("field", name, kind.model_fields)), name)
    try:
        return kind.model_validate(left, context=ignore_unknown)
    except ValidationError as error:
        raise _wrong(error) from error


def params(
    body: Sampling, defaults: dict[str, Any], logprobs: int | None, most: int | None
) -> SamplingParams:
    """The sampling parameters of a body. `most`: tokens to write, by the field that it has for it;
    None is up to the context. Raises `ApiError` for what is wrong or out of range."""
    given = body.model_dump(include=_SAMPLED, exclude_unset=True)
    bias = {int(token): value for token, value in given.pop("logit_bias", {}).items()}
    if len(bias) > MOST_BIASES:
        told = f"logit_bias has {len(bias):,} tokens; give at most {MOST_BIASES:,}."
        raise ApiError(400, told, "logit_bias")
    if not given.get("allowed_token_ids", True):  # vLLM's empty list allows all
        del given["allowed_token_ids"]
    _shorten(given)
    own = {
        "logit_bias": bias or None,
        "logprobs": logprobs,
        "max_tokens": most,
        "structured_outputs": constraint(body.structured_outputs, body.response_format),
        "prediction": predicted(body.prediction),
    }
    own["return_drafts"] = body.foretoken.blocks
    try:
        return SamplingParams(**(defaults | given | own))
    except ForetokenError as error:  # its sentence begins with the name of what is wrong
        first = str(error).partition(" ")[0]
        field = first if first in Sampling.model_fields else None
        raise ApiError(400, str(error), field) from error


def _shorten(given: dict[str, Any]) -> None:
    """Each id once: each step goes through all of them, and a body has room for millions. Raises
    `ApiError` for too many texts."""
    for name in {"allowed_token_ids", "stop_token_ids"} & given.keys():
        given[name] = list(dict.fromkeys(given[name]))
    for name, most in MOST_TEXTS.items():
        texts = given.get(name)
        if isinstance(texts, list) and len(texts) > most:
            raise ApiError(400, f"{name} has {len(texts):,} texts; give at most {most:,}.", name)
    size = sum(map(len, given.get("bad_words", ())))
    if size > MOST_CHARACTERS:
        told = f"bad_words has {size:,} characters; give at most {MOST_CHARACTERS:,}"
        raise ApiError(400, f"{told} in all.", "bad_words")


_FORMS = {
    "prompt": "a text, a list of texts, token ids, or a list of lists of token ids",
    "stop": "a text, or a list of texts",
    "tool_choice": '"auto", "none", "required" or a function\'s name as an object',
}
"""What a field may be that may be several things."""


def _wrong(error: ValidationError) -> ApiError:
    """The first thing that is wrong, in one sentence."""
    first = error.errors(include_url=False, include_context=False)[0]
    field = str(first["loc"][0])
    place = ".".join(str(part) for part in first["loc"] if field not in _FORMS or part == field)
    if first["type"] == "missing":
        return ApiError(400, f"{place} is missing; give it.", field)
    if field in _FORMS:
        return ApiError(400, f"{field} must be {_FORMS[field]}.", field)
    said = first["msg"][:1].lower() + first["msg"][1:]
    return ApiError(400, f"{place} is {shown(first['input'])}: {said}.", field)
