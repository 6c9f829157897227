"""The demo: two small networks on rendered letters, the paper's scores, six OOD sets, and the findings."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from importlib.resources import files
from pathlib import Path

import torch

import sirc
from sirc._utils.files import PathLike, keep_text
from sirc.experiment.arrays import save_arrays
from sirc.experiment.claims import Finding, findings
from sirc.experiment.experiment import Experiment
from sirc.experiment.network import load_head
from sirc.experiment.stamp import Stage, digest
from sirc.experiment.study import Study, run_study
from sirc.outputs import OutputStore
from sirc.progress import SILENT, Progress

__all__ = ["run_demo"]


def run_demo(
    out: PathLike,
    *,
    device: torch.device | str = "cpu",
    figures: bool = True,
    redo: Collection[str] = (),
    overrides: Iterable[str] = (),
    progress: Progress = SILENT,
) -> tuple[Study, list[Finding]]:
    """Run the demo in `out`, check the paper's findings, and write example files for `sirc evaluate`."""
    out = Path(out)
    toml, where = files(__name__), f"out={json.dumps(str(out))}"
    names = ("glyphs_densenet.toml", "glyphs_resnet.toml")
    experiments = [Experiment.read(str(toml / name), [where, *overrides]) for name in names]
    study = run_study(experiments, folder=out, device=device, figures=figures, redo=redo, progress=progress)
    _write_arrays(study, experiments[0])
    with progress.task("findings, with intervals", None, unit=""):
        results = findings(study.runs)
    lines = ["| the paper's finding | measured here | verdict |", "|---|---|---|"]
    for finding in results:
        cells = (text.replace("|", r"\|") for text in (finding.claim, finding.measured, finding.verdict))
        lines.append(f"| {' | '.join(cells)} |")
    keep_text(out / "findings.md", "\n".join([*lines, ""]))
    study.files.append(out / "findings.md")
    return study, results


def _write_arrays(study: Study, experiment: Experiment) -> None:
    """Write the outputs of the first network as `.npz` files, such as a user with arrays would have."""
    run = experiment.runs[0]
    head, _ = load_head(run.head)
    folder = study.folder / "arrays"
    stores = {name: OutputStore(run.store(name)) for name in experiment.names}
    inputs = {"stores": {name: [s.model, s.data, len(s)] for name, s in stores.items()}, "head": digest(run.head)}
    stage = Stage("arrays", study.folder, {**inputs, "sirc": sirc.__version__})
    if not stage.is_done():
        with stage.remade() as made:
            for name, store in stores.items():
                made.append(folder / f"{name}.npz")
                save_arrays(made[-1], store.load(), head if name == "train" else None, overwrite=True)
    study.files += stage.made
