"""Combinations to check: the `sirc` specs of a scorer or an evaluation, with their a and b."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sirc.errors import NotFittedError
from sirc.evaluation.inputs import as_names
from sirc.evaluation.premise.measures import PLAIN, Combination
from sirc.scores import Evaluator, Scorer, Spec, functional, is_bounded, parse, ranks_by_gap


def sirc_specs(names: Iterable[str]) -> dict[str, Spec]:
    """Give those of some names that are `sirc` combinations."""
    return {name: spec for name in names if (spec := parse_or_none(name)) is not None and spec.name == "sirc"}


def parse_or_none(name: str) -> Spec | None:
    """Read a name as a spec; confidences from elsewhere may have names that are not specs."""
    try:
        return parse(name)
    except ValueError:
        return None


def require_some(combinations: Sequence[object] | Mapping[str, object], got: str) -> None:
    """Refuse to check nothing."""
    if not combinations:
        raise ValueError(
            f"a check needs at least one `sirc(S1, S2)`; {got}. Fit some: "
            '`sirc.fit(["msp", "l1", "sirc(msp, l1)"], train, head=head)`'
        )


def choose(
    specs: Mapping[str, Spec], s1: str | Sequence[str] | None, s2: str | Sequence[str] | None
) -> dict[str, Spec]:
    """The combinations of certain S1 and S2; all S2 of a combination must be among them."""
    firsts = None if s1 is None else {str(parse(name)) for name in as_names(s1)}
    others = None if s2 is None else {str(parse(name)) for name in as_names(s2)}
    chosen = {
        name: spec
        for name, spec in specs.items()
        if (firsts is None or str(spec.args[0]) in firsts)
        and (others is None or {str(part) for part in spec.args[1:]} <= others)
    }
    if not chosen:
        raise ValueError(f"no combination has these `s1` and `s2`, {s1!r} and {s2!r}; there are {', '.join(specs)}")
    return chosen


def combination(name: str, spec: Spec, scorer: Scorer) -> Combination:
    """The parts of a scorer's combination, with a and b.

    A `budget` moves a to where the budget is spent, away from μ − 3σ: the share of rows below it tells nothing of S2.
    """
    a, b = _fitted_a_and_b(spec, scorer)
    first, *others = spec.args
    parts = Combination(name, str(first), tuple(f"{PLAIN}{part}" for part in others))
    return parts if spec.tunes else replace(parts, a=a, b=b)


def values(specs: Mapping[str, Spec], evaluator: Evaluator) -> dict[str, Tensor]:
    """The columns of some combinations: each confidence, −log(S1max − S1) of its S1, and its plain S2 scores."""
    columns = {}
    for name, spec in specs.items():
        first, *others = spec.args
        columns[name] = evaluator.confidence(spec)
        columns[str(first)] = -evaluator.log_gap(first)
        columns |= {f"{PLAIN}{part}": evaluator.value(part) for part in others}
    return columns


def _fitted_a_and_b(spec: Spec, scorer: Scorer) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The a and b of a combination, as given in its spec or as fitted."""
    numbers = []
    for name in ("a", "b"):
        given = spec.numbers(name)
        if given is None:
            if str(spec) not in scorer.parameters:
                raise NotFittedError(
                    f"`{spec}` was not fitted by this scorer: fit it, `sirc.fit([{str(spec)!r}], train, head=head)`"
                )
            given = tuple(scorer.parameters[str(spec)][name].tolist())
        numbers.append(given)
    return numbers[0], numbers[1]


def with_a_and_b(parts: Combination, spec: Spec, scorer: Scorer, confidences: Mapping[str, Tensor]) -> Combination:
    """The same combination with a and b, if its confidences are shown to be those of this scorer."""
    if any(is_bounded(part) for part in spec.args[1:]) or not ranks_by_gap(spec.args[0]) or spec.tunes:
        return parts  # confidences of a bounded S2 are not its plain values, or those of S1 not −log(S1max − S1)
    a, b = _fitted_a_and_b(spec, scorer)
    recomputed = functional.sirc(-confidences[parts.s1], [confidences[name] for name in parts.s2], a, b)
    if not torch.allclose(recomputed, confidences[parts.score].double(), rtol=1e-5, atol=1e-5):
        raise ValueError(
            f"the confidences of `{parts.score}` do not follow from the scorer's a and b: pass the scorer that the "
            "evaluation was made with"
        )
    return replace(parts, a=a, b=b)
