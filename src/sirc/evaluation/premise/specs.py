"""The `sirc` combinations that a check is about, their parts, and the confidences of these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from sirc.errors import NotFittedError
from sirc.evaluation.inputs import as_names
from sirc.evaluation.premise.measures import PLAIN, Combination
from sirc.scores import Scorer, Spec, combine, parse, ranks_by_gap, registry


def sirc_specs(texts: Iterable[str]) -> dict[str, Spec]:
    """Give those of some names that are `sirc` combinations."""
    return {text: spec for text in texts if (spec := parsed(text)) is not None and spec.name == "sirc"}


def parsed(text: str) -> Spec | None:
    """Read a name as a spec; confidences from elsewhere may have names that are none."""
    try:
        return parse(text)
    except ValueError:
        return None


def require(found: Sequence[object] | Mapping[str, object], got: str) -> None:
    """Refuse to check nothing."""
    if not found:
        raise ValueError(
            f"a check needs at least one `sirc(S1, S2)`; {got}. Fit some: "
            '`sirc.fit(["msp", "l1", "sirc(msp, l1)"], train, head=head)`'
        )


def picked(
    specs: Mapping[str, Spec], s1: str | Sequence[str] | None, s2: str | Sequence[str] | None
) -> dict[str, Spec]:
    """The combinations of certain S1 and S2; one with several S2 must have only those."""
    first = None if s1 is None else {str(parse(name)) for name in as_names(s1)}
    others = None if s2 is None else {str(parse(name)) for name in as_names(s2)}
    chosen = {
        text: spec
        for text, spec in specs.items()
        if (first is None or str(spec.args[0]) in first)
        and (others is None or {str(part) for part in spec.args[1:]} <= others)
    }
    if not chosen:
        raise ValueError(f"no combination has these `s1` and `s2`, {s1!r} and {s2!r}; there are {', '.join(specs)}")
    return chosen


def combination(text: str, spec: Spec, scorer: Scorer) -> Combination:
    """The parts of a scorer's combination, with a and b.

    With a `budget` a is where the budget is spent, not μ − 3σ: how many rows are below it tells nothing of S2.
    """
    a, b = _settings(spec, scorer)
    first, *others = spec.args
    plain = Combination(text, str(first), tuple(_key(part) for part in others))
    return plain if spec.tunes else replace(plain, a=a, b=b)


def _settings(spec: Spec, scorer: Scorer) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The a and b of a combination, as it says or as they were fitted."""
    values = []
    for name in ("a", "b"):
        given = spec.numbers(name)
        if given is None:
            if str(spec) not in scorer.parameters:
                raise NotFittedError(
                    f"`{spec}` was not fitted by this scorer: fit it, `sirc.fit([{str(spec)!r}], train, head=head)`"
                )
            given = tuple(scorer.parameters[str(spec)][name].tolist())
        values.append(given)
    return values[0], values[1]


def with_settings(found: Combination, spec: Spec, scorer: Scorer, known: Mapping[str, Tensor]) -> Combination:
    """The same with a and b, once it is sure that the confidences are those of this scorer."""
    if any(_is_bounded(part) for part in spec.args[1:]) or not ranks_by_gap(spec.args[0]) or spec.tunes:
        return found  # a is for plain values and S1 counts with −log(S1max − S1); these are the other way round
    a, b = _settings(spec, scorer)
    values = {name: known[name].double() for name in (found.score, found.s1, *found.s2)}
    again = combine.sirc(-values[found.s1], [values[name] for name in found.s2], a, b)
    if not torch.allclose(again, values[found.score], rtol=1e-5, atol=1e-5):
        raise ValueError(
            f"the confidences of `{found.score}` do not follow from the scorer's a and b: pass the scorer that the "
            "evaluation was made with"
        )
    return replace(found, a=a, b=b)


def _is_bounded(spec: Spec) -> bool:
    return spec.is_leaf and registry.get(spec.name).log_gap is not None


def _key(second: Spec) -> str:
    """What the values of an S2 are called: a bounded score counts with its plain ones, as S1 with −log(S1max − S1)."""
    return f"{PLAIN}{second}" if _is_bounded(second) else str(second)


def first_formula(name: str) -> str:
    """The spec whose confidence is −log(S1max − S1) of this S1."""
    return name if ranks_by_gap(parse(name)) else f"sirc({name}, max_logit, a=-1e300, b=1)"


def formula(key: str) -> str:
    """The spec whose confidence is that."""
    name = key.removeprefix(PLAIN)
    return f"linear({name}, {name}, c=0)" if key != name else name
