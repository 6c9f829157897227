"""Planes of SIRC pairs: the plain S1 and S2 that a fitted scorer combines, by group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt

from sirc.outputs import Outputs, OutputStore
from sirc.report.figures.pieces import array
from sirc.report.names import score_name
from sirc.scores import Scorer, parse

FloatArray = npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class PlaneValues:
    """S1 and S2 of each sample as in the paper, S1's upper bound, SIRC's a and b, and the name of S1.

    SIRC uses S1max − S1. Where that does not follow from the plain value of S1, as for `margin`, S1 is
    1 − (S1max − S1) here and its name ends in "bounded".
    """

    s1: FloatArray
    s2: FloatArray
    s1_max: float
    a: float
    b: float
    first: str


@final
@dataclass(frozen=True)
class Plane:
    """The three groups on the (S1, S2) plane, each a (2, n) array, and SIRC's parameters."""

    first: str
    second: str
    groups: Mapping[str, FloatArray]
    s1_max: float
    a: float
    b: float

    @classmethod
    def of(cls, scorer: Scorer, spec: str, test: Outputs | OutputStore, ood: Outputs | OutputStore) -> Plane:
        """Compute the plane of a SIRC pair of a fitted scorer, from labelled test outputs and an OOD set's."""
        return planes(scorer, [spec], test, ood)[spec]

    @property
    def balance(self) -> float:
        """The c of S1 + c·S2 that gives both terms the same spread over ID data."""
        id_pairs = np.concatenate([self.groups["correct"], self.groups["wrong"]], axis=1)
        return float(id_pairs[0].std()) * self.b or 1.0


def planes(
    scorer: Scorer, specs: Sequence[str], test: Outputs | OutputStore, ood: Outputs | OutputStore
) -> dict[str, Plane]:
    """Give the planes of several pairs; outputs are read once for all of them."""
    test_values, ood_values = _values(scorer, test, specs), _values(scorer, ood, specs)
    batches = [test] if isinstance(test, Outputs) else test
    correct = np.concatenate([batch.correct.cpu().numpy() for batch in batches])
    by_spec = {}
    for spec in specs:
        values = test_values[spec]
        pairs = np.stack([values.s1, values.s2])
        ood_pairs = np.stack([ood_values[spec].s1, ood_values[spec].s2])
        groups = {"correct": pairs[:, correct], "wrong": pairs[:, ~correct], "ood": ood_pairs}
        by_spec[spec] = Plane(values.first, str(parse(spec).args[1]), groups, values.s1_max, values.a, values.b)
    return by_spec


def plane_values(scorer: Scorer, outputs: Outputs | OutputStore, spec: str) -> PlaneValues:
    """Compute the plain S1 and S2 of a `sirc(S1, S2)` of the scorer, for each sample."""
    return _values(scorer, outputs, [spec])[spec]


def is_pair(spec: str) -> bool:
    """Whether a score is SIRC with one S2, which a plane can show."""
    try:
        parsed = parse(spec)
    except ValueError:
        return False
    return parsed.name == "sirc" and len(parsed.args) == 2


def _values(scorer: Scorer, outputs: Outputs | OutputStore, specs: Sequence[str]) -> dict[str, PlaneValues]:
    for spec in specs:
        if not is_pair(spec):
            raise ValueError(f"`spec` must be sirc with one S2, such as `sirc(msp, l1)`; got `{spec}`.")
    columns = scorer.only(specs).compute(
        outputs,
        lambda evaluator: {
            f"{name} of {spec}": values for spec in specs for name, values in evaluator.plane(parse(spec)).items()
        },
    )
    by_spec = {}
    for spec in specs:
        parsed = parse(spec)
        s1, s2, log_gap = (array(columns[f"{name} of {spec}"]) for name in ("s1", "s2", "log_gap"))
        gap = np.exp(log_gap)
        a, b = ((parsed.numbers(key) or scorer.parameters[str(parsed)][key].tolist())[0] for key in "ab")
        first, bound = str(parsed.args[0]), float(np.max(s1 + gap))
        if not np.allclose(s1, bound - gap, rtol=1e-6, atol=1e-6):
            first, s1, bound = f"{score_name(first)}, bounded", 1 - gap, 1.0
        # S1 + (S1max − S1) is S1max in any row, but for rounding.
        by_spec[spec] = PlaneValues(s1, s2, round(bound, 9), float(a), float(b), first)
    return by_spec
