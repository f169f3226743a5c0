"""`foretoken ralm`: continues a prompt with documents that are looked up every few tokens."""

from __future__ import annotations

import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import options
from foretoken.cli.output import note, write, write_json
from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    from foretoken.apps.ralm.outputs import RalmOutput

_EMPTY_LINES = re.compile(r"\n\s*\n")


@options.grouped
def ralm(
    *,
    prompt: Annotated[str, typer.Argument(help="The prompt, as it stands.")],
    corpus: Annotated[
        list[Path],
        typer.Option("--corpus", help="A text; empty lines divide documents. May be repeated."),
    ],
    model: options.Model = "mini",
    drafting: options.Drafting,
    running: options.ModelOptions,
    sampling: options.SamplingOptions,
    seed: options.Seed = None,
    max_tokens: options.MaxTokens = 128,
    retrieve_every: Annotated[
        int, typer.Option("--retrieve-every", help="Tokens that are written after a document.")
    ] = 4,
    speculation_stride: Annotated[
        int | None,
        typer.Option(
            "--speculation-stride",
            help="Guessed documents that one retrieval verifies; by default what pays most.",
        ),
    ] = None,
    asynchronous: Annotated[
        bool, typer.Option("--asynchronous", help="Write on while a retrieval runs.")
    ] = False,
    max_document_tokens: Annotated[
        int, typer.Option("--max-document-tokens", help="How much of a document is read.")
    ] = 256,
    plain: Annotated[
        bool, typer.Option("--plain", help="Guess no documents: the same text, to compare with.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print text, ids, documents and statistics as JSON.")
    ] = False,
) -> None:
    """Write the continuation of a prompt, with the document before it that BM25 finds best for the
    text so far, again every few tokens.

    Documents are guessed and verified together, so that the text is the one that a retrieval before
    each piece gives. Standard error says how guesses and drafts went.

    Example: [bold]foretoken ralm "Who built the lighthouse?" --corpus notes.txt --method pld[/bold]
    """
    from foretoken.apps.ralm import Bm25, Ralm

    retriever = Bm25([text for path in corpus for text in _documents(path)])
    config = running.config(drafting)
    params = sampling.params(seed=seed, max_tokens=max_tokens)
    llm = running.llm(model, config, max_num_seqs=1)
    writer = Ralm(
        llm,
        retriever,
        retrieve_every=retrieve_every,
        speculation_stride=speculation_stride,
        asynchronous=asynchronous,
        max_document_tokens=max_document_tokens,
    )
    out = writer.generate_plain(prompt, params) if plain else writer.generate(prompt, params)
    if as_json:
        write_json(asdict(out))
    else:
        write(out.text)
    note(f"[{llm.method}] {_told(out)}")


def _documents(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ForetokenError(f"{path} is not UTF-8 text; convert it first.") from error
    return [block.strip() for block in _EMPTY_LINES.split(text) if block.strip()]


def _told(out: RalmOutput) -> str:
    """One line on how guesses and drafts went."""
    stats, tokens = out.stats, len(out.token_ids)
    guesses, decoding = stats.matched + stats.wrong, stats.decoding
    parts = [
        f"{tokens} tokens",
        f"{tokens / stats.total_time:,.0f} tokens/s",
        f"{len(set(out.documents))} documents",
        f"{stats.searches} retrievals for {len(out.documents)} pieces",
    ]
    if guesses:
        parts.append(f"{stats.matched} of {guesses} guesses right")
    if decoding.drafted:
        parts.append(f"mean acceptance length {decoding.mean_acceptance_length:.2f}")
    return " · ".join(parts)
