"""An experiment: one TOML with the network, data, training and scores, and the folder of the results."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from sirc._utils.checks import expand_path
from sirc._utils.files import PathLike, keep_text
from sirc._utils.text import closest, quoted, shorten
from sirc.data import Preprocess, Source, source_path
from sirc.errors import ConfigError
from sirc.experiment.config import Data, Extract, Fit, Model, Reported, check_folder_name
from sirc.experiment.toml import LATER, Document, dotted, dump
from sirc.experiment.trust import remember
from sirc.scores import Needs, parse
from sirc.training import Train, crop_size

FILE = "experiment.toml"


class _InFolder:
    """An attribute of `Run`: the path of a file with this name in the run's folder."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __get__(self, run: Run, kind: type[Run]) -> Path:
        return run.folder / self.name


@final
@dataclass(frozen=True)
class Run:
    """One network of an experiment, trained with a seed or pretrained (seed 0), and its files."""

    seed: int
    folder: Path

    weights = _InFolder("model.safetensors")
    """The trained weights."""
    history = _InFolder("history.csv")
    """Loss and error of each epoch."""
    head = _InFolder("head.safetensors")
    """The network's last layer."""
    scorer = _InFolder("scorer.safetensors")
    """The fitted scores."""
    confidences = _InFolder("confidences.safetensors")
    """The confidences of test images and OOD sets, valid while outputs and scorer stay the same."""
    choice = _InFolder("choice.json")
    """The scores that commands chose for this network, and the images they chose them on."""
    older_fit_note = _InFolder("scorer.json")
    """The inputs of a fit as earlier versions stored them: beside the scorer, not in a stamp."""

    def store(self, name: str) -> Path:
        """The folder of the stored outputs on a dataset."""
        return self.folder / "outputs" / name


@final
@dataclass(frozen=True)
class Experiment:
    """A whole study: networks trained with `seeds` by the recipe in `train`, or a pretrained one; data; scores."""

    name: str
    """The name of the experiment, and of its folder in `out`."""
    model: Model
    """The network."""
    data: Data
    """The images."""
    title: str = ""
    """The name in tables; by default `name`."""
    out: str = "runs"
    """The folder for results, relative to the current folder."""
    seeds: tuple[int, ...] = ()
    """One network is trained for each."""
    preprocess: Preprocess = field(default_factory=Preprocess)
    """How images are prepared for the network."""
    train: Train | None = None
    """The recipe; left out for a network that is trained already."""
    extract: Extract = field(default_factory=Extract)
    """How outputs are computed and stored."""
    fit: Fit = field(default_factory=Fit)
    """The scores and their fit."""
    report: Reported = field(default_factory=Reported)
    """What tables, page and figures show."""
    imports: tuple[str, ...] = field(default=(), metadata=LATER)
    """Modules of your own that register scores or metrics. Commands import them; reading the file does not."""

    def __post_init__(self) -> None:
        check_folder_name("name", self.name)
        if not self.out:
            raise ValueError("`out` must be a folder; got an empty string. Leave it out for `runs`.")
        seeds = quoted(list(self.seeds))
        if len(set(self.seeds)) < len(self.seeds) or any(not 0 <= seed < 2**32 for seed in self.seeds):
            raise ValueError(f"`seeds` must be distinct whole numbers from 0 to 2³² − 1; got {seeds}.")
        known = {str(parse(text)) for text in self.fit.specs}
        for text in self.report.specs:
            if str(parse(text)) not in known:
                raise ValueError(
                    f"`report.specs` must be among `fit.specs`; `{shorten(text)}` is not. Add it there, or drop it."
                )
        needy = [spec for spec in self.fit.specs if Needs.of([spec]).val]
        if needy and not self.data.validates:
            raise ValueError(
                f"`fit.specs` must do without validation images, as there are none; `{needy[0]}` is tuned on them. Add "
                "`data.validation`, ID images that are not among the training or test images, or hold some training "
                "images out: `data.holdout = 10`."
            )
        if self.tuned and self.data.validation == self.data.test:
            raise ValueError(
                "`data.validation` must be other images than `data.test` where scores are tuned on it; both are the "
                "same. Split them, or give the options of the scores: `tempered_msp(temperature=1)`."
            )
        benchmark, outputs = self.data.train.benchmark, self.model.num_classes
        if benchmark is not None and outputs not in (None, benchmark.classes):
            raise ValueError(
                f"`model.num_classes` must be {benchmark.classes}, as {benchmark.title} has; got {outputs}."
            )
        if self.train is not None:
            if not self.seeds:
                raise ValueError("`seeds` must be given to train: one network for each; got none. Write `seeds = [1]`.")
            if self.train.augment.crop != "none":
                crop_size(self.preprocess)
            return
        if self.seeds:
            raise ValueError(f"`seeds` must be left out without a [train] table, as nothing is random; got {seeds}.")
        if not (self.model.pretrained or self.model.checkpoint is not None or self.model.own):
            raise ValueError(
                "`model` must be pretrained or have a checkpoint where there is no [train] table; it has neither. "
                "Add `pretrained = true`, `checkpoint = …` or [train]."
            )

    @classmethod
    def read(cls, path: PathLike, overrides: Iterable[str] = (), *, whole: bool = False) -> Experiment:
        """Read a TOML file with `overrides` such as `"train.lr=0.05"`; a `whole` file must not extend another.

        A `ConfigError` names the line and the key of what is wrong.
        """
        document = Document.open(path, overrides, whole=whole)
        try:
            experiment = document.build(cls)
        except ConfigError as error:
            imports = document.tree.get("imports")
            if "unknown score" not in str(error) or not (isinstance(imports, list) and imports):
                raise
            options = " ".join(f"--import {shorten(str(name))}" for name in imports[:5])
            advice = (
                "None of the modules in `imports` registers it."
                if all(str(name) in sys.modules for name in imports)
                else "It may come from `imports`, which are not imported by reading alone. If you trust them, pass "
                f"`{options}`, or import them first."
            )
            raise ConfigError(str(error).partition("One of your own")[0] + advice) from None
        # Not a field: experiments are equal wherever they were read from.
        object.__setattr__(experiment, "_document", document)
        return experiment

    def dump(self) -> str:
        """The whole configuration as TOML, with all defaults; `read` makes an equal experiment from it."""
        return dump(self)

    def save(self) -> Path:
        """Write the configuration into the folder of the results."""
        path = self.folder / FILE
        keep_text(path, self.dump())
        remember(path)
        return path

    @property
    def folder(self) -> Path:
        """The folder of all results."""
        return self._expanded(("out",), self.out) / self.name

    @property
    def root(self) -> Path:
        """The folder that relative paths of datasets start from."""
        return self._expanded(("data", "root"), self.data.root)

    @property
    def runs(self) -> tuple[Run, ...]:
        """One run for each seed, or one for the pretrained network."""
        if self.train is None:
            return (Run(0, self.folder / "pretrained"),)
        return tuple(Run(seed, self.folder / f"seed-{seed}") for seed in self.seeds)

    def run(self, seed: int) -> Run:
        """The run of a seed."""
        runs = {run.seed: run for run in self.runs}
        if seed not in runs:
            raise ValueError(f"`seed` must be one of the experiment's, {', '.join(map(str, runs))}; got {seed}.")
        return runs[seed]

    @property
    def names(self) -> tuple[str, ...]:
        """All datasets: train, test, validation if there is one, then the OOD sets."""
        return ("train", "test", *(["validation"] if self.data.validates else []), *self.data.ood)

    @property
    def tuned(self) -> bool:
        """Whether some of its scores are tuned on its validation images."""
        return self.data.validates and Needs.of(self.fit.specs).tuned

    def source(self, name: str) -> Source:
        """The dataset of this name."""
        if name not in self.names:
            hint = closest(name, self.names) or f" It has {', '.join(self.names)}."
            raise ValueError(f"`{self.name}` has no dataset '{name}'.{hint}")
        validation = self.data.validation or self.data.train  # held-out images are training images
        ours = {"train": self.data.train, "test": self.data.test, "validation": validation}
        return ours.get(name) or self.data.ood[name]

    def require(self, names: Iterable[str] | None = None) -> None:
        """Check that the files of these datasets (default: all) exist, before hours are spent on the others."""
        missing: dict[Path, str] = {}
        for name in self.names if names is None else names:
            source = self.source(name)
            at = "train" if name == "validation" and self.data.holdout else name
            try:
                path = source_path(source, self.root)
            except ValueError as error:
                raise self.error((*_key(at), "path"), str(error).removeprefix("`path` ")) from error
            if path is None or source.options.get("download") is True:
                continue
            path = Path(str(path).replace("{split}", source.split or ("train" if at == "train" else "test")))
            if not path.exists():
                missing.setdefault(path, at)
        if not missing:
            return
        (path, name), *others = missing.items()
        more = "; also missing: " + ", ".join(f"'{place}' ({other})" for place, other in others) if others else ""
        dataset = self.source(name).dataset
        say = "Say" if ":" in dataset else f"See `sirc data check {dataset} {path}`, or say"
        raise self.error(
            _key(name),
            f"needs '{path.absolute()}', which is not there{more}. {say} where it is: `--set data.root=…` or "
            f"`--set {dotted(_key(name))}.path=…`.",
        )

    def _expanded(self, keys: tuple[str, ...], text: str) -> Path:
        name = dotted(keys)
        try:
            return expand_path(name, text)
        except ValueError as error:
            raise self.error(keys, str(error).removeprefix(f"`{name}` ")) from error

    def error(self, keys: tuple[str, ...], message: str) -> ConfigError:
        """An error about a setting, with its place in the TOML if the experiment was read from one."""
        document: Document | None = getattr(self, "_document", None)
        return document.error(keys, message) if document else ConfigError(f"`{dotted(keys)}` {message}")


def _key(name: str) -> tuple[str, ...]:
    return ("data", name) if name in ("train", "test", "validation") else ("data", "ood", name)
