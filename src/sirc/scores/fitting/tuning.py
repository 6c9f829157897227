"""Tuning of options and combinations on validation rows, OOD rows and unlabelled mixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import TypeAlias

import torch
from torch import Tensor

from sirc._utils.text import quoted
from sirc.metrics import Ranking
from sirc.outputs import Outputs, OutputStore
from sirc.scores import bayes, combine, registry
from sirc.scores.evaluator import Evaluator, needed_leaves, reads_features
from sirc.scores.fitting.bayes_fit import (
    Contrast,
    calibrate,
    density_ratio,
    equal_weights,
    id_share,
    mean_and_deviation,
)
from sirc.scores.fitting.rows import OutputsLike, indexed_batches
from sirc.scores.fitting.second_pass import IdRows, each_or_why
from sirc.scores.id_quantiles import id_quantiles
from sirc.scores.moments import Parameters
from sirc.scores.needs import Needs
from sirc.scores.scorer import Scorer, check_sizes, check_values, missing_features
from sirc.scores.spec import Spec

_Numbers: TypeAlias = dict[str, Tensor | Sequence[float]]
_ALL_ID = 0.99  # with a larger estimated ID share there are no OOD rows to learn from
_ERRORS = 3.0  # by so many standard errors the share must be below 1; it is the smallest of many ratios
_STEP, _FURTHEST = 0.05, 6.0  # the grid of shifts of a that a budget chooses from, in σ
_SILENT = 1e9  # a shift in σ after which the softplus of any S2 is 0


@dataclass(frozen=True)
class Tuning:
    """The rows that options and combinations are tuned on, by the argument of `fit` that held them."""

    sets: Mapping[str, Outputs]

    @classmethod
    def of(
        cls,
        specs: Sequence[Spec],
        val: OutputsLike | None,
        ood: OutputsLike | Mapping[str, OutputsLike] | None,
        unlabelled: OutputsLike | None,
    ) -> Tuning:
        """Read the data and check that the specs can be tuned on them."""
        parts = [part for spec in specs for part in spec.walk()]
        if val is None and (ood or unlabelled is not None) and any(p.name == "bayes" for p in parts):
            raise ValueError(
                "`val` is needed beside `ood` or `unlabelled`: `bayes` learns how OOD rows differ from held-out ID "
                "rows. Pass `fit(…, val=sirc.Outputs(logits, features, labels))`"
            )
        ood_sets = {} if ood is None else {"ood": ood}
        if isinstance(ood, Mapping) and "logits" not in ood:
            ood_sets = {**ood}
        sets = {} if val is None else {"val": _read("val", val)}
        for name, data in ood_sets.items():
            sets[f"ood[{quoted(name)}]"] = _read(f"ood[{quoted(name)}]", data)
        sets |= {} if unlabelled is None else {"unlabelled": _read("unlabelled", unlabelled)}
        if "val" in sets and sets["val"].labels is None:
            raise ValueError("`val` must have labels: scores are tuned on which predictions are right. Pass `labels`")
        # Drop rows that no spec learns from, so that they do not count as fitted on.
        learnt = any(part.name == "bayes" for part in parts)
        return cls({name: rows for name, rows in sets.items() if learnt or name == "val"})

    @property
    def val(self) -> Outputs | None:
        """Labelled ID validation rows."""
        return self.sets.get("val")

    def to(self, device: torch.device | str) -> Tuning:
        """The same rows on another device."""
        return Tuning({name: rows.to(device) for name, rows in self.sets.items()})

    def used(self, specs: Sequence[Spec]) -> bool:
        """Whether any of these specs learns from these rows."""
        return self.val is not None and Needs.of(specs).tuned

    def check_model(self, specs: Sequence[Spec], classes: int | None, features: int | None) -> None:
        """Require as many classes and features as the training rows have."""
        for name, rows in self.sets.items():
            if rows.num_features is None and (reading := reads_features(specs)):
                raise ValueError(f"`{name}`: {missing_features(reading)}")
            check_sizes(f"`{name}` must be of the same model as `train`", rows, classes, features)

    def options(self, specs: Sequence[Spec]) -> Parameters:
        """The options of scores that are tuned on validation rows; those given in a spec are not tuned."""
        if self.val is None:
            return {}
        val, options = self.val, Parameters()
        tuned = cache(lambda tune: _tensors(tune(val.logits, val.labels)))  # scores that share a rule share its result
        for leaf in needed_leaves(specs):
            tune = registry.get(leaf.name).tune
            if tune is not None and not leaf.options:
                options[str(leaf)] = tuned(tune)
        return options

    def combinations(self, scorer: Scorer, id_rows: IdRows) -> tuple[Parameters, dict[Spec, str]]:
        """The parameters of tuned combinations, and the reasons why some have none.

        `scorer` has all other parameters; `id_rows` are training rows, used if there is no `val`.
        """
        parts = [part for spec in scorer._parsed.values() for part in spec.walk()]
        tuned = {str(part): part for part in parts if part.tunes or part.name == "bayes"}
        columns = {name: scorer._evaluator(rows) for name, rows in self.sets.items()} if tuned else {}
        learnt: dict[tuple[Spec, ...], tuple[_Numbers, Tensor, Tensor]] = {}

        def numbers_of(part: Spec) -> _Numbers:
            if comparing := [leaf for leaf in needed_leaves([part]) if registry.get(leaf.name).val]:
                raise ValueError(
                    f"`{part}` is tuned on the rows of `val`, to which `{comparing[0]}` compares every row: each would "
                    f"find itself. Use it alone or in `sirc(msp, {comparing[0]})`"
                )
            if part.name == "both":
                assert self.val is not None
                return fit_both(part, columns["val"], self.val)
            a, b = (scorer.parameters[str(part)][key].tolist() for key in ("a", "b"))
            if part.name != "bayes":
                assert self.val is not None
                return fit_budget(part, *columns["val"].gap_and_others(part), a, b, self.val.correct)
            if part.args not in learnt:  # u and g are the same for every α and β
                claimed = bayes.claim(scorer._uniform_log_gap(part.args[0]), scorer.num_classes or 0)
                learnt[part.args] = self._bayes(part, columns, a, b, claimed, id_rows[str(part)])
            numbers, log_u, log_g = learnt[part.args]
            if part.options.get("metric") != "aurr":
                return numbers
            alpha, beta = (combine.parameter(part, key, {})[0] for key in ("alpha", "beta"))
            risks, levels, marks = bayes.aurr_stages(log_u, log_g, alpha, beta)
            return {**numbers, "risks": risks, "levels": levels, "marks": marks}

        def tune(part: Spec) -> dict[str, Tensor]:
            numbers = _tensors(numbers_of(part))
            for evaluator in columns.values():  # a `both` may contain this part
                evaluator.learn(part, {**scorer.parameters.get(str(part), {}), **numbers})
            return numbers

        for part, (name, rows) in product(tuned.values(), self.sets.items()):
            if part.name != "both":  # its parts may have to be tuned first
                gap, others = columns[name].gap_and_others(part)
                check_values(dict(zip(map(str, part.args), (gap, *others), strict=True)), rows)
        parameters: Parameters = {}
        unfit: dict[Spec, str] = {}
        for part in tuned.values():
            if unfit.keys().isdisjoint(part.walk()):
                numbers, why = each_or_why([part], tune)
                parameters, unfit = parameters | numbers, unfit | why
        return parameters, unfit

    def _bayes(
        self,
        spec: Spec,
        columns: Mapping[str, Evaluator],
        a: Sequence[float],
        b: Sequence[float],
        claimed: tuple[float, float],
        id_rows: tuple[Tensor, list[Tensor]],
    ) -> tuple[_Numbers, Tensor, Tensor]:
        """The parameters of u and g, and log u and log g of some ID rows.

        Without `val`, u is the probability of error that S1 claims. Without OOD rows, g follows from ID statistics of
        the S2 scores.
        """
        parts = {name: column.gap_and_others(spec) for name, column in columns.items()}
        calibration = (0.0, 1.0)
        if self.val is not None:
            calibration = calibrate(bayes.claimed_odds(parts["val"][0], claimed), ~self.val.correct)
        numbers: _Numbers = {"claim": claimed, "calibration": calibration}
        parts.setdefault("val", id_rows)
        log_u = {name: bayes.log_u(gap, claimed, calibration) for name, (gap, _) in parts.items()}
        lows = {name: combine.lowness(others, a, b) for name, (_, others) in parts.items()}
        if not columns.keys() - {"val"}:
            log_g = bayes.witnessed_log_g(log_u["val"], lows["val"])
            log_mean = bayes.log_mean_exp(log_g)
            return {**numbers, "log_mean": (log_mean,)}, log_u["val"], log_g - log_mean
        center = mean_and_deviation(log_u["val"])
        terms = {name: bayes.basis(log_u[name], lows[name], center) for name in parts}
        contrasts = []
        if sets := [name for name in columns if name not in ("val", "unlabelled")]:
            # All sets form one contrast, so that together they weigh as much as the ID rows.
            weights = [torch.full_like(log_u[name], 1 / (len(sets) * len(log_u[name]))) for name in sets]
            contrasts.append(Contrast(torch.cat([terms[name] for name in sets]), torch.cat(weights)))
        if "unlabelled" in columns:
            share = _share_of_id(terms["val"], terms["unlabelled"], spec)
            numbers["id_share"] = (share,)
            contrasts.append(Contrast(terms["unlabelled"], equal_weights(terms["unlabelled"]), share))
        constant, slopes = density_ratio(terms["val"], contrasts, len(spec.args))
        density = (*center, constant, *slopes.tolist())
        return {**numbers, "density": density}, log_u["val"], bayes.log_g(log_u["val"], lows["val"], density)


def fit_budget(
    spec: Spec, log_gap: Tensor, others: Sequence[Tensor], a: Sequence[float], b: Sequence[float], correct: Tensor
) -> _Numbers:
    """a and b of a budgeted SIRC: a = μ − 3σ, raised as far as the budget allows. The higher a, the more S2 counts.

    The budget is in points of AUROC of ID✗|ID✓ on validation rows.
    """
    right = int(correct.sum())
    if right in (0, len(correct)):
        raise ValueError(
            f"`val` must hold right and wrong predictions for `{spec}`, whose budget is in AUROC of ID✗|ID✓; got "
            f"{right} right and {len(correct) - right} wrong. Pass more validation rows"
        )

    def auroc(confidence: Tensor) -> float:
        return float(Ranking(confidence[correct], confidence[~correct]).auroc("wrong"))

    budget = (spec.numbers("budget") or (0.0,))[0]
    floor = auroc(-log_gap) - budget / 100
    steps = round(2 * _FURTHEST / _STEP)
    for shift in (_FURTHEST - step * _STEP for step in range(steps + 1)):
        moved = [center + shift / slope for center, slope in zip(a, b, strict=True)]
        if auroc(combine.sirc(log_gap, others, moved, b)) >= floor:
            break
    else:  # even the weakest S2 on the grid costs too much
        moved = [center - _SILENT / slope for center, slope in zip(a, b, strict=True)]
    return {"a": moved, "b": list(b)}


def fit_both(spec: Spec, columns: Evaluator, rows: Outputs) -> _Numbers:
    """The distribution function of each part of a `both` on validation rows."""
    values = {str(part): columns.confidence(part) for part in spec.args}
    check_values(values, rows)
    numbers: _Numbers = {}
    for place, part in enumerate(spec.args, start=1):
        numbers[f"score_{place}"], numbers[f"level_{place}"] = id_quantiles(values[str(part)])
    return numbers


def _share_of_id(val: Tensor, mixed: Tensor, spec: Spec) -> float:
    """The share of ID rows among the unlabelled rows, from the terms of log g."""
    constant, weights = density_ratio(val, [Contrast(mixed, equal_weights(mixed))], len(spec.args))
    share, error = id_share(constant + val @ weights, constant + mixed @ weights)
    if share > min(_ALL_ID, 1 - _ERRORS * error):
        raise ValueError(
            f"`unlabelled` must hold OOD rows for `{spec}` to learn from; by its scores {share:.0%} ± {error:.0%} "
            f"of the {len(mixed)} rows are like those of `val`. Leave it out, or pass more rows from production"
        )
    return share


def _tensors(numbers: Mapping[str, Tensor | Sequence[float] | float]) -> dict[str, Tensor]:
    return {key: torch.as_tensor(x, dtype=torch.float64, device="cpu").reshape(-1) for key, x in numbers.items()}


def _read(name: str, data: OutputsLike) -> Outputs:
    """All rows in memory: tuning data are small compared with training data."""
    if isinstance(data, OutputStore):
        parts = [data.load()]
    elif isinstance(data, Outputs | Mapping):
        parts = [Outputs.of(data)]
    else:
        parts = [batch for _, batch in indexed_batches(data, name)]
    if not sum(len(part) for part in parts):
        raise ValueError(f"`{name}` must hold at least one row; got none")
    return parts[0] if len(parts) == 1 else Outputs.cat(parts)
