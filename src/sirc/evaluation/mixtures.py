"""The arguments of an evaluation, checked once: α and β, OOD sets and their groups, names of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_unit_interval
from sirc.metrics import as_scores

WRONG, MEAN, POOLED, ORACLE = "wrong", "OOD mean", "pooled", "oracle"


def as_names(given: Sequence[str]) -> list[str]:
    """A list of names; one name alone counts as a list of one."""
    return [given] if isinstance(given, str) else list(given)


def as_fractions(name: str, value: ArrayLike) -> Tensor:
    """Distinct fractions as a 1-D float64 tensor; a float32 0.3 is taken for the 0.3 that was meant."""
    check_unit_interval(name, value)
    given = as_tensor(name, value).cpu()
    if given.dim() > 1:
        raise ValueError(f"`{name}` must be a number or a 1-D array; got shape {tuple(given.shape)}")
    if given.dtype != torch.float64 and given.is_floating_point():
        given = torch.tensor([float(f"{x:.6g}") for x in given.float().reshape(-1).numpy()], dtype=torch.float64)
    numbers = given.double().reshape(-1)
    if len(set(numbers.tolist())) < len(numbers):
        raise ValueError(f"`{name}` must hold each value once; got {numbers.tolist()}")
    return numbers


def check_set(name: str, by_score: Mapping[str, Tensor], scores: list[str]) -> dict[str, Tensor]:
    """The confidences of one OOD set, the same samples for each score."""
    found = {score: as_scores(f"ood[{name!r}][{score!r}]", by_score[score]).clone() for score in scores}
    lengths = {len(values) for values in found.values()}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            f"OOD set {name!r} must have the same samples, at least one, for each score; got {sorted(lengths)}"
        )
    return found


def check_groups(groups: Mapping[str, Sequence[str]], sets: Sequence[str]) -> dict[str, list[str]]:
    """Groups of OOD sets, whose names must differ from those of the sets."""
    if not isinstance(groups, Mapping):
        raise ValueError(f"`groups` must be a dict of lists of OOD sets; got {type(groups).__name__}")
    reserved = {WRONG, MEAN, POOLED}
    for name in (*sets, *groups):
        if name in reserved:
            raise ValueError(f"{name!r} has a meaning of its own in the table; name the OOD set or group otherwise")
    for name, members in groups.items():
        if name in sets:
            raise ValueError(f"{name!r} names both an OOD set and a group; rename one of them")
        if isinstance(members, str) or len(members) == 0:
            raise ValueError(f"group {name!r} must be a list of OOD sets; got {members!r}")
        if unknown := [member for member in members if member not in sets]:
            raise ValueError(f"group {name!r} has {unknown[0]!r}, which is not among the OOD sets: {', '.join(sets)}")
        if len(set(members)) < len(members):
            raise ValueError(f"group {name!r} must name each OOD set once; got {list(members)}")
    return {name: list(members) for name, members in groups.items()}
