"""All commands of `foretoken`, and how their errors are shown."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import Any

import typer
import typer.core

from foretoken.cli.output import accept_any_text, note, write

INTERRUPTED = 130


class _Commands(typer.core.TyperGroup):
    """Shows an error that a user can act on as one sentence, and no stack trace."""

    def main(self, *args: Any, **options: Any) -> Any:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")  # errors are shown below
        accept_any_text()
        options |= {"standalone_mode": False, "prog_name": "foretoken"}
        try:
            code = super().main(*args, **options)
        except (KeyboardInterrupt, typer.Abort):
            sys.exit(INTERRUPTED)
        except BrokenPipeError:
            _silence()
            sys.exit(1)
        except Exception as error:
            message = _sentence(error)
            if message is None:
                raise
            if message:
                note(f"foretoken: {message}")
            if isinstance(error, OSError) and error.filename is None:
                _silence()  # it may be standard output that takes no more
            sys.exit(getattr(error, "exit_code", 1))
        sys.exit(code if isinstance(code, int) else 0)


def _sentence(error: Exception) -> str | None:
    """What to tell the user: nothing where the help was shown, None for a bug of ours."""
    from foretoken.errors import ForetokenError

    if isinstance(error, ForetokenError):
        return str(error)
    if isinstance(error, OSError) and error.strerror:  # of the system: a full disk, for one
        where = error.filename or "Standard output, or a file,"
        return f"{where} can't be read or written: {error.strerror}."
    show = getattr(error, "format_message", None)  # wrong usage, as typer reports it
    if show is None:
        return None
    if not (message := " ".join(str(show()).split()).rstrip(".")):
        return ""
    message = message.replace("Value error, ", "")  # the validator's word for its own sentence
    context = getattr(error, "ctx", None)
    hint = f" Try '{context.command_path} --help'." if context is not None else ""
    return f"{message}.{hint}"


def _silence() -> None:
    """Standard output takes no more; keep the interpreter from complaining at exit."""
    with suppress(io.UnsupportedOperation):  # it is no file of the system's
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


app = typer.Typer(
    cls=_Commands,
    name="foretoken",
    help="Exact, batched speculative decoding: one loop, every drafter.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        from foretoken import __version__

        write(f"foretoken {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
    ),
) -> None:
    pass


def _register() -> None:
    from foretoken.cli import (
        bench,
        certify,
        chat,
        datastore,
        demo,
        edit,
        export,
        export_answers,
        generate,
        layers,
        methods,
        new_drafter,
        perplexity,
        prune,
        ralm,
        recommend,
        report,
        serve,
        simulate,
        suites,
        train,
        tune,
        zoo,
    )

    app.command("demo")(demo.demo)
    app.command("bench")(bench.bench)
    app.command("report")(report.report)
    app.command("export-answers")(export_answers.export_answers)
    app.command("suites")(suites.suites)
    app.command("simulate")(simulate.simulate)
    app.command("generate")(generate.generate)
    app.command("chat")(chat.chat)
    app.command("serve")(serve.serve)
    app.command("edit")(edit.edit)
    app.command("ralm")(ralm.ralm)
    app.command("certify")(certify.certify)
    app.command("perplexity")(perplexity.perplexity)
    app.command("recommend")(recommend.recommend)
    app.command("tune")(tune.tune)
    app.command("methods")(methods.methods)
    app.command("new-drafter")(new_drafter.new_drafter)
    app.command("train")(train.train)
    app.command("prune")(prune.prune)
    app.command("export")(export.export)
    app.command("layers")(layers.layers)
    app.add_typer(zoo.app, name="zoo")
    app.add_typer(datastore.app, name="datastore")


_register()
