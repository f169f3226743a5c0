"""`foretoken zoo`: the bundled models, and copies of them at the cost of larger ones."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretoken.cli import output

if TYPE_CHECKING:
    from foretoken.zoo.shape import Shape

app = typer.Typer(
    help="The bundled models, and copies of them at the cost of larger ones.",
    no_args_is_help=True,
)


@app.command("list")
def show(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead.")] = False,
) -> None:
    """List the bundled models.

    Example: [bold]foretoken zoo list[/bold]
    """
    from foretoken import zoo
    from foretoken.errors import ForetokenError
    from foretoken.models import bundled

    if not zoo.names():
        raise ForetokenError(f"The bundled models need {bundled.INSTALL}.")
    rows: list[dict[str, Any]] = []
    for name in zoo.names():
        folder = zoo.path(name)
        rows.append({"name": name, "parameters_read": _read(folder), "path": str(folder)})
    if as_json:
        output.write_json(rows)
        return
    wide = max(len(row["name"]) for row in rows)
    for row in rows:
        size = f"{row['parameters_read'] / 1e6:>6.1f} M parameters"
        output.write(f"{row['name']:<{wide}} {size}  {row['path']}")


def _read(folder: Path) -> int:
    """The parameters that a pass reads; for a trained drafter, all that it adds to its target."""
    from safetensors import safe_open

    from foretoken.zoo.shape import Shape, parameters_read

    config = _config(folder)
    if "foretoken_method" not in config:
        return parameters_read(Shape.of(config))
    with safe_open(folder / "model.safetensors", "pt") as file:
        return sum(math.prod(file.get_slice(name).get_shape()) for name in file.keys())  # noqa: SIM118


@app.command("fetch")
def fetch(
    name: Annotated[
        str,
        typer.Argument(help="smollm2-135m-instruct, a hub id, or org/name/file.gguf."),
    ],
    gguf_file: Annotated[
        str | None, typer.Option("--gguf-file", help="A GGUF file of the repository.")
    ] = None,
) -> None:
    """Download a model, and print where it lies; what is there is not fetched again.

    Example: [bold]foretoken zoo fetch smollm2-135m-instruct[/bold]
    """
    from foretoken.zoo.fetch import fetch

    output.write(str(fetch(name, gguf_file)))


@app.command("inflate")
def inflate(
    name: Annotated[str, typer.Argument(help="Bundled model, or a checkpoint folder.")],
    shape: Annotated[str, typer.Option("--shape", help="135m, 1.1b or 7b.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to write.")],
    target: Annotated[
        str | None,
        typer.Option(
            "--for", help="NAME drafts for this model: keep its share of the target's cost."
        ),
    ] = None,
    dtype: Annotated[
        str, typer.Option("--dtype", help="float32, bfloat16 or float16.")
    ] = "float32",
    seed: Annotated[int, typer.Option("--seed", help="Of the numbers that are added.")] = 0,
) -> None:
    """Write a copy of a model that costs as much as a large one and writes the same.

    Example: [bold]foretoken zoo inflate mini --shape 135m --out big[/bold]

    Its drafter: [bold]foretoken zoo inflate mini-draft --shape 135m --for mini --out small[/bold]
    """
    from foretoken.models.load import folder_of

    source = folder_of(name)
    folder = write(source, out, shape, folder_of(target) if target else None, dtype, seed)
    size = sum(f.stat().st_size for f in folder.glob("*.safetensors"))
    output.write(f"{folder} ({size / 2**30:.2f} GiB)")


def write(
    source: Path, out: Path, shape: str, target: Path | None, dtype: str = "float32", seed: int = 0
) -> Path:
    """Inflate with a progress bar; with a `target`, to the drafter's share of the shape."""
    import torch
    import transformers

    from foretoken.errors import unknown
    from foretoken.files import check_new_folder
    from foretoken.progress import track
    from foretoken.zoo import inflate as inflation

    kinds = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
    if dtype not in kinds:
        raise unknown("dtype", dtype, kinds)
    if shape not in inflation.SHAPES:
        raise unknown("shape", shape, inflation.SHAPES)
    check_new_folder(out)
    new: Shape = inflation.SHAPES[shape]
    if target is not None:
        new = inflation.proportional(_config(source), _config(target), new)
    transformers.utils.logging.disable_progress_bar()  # ours is enough
    with track(f"Inflating {source.name}", 9 * new.layers + 3, True) as advance:
        inflation.inflate(source, out, new if target else shape, kinds[dtype], seed, advance)
    return out


def _config(folder: Path) -> dict[str, Any]:
    from foretoken.files import read_json

    return read_json(folder / "config.json", "a checkpoint's config")
