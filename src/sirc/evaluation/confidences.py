"""Confidences for an evaluation: computed by a scorer, or taken as they come from elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike
from sirc.evaluation.mixtures import as_names
from sirc.metrics import as_flags, as_scores
from sirc.outputs import Outputs, OutputStore
from sirc.scores import Scorer

Data: TypeAlias = Outputs | OutputStore | Iterable[object]
Plain: TypeAlias = Mapping[str, tuple[ArrayLike, ArrayLike]]


def check_scorer(scorer: object) -> None:
    """Require a scorer, or confidences from elsewhere."""
    if not isinstance(scorer, Scorer | Mapping):
        raise ValueError(
            f"`scorer` must be a `Scorer`, or {{score: (confidence, correct)}}; got {type(scorer).__name__}. Make one "
            "with `sirc.fit`"
        )


def id_confidences(
    scorer: Scorer | Plain, test: Data | None, scores: Sequence[str] | None
) -> tuple[dict[str, Tensor], Tensor]:
    """Confidences on ID data by score, and which predictions are right."""
    check_scorer(scorer)
    if isinstance(scorer, Scorer):
        if test is None:
            raise ValueError("`test` must be labelled ID outputs when a scorer is evaluated; got none")
        return _scored(scorer, test, scores)
    if test is not None:
        raise ValueError(
            "with confidences from elsewhere, `test` is part of them: pass `evaluate({score: (confidence, correct)}, "
            "ood={set: {score: confidence}})`"
        )
    return _given(scorer, scores)


def ood_confidences(
    scorer: Scorer | Plain, name: str, data: Data | Mapping[str, ArrayLike], scores: Sequence[str]
) -> dict[str, Tensor]:
    """Confidences on one OOD set, for these scores."""
    if isinstance(scorer, Scorer):
        if isinstance(data, Mapping):
            raise ValueError(f"OOD set {name!r} must be outputs for the scorer to score; got a dict of confidences")
        if not isinstance(data, Outputs | OutputStore | Iterable):
            raise ValueError(f"OOD set {name!r} must be outputs for the scorer to score; got {type(data).__name__}")
        return dict(scorer.only(scores)(data))
    if not isinstance(data, Mapping):
        raise ValueError(
            f"OOD set {name!r} must be {{score: confidence}}, as for the ID data; got {type(data).__name__}"
        )
    if missing := [score for score in scores if score not in data]:
        known = ", ".join(data) or "none"
        raise ValueError(f"OOD set {name!r} has no confidences for {missing[0]!r}; it has {known}")
    return {score: as_scores(f"ood[{name!r}][{score!r}]", data[score]) for score in scores}


def _scored(scorer: Scorer, test: Data, scores: Sequence[str] | None) -> tuple[dict[str, Tensor], Tensor]:
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


def _given(plain: Plain, scores: Sequence[str] | None) -> tuple[dict[str, Tensor], Tensor]:
    wanted = list(plain) if scores is None else as_names(scores)
    if not wanted:
        raise ValueError("at least one score is needed: `evaluate({score: (confidence, correct)}, …)`")
    confidences: dict[str, Tensor] = {}
    correct: Tensor | None = None
    for score in wanted:
        if score not in plain:
            raise ValueError(f"`scores` must be among those given, {', '.join(plain)}; got {score!r}")
        pair = plain[score]
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
