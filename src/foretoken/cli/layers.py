"""`foretoken layers`: finds the layers that a model leaves out when it drafts for itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from foretoken.cli import options, output


def layers(
    out: Annotated[Path, typer.Option("--out", help="The file to write.")],
    model: options.Model = "mini",
    tokenizer: options.Tokenizer = None,
    dtype: options.Dtype = "auto",
    device: options.Device = "auto",
    backend: options.Backend = "auto",
    trials: Annotated[
        int, typer.Option("--trials", min=1, help="Layer sets that are timed.")
    ] = 1000,
    tokens: Annotated[int, typer.Option("--tokens", min=2, help="Written after a prompt.")] = 32,
    prompts: Annotated[
        int, typer.Option("--prompts", min=1, help="Bundled prompts that are used.")
    ] = 4,
    prompt: Annotated[
        list[str] | None, typer.Option("--prompt", help="Your own prompt; may be repeated.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Of the candidates.")] = 0,
) -> None:
    """Search for the layers to leave out when a model drafts for itself (method draft_verify).

    Ctrl-C ends the search early, and the best set so far is written.

    Example: [bold]foretoken layers --model mini --trials 100 --out mini-layers.npz[/bold]
    """
    from foretoken.cli.prompts import given_or_bundled
    from foretoken.files import check_writable
    from foretoken.llm import LLM
    from foretoken.models import layer_set
    from foretoken.progress import track
    from foretoken.tune.layers import Search

    check_writable(out)
    llm = LLM(model, tokenizer=tokenizer, dtype=dtype, device=device, backend=backend)
    search = Search(llm.model, given_or_bundled(llm, prompt, prompts), tokens)
    with track("Searching", trials, True) as advance:
        best = search.run(trials, seed, advance)
    layer_set.save(out, best.skipped, llm.model)
    if best.trials < trials:
        output.note(f"Interrupted after {best.trials} of {trials} layer sets.")
    output.write(
        f"{out}: without sub-layers {', '.join(map(str, best.skipped)) or '–'} a token takes "
        f"{best.seconds * 1e3:.2f} ms, plainly {best.plain * 1e3:.2f} ms; "
        f"{best.rate:.0%} of the drafted tokens are accepted."
    )
