"""`foretoken generate`: continues one prompt, and prints how the drafting went."""

from __future__ import annotations

import sys
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import options
from foretoken.cli.output import note, write, write_json
from foretoken.cli.prompts import has_chat_template
from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    from foretoken.engine.conversations import Messages
    from foretoken.engine.outputs import RequestOutput
    from foretoken.engine.prompts import Prompt
    from foretoken.llm import LLM
    from foretoken.sampling.params import SamplingParams


@options.grouped
def generate(
    *,
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="The prompt; '-' or nothing reads standard input, but for its last line's end."
        ),
    ] = None,
    model: options.Model = "mini",
    tokenizer: options.Tokenizer = None,
    model_impl: options.ModelImpl = "auto",
    drafting: options.Drafting,
    running: options.ModelOptions,
    sampling: options.SamplingOptions,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = 128,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="End before this text; may be repeated.")
    ] = None,
    n: Annotated[int, typer.Option("--n", help="How many samples.")] = 1,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Write on after end-of-text.")
    ] = False,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Through the chat template or as it stands; the former if there is one.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print samples, token ids and statistics as JSON.")
    ] = False,
) -> None:
    """Write the continuation of a prompt, and on standard error how the drafting went.

    On a terminal control characters are shown as escapes; a pipe gets the text as it is.

    Example: [bold]foretoken generate "Tell me a joke." --method sps --draft-model mini-draft[/bold]
    """
    text = _typed() if prompt is None or prompt == "-" else prompt
    if not text.strip():
        raise ForetokenError("The prompt is empty; give one as an argument or on standard input.")
    config = running.config(drafting)
    params = sampling.params(
        n=n,
        seed=seed,
        max_tokens=max_tokens,
        stop=tuple(stop or ()),
        ignore_eos=ignore_eos,
    )
    llm = running.llm(model, config, tokenizer=tokenizer, model_impl=model_impl, max_num_seqs=n)
    templated = has_chat_template(llm) if chat is None else chat
    asked: Any = [{"role": "user", "content": text}] if templated else text
    _run(llm, asked, params, as_json)


def _typed() -> str:
    """Standard input, as the prompt that `echo` was given: a line's end isn't a part of it."""
    return sys.stdin.read().removesuffix("\n")


def _run(llm: LLM, asked: Prompt | Messages, params: SamplingParams, as_json: bool) -> None:
    began = perf_counter()
    if as_json:
        output = _last(llm, asked, params)
        write_json(_data(llm, output))
    elif params.n == 1:
        output = _stream(llm, asked, params)
    else:
        output = _last(llm, asked, params)
        for sample in output.outputs:
            write(f"[{sample.index}] {sample.text}")
    seconds = perf_counter() - began
    note(f"[{llm.method}] {options.acceptance(output.stats, seconds)}")


def _stream(llm: LLM, asked: Prompt | Messages, params: SamplingParams) -> RequestOutput:
    """Print the text as it comes."""
    shown, output = 0, None
    try:
        for output in llm.stream(asked, params):
            text = output.outputs[0].text
            write(text[shown:], end="")
            shown = len(text)
    finally:
        if shown:
            write("")
    return _checked(output)


def _last(llm: LLM, asked: Prompt | Messages, params: SamplingParams) -> RequestOutput:
    """The finished request."""
    output = None
    for output in llm.stream(asked, params):  # noqa: B007
        pass
    return _checked(output)


def _checked(output: RequestOutput | None) -> RequestOutput:
    assert output is not None
    if output.error is not None:
        raise ForetokenError(output.error)
    return output


def _data(llm: LLM, output: RequestOutput) -> dict[str, Any]:
    stats = output.stats
    return {
        "method": llm.method,
        "outputs": [
            {
                "index": sample.index,
                "text": sample.text,
                "token_ids": sample.token_ids,
                "accepted": sample.accepted,
                "finish_reason": sample.finish_reason,
                "stop_reason": sample.stop_reason,
            }
            for sample in output.outputs
        ],
        "prompt_tokens": len(output.prompt_token_ids),
        "tokens": stats.tokens,
        "target_passes": stats.passes,
        "mean_acceptance_length": stats.mean_acceptance_length,
        "draft_acceptance_rate": stats.draft_acceptance_rate if stats.drafted else None,
        "acceptance_rate_per_position": stats.acceptance_rate_per_position,
        "seconds_to_first_token": stats.time_to_first_token,
        "seconds": stats.total_time,
    }
