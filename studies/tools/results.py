"""Measure the networks of a study and write its findings beside the paper's.

`collect` takes the ranks of all scores from the machine that holds the stored outputs; `measure` makes the intervals;
`write` makes the document with its summary, its record of comparisons and its figures, and with --check says whether
they are up to date; `page` makes the overview of all studies from their records; `repeat` says whether a rerun gives
the figures of a summary. Run it from the repository's root: python -m studies.tools.results.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pandas as pd
import torch

from sirc._utils.files import atomic_write
from sirc.evaluation import MEAN, WRONG
from sirc.experiment.results import load_experiments, load_run, read_results, write_results
from sirc.outputs import OutputStore
from sirc.report.figures import save
from studies.tools.claims import judged
from studies.tools.claims.record import FILE as RECORD
from studies.tools.claims.record import record
from studies.tools.document import document as findings
from studies.tools.draws import MIDDLE, Wanted, draw
from studies.tools.families import PAPER, SETTINGS, SWEPT
from studies.tools.gap import read_gaps
from studies.tools.measure import compare, results, same_results, sizes, summary
from studies.tools.overview import COMMAND, paper_networks, records
from studies.tools.overview import page as overview
from studies.tools.pictures import error_figure, gain_figure
from studies.tools.ranks import SUFFIX, Ranks, ranks_of, read_ranks, write_ranks
from studies.tools.repeat import compared
from studies.tools.setup import copy_figures
from studies.tools.study import STUDIES, Study

HISTORY = "history"


def collect(folders: Sequence[Path], out: Path, *, device: str, limit: float) -> None:
    """Write the ranks of every run of the studies in these folders."""
    studies = [study for folder in folders for study in load_experiments(folder)]

    def runs() -> Iterator[Ranks]:
        for study in studies:
            for run in study.runs:
                start = time.monotonic()
                store = Path(run.store("train"))
                trained = len(OutputStore(store)) if store.is_dir() else 0  # only told; outputs may be gone
                found = ranks_of(load_run(study, run, device=device), trained)
                size, took = " scores of ".join(map(str, found.ranks.shape)), time.monotonic() - start
                _tell(f"{found.model}, seed {found.seed}: {size} rows, {took:.1f} s")
                yield found
                if out.suffix != SUFFIX and Path(run.history).is_file():
                    history = out / HISTORY / f"{study.name}-{run.seed}.csv"
                    _write(history, Path(run.history).read_text(encoding="utf-8"))

    for path in write_ranks(runs(), out, limit=int(limit * 2**20)):
        _tell(f"{path}: {path.stat().st_size / 2**20:.1f} MiB")


def measure(paths: Sequence[Path], out: Path, *, draws: int, seed: int, workers: int) -> None:
    """Write comparisons.csv and sets.csv, and results.csv where `sirc run` has not left it."""
    runs = read_ranks(paths)
    _tell(f"{len(runs)} runs of {len(runs[0].scores)} scores, {draws} draws, {workers} at a time")
    made = results(runs)
    kept = read_results(out / "results.csv") if (out / "results.csv").is_file() else None
    if kept is not None and not same_results(kept, made):
        raise ValueError(
            f"'{out / 'results.csv'}' must be of the runs that were collected; it is of others. Give another folder "
            "with --out, or one into which `sirc run` wrote these runs."
        )
    wanted = Wanted(PAPER, (*SWEPT, "msp"), [at for at in SETTINGS if at != MIDDLE])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the runs themselves go side by side
    try:
        samples = draw(runs, wanted, draws=draws, seed=seed, workers=workers, tell=_tell)
    finally:
        torch.set_num_threads(threads)
    if kept is None:
        write_results(made, out / "results.csv")
        _tell(f"{out / 'results.csv'}: made from the ranks, as it was not there")
    _write(out / "comparisons.csv", _csv(compare(runs, samples)))
    _write(out / "sets.csv", _csv(sizes(runs)))
    for file in sorted(file for path in paths for file in path.glob(f"{HISTORY}/*.csv")):
        _write(out / HISTORY / file.name, file.read_text(encoding="utf-8"))


def write(folder: Path, document: Path, *, check: bool) -> None:
    """Write the document with its summary and figures; with `check`, only raise if it is out of date."""
    name = folder.resolve().name
    tomls = [path for path in sorted((STUDIES / name).glob("*.toml")) if not path.name.endswith("base.toml")]
    if not tomls:
        _tell(f"note: there is no studies/{name}/*.toml, so that the recipe is left out")
    study = Study(folder, tomls)
    claims, together = judged(study)
    main = study.results[study.results["negative"].isin([WRONG, MEAN])]
    files = {
        document.parent / "summary.csv": _csv(summary(main)),
        document.parent / RECORD: _csv(record([*claims, *together.values()])),
    }
    if not check:
        for path, text in files.items():
            _write(path, text)
        copy_figures(study, document.parent)
    files[document] = findings(study, document.parent, claims, together)
    if not check:
        _write(document, files[document])
    for path, text in files.items():
        if check and not (path.is_file() and path.read_text(encoding="utf-8") == text):
            raise ValueError(
                f"'{path}' must be what `write` makes of '{folder}'; it differs. Run "
                f"`python -m studies.tools.results write {folder} --document {document}` and keep what it writes."
            )


def page(studies: Path, *, check: bool) -> None:
    """Write the overview of all studies and its figures; with `check`, only raise if it is out of date."""
    found, gaps, document = records(studies), read_gaps(studies), studies / "README.md"
    text = overview(found, gaps)
    if not check:
        save(error_figure(found, paper_networks(), gaps), studies / "figures" / "error", ["png"])
        save(gain_figure(found, paper_networks()), studies / "figures" / "gain", ["png"])
        _write(document, text)
    elif not document.is_file() or document.read_text(encoding="utf-8") != text:
        raise ValueError(f"'{document}' must be what `{COMMAND}` makes of the studies; it differs. Run it again.")


def repeat(rerun: Path, kept: Path) -> None:
    """Print how the figures of a rerun compare with those that were kept."""
    own = rerun / "results.csv" if rerun.is_dir() else rerun
    if not own.is_file():
        raise ValueError(f"results must be there to be compared; there is no '{own}'. Make it with `sirc run`.")
    file = kept / "summary.csv" if kept.is_dir() else kept
    if not file.is_file():
        raise ValueError(f"a summary must be there to compare with; there is no '{file}'. Make it with `write`.")
    print(compared(read_results(own), pd.read_csv(file)))


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("collect", help="write the ranks of all scores, where the stored outputs are")
    one.add_argument("runs", nargs="+", type=Path, metavar="RUNS", help="folders that `sirc run` left")
    one.add_argument("--out", type=Path, required=True, help="a folder, or one file *.safetensors for all")
    one.add_argument("--device", default="cpu", help="where scores are computed (default: cpu)")
    one.add_argument("--limit", type=float, default=15.5, help="MiB of a file in the folder (default: 15.5)")
    two = commands.add_parser("measure", help="write comparisons.csv, sets.csv and, if need be, results.csv from ranks")
    two.add_argument("ranks", nargs="+", type=Path, metavar="COLLECTED", help="files of `collect`, or their folder")
    two.add_argument("--out", type=Path, required=True, help="the folder of the results")
    two.add_argument("--draws", type=int, default=200, help="of the bootstrap (default: 200)")
    two.add_argument("--seed", type=int, default=0, help="of the draws (default: 0)")
    two.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="runs side by side (default: the CPUs)")
    three = commands.add_parser("write", help="write the findings from the tables")
    three.add_argument("folder", type=Path, help="the folder of results.csv, comparisons.csv and sets.csv")
    three.add_argument("--document", type=Path, help="the file (default: README.md in the folder)")
    three.add_argument("--check", action="store_true", help="only check that the document is up to date")
    all_of = commands.add_parser("page", help="write the overview of all studies that have a claims.csv")
    all_of.add_argument("--studies", type=Path, default=STUDIES, help="the folder of all studies (default: studies/)")
    all_of.add_argument("--check", action="store_true", help="only check that the page is up to date")
    four = commands.add_parser("repeat", help="say whether a rerun gives the figures of a summary")
    four.add_argument("rerun", type=Path, metavar="RUNS", help="a folder that `sirc run` left, or its results.csv")
    four.add_argument("folder", type=Path, help="the folder of summary.csv, or this file")
    options = parser.parse_args(arguments)
    try:
        if options.command == "collect":
            collect(options.runs, options.out, device=options.device, limit=options.limit)
        elif options.command == "measure":
            if options.draws < 2 or options.workers < 1:
                raise ValueError("--draws must be at least 2 and --workers at least 1; they are not")
            measure(options.ranks, options.out, draws=options.draws, seed=options.seed, workers=options.workers)
        elif options.command == "page":
            page(options.studies, check=options.check)
        elif options.command == "repeat":
            repeat(options.rerun, options.folder)
        else:
            write(options.folder, options.document or options.folder / "README.md", check=options.check)
    except (ValueError, OSError) as error:
        parser.exit(1, f"{parser.prog}: {error}\n")


def _csv(table: pd.DataFrame) -> str:
    return str(table.to_csv(index=False, lineterminator="\n", float_format="%.6g"))


def _write(path: Path, text: str) -> None:
    atomic_write(path, lambda file: file.write(text.encode()))
    _tell(f"{path}: {text.count(chr(10))} lines")


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
