"""The plain S1 and S2 of a SIRC pair: what a fitted scorer combines, before it combines it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import numpy.typing as npt
from torch import Tensor

from sirc._utils.precision import exact
from sirc.outputs import Outputs, OutputStore
from sirc.report.figures.pieces import array
from sirc.report.names import score_name
from sirc.scores import BOUNDED, Columns, Scorer, Spec, cast_parameters, check_features, parse, working_dtype

FloatArray = npt.NDArray[np.float64]


@final
@dataclass(frozen=True)
class PlaneValues:
    """S1 and S2 of each sample as the paper has them, S1's upper bound, SIRC's a and b, and what S1 is called.

    S1max − S1 is what SIRC takes of S1: a score whose plain value is something else, as that of `margin`, stands there
    as 1 − (S1max − S1), "bounded".
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
        """The c of S1 + c·S2 with which both terms spread alike over ID data."""
        inside = np.concatenate([self.groups["correct"], self.groups["wrong"]], axis=1)
        return float(inside[0].std()) * self.b or 1.0


def planes(
    scorer: Scorer, specs: Sequence[str], test: Outputs | OutputStore, ood: Outputs | OutputStore
) -> dict[str, Plane]:
    """Give the planes of several pairs; outputs are read once for all of them."""
    inside, outside = _values(scorer, test, specs), _values(scorer, ood, specs)
    loaded = (batch.correct for batch in _batches(test))
    right = np.concatenate([correct.cpu().numpy() for correct in loaded])
    found = {}
    for spec in specs:
        own, other = inside[spec], outside[spec]
        pairs = np.stack([own.s1, own.s2])
        groups = {"correct": pairs[:, right], "wrong": pairs[:, ~right], "ood": np.stack([other.s1, other.s2])}
        found[spec] = Plane(own.first, str(parse(spec).args[1]), groups, own.s1_max, own.a, own.b)
    return found


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


@exact
def _values(scorer: Scorer, outputs: Outputs | OutputStore, specs: Sequence[str]) -> dict[str, PlaneValues]:
    parsed: dict[str, Spec] = {}
    for spec in specs:
        if not is_pair(spec):
            raise ValueError(f"`spec` must be sirc with one S2, such as `sirc(msp, l1)`; got `{spec}`.")
        scorer.only(spec)  # says which specs there are, where this is none of them
        parsed[spec] = parse(spec)
    parts: dict[str, list[tuple[FloatArray, FloatArray, FloatArray]]] = {spec: [] for spec in specs}
    for batch in _batches(outputs):
        check_features(parsed.values(), batch)
        dtype = None if batch.features is None else working_dtype(batch.features.dtype)
        parameters = scorer.parameters if dtype is None else cast_parameters(scorer.parameters, batch.device, dtype)
        columns = Columns(batch, parsed.values(), parameters)
        for text, tree in parsed.items():
            first, second = tree.args
            alone = _as_first(first, parameters)
            plain = columns if alone is parameters else Columns(batch, [], alone)
            parts[text].append(
                (array(plain.plain(first)), np.exp(array(columns.log_gap(first))), array(columns.value(second)))
            )
    found = {}
    for text, tree in parsed.items():
        s1, gap, s2 = (np.concatenate([part[k] for part in parts[text]]) for k in range(3))
        a, b = ((tree.numbers(key) or scorer.parameters[str(tree)][key].tolist())[0] for key in "ab")
        name, bound = str(tree.args[0]), float(np.max(s1 + gap))
        if not np.allclose(s1, bound - gap, rtol=1e-6, atol=1e-6):
            name, s1, bound = f"{score_name(name)}, bounded", 1 - gap, 1.0
        # S1max is S1 and its gap together, in any row.
        found[text] = PlaneValues(s1, s2, round(bound, 9), float(a), float(b), name)
    return found


def _as_first(leaf: Spec, parameters: Mapping[str, Mapping[str, Tensor]]) -> Mapping[str, Mapping[str, Tensor]]:
    """The parameters with which the plain value of a leaf is that whose distance to its bound SIRC takes."""
    own = parameters.get(str(leaf), {})
    apart = {name.removesuffix(BOUNDED): value for name, value in own.items() if name.endswith(BOUNDED)}
    return {**parameters, str(leaf): {**own, **apart}} if apart else parameters


def _batches(outputs: Outputs | OutputStore) -> Iterable[Outputs]:
    return [outputs] if isinstance(outputs, Outputs) else outputs
