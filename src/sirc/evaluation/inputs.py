"""Inputs of an evaluation, checked: confidences on ID and OOD data, α and β, names of scores and groups."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar, cast

import pandas as pd
import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike, as_tensor
from sirc._utils.checks import check_fraction, check_type, check_unit_interval, iterates
from sirc._utils.text import quoted, shorten
from sirc.metrics import as_flags, as_scores
from sirc.outputs import Outputs, OutputStore, warn_of_labels
from sirc.scores import Scorer, Spec, parse

Set = TypeVar("Set")
AnyOutputs: TypeAlias = Outputs | OutputStore | Iterable[object]
ConfidenceArrays: TypeAlias = Mapping[str, tuple[ArrayLike, ArrayLike]]
"""Confidences from elsewhere, `{score: (confidence, correct)}`."""
OodSets: TypeAlias = Mapping[str, AnyOutputs | Mapping[str, ArrayLike]]
"""Outputs of each OOD set for a scorer, or confidences from elsewhere, `{set: {score: confidence}}`."""

COLUMNS = ["score", "negative", "metric", "alpha", "beta", "value"]
WRONG, MEAN, POOLED, ORACLE = "wrong", "OOD mean", "pooled", "oracle"


def id_confidences(
    scorer: Scorer | ConfidenceArrays, data: AnyOutputs | None, scores: Sequence[str] | None, name: str
) -> tuple[dict[str, Tensor], Tensor]:
    """Confidences by score on ID data, the argument `name`, and which predictions are right."""
    what = "a `Scorer`, or {score: (confidence, correct)}"
    check_type("scorer", scorer, Scorer | Mapping, what, "Make one with `sirc.fit`")
    known = list(scorer.specs if isinstance(scorer, Scorer) else scorer)
    wanted = known if scores is None else as_names(scores)
    if not wanted:
        which = f", of {', '.join(known)}" if known else ": pass a `Scorer`, or `{score: (confidence, correct)}`"
        raise ValueError(f"at least one score is needed{which}; got none")
    if isinstance(scorer, Scorer):
        return score_labelled(scorer.only(wanted), name, data)
    if data is not None:
        raise ValueError(
            f"`{name}` must be left out with confidences from elsewhere, which hold it: pass `{{score: (confidence, "
            "correct)}` and `ood={set: {score: confidence}}`"
        )
    confidences: dict[str, Tensor] = {}
    flags: list[Tensor] = []
    for score in wanted:
        if score not in scorer:
            raise ValueError(f"`scores` must be among those given, {', '.join(known)}; got {quoted(score)}")
        pair = scorer[score]
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise ValueError(f"score {quoted(score)} must come as (confidence, correct); got {type(pair).__name__}")
        confidences[score] = as_scores(f"confidence of {quoted(score)}", pair[0])
        flags.append(as_flags(f"correct of {quoted(score)}", pair[1], confidences[score]))
        if not torch.equal(flags[0], flags[-1]):
            raise ValueError(
                f"all scores must judge the same predictions; `correct` differs between {quoted(wanted[0])} and "
                f"{quoted(score)}. Evaluate other models separately, and see `sirc.combine`"
            )
    return confidences, flags[0]


def score_labelled(
    scorer: Callable[[Outputs], Mapping[str, Tensor]], name: str, data: AnyOutputs | None
) -> tuple[dict[str, Tensor], Tensor]:
    """The scores of labelled ID data, and which predictions are right."""
    if not isinstance(data, Outputs) and not iterates(data):
        got = "none" if data is None else type(data).__name__
        raise ValueError(f"`{name}` must be labelled ID outputs, a store or batches of them; got {got}")
    parts, predicted, labels = [], [], []
    for batch in [data] if isinstance(data, Outputs) else data:
        outputs = Outputs.of(batch)
        if outputs.labels is None:
            raise without_labels(name)
        parts.append(scorer(outputs))
        predicted.append(outputs.predictions)
        labels.append(outputs.labels)
    if not parts:
        raise ValueError(f"`{name}` must hold at least one batch; got an empty iterable")
    predictions, truth = torch.cat(predicted), torch.cat(labels)
    warn_of_labels(name, predictions, truth)
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}, predictions == truth


def without_labels(name: str) -> ValueError:
    """The error for ID data, the argument `name`, that has no labels."""
    return ValueError(f"`{name}` must have labels, to know which predictions are right; these outputs have none")


def require_right(sizes: Mapping[str, int]) -> None:
    """Refuse ID data on which every prediction is wrong."""
    if not sizes["correct"]:
        raise ValueError(
            f"at least one prediction must be right; got {sizes[WRONG]} wrong ones. Are the labels the network's class "
            "numbers?"
        )


def check_fresh(scorer: Scorer, name: str, data: object) -> None:
    """Refuse rows that the scorer was fitted on; not checked for a generator, which can be read only once."""
    if isinstance(data, Outputs | OutputStore | list | tuple) and len(data) and (share := scorer.seen(data)) > 0.01:
        raise ValueError(
            f"`{name}` must be rows that the scorer was not fitted on; got about {share:.0%} that were. A score looks "
            "better than it is on rows that it was fitted on: pass other data"
        )


def as_sets(ood: Mapping[str, Set] | None) -> Mapping[str, Set]:
    """OOD sets by name; None becomes an empty dict."""
    check_type("ood", ood, Mapping | None, "a dict of OOD sets", "Name each: `ood={'textures': outputs}`")
    return ood or {}


def ood_confidences(
    scorer: Scorer | ConfidenceArrays, ood: OodSets | None, scores: Sequence[str]
) -> dict[str, Mapping[str, ArrayLike]]:
    """Confidences by OOD set and score; those from elsewhere are checked by `check_set`."""
    sets = as_sets(ood)
    if not isinstance(scorer, Scorer):
        return cast("dict[str, Mapping[str, ArrayLike]]", dict(sets))
    some = scorer.only(scores)
    confidences: dict[str, Mapping[str, ArrayLike]] = {}
    for name, data in sets.items():
        if isinstance(data, Mapping) or not isinstance(data, Outputs | Iterable):
            raise ValueError(
                f"OOD set {quoted(name)} must be outputs for the scorer to score; got {type(data).__name__}"
            )
        confidences[name] = some(data)
    return confidences


def check_classes(test: AnyOutputs | None, ood: OodSets | None) -> None:
    """Refuse OOD outputs of another network, which scores that need no fit would rank without an error."""
    if not isinstance(test, Outputs | OutputStore):
        return
    for name, data in as_sets(ood).items():
        if isinstance(data, Outputs | OutputStore) and data.num_classes != test.num_classes:
            raise ValueError(
                f"OOD set {quoted(name)} must have the logits of the network that made `test`: {test.num_classes} "
                f"columns; got {data.num_classes}. Run the same network over both"
            )


def check_set(name: str, by_score: Mapping[str, ArrayLike], scores: Sequence[str]) -> dict[str, Tensor]:
    """A copy of the confidences of one OOD set, the same samples for each score."""
    known = isinstance(by_score, Mapping)
    if not known or not set(scores) <= set(by_score):
        got = f"only {', '.join(map(str, by_score)) or 'none'}" if known else type(by_score).__name__
        raise ValueError(
            f"OOD set {quoted(name)} must be {{score: confidence}} with the scores of the ID data, "
            f"{shorten(', '.join(scores))}; got {shorten(got)}"
        )
    label = f"ood[{quoted(name)}]"
    confidences = {score: as_scores(f"{label}[{quoted(score)}]", by_score[score]).clone() for score in scores}
    lengths = {len(values) for values in confidences.values()}
    if len(lengths) > 1 or 0 in lengths:
        raise ValueError(
            f"OOD set {quoted(name)} must have the same samples, at least one, for each score; got {sorted(lengths)}"
        )
    return confidences


def check_groups(
    groups: Mapping[str, Sequence[str]], sets: Sequence[str], also_taken: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Groups of OOD sets; their names must differ from those of the sets, and none may be a reserved name."""
    check_type("groups", groups, Mapping, "a dict of lists of OOD sets")
    for name in (*sets, *groups):
        if name in ("correct", WRONG, MEAN, POOLED, *also_taken):
            raise ValueError(f"{quoted(name)} has its own meaning in the table; give the OOD set or group another name")
    for name, members in groups.items():
        if name in sets:
            raise ValueError(f"{quoted(name)} names both an OOD set and a group; rename one of them")
        distinct = set() if isinstance(members, str) else set(as_names(members))
        if not distinct or len(distinct) < len(members) or not distinct <= set(sets):
            rule = f"OOD sets among {', '.join(sets)}, each once" if sets else "OOD sets, of which there are none"
            raise ValueError(f"group {quoted(name)} must be a list of {rule}; got {quoted(members)}")
    return {name: list(members) for name, members in groups.items()}


def check_level(level: float) -> None:
    """Require a level between 0 and 1."""
    if not 0 < check_fraction("level", level) < 1:
        raise ValueError(f"`level` must lie between 0 and 1, such as 0.95; got {level:g}")


def group_sizes(correct: Tensor, ood: Mapping[str, Mapping[str, Tensor]]) -> dict[str, int]:
    """The number of samples in `correct`, `wrong` and each OOD set."""
    right = int(correct.sum())
    sets = {name: len(next(iter(by_score.values()))) for name, by_score in ood.items()}
    return {"correct": right, WRONG: len(correct) - right, **sets}


def json_rows(table: pd.DataFrame) -> list[dict[Hashable, object]]:
    """The rows of a table as JSON values; NaN becomes None."""
    return table.astype(object).where(table.notna(), None).to_dict("records")


def parse_or_none(name: str) -> Spec | None:
    """The spec of a name, or None: confidences from elsewhere may have any name."""
    try:
        return parse(name)
    except ValueError:
        return None


def as_names(names: Sequence[str]) -> list[str]:
    """A list of names; a single name becomes a list of one."""
    listed: list[Any] = [names] if isinstance(names, str) else list(names) if iterates(names) else [None]
    if not all(isinstance(name, str) for name in listed):
        raise ValueError(f"names of scores, sets or groups must be a list of texts; got {quoted(names)}")
    return listed


def as_fractions(name: str, value: ArrayLike) -> Tensor:
    """Distinct fractions as a 1-D float64 tensor; a float32 0.3 becomes the float64 0.3."""
    check_unit_interval(name, value)
    fractions = as_tensor(name, value).cpu()
    if fractions.dim() > 1:
        raise ValueError(f"`{name}` must be a number or a 1-D array; got shape {tuple(fractions.shape)}")
    if fractions.dtype != torch.float64 and fractions.is_floating_point():
        decimals = [float(f"{x:.6g}") for x in fractions.float().reshape(-1).numpy()]
        fractions = torch.tensor(decimals, dtype=torch.float64)
    fractions = fractions.double().reshape(-1)
    if len(set(fractions.tolist())) < len(fractions):
        raise ValueError(f"`{name}` must hold each value once; got {quoted(fractions.tolist())}")
    return fractions
