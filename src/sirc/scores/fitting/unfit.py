"""Unfit specs: those that the data cannot fit, found before any row is read, with the reasons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial

from sirc.outputs import Outputs, OutputStore
from sirc.scores import registry
from sirc.scores.evaluator import all_parts, needed_leaves
from sirc.scores.fitting.second_pass import check_bank, each_or_why, fitted_combinations, fitted_terms
from sirc.scores.formulas.feature import BANK_SIZE
from sirc.scores.needs import Needs
from sirc.scores.scorer import missing_features
from sirc.scores.spec import Spec, parse

HEAD_ADVICE = "Pass `head=sirc.find_head(model, example)` or `head=sirc.Head(layer.weight, layer.bias)`"


def unmet(
    specs: Sequence[Spec], *, head: bool, val: bool, rows: Outputs | OutputStore | None, whole: bool
) -> dict[Spec, str]:
    """The specs that cannot be fitted, each with the reasons.

    `head` and `val` say whether these are given. `rows` are training rows, if any are known: all of them if `whole`.
    """
    needs = Needs.of(specs)
    reasons: dict[Spec, list[str]] = {}

    def note(lacking: Iterable[Spec], reason: str) -> None:
        for spec in dict.fromkeys(containing(specs, lacking)):  # two texts may be one spec
            reasons.setdefault(spec, []).append(reason)

    if needs.head and not head:
        needed = f"`head` is needed for {_quoted(needs.head)}: the weight and bias of the final linear layer"
        note(needs.head, f"{needed}. {HEAD_ADVICE}")
    if needs.val and not val:
        note(
            needs.val,
            f"`val` is needed for {_quoted(needs.val)}: labelled ID validation data to learn from. Pass "
            "`fit(…, val=sirc.Outputs(logits, features, labels))`, of rows that the network was not trained on",
        )
    if rows is not None:
        if rows.num_features is None and needs.features:
            note(needs.features, missing_features(needs.features))
        if not rows.layout.labels and needs.labels:
            note(needs.labels, missing_labels(needs.labels))
        for spec, why in each_or_why(specs if whole else (), partial(_check_rows, rows=len(rows)))[1].items():
            reasons.setdefault(spec, []).append(why)
    return {spec: ". ".join(why) for spec, why in reasons.items()}


def containing(specs: Iterable[Spec], parts: Iterable[Spec]) -> list[Spec]:
    """The specs that contain any of these parts. Texts are compared: a `scod` with fewer witnesses is the same."""
    wanted = {str(part) for part in parts}
    return [spec for spec in specs if not wanted.isdisjoint(map(str, all_parts(spec)))]


def why_unfit(unfit: Mapping[str, str], kept: Sequence[str] = (), what: str = "specs") -> str:
    """The error text for specs that cannot be fitted, if `kept` can."""
    lines = []
    for why in dict.fromkeys(unfit.values()):
        named = [text for text in unfit if unfit[text] == why]
        lines.append(why if _quoted(map(parse, named)) in why else f"{_quoted(named)}: {why}")
    if len(lines) > 1:
        lines = [f"{len(unfit)} {what} cannot be fitted", *(f"- {line}" for line in lines)]
    if kept:
        lines.append(f'Leave out {_quoted(unfit)}, as `on_unfit="skip"` does, to fit the other {len(kept)}')
    return "\n".join(lines)


def missing_labels(leaves: Iterable[Spec]) -> str:
    """The error text for training rows without the labels that these leaves need."""
    return (
        f"labels are needed to fit {_quoted(leaves)}: the class of each training row. "
        "Give `labels`; in Python `Outputs(logits, features, labels)`"
    )


def _check_rows(spec: Spec, rows: int) -> None:
    """Require enough training rows for the scores of a spec that search the bank."""
    statistics = fitted_terms(fitted_combinations([spec]))
    for leaf in needed_leaves([spec]):
        if "bank" in registry.get(leaf.name).evidence:
            check_bank(leaf, rows, excluding_self=leaf in statistics and rows <= BANK_SIZE)


def _quoted(specs: Iterable[Spec | str]) -> str:
    return ", ".join(f"`{spec}`" for spec in specs)
