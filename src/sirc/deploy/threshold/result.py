"""Threshold: a threshold with its guarantee, printed and stored as JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import final

from sirc.deploy.threshold.text import as_plain, from_plain, from_plain_map, number, percent, report

_RULES = ("recall", "coverage", "risk", "cost", "given")
_GROUPS = {"correct": "ID✓", "wrong": "ID✗", "ood": "OOD", "id": "ID"}
_ESTIMATES = {
    "recall": "recall of ID✓",
    "coverage": "coverage of ID",
    "risk": "errors among accepted ID",
    "ood": "OOD accepted",
}


@final
@dataclass(frozen=True)
class Threshold:
    """A threshold and its guarantee; `print` it for a report.

    `estimates` are measured on the calibration data; `bounds` hold with probability 1 − δ. If the rule cannot be kept,
    `feasible` is False and `value` is +inf, which accepts nothing (NaN if a calibration confidence is itself +inf). A
    "given" threshold promises nothing.
    """

    value: float
    """Accept where confidence ≥ value."""
    rule: str
    """"recall", "coverage", "risk" or "cost"; "given" for one from elsewhere."""
    target: float | None
    delta: float | None
    """None for a plain estimate without a guarantee."""
    feasible: bool
    estimates: Mapping[str, float]
    bounds: Mapping[str, float]
    sizes: Mapping[str, int]
    guarantee: str
    advice: str

    def __str__(self) -> str:
        if not (self.feasible or self.rule == "given"):
            title = "Infeasible: no threshold keeps this promise, accept nothing"
        elif math.isnan(self.value) or self.value == math.inf:
            title = "Accept nothing"
        else:
            title = f"Accept where confidence ≥ {number(self.value)}"
        shares = [f"{name} {percent(self.estimates[key])}" for key, name in _ESTIMATES.items() if key in self.estimates]
        if "cost" in self.estimates:
            shares.append(f"cost {number(self.estimates['cost'])} per input")
        parts = {
            "guarantee": self.guarantee,
            "here": ", ".join(shares) if self.feasible else "",
            "rows": ", ".join(f"{count:,} {_GROUPS.get(group, group)}" for group, count in self.sizes.items()),
            "advice": self.advice,
        }
        return report(title, parts)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; infinities are "inf" and "-inf"."""
        plain = asdict(self)
        plain["value"] = as_plain(self.value)
        for name in ("estimates", "bounds"):
            plain[name] = {key: as_plain(value) for key, value in plain[name].items()}
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, object]) -> Threshold:
        """Read what `to_dict` wrote; anything else is refused."""
        fields = list(cls.__dataclass_fields__)
        if not isinstance(values, Mapping) or set(values) != set(fields):
            got = ", ".join(map(str, values)) if isinstance(values, Mapping) else type(values).__name__
            raise ValueError(f"a stored threshold must have exactly the fields {', '.join(fields)}; got {got}")
        numbers = {
            name: from_plain(name, values[name]) for name in ("value", "target", "delta") if values[name] is not None
        }
        maps = {name: from_plain_map(name, values[name]) for name in ("estimates", "bounds", "sizes")}
        rule, feasible, delta = values["rule"], values["feasible"], numbers.get("delta")
        texts = [values[name] for name in ("guarantee", "advice")]
        checks = [
            (rule not in _RULES, f"`rule` must be one of {', '.join(_RULES)}; got {rule!r}"),
            ("value" not in numbers, "`value` must be a number; got None"),
            (not isinstance(feasible, bool), f"`feasible` must be true or false; got {feasible!r}"),
            (delta is not None and not 0 < delta < 1, f"`delta` must lie between 0 and 1; got {delta}"),
            (not all(isinstance(text, str) for text in texts), "`guarantee` and `advice` must be texts"),
            (any(n < 0 or n % 1 for n in maps["sizes"].values()), f"`sizes` must be counts; got {maps['sizes']}"),
            (feasible is False and numbers.get("value", 0) < math.inf, "an infeasible threshold must accept nothing"),
        ]
        for broken, message in checks:
            if broken:
                raise ValueError(f"{message}. The stored threshold was changed or damaged; calibrate again.")
        sizes = {name: int(count) for name, count in maps["sizes"].items()}
        return cls(
            numbers["value"], str(rule), numbers.get("target"), delta, bool(feasible), maps["estimates"],
            maps["bounds"], sizes, str(texts[0]), str(texts[1]),
        )  # fmt: skip
