"""`foretoken serve`: an HTTP server with OpenAI's interface."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import options
from foretoken.cli.output import note
from foretoken.cli.replicas import ReplicaOptions
from foretoken.cli.serve_options import Address, Answers, Limits, base_url
from foretoken.errors.extras import imported

if TYPE_CHECKING:
    from foretoken.llm import LLM


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
    address: Address,
    answers: Answers,
    limits: Limits,
    replicas: ReplicaOptions,
) -> None:
    """Serve a model with OpenAI's interface: /v1/chat/completions, /v1/completions and others.

    SIGINT (Ctrl-C) and SIGTERM let what runs come to its end; a second one doesn't.

    Example: [bold]foretoken serve mini --method sps --draft-model mini-draft[/bold]

    --replicas 4 serves four of it behind one address, on this machine or on a Ray cluster.
    """
    for package in ("prometheus_client", "pydantic", "starlette", "uvicorn"):
        imported(package, "serve", "A server needs")
    replicas.check(seed, answers.enable_log_requests)
    from foretoken.async_llm import AsyncLLM
    from foretoken.engine.settings import SEQUENCES
    from foretoken.grammar.compiling import check_backend
    from foretoken.serve import run
    from foretoken.serve.app import application

    check_backend(answers.structured_outputs_backend)
    settings = answers.settings(model, running.named(model), address)
    common = address.common()
    opened = run.listening(address.host, address.port)
    config = running.config(drafting)

    def load(threads: int | None) -> Callable[[], LLM]:
        return partial(
            dataclasses.replace(running, threads=threads).llm,
            model,
            config,
            tokenizer=tokenizer,
            model_impl=model_impl,
            structured_outputs_backend=answers.structured_outputs_backend,
            seed=seed,
            **limits.of_engine(),
        )

    placed = {"host": address.host, "port": opened.getsockname()[1], **common}
    if replicas.replicas is not None:
        opened.close()  # Ray opens it again
        replicas.serve(
            lambda share: load(running.threads or share),
            settings,
            slots=limits.max_num_seqs or SEQUENCES,
            address=placed,
            patience=limits.shutdown_timeout,
        )
        return
    llm = load(running.threads)()
    opened.listen()  # who has read the next line may connect
    note(f"[{llm.method}] {model} at {base_url(placed)}")
    run.serve(
        application(AsyncLLM(llm), settings),
        opened,
        patience=limits.shutdown_timeout,
        logs_requests=answers.enable_log_requests,
        **common,
    )
