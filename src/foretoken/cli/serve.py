"""`foretoken serve`: an HTTP server with OpenAI's interface."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import ssl
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import options
from foretoken.cli.output import note
from foretoken.cli.replicas import ReplicaOptions
from foretoken.errors import ForetokenError, one_line, shown

if TYPE_CHECKING:
    from foretoken.llm import LLM

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


@options.grouped
def serve(
    *,
    model: Annotated[
        str, typer.Argument(help="Checkpoint folder, GGUF file, hub id or bundled name.")
    ] = "mini",
    tokenizer: options.Tokenizer = None,
    model_impl: options.ModelImpl = "auto",
    drafting: options.Drafting,
    running: options.ModelOptions,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of the seeds of requests that have none.")
    ] = None,
    host: Annotated[
        str, options.in_panel(_PLACE, "--host", help="0.0.0.0 serves other machines too.")
    ] = "127.0.0.1",
    port: Annotated[
        int, options.in_panel(_PLACE, "--port", min=0, max=65535, help="0 takes a free one.")
    ] = 8000,
    root_path: Annotated[
        str, options.in_panel(_PLACE, "--root-path", help="What a proxy takes off the paths.")
    ] = "",
    ssl_keyfile: Annotated[
        Path | None, options.in_panel(_PLACE, "--ssl-keyfile", help="For HTTPS.")
    ] = None,
    ssl_certfile: Annotated[
        Path | None, options.in_panel(_PLACE, "--ssl-certfile", help="For HTTPS.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        options.in_panel(
            _PLACE, "--api-key", help="What clients must send; may be repeated. Or VLLM_API_KEY."
        ),
    ] = None,
    allowed_origins: Annotated[
        str, options.in_panel(_PLACE, "--allowed-origins", help="Web pages, as a JSON list.")
    ] = "[]",
    allow_credentials: Annotated[
        bool, options.in_panel(_PLACE, "--allow-credentials", help="Web pages with cookies.")
    ] = False,
    served_model_name: Annotated[
        list[str] | None,
        options.in_panel(
            _ANSWERS, "--served-model-name", help="What clients call it; may be repeated."
        ),
    ] = None,
    response_role: Annotated[
        str, options.in_panel(_ANSWERS, "--response-role", help="The role of chat answers.")
    ] = "assistant",
    generation_config: Annotated[
        str,
        options.in_panel(
            _ANSWERS,
            "--generation-config",
            help="Where sampling defaults are: auto (with the model), vllm (nowhere), a folder.",
        ),
    ] = "auto",
    override_generation_config: Annotated[
        str,
        options.in_panel(_ANSWERS, "--override-generation-config", help="Defaults, as JSON."),
    ] = "{}",
    enable_auto_tool_choice: Annotated[
        bool,
        options.in_panel(_ANSWERS, "--enable-auto-tool-choice", help="Let the model call tools."),
    ] = False,
    tool_call_parser: Annotated[
        str | None,
        options.in_panel(
            _ANSWERS, "--tool-call-parser", help="How it writes calls: hermes or llama3_json."
        ),
    ] = None,
    ignore_unknown_fields: Annotated[
        bool, options.in_panel(_ANSWERS, "--ignore-unknown-fields", help="Don't refuse them.")
    ] = False,
    enable_force_include_usage: Annotated[
        bool,
        options.in_panel(_ANSWERS, "--enable-force-include-usage", help="In every stream."),
    ] = False,
    per_request_spec_decode_metrics: Annotated[
        str,
        options.in_panel(
            _ANSWERS, "--per-request-spec-decode-metrics", help="In answers: none or summary."
        ),
    ] = "summary",
    structured_outputs_backend: Annotated[
        str,
        options.in_panel(
            _ANSWERS,
            "--structured-outputs-backend",
            help="What holds texts to schemas: auto, guidance or xgrammar.",
        ),
    ] = "auto",
    sse_keep_alive_interval: Annotated[
        float,
        options.in_panel(
            _ANSWERS, "--sse-keep-alive-interval", min=0, help="Seconds of silence; 0 is never."
        ),
    ] = 15.0,
    metrics_prefix: Annotated[
        str,
        options.in_panel(_ANSWERS, "--metrics-prefix", help="foretoken, or vllm for its boards."),
    ] = "foretoken",
    max_num_seqs: Annotated[
        int | None,
        options.in_panel(
            _LIMITS, "--max-num-seqs", min=1, help="Served at a time; default 8, if memory allows."
        ),
    ] = None,
    max_num_batched_tokens: Annotated[
        int,
        options.in_panel(
            _LIMITS, "--max-num-batched-tokens", min=1, help="Of prompts, read in one step."
        ),
    ] = 512,
    max_num_queued_reqs: Annotated[
        int | None,
        options.in_panel(
            _LIMITS, "--max-num-queued-reqs", min=0, help="May wait; more are told 503."
        ),
    ] = None,
    shutdown_timeout: Annotated[
        int,
        options.in_panel(
            _LIMITS, "--shutdown-timeout", min=0, help="Seconds for what runs as it ends."
        ),
    ] = 60,
    enable_log_requests: Annotated[
        bool, options.in_panel(_ANSWERS, "--enable-log-requests", help="A line for each.")
    ] = False,
    replicas: ReplicaOptions,
) -> None:
    """Serve a model with OpenAI's interface: /v1/chat/completions, /v1/completions and others.

    SIGINT (Ctrl-C) and SIGTERM let what runs come to its end; a second one doesn't.

    Example: [bold]foretoken serve mini --method sps --draft-model mini-draft[/bold]

    --replicas 4 serves four of it behind one address, on this machine or on a Ray cluster.
    """
    _check_installed()
    replicas.check(seed, enable_log_requests)
    from foretoken.async_llm import AsyncLLM
    from foretoken.engine.settings import SEQUENCES
    from foretoken.grammar.compiling import check_backend
    from foretoken.serve import run
    from foretoken.serve.app import application
    from foretoken.serve.settings import ServerSettings

    check_backend(structured_outputs_backend)
    named = running.named(model)
    settings = ServerSettings(
        names=tuple(served_model_name or (model,)),
        api_keys=tuple(api_key or ()) or _from_environment(),
        ignore_unknown_fields=ignore_unknown_fields,
        keep_alive_interval=sse_keep_alive_interval,
        force_include_usage=enable_force_include_usage,
        request_metrics=per_request_spec_decode_metrics,
        response_role=response_role,
        defaults=_defaults(named, generation_config, override_generation_config),
        max_new_tokens=_longest(named, generation_config, override_generation_config),
        metrics_prefix=metrics_prefix,
        tool_call_parser=_tool_parser(enable_auto_tool_choice, tool_call_parser),
        allowed_origins=_origins(allowed_origins),
        allow_credentials=allow_credentials,
    )
    secured = _secured(ssl_keyfile, ssl_certfile)
    opened = run.listening(host, port)
    config = running.config(drafting)

    def load(threads: int | None) -> Callable[[], LLM]:
        return partial(
            dataclasses.replace(running, threads=threads).llm,
            model,
            config,
            tokenizer=tokenizer,
            model_impl=model_impl,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_queued=max_num_queued_reqs,
            structured_outputs_backend=structured_outputs_backend,
            seed=seed,
        )

    placed = opened.getsockname()[1]
    common: dict[str, Any] = {"root_path": root_path, **secured}
    if replicas.replicas is not None:
        opened.close()  # Ray opens it again
        replicas.serve(
            lambda share: load(running.threads or share),
            settings,
            slots=max_num_seqs or SEQUENCES,
            address={"host": host, "port": placed, **common},
            patience=shutdown_timeout,
        )
        return
    llm = load(running.threads)()
    opened.listen()  # who has read the next line may connect
    secure = "s" if secured else ""
    note(f"[{llm.method}] {model} at http{secure}://{host}:{placed}/v1")
    run.serve(
        application(AsyncLLM(llm), settings),
        opened,
        **common,
        timeout_graceful_shutdown=shutdown_timeout,
        log_level=logging.INFO if enable_log_requests else logging.WARNING,
        access_log=enable_log_requests,
    )


def _check_installed() -> None:
    try:
        import prometheus_client
        import starlette
        import uvicorn
    except ImportError as error:
        raise ForetokenError(
            f"A server needs {error.name}; pip install 'foretoken[serve]'."
        ) from error
    del prometheus_client, starlette, uvicorn


def _secured(keyfile: Path | None, certfile: Path | None) -> dict[str, str]:
    """The files for HTTPS, as replicas in other folders find them too; nothing without them. Raises
    `ForetokenError`, before a model is loaded, where they can't be used."""
    if certfile is None:
        if keyfile is not None:
            raise ForetokenError("--ssl-keyfile is of a certificate; add --ssl-certfile.")
        return {}
    key = keyfile or certfile  # one file may hold both
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, key)
    except OSError as error:  # SSLError is one
        raise ForetokenError(
            f"--ssl-certfile {certfile} can't be used with the key in {key} ({one_line(error)}); "
            "give a certificate and its key as PEM files."
        ) from error
    return {"ssl_keyfile": str(key.absolute()), "ssl_certfile": str(certfile.absolute())}


def _tool_parser(enabled: bool, parser: str | None) -> str | None:
    if enabled != (parser is not None):
        given, missing = "--enable-auto-tool-choice", "--tool-call-parser hermes or llama3_json"
        if not enabled:
            given, missing = "--tool-call-parser", "--enable-auto-tool-choice"
        raise ForetokenError(f"{given} does nothing alone; add {missing}.")
    return parser


def _from_environment() -> tuple[str, ...]:
    key = os.environ.get("VLLM_API_KEY")
    return (key,) if key else ()


def _origins(given: str) -> tuple[str, ...]:
    origins = _json(given, "--allowed-origins")
    if not isinstance(origins, list) or not all(isinstance(origin, str) for origin in origins):
        raise ForetokenError(
            f"--allowed-origins is {shown(given)}; it must be a JSON list of texts, as '[\"*\"]'."
        )
    return tuple(origins)


def _defaults(model: str, where: str, override: str) -> dict[str, Any]:
    """Sampling parameters of requests that don't name them."""
    from foretoken.sampling.params import SamplingParams

    given = _json(override, "--override-generation-config")
    if not isinstance(given, Mapping):
        raise ForetokenError(
            f"--override-generation-config is {shown(given)}; it must be a JSON object."
        )
    wrong = next((name for name in given if name not in _DEFAULTS), None)
    if wrong is not None:
        raise ForetokenError(
            f"--override-generation-config has {shown(wrong)}; it takes {', '.join(_DEFAULTS)}."
        )
    known = _written(model, where) | dict(given)
    found = {_DEFAULTS[name]: value for name, value in known.items() if value is not None}
    SamplingParams(**found)  # raises for what no request could be sampled with
    return found


def _longest(model: str, where: str, override: str) -> int | None:
    """The most tokens of any answer: what the server is told of it, as in vLLM, and not what the
    model's own file says."""
    return _defaults(model, "vllm" if where == "auto" else where, override).get("max_tokens")


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
