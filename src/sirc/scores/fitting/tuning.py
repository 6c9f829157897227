"""What is tuned on other data than the training rows: labelled ID validation rows, OOD rows, unlabelled mixtures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sirc.outputs import Outputs, OutputStore
from sirc.scores import bayes, registry
from sirc.scores.fitting.bayes_fit import Contrast, calibrate, density_ratio, id_share, spread
from sirc.scores.fitting.budget import spend
from sirc.scores.fitting.statistics import Solved
from sirc.scores.needs import Needs
from sirc.scores.scorer import Scorer, check_features
from sirc.scores.spec import Spec
from sirc.scores.values import Evaluator, needed_leaves

Data = Outputs | Iterable[object]
_ID_ALONE = 0.99  # an estimated ID share above it leaves no OOD rows to learn from
_ERRORS = 3.0  # standard errors below 1, no fewer as the share is the least of many ratios


@dataclass(frozen=True)
class Tuning:
    """The rows that options and combinations are tuned on."""

    val: Outputs | None = None
    ood: Mapping[str, Outputs] = field(default_factory=dict)
    unlabelled: Outputs | None = None

    @classmethod
    def of(
        cls,
        specs: Sequence[Spec],
        val: Data | None,
        ood: Data | Mapping[str, Data] | None,
        unlabelled: Data | None,
    ) -> Tuning:
        """Read the data, and see that they are what the specs need."""
        parts = [part for spec in specs for part in spec.walk()]
        if val is None and (wanting := [part for part in parts if part.tunes]):
            raise ValueError(
                f"`val` is needed for `{wanting[0]}`, which is tuned on labelled ID validation data. Pass "
                "`fit(…, val=sirc.Outputs(logits, features, labels))`, of rows that the network was not trained on"
            )
        if val is None and (ood or unlabelled is not None) and any(p.name == "bayes" for p in parts):
            raise ValueError(
                "`val` is needed beside `ood` or `unlabelled`: `bayes` learns how OOD rows differ from held-out ID "
                "rows. Pass `fit(…, val=sirc.Outputs(logits, features, labels))`"
            )
        read = None if val is None else _read("val", val)
        if read is not None and read.labels is None:
            raise ValueError("`val` must have labels: scores are tuned on which predictions are right. Pass `labels`")
        sets = ood if isinstance(ood, Mapping) and not {"logits"} & set(ood) else {} if ood is None else {"ood": ood}
        found = {str(name): _read(f"ood[{name!r}]", part) for name, part in sets.items()}
        tuning = cls(read, found, None if unlabelled is None else _read("unlabelled", unlabelled))
        for outputs in tuning.rows():
            check_features(specs, outputs)
        # What nothing learns from is let go, so that no row counts as seen that was not.
        return tuning if any(part.name == "bayes" for part in parts) else cls(read)

    def to(self, device: torch.device | str) -> Tuning:
        """The same rows elsewhere."""
        return Tuning(
            None if self.val is None else self.val.to(device),
            {name: outputs.to(device) for name, outputs in self.ood.items()},
            None if self.unlabelled is None else self.unlabelled.to(device),
        )

    def used(self, specs: Sequence[Spec]) -> bool:
        """Whether any of these specs learns from the rows."""
        return self.val is not None and Needs.of(specs).tuned

    def rows(self) -> Iterator[Outputs]:
        """All that there is to tune on."""
        if self.val is not None:
            yield self.val
        yield from self.ood.values()
        if self.unlabelled is not None:
            yield self.unlabelled

    def options(self, specs: Sequence[Spec]) -> Solved:
        """The options of scores that are chosen on validation rows, where the spec does not give them."""
        if self.val is None or self.val.labels is None:
            return {}
        found: Solved = {}
        chosen: dict[object, dict[str, float]] = {}
        for leaf in needed_leaves(specs):
            tune = registry.get(leaf.name).tune
            if tune is None or leaf.options:
                continue
            if tune not in chosen:  # scores that share a rule share what it finds
                chosen[tune] = tune(self.val.logits, self.val.labels)
            found[str(leaf)] = {
                name: torch.tensor([float(value)], dtype=torch.float64, device="cpu")
                for name, value in chosen[tune].items()
            }
        return found

    def combinations(self, scorer: Scorer) -> Solved:
        """The parameters of combinations that are tuned, by a scorer with all others."""
        parsed = [part for spec in scorer._parsed.values() for part in spec.walk()]
        wanted = {str(part): part for part in parsed if part.tunes or part.name == "bayes"}
        found: Solved = {}
        for name, rows in self._named():
            _check_model(name, rows, scorer)
        columns = {name: scorer.evaluator(rows) for name, rows in self._named()} if wanted else {}
        learnt: dict[tuple[Spec, ...], dict[str, Tensor | Sequence[float]]] = {}
        for name, part in wanted.items():
            known = scorer.parameters.get(name, {})
            if part.name == "bayes" and part.args not in learnt:  # u and g are the same for every α and β
                learnt[part.args] = self._bayes(part, columns, known, scorer)
            numbers = learnt[part.args] if part.name == "bayes" else self._budgeted(part, columns, known)
            found[name] = {
                key: torch.as_tensor(value, dtype=torch.float64, device="cpu").reshape(-1)
                for key, value in numbers.items()
            }
        return found

    def _named(self) -> Iterator[tuple[str, Outputs]]:
        if self.val is not None:
            yield "val", self.val
        for name, outputs in self.ood.items():
            yield f"ood[{name!r}]", outputs
        if self.unlabelled is not None:
            yield "unlabelled", self.unlabelled

    def _budgeted(
        self, spec: Spec, columns: Mapping[str, Evaluator], known: Mapping[str, Tensor]
    ) -> dict[str, Tensor | Sequence[float]]:
        assert self.val is not None
        first, others = _values(spec, columns["val"])
        budget = (spec.numbers("budget") or (0.0,))[0]
        return spend(first, others, known["a"].tolist(), known["b"].tolist(), self.val.correct, budget, str(spec))

    def _bayes(
        self, spec: Spec, columns: Mapping[str, Evaluator], known: Mapping[str, Tensor], scorer: Scorer
    ) -> dict[str, Tensor | Sequence[float]]:
        """What is known of u and g. Without any rows, u is as the softmax claims and g a surrogate."""
        claimed = bayes.claim(scorer._uniform_log_gap(spec.args[0]), scorer.num_classes or 0)
        a, b = known["a"].tolist(), known["b"].tolist()
        parts = {name: _values(spec, column) for name, column in columns.items()}
        away = {
            name: [slope * (center - value) for value, center, slope in zip(others, a, b, strict=True)]
            for name, (_, others) in parts.items()
        }
        calibration = (0.0, 1.0)
        if self.val is not None:
            calibration = calibrate(bayes.doubt(parts["val"][0], claimed), ~self.val.correct)
        found: dict[str, Tensor | Sequence[float]] = {"claim": claimed, "calibration": calibration}
        contrasted = [name for name in columns if name != "val"]
        if not contrasted:
            return found
        log_u = {name: bayes.log_u(first, claimed, calibration) for name, (first, _) in parts.items()}
        center = spread(log_u["val"])
        ramps = {name: bayes.basis(log_u[name], away[name], center) for name in columns}
        contrasts = []
        if sets := [name for name in contrasted if name != "unlabelled"]:
            # One contrast of all sets together, so that they weigh as much as the ID rows do.
            shares = [torch.full_like(log_u[name], 1 / (len(sets) * len(log_u[name]))) for name in sets]
            contrasts.append(Contrast(torch.cat([ramps[name] for name in sets]), torch.cat(shares)))
        if self.unlabelled is not None:
            share = self._share(ramps, str(spec))
            found["id_share"] = (share,)
            mixed = log_u["unlabelled"]
            contrasts.append(Contrast(ramps["unlabelled"], torch.full_like(mixed, 1 / len(mixed)), share))
        constant, weights = density_ratio(ramps["val"], contrasts)
        found["density"] = (*center, constant, *weights.tolist())
        return found

    def _share(self, ramps: Mapping[str, Tensor], spec: str) -> float:
        """The share of ID rows among the unlabelled."""
        mixed = ramps["unlabelled"]
        weight = torch.full((len(mixed),), 1 / len(mixed), dtype=torch.float64, device=mixed.device)
        constant, weights = density_ratio(ramps["val"], [Contrast(mixed, weight)])
        share, error = id_share(constant + ramps["val"] @ weights, constant + mixed @ weights)
        if share > min(_ID_ALONE, 1 - _ERRORS * error):
            raise ValueError(
                f"`unlabelled` must hold OOD rows for `{spec}` to learn from; by its scores {share:.0%} ± {error:.0%} "
                f"of the {len(mixed)} rows are like those of `val`. Leave it out, or pass more rows as met in use"
            )
        return share


def _check_model(name: str, rows: Outputs, scorer: Scorer) -> None:
    for what in ("classes", "features"):
        known, new = getattr(scorer, f"num_{what}"), getattr(rows, f"num_{what}")
        if None not in (known, new) and known != new:
            raise ValueError(
                f"`{name}` must be of the model that `train` is of, with {known} {what}; got {new}. Did you swap files?"
            )


def _values(spec: Spec, columns: Evaluator) -> tuple[Tensor, list[Tensor]]:
    """log(S1max − S1), and the values of the S2 scores."""
    return columns.log_gap(spec.args[0]), [columns.value(other) for other in spec.args[1:]]


def _read(name: str, data: Data) -> Outputs:
    """All rows at once: tuning data are small beside training data."""
    if isinstance(data, OutputStore):
        outputs = data.load()
    elif isinstance(data, Outputs | Mapping):
        outputs = Outputs.of(data)
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes | Tensor):
        parts = [Outputs.of(batch) for batch in data]
        if not parts:
            raise ValueError(f"`{name}` must hold at least one row; got an empty iterable")
        outputs = Outputs.cat(parts)
    else:
        raise ValueError(
            f"`{name}` must be an `Outputs`, an `OutputStore` or an iterable of batches; got {type(data).__name__}. "
            "Wrap whole arrays: `sirc.Outputs(logits, features, labels)`"
        )
    if not len(outputs):
        raise ValueError(f"`{name}` must hold at least one row; got none")
    return outputs
