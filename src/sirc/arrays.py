"""For people who bring arrays: outputs and head from files of any origin, to the same results as a study's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from sirc._arrays import ArrayLike
from sirc._files import PathLike, array_names, read_npz, read_safetensors, write_npz
from sirc.evaluate import evaluate
from sirc.experiment import PAPER_SPECS
from sirc.head import Head
from sirc.outputs import Outputs
from sirc.progress import SILENT, Progress
from sirc.results import RunResults
from sirc.scores import Scorer, fit, registry
from sirc.scores.columns import needed_leaves
from sirc.scores.folds import Crossfit
from sirc.scores.spec import parse
from sirc.store import OutputStore

WEIGHT, BIAS = "head_weight", "head_bias"


def load_outputs(path: PathLike) -> Outputs | OutputStore:
    """Open a `.npz` or `.safetensors` file with `logits` (and `features`, `labels`), or the folder of a store."""
    path = Path(path)
    if path.is_dir():
        return OutputStore(path)
    if not path.is_file():
        raise FileNotFoundError(f"there is no file or store '{path}'.")
    try:
        return Outputs.load(path)
    except ValueError as error:
        raise type(error)(f"'{path}': {error}") from error


def load_head(path: PathLike) -> Head | None:
    """Read the last layer from a file: `head_weight` and `head_bias`, or in a file of its own `weight` and `bias`."""
    path = Path(path)
    if path.is_dir():
        return None
    is_npz = path.suffix == ".npz"
    tensors = {} if is_npz else read_safetensors(path, foreign=True)[0]
    names = array_names(path) if is_npz else set(tensors)
    weight, bias = (WEIGHT, BIAS) if WEIGHT in names or "logits" in names else ("weight", "bias")
    if weight not in names:
        return None
    arrays: Mapping[str, ArrayLike] = read_npz(path, (weight, bias)) if is_npz else tensors
    return Head(arrays[weight], arrays.get(bias))


def save_arrays(path: PathLike, outputs: Outputs, head: Head | None = None, *, overwrite: bool = False) -> None:
    """Write outputs as a `.npz` file, and the head with them."""
    columns = {"logits": outputs.logits, "features": outputs.features, "labels": outputs.labels}
    if head is not None:
        columns |= {WEIGHT: head.weight, BIAS: head.bias}
    write_npz(path, {name: value for name, value in columns.items() if value is not None}, overwrite=overwrite)


def possible_specs(train: Outputs | OutputStore | None, test: Outputs | OutputStore, head: Head | None) -> list[str]:
    """Give those of the paper's sixteen scores that can be computed from what there is."""
    has_features = test.num_features is not None
    labels = train is not None and (train.has_labels if isinstance(train, OutputStore) else train.labels is not None)
    possible = []
    for spec in PAPER_SPECS:
        scores = [registry.get(leaf.name) for leaf in needed_leaves([parse(spec)])]
        fitted = parse(spec).name in ("sirc", "linear") or any(score.solve for score in scores)
        if (
            (has_features or not any("features" in score.needs for score in scores))
            and (train is not None or not fitted)
            and (head is not None or not any(score.head for score in scores))
            and (labels or not any("by_class" in score.evidence for score in scores))
        ):
            possible.append(spec)
    return possible


def evaluate_arrays(
    train: Outputs | OutputStore | None,
    test: Outputs | OutputStore,
    ood: Mapping[str, Outputs | OutputStore],
    *,
    specs: Sequence[str] | None = None,
    head: Head | None = None,
    crossfit: Crossfit = "auto",
    groups: Mapping[str, Sequence[str]] | None = None,
    model: str = "model",
    progress: Progress = SILENT,
) -> RunResults:
    """Fit the scores on `train` and evaluate them; without `specs`, all of the paper's that the arrays allow."""
    chosen = list(specs) if specs else possible_specs(train, test, head)
    fitted = None if train is None else fit(chosen, train, head=head, crossfit=crossfit, progress=progress)
    scorer = fitted or Scorer(chosen)
    evaluation = evaluate(scorer, test, ood, groups=groups)
    return RunResults(model, 0, evaluation, scorer, test, ood)
