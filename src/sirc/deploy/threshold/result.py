"""A threshold with its guarantee, to print and to store as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, final

from sirc._utils.text import quoted, shorten
from sirc.deploy.threshold.text import as_plain, percent_near, report

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
    `feasible` is False and `value` is +inf, which accepts nothing (NaN if a calibration confidence is +inf). A "given"
    threshold promises nothing.
    """

    value: float
    """Accept where confidence ≥ value."""
    rule: str
    """"recall", "coverage", "risk" or "cost"; "given" for a user's own threshold."""
    target: float | None
    delta: float | None
    """None for a plain estimate without a guarantee."""
    feasible: bool
    estimates: Mapping[str, float]
    bounds: Mapping[str, float]
    sizes: Mapping[str, int]
    guarantee: str
    advice: str
    margin: float = 0.0
    """How far the value lies below the row that set it, as confidences change a little from run to run."""

    def __str__(self) -> str:
        if not (self.feasible or self.rule == "given"):
            title = "Infeasible: no threshold keeps this promise, accept nothing"
        elif math.isnan(self.value) or self.value == math.inf:
            title = "Accept nothing"
        else:
            title = f"Accept where confidence ≥ {self.value:.6g}"
        shares = [
            f"{name} {percent_near(self.estimates[key])}" for key, name in _ESTIMATES.items() if key in self.estimates
        ]
        if "cost" in self.estimates:
            shares.append(f"cost {self.estimates['cost']:.6g} per input")
        parts = {
            "guarantee": self.guarantee,
            "here": ", ".join(shares) if self.feasible else "",
            "margin": f"{self.margin:.2g} below the row that sets it, as confidences may change" if self.margin else "",
            "rows": ", ".join(f"{count:,} {_GROUPS.get(group, group)}" for group, count in self.sizes.items()),
            "advice": self.advice,
        }
        return report(title, parts)

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON; infinities are "inf" and "-inf"."""
        plain: dict[str, object] = as_plain(asdict(self))
        return plain

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Threshold:
        """Read what `to_dict` wrote; anything else is refused."""
        plain = {"margin": 0.0, **values} if isinstance(values, Mapping) else {}  # old files have no margin
        if plain.keys() != _STORED.keys():
            got = shorten(", ".join(map(str, plain))) or type(values).__name__
            raise ValueError(f"a stored threshold must have exactly the fields {', '.join(_STORED)}; got {got}")
        for name, (holds, wanted) in _STORED.items():
            if not holds(plain[name]):
                raise ValueError(
                    f"`{name}` of a stored threshold must be {wanted}; got {quoted(plain[name])}. It was damaged: "
                    "calibrate again."
                )
        for name in ("value", "target", "delta", "margin"):
            plain[name] = None if plain[name] is None else float(plain[name])
        for name in ("estimates", "bounds"):
            plain[name] = {key: float(share) for key, share in plain[name].items()}
        plain["sizes"] = {group: int(count) for group, count in plain["sizes"].items()}
        if not plain["feasible"] and plain["value"] < math.inf:
            raise ValueError("an infeasible stored threshold must accept nothing; this one was damaged.")
        return cls(**plain)


def _is_number(value: Any) -> bool:
    """Whether it is a number as `as_plain` writes it."""
    return math.isfinite(value) if type(value) in (int, float) else value in ("inf", "-inf", "nan")


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(key, str) and _is_number(x) for key, x in value.items())


_STORED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "value": (_is_number, 'a number, "inf", "-inf" or "nan"'),
    "rule": (lambda rule: rule in _RULES, f"one of {', '.join(_RULES)}"),
    "target": (lambda target: target is None or _is_number(target), "a number, if any"),
    "delta": (lambda delta: delta is None or (_is_number(delta) and 0 < float(delta) < 1), "between 0 and 1, if any"),
    "feasible": (lambda feasible: isinstance(feasible, bool), "true or false"),
    "estimates": (_is_map, "a map of names to numbers"),
    "bounds": (_is_map, "a map of names to numbers"),
    "sizes": (lambda sizes: _is_map(sizes) and all(float(n) >= 0 == float(n) % 1 for n in sizes.values()), "counts"),
    "guarantee": (lambda text: isinstance(text, str), "a text"),
    "advice": (lambda text: isinstance(text, str), "a text"),
    "margin": (lambda margin: _is_number(margin) and 0 <= float(margin) < math.inf, "at least 0"),
}
"""The fields of a stored threshold: a check of the value, and its rule in words."""
