"""`foretoken prune`: a small model cut out of a large one, to be trained as its drafter."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretoken.cli import output
from foretoken.errors import ForetokenError

if TYPE_CHECKING:
    from foretoken.llm import LLM
    from foretoken.spellings import Conversation

_TEXTS, _LENGTH = 64, 512  # texts and tokens of each, by which is seen what matters


def prune(
    model: Annotated[str, typer.Argument(help="Folder, hub id, bundled name or GGUF file.")],
    data: Annotated[
        list[str],
        typer.Option(help="Texts to measure by what matters: .jsonl files, a suite's name."),
    ],
    out: Annotated[Path, typer.Option(help="The folder to write, which must be new or empty.")],
    layers: Annotated[int | None, typer.Option(help="Layers that are kept.")] = None,
    hidden_size: Annotated[
        int | None, typer.Option(help="Channels of the residual stream.")
    ] = None,
    intermediate_size: Annotated[
        int | None, typer.Option(help="Units of each feed-forward.")
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option(help="Key/value heads, with their query heads.")
    ] = None,
) -> None:
    """Cut a small model out of a large one: what matters most along some texts is kept.

    It writes nothing of use until it is trained: [bold]foretoken train sps --target MODEL --set
    'shape={model: OUT}'[/bold]

    Example: [bold]foretoken prune my-model --data prompts.jsonl --layers 12 --hidden-size 384 --out
    small[/bold]
    """
    import torch

    from foretoken import LLM
    from foretoken.cli.train import spread
    from foretoken.files import check_new_folder, check_writable
    from foretoken.models.hf import adapter
    from foretoken.models.load import find
    from foretoken.train import prune as pruning
    from foretoken.trainable.small_lm import native_config

    check_new_folder(out)
    check_writable(out / "config.json")
    native_config(model)  # what is cut is to be trained
    read = spread(data, _TEXTS)
    llm = LLM(model)
    texts = _texts(llm, read)
    large = adapter.load(find(model), torch.float32, torch.device("cpu")).model
    size = pruning.Size(layers, hidden_size, intermediate_size, kv_heads)
    small = pruning.prune(large, size, texts)
    pruning.write(small, llm.tokenizer, out)
    counts = [sum(p.numel() for p in each.parameters()) / 1e6 for each in (large, small)]
    output.write(f"{out} · {counts[1]:.1f} M parameters of {counts[0]:.1f} M")


def _texts(llm: LLM, read: Seq[Conversation]) -> list[list[int]]:
    """The beginning of each that the chat template can write. Raises `ForetokenError` where it can
    write none."""
    from foretoken.train.turns import whole_ids

    found: list[list[int]] = []
    errors: list[ForetokenError] = []
    for each in read:
        try:
            found.append(whole_ids(llm, each)[:_LENGTH])
        except ForetokenError as error:
            errors.append(error)
    if errors and not any(found):
        raise errors[0]
    if errors:
        output.note(f"{len(errors)} conversations are left out, the first as: {errors[0]}")
    return [text for text in found if text]
