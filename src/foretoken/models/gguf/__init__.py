"""A GGUF file as a checkpoint: configuration, tokenizer, end-of-text ids and weights.

Those of the architectures in `names.FAMILIES` are read here, others' by transformers, which
dequantises them too.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod
from pathlib import Path
from typing import Any

from foretoken.errors import ForetokenError, one_line, shown
from foretoken.models.gguf import check, config, parts, tokenizer
from foretoken.models.gguf.checkpoint import GGUFCheckpoint
from foretoken.models.gguf.folder import write as write_folder
from foretoken.models.gguf.from_folder import FolderSource
from foretoken.models.gguf.names import FAMILIES
from foretoken.models.gguf.parts import SUFFIX, model_name
from foretoken.models.gguf.parts import names as part_names
from foretoken.models.gguf.parts import number as part_number
from foretoken.models.gguf.reader import GGUFFile, check_installed, opened
from foretoken.models.gguf.write import FORMATS, FileSource
from foretoken.models.gguf.write import write as write_file
from foretoken.models.native.backends.blocks import KINDS

__all__ = [
    "FORMATS",
    "SUFFIX",
    "FileSource",
    "FolderSource",
    "GGUFCheckpoint",
    "check_read",
    "config_of",
    "download",
    "ends_of",
    "files_of",
    "has_blocks",
    "is_named",
    "is_one",
    "is_read_here",
    "model_name",
    "native_config_of",
    "numbers_in",
    "opened",
    "part_names",
    "part_number",
    "tokenizer_of",
    "weights_of",
    "write_file",
    "write_folder",
]


def is_named(source: str | Path) -> bool:
    """Whether a path or hub id names a GGUF file."""
    return str(source).endswith(SUFFIX)


def is_one(path: Path) -> bool:
    """Whether there is such a file."""
    return is_named(path) and path.is_file()


def download(source: str) -> Path:
    """A file of the hub, as org/name/file.gguf, unless it is cached; with all its parts."""
    from huggingface_hub import hf_hub_download

    check_installed(Path(source))
    organisation, name, file = source.split("/", 2)
    first, *others = part_names(file)
    path = Path(hf_hub_download(f"{organisation}/{name}", first))
    snapshot = path.parents[first.count("/")]
    commit = snapshot.name if snapshot.parent.name == "snapshots" else None
    for part in others:  # of the first one's commit, whatever the repository has become meanwhile
        hf_hub_download(f"{organisation}/{name}", part, revision=commit)
    return path


def files_of(path: Path) -> list[Path]:
    """What holds a checkpoint, or whatever lies there: of a GGUF file all its parts, as far as
    they are there. Raises `ForetokenError` for another part than the first."""
    return [path, *(part for part in parts.paths(path)[1:] if part.exists())]


def is_read_here(path: Path) -> bool:
    """Whether the architecture is one of `FAMILIES`."""
    return opened(path).architecture in FAMILIES


def has_blocks(path: Path) -> bool:
    """Whether some of its matrices can be multiplied as they lie."""
    return any(tensor.kind.name in KINDS for tensor in opened(path).tensors.values())


def numbers_in(path: Path) -> int:
    """How many numbers all tensors have together."""
    return sum(prod(tensor.shape) for tensor in opened(path).tensors.values())


def check_read(path: Path, names: Collection[str]) -> None:
    """Raises `ForetokenError` where a file has a tensor that none of these names is of."""
    file = opened(path)
    for stored in file.tensors:
        # Experts lie together in one parameter, whose name has no last part.
        if stored not in names and stored.removesuffix(".weight") not in names:
            raise file.unserved(
                f"transformers' {file.architecture} models have no tensor {shown(stored)}, and "
                "another text would come without it"
            )


def config_of(path: Path) -> Any:
    """transformers' configuration. Raises `ForetokenError` where the file makes none."""
    file = opened(path)
    if file.architecture in FAMILIES:
        return config.read(file)
    if len(file.files) > 1:
        raise file.unserved(
            f"{file.architecture} models are read by transformers, which reads no parts",
            "join them by llama-gguf-split --merge",
        )
    check.language_model(file)
    config.check_rope(file)
    from transformers import AutoConfig

    try:
        made = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
        return config.completed(file, made)
    except ForetokenError:
        raise
    except Exception as error:
        raise _unserved(file, error) from error


def native_config_of(path: Path) -> Any:
    """What the native model needs of it, sooner; of a file that `is_read_here`."""
    return config.read_native(opened(path))


def tokenizer_of(path: Path) -> Any:
    """The tokenizer. Raises `ForetokenError` where the file makes none."""
    file = opened(path)
    if file.architecture in FAMILIES or tokenizer.serves(file):
        return tokenizer.read(file)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    except Exception as error:
        raise _unserved(file, error) from error


def ends_of(path: Path) -> frozenset[int]:
    """The end-of-text ids."""
    return config.ends(opened(path))


def weights_of(path: Path, narrow: bool, whole: bool = False) -> GGUFCheckpoint:
    """The weights of an architecture that is read here; see `GGUFCheckpoint`."""
    return GGUFCheckpoint(opened(path), narrow, whole)


def _unserved(file: GGUFFile, error: Exception) -> ForetokenError:
    return ForetokenError(
        f"{file.path} is of the architecture {shown(file.architecture)}, which transformers can't "
        f"read from a GGUF file ({one_line(error)}); give the model's own checkpoint folder or hub "
        "id."
    )
