"""Registry of metrics: each metric's name, title, direction, unit and function, in the order of the tables.

To add a metric, write one function of a `Ranking` here and decorate it:

    @metric(title="AURR", lower_is_better=True, unit="×10²")
    def aurr(ranking, alpha, beta): ...

The function's name is the metric's name. Its other parameters say what it depends on: any of `negative` ("wrong" or
"ood"), `recall`, `alpha` and `beta`. α and β come as 1-D tensors, and it returns the (α, β) grid. In results, the name
of a metric at a recall ends in the recall in percent, `fpr@95`. Tables, intervals, `select`, the page and the command
line need nothing else. With a `derivative` its error bars need no resampling (`derivatives.py`); without one the
bootstrap gives them.

A metric that depends on none of `negative`, α and β describes the ID data, as `error` does, and is the same for every
score. Its rows have the negative `wrong`, tables show it beside the model's name, and comparisons leave it out. It must
be defined without wrong predictions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from sirc.metrics import areas, derivatives
from sirc.metrics.derivatives import ByGroup, Derivative
from sirc.metrics.ranking import Negative, Ranking

Unit = Literal["%", "×10²"]
Function = Callable[..., float | Tensor]
Bound = Callable[[float, Tensor, Tensor], Tensor]
"""A function of the accuracy, α and β."""

REGISTRY: dict[str, Metric] = {}
_PARAMETERS = ("negative", "recall", "alpha", "beta")


@final
@dataclass(frozen=True)
class Metric:
    """One metric, or one family of metrics at a recall."""

    name: str
    title: str
    lower_is_better: bool
    unit: Unit
    """The unit people read; values are stored as fractions."""
    function: Function
    parameters: tuple[str, ...]
    """The parameters that the function takes, of `negative`, `recall`, `alpha` and `beta`."""
    derivative: Derivative | None = None
    """With respect to the mass of a sample. It must be linear in β, and the metric between 0 and 1."""
    least: Bound | None = None
    """The value of a perfect ranking of many samples, where it is not 0."""
    swept: bool = True
    """Whether figures over α and β have a panel for it, if it depends on them."""

    @property
    def of_negative(self) -> bool:
        """Compares ID✓ with one kind of negative, ID✗ or OOD."""
        return "negative" in self.parameters

    @property
    def of_mixture(self) -> bool:
        """Depends on α and β."""
        return "alpha" in self.parameters

    @property
    def per_negative(self) -> bool:
        """Has a value for each negative; the others, such as the error, have one for the ID data."""
        return self.of_negative or self.of_mixture

    def label(self, recall: float) -> str:
        """The name in results, which for a metric at a recall has it in percent, `fpr@95`."""
        return f"{self.name}@{100 * recall:g}" if "recall" in self.parameters else self.name

    def grid(self, ranking: Ranking, negative: Negative, recall: float, alpha: Tensor, beta: Tensor) -> Tensor:
        """The values on the (α, β) grid; (1, 1) for a metric that does not depend on them."""
        device = ranking.thresholds.device
        known = {"negative": negative, "recall": recall, "alpha": alpha.to(device), "beta": beta.to(device)}
        value = self.function(ranking, **{name: known[name] for name in self.parameters})
        value = torch.as_tensor(value, dtype=torch.float64).cpu()
        shape = (len(alpha), len(beta)) if self.of_mixture else (1, 1)
        if value.numel() != shape[0] * shape[1]:
            raise ValueError(
                f"metric {self.name!r} must give {shape[0]} × {shape[1]} values; got shape {tuple(value.shape)}. α and "
                "β come as 1-D tensors: return the (α, β) grid"
            )
        return value.reshape(shape)

    def slopes(self, ranking: Ranking, negative: Negative, recall: float, alpha: float, beta: Tensor) -> ByGroup:
        """The derivative at each threshold by group, (1, thresholds); of a metric of the mixture, (β, thresholds)."""
        assert self.derivative is not None
        device = ranking.thresholds.device
        known = {"negative": negative, "recall": recall, "alpha": alpha, "beta": beta.to(device)}
        found = self.derivative(ranking, **{name: known[name] for name in self.parameters})
        shape = (len(beta) if self.of_mixture else 1, len(ranking.thresholds))
        for group, slope in found.items():
            if group not in derivatives.GROUPS or slope.numel() != shape[0] * shape[1]:
                raise ValueError(
                    f"the derivative of metric {self.name!r} must give, for any of {', '.join(derivatives.GROUPS)}, "
                    f"{shape[0]} × {shape[1]} values; got {group!r} with shape {tuple(slope.shape)}"
                )
        return {group: slope.reshape(shape) for group, slope in found.items()}


def metric(
    *,
    title: str,
    lower_is_better: bool,
    unit: Unit,
    derivative: Derivative | None = None,
    least: Bound | None = None,
    swept: bool = True,
) -> Callable[[Function], Function]:
    """Register a function of a `Ranking` as the metric of its name; the parameters are the fields of `Metric`."""

    def register(function: Function) -> Function:
        name = function.__name__
        parameters = tuple(inspect.signature(function).parameters)[1:]
        if odd := [parameter for parameter in parameters if parameter not in _PARAMETERS]:
            raise ValueError(f"a metric takes a ranking and any of {', '.join(_PARAMETERS)}; {name!r} takes {odd[0]!r}")
        if ("alpha" in parameters) != ("beta" in parameters):
            raise ValueError(f"a metric takes both alpha and beta or neither; {name!r} takes one")
        if name in REGISTRY and REGISTRY[name].function.__module__ != function.__module__:  # a cell may run twice
            raise ValueError(f"there is a metric {name!r} already; give the function another name")
        REGISTRY[name] = Metric(name, title, lower_is_better, unit, function, parameters, derivative, least, swept)
        return function

    return register


def all_metrics() -> list[Metric]:
    """Every registered metric, in the order of the tables."""
    return list(REGISTRY.values())


def find_metric(label: str) -> Metric | None:
    """The metric of a name in results, such as `fpr` for `fpr@95`; None for an unknown name."""
    return REGISTRY.get(str(label).partition("@")[0])


def lower_is_better(label: str) -> bool:
    """Whether the lowest value of the metric is the best; False for an unknown metric."""
    metric = find_metric(label)
    return metric is not None and metric.lower_is_better


def parse_metric(label: str) -> tuple[Metric, float] | None:
    """The metric and the recall of a name (0.95 for a metric without a recall); None if it names no metric."""
    match = re.fullmatch(r"(\w+)(?:@(\d+(?:\.\d+)?))?", str(label))
    metric = match and REGISTRY.get(match[1])
    if not match or not metric or (match[2] is not None) != ("recall" in metric.parameters):
        return None
    recall = float(match[2] or 95) / 100
    return (metric, recall) if 0 < recall <= 1 else None


@metric(title="error", lower_is_better=True, unit="%")
def error(ranking: Ranking) -> float:
    """The share of wrong predictions on ID data."""
    return 1 - ranking.accuracy


@metric(title="AUROC", lower_is_better=False, unit="%", derivative=derivatives.auroc)
def auroc(ranking: Ranking, negative: Negative) -> float:
    """P(ID✓ > negative) + ½·P(equal)."""
    return ranking.auroc(negative)


@metric(title="FPR", lower_is_better=True, unit="%", derivative=derivatives.fpr)
def fpr(ranking: Ranking, negative: Negative, recall: float) -> float:
    """The share of negatives accepted at a recall of ID✓."""
    return ranking.fpr(negative, recall=recall)


@metric(title="AURR", lower_is_better=True, unit="×10²", derivative=derivatives.aurr)
def aurr(ranking: Ranking, alpha: Tensor, beta: Tensor) -> float | Tensor:
    """The area under the risk–recall curve."""
    return ranking.aurr(alpha, beta)


@metric(title="Risk", lower_is_better=True, unit="×10²", derivative=derivatives.risk)
def risk(ranking: Ranking, recall: float, alpha: Tensor, beta: Tensor) -> float | Tensor:
    """The risk at a recall of ID✓."""
    return ranking.risk_at_recall(recall, alpha, beta)


@metric(title="AURC", lower_is_better=True, unit="×10²", derivative=derivatives.aurc, least=areas.oracle_area)
def aurc(ranking: Ranking, alpha: Tensor, beta: Tensor) -> float | Tensor:
    """The area under the risk–coverage curve."""
    return ranking.aurc(alpha, beta)


@metric(
    title="AUGRC",
    lower_is_better=True,
    unit="×10²",
    derivative=derivatives.augrc,
    least=areas.oracle_generalised_area,
    swept=False,
)
def augrc(ranking: Ranking, alpha: Tensor, beta: Tensor) -> float | Tensor:
    """The area under the generalised risk–coverage curve."""
    return ranking.augrc(alpha, beta)
