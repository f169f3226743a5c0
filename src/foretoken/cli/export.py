"""`foretoken export`: a drafter as other programs read it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import output
from foretoken.errors import ForetokenError, shown
from foretoken.files import read_json

if TYPE_CHECKING:
    from torch import Tensor

    from foretoken.trainable.formats.write import Target

_Folder = Annotated[
    str, typer.Argument(help="A drafter: folder, hub id or bundled name; or a GGUF file.")
]
_To = Annotated[str, typer.Option("--to", help="speculators, vllm, sglang, hf or gguf.")]
_Out = Annotated[
    Path, typer.Option(help="The folder to write, which must be new or empty; or a new GGUF file.")
]
_Format = Annotated[
    str | None, typer.Option("--format", help="Of a GGUF file's matrices: Q8_0, Q4_0, Q4_K, F16 …")
]
_Target = Annotated[
    str | None,
    typer.Option(help="The target in the printed line; else the one it was trained for."),
]

_TrustRemoteCode = Annotated[
    bool, typer.Option("--trust-remote-code", help="Run code that comes with model or target.")
]

_EMBEDDINGS = tuple(
    f".{name}.weight" for name in ("embed_tokens", "wte", "embed_in", "word_embeddings")
)
"""How the names of targets' embeddings end: Llama's and its like, GPT-2's, GPT-NeoX's, Falcon's."""
_HEADS = (".lm_head.weight", ".embed_out.weight")
"""How the names of targets' heads end."""
_DRAFTED = 5  # tokens of a model that drafts alone, in the line that is printed


def export(
    drafter: _Folder,
    to: _To,
    out: _Out,
    target: _Target = None,
    format: _Format = None,
    trust_remote_code: _TrustRemoteCode = False,
) -> None:
    """Write a drafter in another program's format: eagle3, dflash, dflash2 or a small model.

    Example: [bold]foretoken export my-eagle3 --to vllm --out my-eagle3-vllm[/bold]

    A GGUF file becomes a folder, dequantised: [bold]foretoken export model.gguf --to hf --out
    model[/bold]; a folder or GGUF file becomes a GGUF file, quantised: [bold]foretoken export model
    --to gguf --format Q4_0 --out model-q4_0.gguf[/bold]
    """
    from foretoken.files import check_new_folder
    from foretoken.models import gguf
    from foretoken.trainable import formats
    from foretoken.trainable.formats import write

    if target is not None and to in ("gguf", "hf"):
        raise ForetokenError(
            "--target is of a drafter that another program loads beside it; leave it out with "
            f"--to {to}."
        )
    if to == "gguf":
        _to_gguf(drafter, out, format or "Q8_0", trust_remote_code)
        return
    if format is not None:
        raise ForetokenError("--format is of a GGUF file's matrices; give --to gguf with it.")
    programs = (*write.PROGRAMS, "gguf")
    if to not in programs:
        raise ForetokenError(f"--to is {shown(to)}; it must be one of {', '.join(programs)}.")
    check_new_folder(out)
    folder = formats.find(drafter)
    if gguf.is_named(folder):
        if to != "hf":
            raise ForetokenError(f"{drafter} is a GGUF file, which is written for 'hf' alone.")
        gguf.write_folder(folder, out)
        output.write(f"{out} · for {to}")
        return
    if formats.recognise(folder) is not None:
        raise ForetokenError(f"{drafter} is in another program's format already.")
    line = _write(folder, drafter, target, to, out, trust_remote_code)
    output.write(f"{out} · for {to}")
    if line is not None:
        output.write(line)


def _write(
    folder: Path, drafter: str, target: str | None, to: str, out: Path, trust_remote_code: bool
) -> str | None:
    """Write the drafter in a folder, and give the line that serves it, where there is one."""
    from foretoken.models.load import read_config as read_model
    from foretoken.recommender.elsewhere import their_name
    from foretoken.trainable.checkpoint import read_config
    from foretoken.trainable.formats import launch, write
    from foretoken.trainable.formats.published import loaded

    if "foretoken_method" in _json(folder):
        config = read_config(folder)
        named = target or config.get("target_name")
        made_for = _target(named, config["target"], drafter, trust_remote_code)
        write.trained(config, loaded(folder / "model.safetensors"), made_for, to, out)
        shape = config["shape"]
        tokens = shape["unroll"] if "unroll" in shape else shape["block_size"] - 1
        method = config["foretoken_method"]
        return launch.command(to, method, out, made_for.name, tokens, trust_remote_code)
    read_model(folder, trust_remote_code)
    write.model(folder, to, out)
    beside = their_name(target) if target else "TARGET"
    return launch.command(to, None, out, beside, _DRAFTED, trust_remote_code)


def _to_gguf(model: str, out: Path, kind: str, trust_remote_code: bool) -> None:
    from foretoken.models import gguf
    from foretoken.models.load import find, generation_ends, read_config, tokenizer_of
    from foretoken.models.model import eos_ids

    place = find(model)
    if gguf.is_named(place):
        source: Any = gguf.FileSource(place)
    else:
        config = read_config(place, trust_remote_code)
        ends = generation_ends(place) or eos_ids(config)
        tokenizer = tokenizer_of(None, place, trust_remote_code)
        source = gguf.FolderSource(place, config, tokenizer, ends)
    kinds = gguf.write_file(source, out, kind)
    output.write(f"{out} · {kind}")
    others = Counter(of for of in kinds.values() if of not in (kind, "F32"))
    for of, many in others.items():
        output.write(f"{many} matrices in {of}, as {kind} doesn't divide their rows")


def _target(
    name: str | None, facts: Mapping[str, Any], drafter: str, trust_remote_code: bool
) -> Target:
    """Raises `ForetokenError` for one that the drafter wasn't trained for."""
    from foretoken.models.load import find, read_config, tokenizer_of
    from foretoken.models.native import block
    from foretoken.recommender.elsewhere import their_name
    from foretoken.trainable.checkpoint import Facts
    from foretoken.trainable.formats.write import Target

    if not name:
        raise ForetokenError(f"{drafter} doesn't name its target; give --target.")
    folder = find(name)
    config = read_config(folder, trust_remote_code)
    text = config.get_text_config()
    this = Facts(text.hidden_size, text.vocab_size, text.num_hidden_layers)
    Facts(**facts).check(this, drafter)
    scale = block.embedding_scale(text) if text.model_type in block.FAMILIES else 1.0
    tied = any(getattr(part, "tie_word_embeddings", False) for part in (config, text))

    def tokens() -> int | None:
        tokenizer = tokenizer_of(None, folder, trust_remote_code)
        return None if tokenizer is None else len(tokenizer)

    return Target(
        their_name(name),
        {
            **text.to_dict(),
            "architectures": config.architectures,
            "dtype": str(text.dtype or config.dtype).removeprefix("torch."),
        },
        embedding=lambda: _stored(folder, "an embedding", _EMBEDDINGS) * scale,
        head=lambda: _stored(folder, "a head", _HEADS, *([_EMBEDDINGS] if tied else [])),
        scaled=scale != 1.0,
        tied=tied,
        tokens=tokens,
    )


def _stored(folder: Path, kind: str, *names_end: tuple[str, ...]) -> Tensor:
    """[V, D] the target's tensor whose name ends so, by the first of the lists that has any.
    Raises `ForetokenError` where it can't be told from its files."""
    from foretoken.models.load import weights

    stored = weights(folder)
    each = ([n for n in stored.headers if f".{n}".endswith(ends)] for ends in names_end)
    names = next(filter(None, each), [])
    if len(names) != 1:
        raise ForetokenError(
            f"{folder} has {len(names)} tensors named as {kind}, and the drafter is written with a "
            "copy of the target's."
        )
    return stored(names[0])


def _json(folder: Path) -> dict[str, Any]:
    return read_json(folder / "config.json", "a drafter's config")
