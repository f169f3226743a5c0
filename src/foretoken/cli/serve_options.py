"""Options of `foretoken serve`: where it listens, how it answers, and how much it takes on."""

from __future__ import annotations

import json
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from foretoken.cli.options import in_panel
from foretoken.errors import ForetokenError, one_line, shown

if TYPE_CHECKING:
    from foretoken.serve.settings import ServerSettings

_PLACE, _ANSWERS, _LIMITS = "Address", "Answers", "Limits"
_DEFAULTS = {
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repetition_penalty",
    "max_new_tokens": "max_tokens",
}
"""What a generation_config.json says of sampling -> the sampling parameter."""


@dataclass(frozen=True)
class Address:
    """Where the server is, and who may ask it."""

    host: Annotated[str, in_panel(_PLACE, "--host", help="0.0.0.0 serves other machines too.")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, in_panel(_PLACE, "--port", min=0, max=65535, help="0 takes a free one.")
    ] = 8000
    root_path: Annotated[
        str, in_panel(_PLACE, "--root-path", help="What a proxy takes off the paths.")
    ] = ""
    ssl_keyfile: Annotated[Path | None, in_panel(_PLACE, "--ssl-keyfile", help="For HTTPS.")] = None
    ssl_certfile: Annotated[Path | None, in_panel(_PLACE, "--ssl-certfile", help="For HTTPS.")] = (
        None
    )
    api_key: Annotated[
        list[str] | None,
        in_panel(
            _PLACE, "--api-key", help="What clients must send; may be repeated. Or VLLM_API_KEY."
        ),
    ] = None
    allowed_origins: Annotated[
        str, in_panel(_PLACE, "--allowed-origins", help="Web pages, as a JSON list.")
    ] = "[]"
    allow_credentials: Annotated[
        bool, in_panel(_PLACE, "--allow-credentials", help="Web pages with cookies.")
    ] = False

    def common(self) -> dict[str, str]:
        """What uvicorn and Ray Serve are told alike: the path and the files for HTTPS, if any, as
        replicas in other folders find them too. Raises `ForetokenError`, before a model is loaded,
        where these can't be used."""
        return {"root_path": self.root_path, **self._secured()}

    def _secured(self) -> dict[str, str]:
        keyfile, certfile = self.ssl_keyfile, self.ssl_certfile
        if certfile is None:
            if keyfile is not None:
                raise ForetokenError("--ssl-keyfile is of a certificate; add --ssl-certfile.")
            return {}
        key = keyfile or certfile  # one file may hold both
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, key)
        except OSError as error:  # SSLError is one
            raise ForetokenError(
                f"--ssl-certfile {certfile} can't be used with the key in {key} "
                f"({one_line(error)}); give a certificate and its key as PEM files."
            ) from error
        return {"ssl_keyfile": str(key.absolute()), "ssl_certfile": str(certfile.absolute())}

    def keys(self) -> tuple[str, ...]:
        """What clients may send, the environment's where none is given."""
        from_environment = os.environ.get("VLLM_API_KEY")
        return tuple(self.api_key or ()) or ((from_environment,) if from_environment else ())

    def origins(self) -> tuple[str, ...]:
        """The web pages that may ask."""
        found = _json(self.allowed_origins, "--allowed-origins")
        if not isinstance(found, list) or not all(isinstance(origin, str) for origin in found):
            raise ForetokenError(
                f"--allowed-origins is {shown(self.allowed_origins)}; it must be a JSON list of "
                "texts, as '[\"*\"]'."
            )
        return tuple(found)


@dataclass(frozen=True)
class Answers:
    """How requests are answered."""

    served_model_name: Annotated[
        list[str] | None,
        in_panel(_ANSWERS, "--served-model-name", help="What clients call it; may be repeated."),
    ] = None
    response_role: Annotated[
        str, in_panel(_ANSWERS, "--response-role", help="The role of chat answers.")
    ] = "assistant"
    generation_config: Annotated[
        str,
        in_panel(
            _ANSWERS,
            "--generation-config",
            help="Where sampling defaults are: auto (with the model), vllm (nowhere), a folder.",
        ),
    ] = "auto"
    override_generation_config: Annotated[
        str, in_panel(_ANSWERS, "--override-generation-config", help="Defaults, as JSON.")
    ] = "{}"
    enable_auto_tool_choice: Annotated[
        bool, in_panel(_ANSWERS, "--enable-auto-tool-choice", help="Let the model call tools.")
    ] = False
    tool_call_parser: Annotated[
        str | None,
        in_panel(
            _ANSWERS, "--tool-call-parser", help="How it writes calls: hermes or llama3_json."
        ),
    ] = None
    ignore_unknown_fields: Annotated[
        bool, in_panel(_ANSWERS, "--ignore-unknown-fields", help="Don't refuse them.")
    ] = False
    enable_force_include_usage: Annotated[
        bool, in_panel(_ANSWERS, "--enable-force-include-usage", help="In every stream.")
    ] = False
    per_request_spec_decode_metrics: Annotated[
        str,
        in_panel(
            _ANSWERS, "--per-request-spec-decode-metrics", help="In answers: none or summary."
        ),
    ] = "summary"
    structured_outputs_backend: Annotated[
        str,
        in_panel(
            _ANSWERS,
            "--structured-outputs-backend",
            help="What holds texts to schemas: auto, guidance or xgrammar.",
        ),
    ] = "auto"
    sse_keep_alive_interval: Annotated[
        float,
        in_panel(
            _ANSWERS, "--sse-keep-alive-interval", min=0, help="Seconds of silence; 0 is never."
        ),
    ] = 15.0
    metrics_prefix: Annotated[
        str, in_panel(_ANSWERS, "--metrics-prefix", help="foretoken, or vllm for its boards.")
    ] = "foretoken"
    enable_log_requests: Annotated[
        bool, in_panel(_ANSWERS, "--enable-log-requests", help="A line for each.")
    ] = False

    def settings(self, model: str, found: str, address: Address) -> ServerSettings:
        """The server's settings. model: what it is called where nothing else is said; found: where
        its own sampling settings are."""
        from foretoken.serve.settings import ServerSettings

        return ServerSettings(
            names=tuple(self.served_model_name or (model,)),
            api_keys=address.keys(),
            ignore_unknown_fields=self.ignore_unknown_fields,
            keep_alive_interval=self.sse_keep_alive_interval,
            force_include_usage=self.enable_force_include_usage,
            request_metrics=self.per_request_spec_decode_metrics,
            response_role=self.response_role,
            defaults=self.defaults(found),
            max_new_tokens=self.longest(found),
            metrics_prefix=self.metrics_prefix,
            tool_call_parser=self.tool_parser(),
            allowed_origins=address.origins(),
            allow_credentials=address.allow_credentials,
        )

    def defaults(self, model: str) -> dict[str, Any]:
        """Sampling parameters of requests that don't name them."""
        return self._sampling(model, self.generation_config)

    def longest(self, model: str) -> int | None:
        """The most tokens of any answer: what the server is told of it, as in vLLM, and not what
        the model's own file says."""
        where = "vllm" if self.generation_config == "auto" else self.generation_config
        return self._sampling(model, where).get("max_tokens")

    def _sampling(self, model: str, where: str) -> dict[str, Any]:
        """What the file there says, or in its place the command line."""
        from foretoken.sampling.params import SamplingParams

        overriding = _overriding(self.override_generation_config)
        known = {**_written(model, where), **overriding}
        found = {_DEFAULTS[name]: value for name, value in known.items() if value is not None}
        SamplingParams(**found)  # raises for what no request could be sampled with
        return found

    def tool_parser(self) -> str | None:
        """How calls are written, where the model may call tools."""
        enabled, parser = self.enable_auto_tool_choice, self.tool_call_parser
        if enabled != (parser is not None):
            given, missing = "--enable-auto-tool-choice", "--tool-call-parser hermes or llama3_json"
            if not enabled:
                given, missing = "--tool-call-parser", "--enable-auto-tool-choice"
            raise ForetokenError(f"{given} does nothing alone; add {missing}.")
        return parser


@dataclass(frozen=True)
class Limits:
    """How much is taken on at a time, and how long it may take to end."""

    max_num_seqs: Annotated[
        int | None,
        in_panel(
            _LIMITS, "--max-num-seqs", min=1, help="Served at a time; default 8, if memory allows."
        ),
    ] = None
    max_num_batched_tokens: Annotated[
        int,
        in_panel(_LIMITS, "--max-num-batched-tokens", min=1, help="Of prompts, read in one step."),
    ] = 512
    max_num_queued_reqs: Annotated[
        int | None,
        in_panel(_LIMITS, "--max-num-queued-reqs", min=0, help="May wait; more are told 503."),
    ] = None
    shutdown_timeout: Annotated[
        int,
        in_panel(_LIMITS, "--shutdown-timeout", min=0, help="Seconds for what runs as it ends."),
    ] = 60

    def of_engine(self) -> dict[str, Any]:
        """Those that an `LLM` has, under its names."""
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.max_num_batched_tokens,
            "max_queued": self.max_num_queued_reqs,
        }


def base_url(placed: Mapping[str, Any]) -> str:
    """Where clients find a server. placed: its host and port, and the files for HTTPS, if any."""
    secure, host = "s" if "ssl_certfile" in placed else "", placed["host"]
    host = f"[{host}]" if ":" in host else host  # of IPv6
    return f"http{secure}://{host}:{placed['port']}/v1"


def _overriding(text: str) -> dict[str, Any]:
    """Sampling settings under the names of a generation_config.json."""
    given = _json(text, "--override-generation-config")
    if not isinstance(given, Mapping):
        raise ForetokenError(
            f"--override-generation-config is {shown(given)}; it must be a JSON object."
        )
    wrong = next((name for name in given if name not in _DEFAULTS), None)
    if wrong is not None:
        raise ForetokenError(
            f"--override-generation-config has {shown(wrong)}; it takes {', '.join(_DEFAULTS)}."
        )
    return dict(given)


def _written(model: str, where: str) -> dict[str, Any]:
    """The sampling settings of a generation_config.json; nothing where there is none."""
    from foretoken.files import read_json
    from foretoken.models.load import find

    if where == "vllm":
        return {}
    file = (Path(find(model)) if where == "auto" else Path(where)) / "generation_config.json"
    if not file.is_file():
        if where != "auto":
            raise ForetokenError(f"--generation-config: there is no {file}; name its folder.")
        return {}
    found = read_json(file, "a model's generation settings")
    return {name: found[name] for name in _DEFAULTS if name in found}


def _json(text: str, option: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ForetokenError(f"{option} is not JSON: {error}.") from error
