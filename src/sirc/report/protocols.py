"""Protocols of the runs that figures and the page show."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from sirc.evaluation import Evaluation
from sirc.outputs import Outputs, OutputStore
from sirc.scores import Scorer


class Run(Protocol):
    """One network and its evaluation; `sirc.experiment.RunResults` is one."""

    @property
    def model(self) -> str:
        """The name of the network, the same for all of its runs."""

    @property
    def seed(self) -> int:
        """The seed, different for each run of a network."""

    @property
    def evaluation(self) -> Evaluation:
        """Its confidences and metrics."""


class ScoredRun(Run, Protocol):
    """A run with the scorer and outputs of its evaluation, unless only confidences were evaluated."""

    @property
    def scorer(self) -> Scorer | None:
        """The fitted scorer."""

    @property
    def test(self) -> Outputs | OutputStore | None:
        """ID test outputs, with labels."""

    @property
    def ood(self) -> Mapping[str, Outputs | OutputStore]:
        """OOD outputs by name."""
