"""Commands for datasets: list, fetch and check them, make Noise and Colonoscopy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from sirc._utils.text import closest, quoted
from sirc.cli.console import console, reporting, result, say
from sirc.cli.endings import ending
from sirc.cli.options import Quiet
from sirc.errors import ConfigError

if TYPE_CHECKING:
    from rich.table import Table

    from sirc.data import PublicDataset

Sort = Literal["name", "natural"]
COLONOSCOPY = "http://www.depeca.uah.es/colonoscopy_dataset"

app = typer.Typer(
    help="Datasets: list the benchmarks, fetch them, check what is on disk, make Noise and Colonoscopy.",
    no_args_is_help=True,
)


@app.command("list")
@ending
def list_() -> None:
    """List the paper's datasets: name, group, size, the folder where each is expected, and where to get it.

    Example: `sirc data list`
    """
    from rich.table import Table

    from sirc.data import benchmarks

    table = Table("name", "title", "role", "group", "images", "folder", "where to get it", box=None, pad_edge=False)
    for known in benchmarks():
        sizes = " + ".join(f"{part.size:,}" if part.size else "?" for part in known.splits)
        table.add_row(
            known.key, known.title, known.role, known.group or "–", sizes, f"ROOT/{known.folder}", known.source
        )
    console().print(table)


@app.command()
@ending
def get(
    name: Annotated[str | None, Argument(help="The dataset. Without a name, all are listed.")] = None,
    root: Annotated[Path | None, Argument(help="The folder that holds your datasets.")] = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Fetch without asking.")] = False,
    quiet: Quiet = False,
) -> None:
    """Fetch a public dataset, check it, and put it where experiments expect it. The same command resumes a stopped one.

    It first shows the size and the licence. If a dataset needs an account or a click, the steps are printed, and the
    command exits with 1 unless the dataset is there.

    Example: `sirc data get textures ~/data`
    """
    from sirc.data import check as check_data
    from sirc.data import fetch_dataset, public_dataset, public_datasets

    if name is None:
        console().print(_table_of(public_datasets()))
        return
    known = [dataset.name for dataset in public_datasets()]
    if name.strip().lower() not in known:
        raise ConfigError(f"NAME must be one of {', '.join(known)}; got {quoted(name)}.{closest(name, known)}")
    if root is None:
        raise ConfigError("ROOT must be given with a NAME: the folder that holds your datasets, such as `~/data`.")
    dataset = public_dataset(name)
    if not (there := dataset.is_in(root)):
        if not dataset.fetchable:
            result(dataset.instructions(root))
            raise typer.Exit(1)
        say(
            f"{dataset.title}: {size_text(dataset.asked_size())} to fetch into '{root}'\n"
            f"  from     {dataset.source}\n"
            f"  licence  {dataset.licence or 'none stated'}"
        )
        if unchecked := [file.url for file in dataset.files if not file.checksum]:
            say(f"  no checksum is published for {', '.join(unchecked)}: the SHA-256 of the download is kept")
        if not yes and not (sys.stdin.isatty() and typer.confirm("Fetch it?", err=True)):
            say("nothing was fetched; `--yes` fetches without asking")
            raise typer.Exit(1)
        fetch_dataset(dataset, root, progress=reporting(quiet))
    result(f"{dataset.title} {'was there already' if there else 'is there'}; in a TOML: {dataset.use}")
    if dataset.folder != ".":  # a benchmark, with a folder of its own
        report = check_data(dataset.name, root / dataset.folder)
        result(str(report))
        if not report.ok:
            say(f"to fetch it again, move '{root / dataset.folder}' away and run this again")
            raise typer.Exit(1)


def _table_of(datasets: Sequence[PublicDataset]) -> Table:
    from rich.table import Table

    table = Table("name", "title", "size", "licence", "how", box=None, pad_edge=False)
    for dataset in datasets:
        how = "fetched" if dataset.fetchable else "by hand: the command says how"
        size = size_text(dataset.size) if dataset.files else "–"
        table.add_row(dataset.name, dataset.title, size, dataset.licence or "none stated", how)
    return table


def size_text(size: int | None) -> str:
    """A number of bytes as people read it: 625.0 MB."""
    from rich.filesize import decimal

    return "unknown size" if size is None else decimal(size)


@app.command()
@ending
def check(
    name: Annotated[str, Argument(help="A benchmark (`sirc data list`), `folder`, or `list`.")],
    path: Annotated[Path, Argument(help="Where its files are.")],
    split: Annotated[str | None, Option(help="Only `train` or only `test`.")] = None,
    sort: Annotated[Sort, Option(help="For a `folder`: the order of classes; `natural` puts 2 before 10.")] = "name",
    classes: Annotated[Path | None, Option(help="For a `folder`: a text file with its classes in order.")] = None,
    decode: Annotated[bool, Option("--decode", help="Read every image, and name the broken ones.")] = False,
    workers: Annotated[int, Option(help="Processes that read images.", min=0)] = 0,
    quiet: Quiet = False,
) -> None:
    """Check a dataset on disk: what is there, what is missing, and what to do. Exit with 1 if something is wrong.

    Example: `sirc data check textures ~/data/textures --decode --workers 8`
    """
    from sirc.data import Source, benchmarks, class_names
    from sirc.data import check as check_data

    known_names = ["folder", "list", *(known.key for known in benchmarks())]
    if name not in known_names:
        raise ConfigError(f"NAME must be one of {', '.join(known_names)}; got {quoted(name)}.")
    names = None if classes is None else class_names(Source("folder", str(path), classes=str(classes)), Path())
    report = check_data(
        name, path, split=split, sort=sort, classes=names, decode=decode, workers=workers, progress=reporting(quiet)
    )
    result(str(report))
    if not report.ok:
        raise typer.Exit(1)


@app.command()
@ending
def noise(
    out: Annotated[Path, Argument(help="The folder to write to.")],
    count: Annotated[int, Option(help="How many images.", min=1)] = 10_000,
    seed: Annotated[int, Option(help="The seed. Image i depends only on the seed and i.", min=0)] = 0,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace noise of another seed or count.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write the paper's Noise images as PNG files. The same command resumes a stopped one.

    Experiments need no files: `dataset = "noise"` makes the same images on the fly.

    Example: `sirc data noise data/noise --count 10000 --seed 0`
    """
    from sirc.data import write_noise

    write_noise(out, count=count, seed=seed, overwrite=overwrite, progress=reporting(quiet))
    result(f"{out}  {count} images, seed {seed}")


@app.command()
@ending
def colonoscopy(
    out: Annotated[Path, Argument(help="The folder to write to; it gets `videos/` and `images/`.")],
    videos: Annotated[int, Option(help="How many videos of each lesion class; the paper has 10.", min=1)] = 10,
    base: Annotated[str, Option(help="The address to fetch from.")] = COLONOSCOPY,
    quiet: Quiet = False,
) -> None:
    """Fetch the colonoscopy videos and write every frame as an image. The same command resumes a stopped one.

    Example: `sirc data colonoscopy data/colonoscopy`
    """
    from sirc.data import fetch_colonoscopy

    summary = fetch_colonoscopy(out, base=base, videos=videos, progress=reporting(quiet))
    result(str(summary))
    if not summary.ok:
        raise typer.Exit(1)
