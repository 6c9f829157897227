"""Inputs of an evaluation, read and checked: confidences on ID and OOD data, α and β, names of scores and groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_unit_interval
from sirc.metrics import as_flags, as_scores
from sirc.outputs import Outputs, OutputStore
from sirc.scores import Scorer

Data: TypeAlias = Outputs | OutputStore | Iterable[object]
ConfidenceArrays: TypeAlias = Mapping[str, tuple[ArrayLike, ArrayLike]]
"""Confidences from elsewhere, `{score: (confidence, correct)}`."""
OodSets: TypeAlias = Mapping[str, Data | Mapping[str, ArrayLike]]
"""Outputs of each OOD set for a scorer, or with confidences from elsewhere `{set: {score: confidence}}`."""

WRONG, MEAN, POOLED, ORACLE = "wrong", "OOD mean", "pooled", "oracle"


def check_scorer(scorer: object) -> None:
    """Require a scorer, or confidences from elsewhere."""
    if not isinstance(scorer, Scorer | Mapping):
        raise ValueError(
            f"`scorer` must be a `Scorer`, or {{score: (confidence, correct)}}; got {type(scorer).__name__}. Make one "
            "with `sirc.fit`"
        )


def id_confidences(
    scorer: Scorer | ConfidenceArrays, test: Data | None, scores: Sequence[str] | None
) -> tuple[dict[str, Tensor], Tensor]:
    """Confidences on ID data by score, and which predictions are right."""
    check_scorer(scorer)
    if not isinstance(scorer, Scorer):
        if test is not None:
            raise ValueError(
                "with confidences from elsewhere, `test` is part of them: pass `evaluate({score: (confidence, "
                "correct)}, ood={set: {score: confidence}})`"
            )
        return _checked_arrays(scorer, scores)
    if test is None:
        raise ValueError("`test` must be labelled ID outputs when a scorer is evaluated; got none")
    wanted = list(scorer.specs) if scores is None else as_names(scores)
    if not wanted:
        raise ValueError(f"`scores` must name at least one of the scorer's specs, {', '.join(scorer.specs)}; got none")
    return score_labelled(scorer.only(wanted), "test", test)


def score_labelled(
    scorer: Callable[[Outputs], Mapping[str, Tensor]], name: str, data: Data
) -> tuple[dict[str, Tensor], Tensor]:
    """The columns that a scorer makes of labelled ID data, and which predictions are right."""
    parts, right = [], []
    for batch in [data] if isinstance(data, Outputs) else data:
        outputs = Outputs.of(batch)
        if outputs.labels is None:
            raise ValueError(f"`{name}` must have labels, to know which predictions are right; these outputs have none")
        parts.append(scorer(outputs))
        right.append(outputs.correct)
    if not parts:
        raise ValueError(f"`{name}` must hold at least one batch; got an empty iterable")
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}, torch.cat(right)


def _checked_arrays(arrays: ConfidenceArrays, scores: Sequence[str] | None) -> tuple[dict[str, Tensor], Tensor]:
    wanted = list(arrays) if scores is None else as_names(scores)
    if not wanted:
        raise ValueError("at least one score is needed: `evaluate({score: (confidence, correct)}, …)`")
    confidences: dict[str, Tensor] = {}
    correct: Tensor | None = None
    for score in wanted:
        if score not in arrays:
            raise ValueError(f"`scores` must be among those given, {', '.join(arrays)}; got {score!r}")
        pair = arrays[score]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"score {score!r} must come as (confidence, correct); got {type(pair).__name__}")
        confidences[score] = as_scores(f"confidence of {score!r}", pair[0])
        right = as_flags(f"correct of {score!r}", pair[1], confidences[score])
        if correct is not None and not torch.equal(correct, right):
            raise ValueError(
                f"all scores must judge the same predictions; `correct` differs between {wanted[0]!r} and {score!r}. "
                "Evaluate other models separately, and see `sirc.combine`"
            )
        correct = right
    assert correct is not None
    return confidences, correct


def ood_confidences(
    scorer: Scorer | ConfidenceArrays, ood: OodSets | None, scores: Sequence[str]
) -> dict[str, dict[str, Tensor]]:
    """Confidences by OOD set and score."""
    if ood is not None and not isinstance(ood, Mapping):
        raise ValueError(
            f"`ood` must be a dict of OOD sets; got {type(ood).__name__}. Name each: `ood={{'textures': outputs}}`"
        )
    return {name: _set_confidences(scorer, name, data, scores) for name, data in (ood or {}).items()}


def _set_confidences(
    scorer: Scorer | ConfidenceArrays, name: str, data: Data | Mapping[str, ArrayLike], scores: Sequence[str]
) -> dict[str, Tensor]:
    if isinstance(scorer, Scorer):
        if isinstance(data, Mapping) or not isinstance(data, Outputs | OutputStore | Iterable):
            got = "a dict of confidences" if isinstance(data, Mapping) else type(data).__name__
            raise ValueError(f"OOD set {name!r} must be outputs for the scorer to score; got {got}")
        return dict(scorer.only(scores)(data))
    if not isinstance(data, Mapping):
        raise ValueError(
            f"OOD set {name!r} must be {{score: confidence}}, as for the ID data; got {type(data).__name__}"
        )
    if missing := [score for score in scores if score not in data]:
        known = ", ".join(data) or "none"
        raise ValueError(f"OOD set {name!r} has no confidences for {missing[0]!r}; it has {known}")
    return {score: as_scores(f"ood[{name!r}][{score!r}]", data[score]) for score in scores}


def check_set(name: str, by_score: Mapping[str, Tensor], scores: Sequence[str]) -> dict[str, Tensor]:
    """A copy of the confidences of one OOD set, the same samples for each score."""
    confidences = {score: as_scores(f"ood[{name!r}][{score!r}]", by_score[score]).clone() for score in scores}
    lengths = {len(values) for values in confidences.values()}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            f"OOD set {name!r} must have the same samples, at least one, for each score; got {sorted(lengths)}"
        )
    return confidences


def check_groups(groups: Mapping[str, Sequence[str]], sets: Sequence[str]) -> dict[str, list[str]]:
    """Groups of OOD sets, whose names must differ from those of the sets."""
    if not isinstance(groups, Mapping):
        raise ValueError(f"`groups` must be a dict of lists of OOD sets; got {type(groups).__name__}")
    for name in (*sets, *groups):
        if name in (WRONG, MEAN, POOLED):
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


def as_names(names: Sequence[str]) -> list[str]:
    """A list of names; one name alone counts as a list of one."""
    return [names] if isinstance(names, str) else list(names)


def as_fractions(name: str, value: ArrayLike) -> Tensor:
    """Distinct fractions as a 1-D float64 tensor; a float32 0.3 is taken for the 0.3 that was meant."""
    check_unit_interval(name, value)
    fractions = as_tensor(name, value).cpu()
    if fractions.dim() > 1:
        raise ValueError(f"`{name}` must be a number or a 1-D array; got shape {tuple(fractions.shape)}")
    if fractions.dtype != torch.float64 and fractions.is_floating_point():
        decimals = [float(f"{x:.6g}") for x in fractions.float().reshape(-1).numpy()]
        fractions = torch.tensor(decimals, dtype=torch.float64)
    fractions = fractions.double().reshape(-1)
    if len(set(fractions.tolist())) < len(fractions):
        raise ValueError(f"`{name}` must hold each value once; got {fractions.tolist()}")
    return fractions
