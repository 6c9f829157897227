"""All figures that the runs of a study allow, drawn and saved."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sirc._utils.checks import check_at_least, check_positive
from sirc._utils.files import PathLike, atomic_write
from sirc._utils.text import quoted
from sirc.data import ImageSet
from sirc.errors import ImageError
from sirc.evaluation import Evaluation
from sirc.progress import SILENT, Progress
from sirc.report.figures.comparisons import changes, risks, separation, sweeps
from sirc.report.figures.densities import densities
from sirc.report.figures.plane import Plane, is_pair, plane, plane_grid, planes
from sirc.report.figures.style import drawing, drawn, literal, new_figure
from sirc.report.protocols import ScoredRun

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL.Image import Image

Plan = tuple[str, Callable[[], "Figure"]]
"""The name of a figure and the function that draws it."""

FORMATS: Final = ("pdf", "svg", "png")
# Without dates and versions, equal figures have equal bytes.
_METADATA: Final[dict[str, dict[str, Any]]] = {
    "pdf": {"CreationDate": None, "Creator": "sirc", "Producer": None},
    "svg": {"Date": None, "Creator": "sirc"},
    "png": {"Software": "sirc"},
}
_BASELINES: Final = ("msp", "entropy", "doctor")
_DETECTORS: Final = ("vim", "energy", "max_logit", "gradnorm", "mahalanobis", "knn", "residual", "l1")
_COMPARED: Final = ("msp", "energy", "vim", "sirc(msp, residual)", "sirc(entropy, residual)")
_PAIRS: Final = ("sirc(msp, l1)", "sirc(msp, residual)", "sirc(entropy, l1)", "sirc(entropy, residual)")
_SHOWN = 160  # pixels along a side of a sample image
_MOST = 5  # lines that a reader can tell apart in one panel


def figures(
    runs: Sequence[ScoredRun],
    folder: PathLike,
    *,
    formats: Sequence[str] = FORMATS,
    images: Mapping[str, ImageSet] | None = None,
    progress: Progress = SILENT,
) -> list[Path]:
    """Draw every figure that these runs allow into a folder, and return the paths of the files.

    Sweeps and changes are means over all runs of a model; other figures show its first run.

    Example:
        >>> import tempfile, sirc
        >>> from sirc.report.figures import figures
        >>> from sirc.experiment import RunResults
        >>> ev = sirc.evaluate({"msp": ([0.9, 0.8, 0.4], [True, True, False])})
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print([path.name for path in figures([RunResults("A network", 0, ev)], folder, formats=["svg"])])
        ['densities.svg', 'separation.svg', 'risks.svg']
    """
    formats = _check_formats(formats)
    models: dict[str, list[ScoredRun]] = {}
    for run in runs:
        models.setdefault(run.model, []).append(run)
    if not models:
        raise ValueError("`runs` must hold at least one run; got none. Make some: `sirc run EXPERIMENT.toml`.")
    plans: list[Plan] = []
    for ending, same in zip(_endings(list(models)), models.values(), strict=True):
        plans += [(f"{name}{ending}", draw) for name, draw in _of_model(same)]
    plans += _of_all(models)
    if images:
        shown = dict(images)
        plans.append(("samples", lambda: sample_images(shown)))
    paths: list[Path] = []
    with progress.task("figures", len(plans), unit="figures") as task:
        for name, draw in plans:
            paths += save(draw(), Path(folder) / name, formats)
            task.advance()
    return paths


def save(figure: Figure, stem: PathLike, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write `stem.pdf`, `stem.svg` and `stem.png`, or only some; text stays text, and equal figures have equal bytes.

    Example:
        >>> import tempfile
        >>> from sirc.report.figures import save
        >>> from matplotlib.figure import Figure
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     print([path.name for path in save(Figure(), f"{folder}/empty", ["png"])])
        ['empty.png']
    """
    wanted = _check_formats(formats)
    paths = [Path(f"{Path(stem)}.{name}") for name in wanted]  # with_suffix would cut "resnet-1.5"
    with drawing(), warnings.catch_warnings():
        # A dataset's name may have letters that the font lacks, which become boxes.
        warnings.filterwarnings("ignore", message=r"(?s).*[Gg]lyph .* missing from")
        engine = figure.get_layout_engine()
        figure.draw_without_rendering()  # lay out once for all formats, as it takes as long as drawing
        figure.set_layout_engine("none")
        try:
            for path, name in zip(paths, wanted, strict=True):
                atomic_write(path, partial(figure.savefig, format=name, metadata=_METADATA[name]))
        finally:
            figure.set_layout_engine(engine)
    return paths


def compared(evaluation: Evaluation) -> list[str]:
    """The scores for curves: MSP, Energy, ViM and SIRC if evaluated, else the first ones."""
    usual = [score for score in _COMPARED if score in evaluation.scores]
    others = [score for score in evaluation.scores if score not in usual]
    return usual + others[: max(0, 2 - len(usual))] if usual else others[:_MOST]


def two(evaluation: Evaluation) -> list[str]:
    """A softmax score and an OOD detector if evaluated, else the first two scores."""
    scores = evaluation.scores
    first = next((score for score in _BASELINES if score in scores), scores[0])
    rest = [score for score in (*_DETECTORS, *scores) if score in scores and score != first]
    return [first, *rest[:1]]


def _of_model(runs: Sequence[ScoredRun]) -> Iterator[Plan]:
    first, evaluations = runs[0], [run.evaluation for run in runs]
    evaluation = first.evaluation
    pair, several = two(evaluation), compared(evaluation)
    yield "densities", lambda: densities(evaluation, pair[0])
    if len(pair) > 1:
        yield "densities-two", lambda: densities(evaluation, pair)
    if evaluation.negatives:
        yield "separation", lambda: separation(evaluation, pair)
        yield "risks", lambda: risks(evaluation, several)
    if evaluation.ood:
        # Only runs with the same scores and OOD sets as the first have a mean.
        same = [e for e in evaluations if e.negatives == evaluation.negatives and e.scores == evaluation.scores]
        yield "sweep-alpha", lambda: sweeps(same, "alpha", several)
        yield "sweep-beta", lambda: sweeps(same, "beta", several)
    if pairs := _pairs(first):
        chosen = next((spec for spec in _PAIRS if spec in pairs), pairs[0])
        ood = _grid_sets(first)[0]
        yield "plane", lambda: plane(_planes(first, [chosen], ood)[chosen], title=ood)


def _of_all(models: Mapping[str, Sequence[ScoredRun]]) -> Iterator[Plan]:
    firsts = [runs[0] for runs in models.values()]
    baseline = two(firsts[0].evaluation)[0]
    comparable = {
        model: [run.evaluation for run in runs]
        for model, runs in models.items()
        if all(baseline in e.scores and len(e.scores) > 1 and e.negatives for e in (run.evaluation for run in runs))
    }
    if comparable:
        yield "changes", lambda: changes(comparable, baseline=baseline)
    with_pairs = [run for run in firsts if _pairs(run)]
    sets = _grid_sets(with_pairs[0]) if with_pairs else []
    shared = [name for name in sets if all(name in run.ood for run in with_pairs)]
    for name, ending in zip(shared, _endings(shared, always=True), strict=True):

        def draw(name: str = name) -> Figure:
            return plane_grid({run.model: _planes(run, _pairs(run), name) for run in with_pairs}, title=name)

        yield f"plane-grid{ending}", draw


def _pairs(run: ScoredRun) -> list[str]:
    """The SIRC pairs to draw: the paper's four, else the first ones; none without an OOD set."""
    if not run.ood or run.scorer is None:
        return []
    pairs = [spec for spec in run.scorer.specs if is_pair(spec) and spec in run.evaluation.scores]
    return [spec for spec in _PAIRS if spec in pairs] or pairs[:4]


def _planes(run: ScoredRun, pairs: Sequence[str], ood: str) -> dict[str, Plane]:
    assert run.scorer is not None
    assert run.test is not None
    return planes(run.scorer, pairs, run.test, run.ood[ood])


def _grid_sets(run: ScoredRun) -> list[str]:
    """Two different OOD sets: the first of each group where there are groups, else the first two."""
    groups = [members[0] for members in run.evaluation.groups.values()]
    names = [name for name in dict.fromkeys([*groups, *run.ood]) if name in run.ood]
    return names[:2]


def _endings(names: Sequence[str], *, always: bool = False) -> list[str]:
    """A distinct ending of a file name for each name, such as "-resnet-50"; empty for a single name."""
    if len(names) == 1 and not always:
        return [""]
    endings: list[str] = []
    for number, name in enumerate(names, 1):
        short = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or str(number)
        ending = f"-{short}"
        while ending in endings:
            ending += f"-{number}"
        endings.append(ending)
    return endings


def _check_formats(formats: Sequence[str]) -> tuple[str, ...]:
    """Require formats among pdf, svg and png, and drop duplicates."""
    wanted = tuple(dict.fromkeys([formats] if isinstance(formats, str) else formats))
    if not wanted or any(name not in FORMATS for name in wanted):
        raise ValueError(f"`formats` must be among {', '.join(FORMATS)}, at least one; got {quoted(list(wanted))}.")
    return wanted


@drawn
def sample_images(images: Mapping[str, ImageSet], *, count: int = 8, seed: int = 0) -> Figure:
    """Draw a row of images for each dataset, with its name and size.

    Example:
        >>> from sirc.report.figures import sample_images
        >>> from sirc.data import Noise
        >>> figure = sample_images({"Noise": Noise(20, size=32)}, count=4)
        >>> len(figure.axes)
        4
    """
    if not images:
        raise ValueError("`images` must hold at least one dataset; got none.")
    count, seed = check_positive("count", count), check_at_least("seed", seed, 0)
    side = 5.6 / count
    figure, axes = new_figure(len(images), count, height=0.2 + (side + 0.06) * len(images), pad=0.05)
    for row, (name, some) in zip(axes, images.items(), strict=True):
        for panel in row:
            panel.set_axis_off()
        squares = {}
        for number in np.random.default_rng(seed).permutation(len(some)).tolist():
            with suppress(ImageError):  # the study skipped it too
                squares[number] = _square(some.image(number))
            if len(squares) == count:
                break
        for panel, number in zip(row, sorted(squares), strict=False):
            panel.imshow(squares[number], interpolation="nearest")
        row[0].annotate(
            f"{literal(name, 20)}\n{len(some):,} images",
            (0, 0.5),
            xycoords="axes fraction",
            xytext=(-6, 0),
            textcoords="offset points",
            ha="right",
            va="center",
            fontsize=7.5,
            linespacing=1.4,
        )
    return figure


def _square(image: Image) -> np.ndarray[tuple[int, int, int], np.dtype[np.uint8]]:
    """The central square of an image, in the size that a figure needs."""
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    square = image.convert("RGB").crop((left, top, left + side, top + side))
    if side > _SHOWN:
        square = square.resize((_SHOWN, _SHOWN))
    return np.asarray(square)
