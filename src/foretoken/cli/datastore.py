"""`foretoken datastore`: builds the files that retrieval drafters search."""

from __future__ import annotations

import hashlib
import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from foretoken.cli import output
from foretoken.errors import ForetokenError

app = typer.Typer(
    help="Texts on disk that the method 'rest' drafts from.",
    no_args_is_help=True,
)

_BLOCK = 1 << 20  # bytes that are read, and turned into token ids, at once

Files = Annotated[
    list[Path],
    typer.Argument(help='Text files; of *.jsonl each line is a text: {"text"} or {"messages"}.'),
]
Tokenizer = Annotated[
    str, typer.Option("--tokenizer", help="The target: folder, hub id or bundled name.")
]
Out = Annotated[Path, typer.Option("--out", help="The datastore's folder.")]


@app.command("build")
def build(files: Files, tokenizer: Tokenizer, out: Out) -> None:
    """Make a datastore of text files.

    Example: [bold]foretoken datastore build corpus.jsonl --tokenizer mini --out store[/bold]
    """
    from foretoken.lookup import datastore

    _write(datastore.build, files, tokenizer, out)


@app.command("add")
def add(files: Files, tokenizer: Tokenizer, out: Out) -> None:
    """Add text files to a datastore; what is there stays as it is.

    Example: [bold]foretoken datastore add more.txt --tokenizer mini --out store[/bold]
    """
    from foretoken.lookup import datastore

    _write(datastore.add, files, tokenizer, out)


def _write(write: Callable[..., None], files: list[Path], tokenizer: str, out: Path) -> None:
    """Build or add, with a progress bar over the blocks of the files."""
    from foretoken.lookup.datastore import Datastore
    from foretoken.models.load import load_tokenizer
    from foretoken.progress import track

    sizes = [_size(file) for file in files]
    loaded = load_tokenizer(tokenizer)
    made_for = _made_for(tokenizer, loaded)
    with track("Reading", sum(size // _BLOCK + 1 for size in sizes), True) as advance:
        write(out, made_for, (ids for file in files for ids in _documents(file, loaded, advance)))
    with track("Checking", 1, True):
        tokens = Datastore(out, made_for).tokens
    size = sum(file.stat().st_size for file in out.iterdir())
    output.write(f"{out} ({tokens:,} tokens, {size / 2**20:.1f} MiB)")


def _size(file: Path) -> int:
    if not file.is_file():
        raise ForetokenError(f"There is no file {file}; name text or .jsonl files.")
    return file.stat().st_size


def _made_for(name: str, tokenizer: Any) -> dict[str, int | str]:
    """The vocabulary's size as the target has it, and what tells its tokenizer from others."""
    from foretoken.models.load import find, read_config

    words = json.dumps(sorted(tokenizer.get_vocab().items()))
    print_ = hashlib.sha256(words.encode()).hexdigest()[:16]
    vocab_size = read_config(find(name)).get_text_config().vocab_size
    return {"vocab_size": int(vocab_size), "tokenizer": print_}


def _documents(file: Path, tokenizer: Any, advance: Callable[[], None]) -> Iterator[list[int]]:
    """The token ids of a file's texts; a text file is cut at line ends into blocks."""
    lined = file.suffix == ".jsonl"
    with file.open("rb") as opened:
        if opened.read(len(BOM_UTF8)) != BOM_UTF8:
            opened.seek(0)
        number = 0
        while lines := opened.readlines(_BLOCK):
            if lined:
                texts = [
                    _text(file, number + i, line, tokenizer) for i, line in enumerate(lines, 1)
                ]
            else:
                texts = [_decoded(file, b"".join(lines))]
            number += len(lines)
            yield from tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
            advance()


def _text(file: Path, number: int, line: bytes, tokenizer: Any) -> str:
    """The text of a line of JSON; a conversation as the model's chat template writes it."""
    from foretoken.engine.prompts import check_text

    written = _decoded(file, line).strip()
    if not written:
        return ""
    try:
        text = _entry_text(json.loads(written), tokenizer)
        check_text(text)
    except ForetokenError as error:
        raise ForetokenError(f"{file}, line {number}: {error}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ForetokenError(
            f'{file}, line {number}, is no JSON object with "text" or "messages" '
            '(a list of {"role", "content"}).'
        ) from error
    return text


def _entry_text(entry: Any, tokenizer: Any) -> str:
    text = dict(entry).get("text")
    if isinstance(text, str):
        return text
    if text is not None:
        raise TypeError("text")  # what isn't one would be stored as Python writes it
    from foretoken.engine.conversations import texts, written

    turns = [{"role": turn["role"], "content": turn["content"]} for turn in entry["messages"]]
    if getattr(tokenizer, "chat_template", None):
        return written(turns, tokenizer, reply=False)
    return "\n".join(turn["content"] for turn in texts(turns))


def _decoded(file: Path, text: bytes) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ForetokenError(f"{file} is not UTF-8 text; convert it first.") from error
