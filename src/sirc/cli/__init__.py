"""The command line: results on stdout, progress on stderr, exit code 0, 1 (failed) or 2 (wrongly called)."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from sirc.cli import check, data, deploy, results, select, show, study
from sirc.cli.console import say
from sirc.errors import ConfigError

_INTERRUPTED = 130

app = typer.Typer(
    name="sirc",
    help="Selective classification with out-of-distribution data: train, extract, score, and know when to keep quiet.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(data.app, name="data")
study.add_to(app)
results.add_to(app)
show.add_to(app)
check.add_to(app)
select.add_to(app)
deploy.add_to(app)


def main(arguments: list[str] | None = None) -> None:
    """Run a command and exit as scripts expect."""
    try:
        app(args=arguments, prog_name="sirc")
    except ConfigError as error:
        say(f"error: {error}")
        sys.exit(2)
    except (ValueError, OSError, ImportError, MemoryError) as error:
        say(f"error: {error}")
        sys.exit(1)
    except (KeyboardInterrupt, SystemExit) as ended:
        # Newer versions of typer make an exit of an interrupt, without a word.
        if isinstance(ended, SystemExit) and ended.code != _INTERRUPTED:
            raise
        say("stopped; what was finished is kept, and the same command goes on from there")
        sys.exit(_INTERRUPTED)


def _version(wanted: bool) -> None:
    if wanted:
        import sirc

        typer.echo(f"sirc {sirc.__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
