"""Tables as in papers, with scores as rows and negatives as columns: text, CSV, Markdown, HTML and LaTeX."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, final

import pandas as pd

from sirc._utils.files import PathLike, atomic_write, refuse_existing
from sirc._utils.text import as_csv
from sirc.evaluation import WRONG
from sirc.report.tables import formats
from sirc.report.tables.cells import choose, id_means, mark, summarise

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType


class Cell(NamedTuple):
    """One value as fractions: mean over runs, twice their standard deviation, and interval; with its mark."""

    mean: float
    two_std: float
    runs: int
    mark: str
    low: float = math.nan
    high: float = math.nan


class Part(NamedTuple):
    """A part of a table that fits on a page: some models, and the columns of some negatives."""

    models: list[str]
    negatives: list[str]
    columns: list[tuple[str, str]]
    """(negative, metric) of each column."""


@final
@dataclass(frozen=True, eq=False)
class Table:
    """A table of results. Every format is written from `cells`, which is tidy and in fractions."""

    cells: pd.DataFrame
    """model, score, negative, metric, alpha, beta, mean, two_std (NaN for one run), runs, low, high, mark"""
    of_id: Mapping[str, Mapping[str, tuple[float, float]]]
    """The metrics of ID data, such as the error, by model: mean and 2 std."""
    metrics: Sequence[str]
    negatives: Sequence[str]
    scores: Sequence[str]
    """SIRC's come first."""
    spread: bool = False
    """Whether ± 2 std is shown."""

    @cached_property
    def _grid(self) -> dict[tuple[str, ...], Cell]:
        keys = ["model", "score", "negative", "metric"]
        rows = self.cells[[*keys, *Cell._fields]].itertuples(index=False, name=None)
        return {row[: len(keys)]: Cell(*row[len(keys) :]) for row in rows}

    def __repr__(self) -> str:
        shape = f"{len(self.models)} models × {len(self.scores)} scores × {len(self.negatives)} negatives"
        return f"Table({shape} × {', '.join(self.metrics)})"

    def __str__(self) -> str:
        return self.text()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        yield from formats.renderables(self, options.max_width, styled=console.is_terminal)

    @property
    def intervals(self) -> bool:
        """Whether any value has an interval."""
        return bool(self.cells["low"].notna().any())

    @property
    def models(self) -> list[str]:
        """The models, in the order of the results."""
        return list(self.of_id)

    def cell(self, model: str, score: str, negative: str, metric: str) -> Cell:
        """One value; its mean is NaN if it is missing."""
        return self._grid.get((model, score, negative, metric), Cell(math.nan, math.nan, 0, ""))

    def scores_of(self, model: str) -> list[str]:
        """The scores for which a model has values."""
        has = {key[1] for key in self._grid if key[0] == model}
        return [score for score in self.scores if score in has]

    def negatives_of(self, model: str) -> list[str]:
        """The negatives for which a model has values."""
        has = {key[2] for key in self._grid if key[0] == model}
        return [negative for negative in self.negatives if negative in has]

    def parts(self, columns: int | None = None, rows: int | None = None) -> list[Part]:
        """Split into tables with at most so many columns and rows; models with different negatives get different ones.

        ID✗ comes first in each table that has room for two more negatives, to compare OOD values with it.
        """
        parts = []
        for negatives, same in groupby(self.models, self.negatives_of):
            for models in self._stacks(list(same), rows):
                count = len(negatives) if columns is None else max(1, columns // len(self.metrics))
                repeated = [WRONG] if negatives[0] == WRONG and 2 < count < len(negatives) else []
                others, step = negatives[len(repeated) :], count - len(repeated)
                for start in range(0, len(others), step):
                    shown = repeated + others[start : start + step]
                    parts.append(Part(models, shown, [(n, metric) for n in shown for metric in self.metrics]))
        return parts

    def text(self, width: int = 120) -> str:
        """Aligned text, in parts no wider than `width`; * is best, _ second or third."""
        return formats.text(self, width)

    def csv(self) -> str:
        """Tidy cells with their marks and the ID error, as fractions."""
        frame = self.cells if self.intervals else self.cells.drop(columns=["low", "high"])
        frame = frame.copy()
        for label in reversed(dict.fromkeys(["error", *(label for known in self.of_id.values() for label in known)])):
            values = {model: known[label][0] for model, known in self.of_id.items() if label in known}
            frame.insert(1, f"id_{label}", frame["model"].map(values))
        return as_csv(frame)

    def markdown(self) -> str:
        """A table for each model; the best value is **bold**, second and third are underlined."""
        return formats.markdown(self)

    def html(self, *, page: bool = False) -> str:
        """A fragment with its own style, or a whole page."""
        return formats.html(self, page=page)

    def latex(self, *, document: bool = False) -> str:
        """LaTeX for booktabs, multirow and graphicx, or a whole document for `pdflatex`."""
        return formats.latex(self, document=document)

    def save(self, path: PathLike, *, overwrite: bool = False) -> Path:
        """Write a file in the format of its suffix: .csv, .md, .html (a page), .tex (a document) or .txt."""
        path = Path(path)
        if path.suffix.lower() not in _WRITERS:
            raise ValueError(f"the file of a table must end in {', '.join(_WRITERS)}; got '{path}'.")
        refuse_existing(path, overwrite)
        content = _WRITERS[path.suffix.lower()](self)
        atomic_write(path, lambda file: file.write(content.encode()))
        return path

    def _stacks(self, models: list[str], rows: int | None) -> list[list[str]]:
        stacks: list[list[str]] = [[]]
        for model in models:
            height = sum(len(self.scores_of(other)) for other in (*stacks[-1], model))
            if stacks[-1] and rows is not None and height > rows:
                stacks.append([])
            stacks[-1].append(model)
        return stacks


_WRITERS: Final[Mapping[str, Callable[[Table], str]]] = {
    ".csv": Table.csv,
    ".md": Table.markdown,
    ".html": lambda table: table.html(page=True),
    ".tex": lambda table: table.latex(document=True),
    ".txt": Table.text,
}


def table(
    results: pd.DataFrame,
    *,
    metrics: Sequence[str] = ("auroc", "fpr@95"),
    negatives: Sequence[str] | None = None,
    scores: Sequence[str] | None = None,
    spread: bool = False,
    alpha: float | None = None,
    beta: float | None = None,
) -> Table:
    """Make a table of results: `model, seed, score, negative, metric, alpha, beta, value`, or what `combine` gives.

    Values are means over seeds, with `spread` mean ± 2 std (sample, n − 1). In each column of each model, the best of
    the scores shown is bold, second and third are underlined; equal means share a mark, and a missing value has none.
    `negatives` and `scores` select and order; the default is ID✗, the OOD mean and every OOD set, and all scores with
    SIRC's first. Metrics of a mixture (`aurr`, `risk@95`…) are for one `alpha` and `beta`. If results have columns
    `low` and `high`, as from `Evaluation.intervals`, models with one run show them beside the values.

    Example:
        >>> import sirc
        >>> from sirc.report.tables import table
        >>> scores = {"msp": ([0.9, 0.8, 0.4], [True, True, False]), "energy": ([5, 6, 2], [True, True, False])}
        >>> ev = sirc.evaluate(scores, ood={"far": {"msp": [0.3, 0.85], "energy": [1, 3]}})
        >>> print(table(ev.table, metrics=["auroc"]).text().splitlines()[5].strip())
        MSP      *100.00     _75.00    _75.00
        >>> table(ev.table).cell("", "energy", "far", "auroc").mark
        'bold'
    """
    summary = summarise(results)
    of_id = id_means(summary)
    rows, shown = choose(summary, metrics, negatives, scores, alpha, beta)
    cells = rows.assign(mark=mark(rows))
    models = [model for model in of_id if model in set(cells["model"])]
    places = {name: {entry: at for at, entry in enumerate(order)} for name, order in {"model": models, **shown}.items()}
    cells = cells.sort_values(list(places), key=lambda column: column.map(places[str(column.name)]), ignore_index=True)
    return Table(
        cells, {model: of_id[model] for model in models}, shown["metric"], shown["negative"], shown["score"], spread
    )


def save_tables(results: pd.DataFrame | Table, folder: PathLike, *, overwrite: bool = False) -> list[Path]:
    """Write `table.md`, `table.tex`, `table.html` and `table.csv` into a folder, and return their paths.

    Example:
        >>> import tempfile, sirc
        >>> from sirc.report.tables import save_tables
        >>> ev = sirc.evaluate({"msp": ([0.9, 0.8, 0.4], [True, True, False])})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print([path.name for path in save_tables(ev.table, folder)])
        ['table.md', 'table.tex', 'table.html', 'table.csv']
    """
    made = results if isinstance(results, Table) else table(results)
    paths = [Path(folder) / f"table{suffix}" for suffix in (".md", ".tex", ".html", ".csv")]
    for path in paths:
        refuse_existing(path, overwrite)
    return [made.save(path, overwrite=True) for path in paths]
