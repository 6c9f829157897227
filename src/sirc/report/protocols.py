"""Protocols of runs for figures and the page: one network with its evaluation."""

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
        """The name of the network; runs of one model share it."""

    @property
    def seed(self) -> int:
        """The number that tells the runs of one model apart."""

    @property
    def evaluation(self) -> Evaluation:
        """Its confidences and metrics."""


class ScoredRun(Run, Protocol):
    """A run with the scorer and outputs behind its evaluation; a run of confidences alone has neither."""

    @property
    def scorer(self) -> Scorer | None:
        """The fitted scorer."""

    @property
    def test(self) -> Outputs | OutputStore | None:
        """ID test outputs, with labels."""

    @property
    def ood(self) -> Mapping[str, Outputs | OutputStore]:
        """OOD outputs by name."""
