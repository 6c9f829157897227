"""The command line: results on stdout, progress on stderr; exit code 0, 1 (failed) or 2 (wrong usage).

To add a command, write a function with its options and an example in a module of this package, and list it in
`COMMANDS` under its heading of `sirc --help`. Modules import typer and nothing heavy; a function imports what it
computes with. So `--help` answers at once.
"""

from __future__ import annotations

import atexit
import gc
import io
import signal
import sys
import threading
from typing import Annotated

import typer

from sirc import __version__
from sirc.cli import choose, data, deploy, prepare, production, results
from sirc.cli.console import say
from sirc.cli.endings import INTERRUPTED, ending
from sirc.cli.options import with_options

__all__ = ["main"]

COMMANDS = {
    "From a trained model to decisions": (
        deploy.guard,
        deploy.calibrate,
        deploy.predict,
        deploy.try_,
        deploy.export,
        production.serve,
        production.monitor,
    ),
    "From arrays or an experiment to a comparison of scores": (
        results.demo,
        results.evaluate,
        results.run,
        choose.check,
        choose.select,
        results.table,
        results.plot,
        results.report,
    ),
    "Stages of an experiment, one at a time": (prepare.train, prepare.extract, prepare.fit),
}
NO_SCORES = (results.demo, production.serve, production.monitor)  # they compute no scores, and have no `--import`
_TYPER_FLAGS = dict.fromkeys(("help", "install_completion", "show_completion"), False)

app = typer.Typer(
    name="sirc",
    help="A reject option for PyTorch classifiers: abstain where the network errs, and where no class fits.\n\n"
    "ID input belongs to one of the classes, OOD input to none; the network is right on ID✓ and wrong on ID✗.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={
        "help_option_names": ["-h", "--help"],
        # Without a default for its own flags, typer imports pydantic to check the None of each.
        "default_map": {**_TYPER_FLAGS, "data": _TYPER_FLAGS},
    },
)
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel)(ending(with_options(command, imports=command not in NO_SCORES)))
app.add_typer(data.app, name="data", rich_help_panel="Datasets")


def main(arguments: list[str] | None = None) -> None:
    """Run a command, and exit with its code."""
    gc.set_threshold(30_000)  # torch and pandas keep a million objects alive: collect less often
    atexit.register(_end_quickly)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # what Ctrl-C does
    # A stream may not be able to encode all letters.
    for stream, errors in ((sys.stdout, "replace"), (sys.stderr, "backslashreplace")):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=errors)
    try:
        app(args=arguments, prog_name="sirc")
    except (KeyboardInterrupt, typer.Abort):  # before a command began
        say("stopped")
        sys.exit(INTERRUPTED)
    except OSError as error:  # `ending` reports those of a command
        say(f"error: nothing can be printed: {error.strerror or error}")
        sys.exit(1)


def _end_quickly() -> None:
    """Skip the last garbage collection, which takes half a second over the objects of torch and pandas."""
    if "triton" not in sys.modules:  # it reports frozen objects as leaks
        gc.freeze()


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"sirc {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Add the options that `sirc` has without a command; `--help` shows the text of `app`."""
