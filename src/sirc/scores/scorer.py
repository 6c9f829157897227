"""Scorer: fitted specs in one object; scores outputs, saves and loads."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, final

import torch
from torch import Tensor

from sirc._utils.arrays import as_tensor
from sirc._utils.checks import check_path, check_type, iterates
from sirc._utils.files import content_digest, read_header, read_safetensors, write_safetensors
from sirc._utils.precision import exact
from sirc._utils.text import quoted, shorten
from sirc.errors import NotFittedError, StoreError
from sirc.outputs import Outputs
from sirc.scores import registry
from sirc.scores.blocks import working_dtype
from sirc.scores.evaluator import Evaluator, all_parts, array_reads, needed_leaves, option_of, reads_features
from sirc.scores.fitting.row_marks import matching_rows, row_marks
from sirc.scores.spec import WITNESSES, Spec, is_vim, parse

_VERSION = 1


class Confidences(dict[str, Tensor]):
    """Confidences by spec; a spec is found under any spelling, such as `sirc(msp,l1)` for `sirc(msp, l1)`."""

    def __missing__(self, text: str) -> Tensor:
        if text not in self:
            raise KeyError(f"`{shorten(str(text))}` was not among the specs scored: {', '.join(self)}")
        return next(value for scored, value in self.items() if parse(scored) == parse(text))

    def __contains__(self, text: object) -> bool:
        if super().__contains__(text):
            return True
        try:
            return isinstance(text, str) and parse(text) in map(parse, self)
        except ValueError:  # not a spec
            return False

    def get(self, text: str, default: Any = None) -> Any:
        """The confidences of a spec under any spelling, or `default`."""
        try:
            return self[text]
        except KeyError:
            return default


@final
class Scorer:
    """Scores outputs by each of its specs: `scorer(outputs)` → `{spec: 1-D float64 tensor}`; higher means accept.

    `sirc.fit` makes it. Specs that learn nothing from data need no fit: `sirc.Scorer(["msp", "energy"])`.
    `parameters` holds what was learnt, by canonical spec: `scorer.parameters["vim"]["c"]`.

    Example:
        >>> import sirc, torch
        >>> scorer = sirc.Scorer(["msp", "energy"])
        >>> confidence = scorer(sirc.Outputs(torch.tensor([[4.0, 0, 0], [1, 2, 0]])))
        >>> confidence["energy"]
        tensor([4.0360, 2.4076], dtype=torch.float64)
    """

    def __init__(
        self,
        specs: str | Sequence[str],
        parameters: Mapping[str, Mapping[str, Tensor]] | None = None,
        *,
        num_classes: int | None = None,
        num_features: int | None = None,
        fitted_on: Tensor | None = None,
        fitted_rows: int = 0,
    ) -> None:
        self.specs = check_specs(specs)
        parameters = {} if parameters is None else parameters
        check_type("parameters", parameters, Mapping, "a dict of dicts, by spec and name")
        self.parameters: dict[str, dict[str, Tensor]] = {}
        for key, part in parameters.items():
            check_type("parameters", part, Mapping, "a dict of dicts, by spec and name")
            self.parameters[key] = {name: as_tensor(f"{key}/{name}", value) for name, value in part.items()}
        self.num_classes = num_classes
        self.num_features = num_features
        self.fitted_on = fitted_on
        """Marks of a sample of the rows that it was fitted on; None without a fit."""
        self.fitted_rows = fitted_rows
        self._parsed = {text: self.parsed(text) for text in self.specs}
        self._reads = array_reads(self._parsed.values())
        self._cast: dict[tuple[torch.device, torch.dtype], dict[str, dict[str, Tensor]]] = {}

    def parsed(self, text: str) -> Spec:
        """The parsed spec as it was fitted: each `scod` has only the witnesses that the data allowed."""

        def as_fitted(scod: Spec) -> Spec:
            places = self.parameters.get(str(scod), {}).get("witnesses")
            return scod if places is None else scod.witnessed_by([WITNESSES[place] for place in places.tolist()])

        return parse(text).with_defaults(as_fitted)

    def __repr__(self) -> str:
        return f"Scorer({list(self.specs)})"

    def __call__(self, outputs: Outputs | Iterable[object], *, compile: bool | None = None) -> Confidences:
        """Confidences of all rows, in their order and on their device.

        `outputs` is an `Outputs`, an `OutputStore`, or an iterable of batches. `compile` is as in `functional.softmax`.
        """

        def confidences(evaluator: Evaluator) -> dict[str, Tensor]:
            return {text: evaluator.confidence(spec) for text, spec in self._parsed.items()}

        return Confidences(self.compute(outputs, confidences, compile=compile))

    def compute(
        self,
        outputs: Outputs | Iterable[object],
        formula: Callable[[Evaluator], Mapping[str, Tensor]],
        *,
        compile: bool | None = None,
    ) -> dict[str, Tensor]:
        """The columns that `formula` computes from the evaluator of each batch, joined over all batches."""
        self.check_fitted()

        @exact
        def one(batch: Outputs) -> Mapping[str, Tensor]:
            columns = formula(self._evaluator(batch, compile))
            check_values(columns, batch)
            return columns

        batches = [one(batch) for batch in _batches(outputs)]
        if len(batches) == 1:
            return dict(batches[0])
        return {name: torch.cat([columns[name] for columns in batches]) for name in batches[0]}

    def _evaluator(self, outputs: Outputs, compile: bool | None = None) -> Evaluator:
        self._check_outputs(outputs)
        dtype = torch.float64 if outputs.features is None else working_dtype(outputs.features.dtype)
        if (outputs.device, dtype) not in self._cast:
            self._cast[outputs.device, dtype] = cast_parameters(self.parameters, outputs.device, dtype)
        parameters = self._cast[outputs.device, dtype]
        return Evaluator(outputs.logits, outputs.features, self._reads, parameters, compile=compile)

    def _uniform_log_gap(self, leaf: Spec) -> float:
        """log(S1max − S1) of a leaf where all classes are equally likely."""
        assert self.num_classes is not None
        zeros = torch.zeros(1, self.num_classes, dtype=torch.float64, device="cpu")
        return float(Evaluator(zeros, None, [], self.parameters).log_gap(leaf))

    def check_fitted(self) -> None:
        """Raise an error unless all specs have their fitted parameters."""
        for text, spec in self._parsed.items():
            for part in all_parts(spec):
                if needs_fit(part) and str(part) not in self.parameters:
                    scores = [registry.get(leaf.name) for leaf in needed_leaves([spec])]
                    val = any(score.val for score in scores) or any(inner.tunes for inner in spec.walk())
                    given = ", head=head" * any(score.head for score in scores) + ", val=val" * val
                    raise NotFittedError(
                        f"`{text}` learns from ID data and was not fitted: make the scorer with "
                        f"`sirc.fit([{quoted(text)}], train{given})`"
                    )
                if not part.is_leaf:
                    continue
                expected = set(registry.get(part.name).parameters)
                fitted = {name for name in self.parameters.get(str(part), {}) if not option_of(part, name)}
                if fitted != expected:
                    raise ValueError(
                        f"the parameters of `{part}` must be {', '.join(sorted(expected)) or 'none'}; got "
                        f"{', '.join(sorted(fitted)) or 'none'}. Make the scorer with `sirc.fit`"
                    )

    def _check_outputs(self, outputs: Outputs) -> None:
        if outputs.device.type == "mps":
            raise ValueError('scores are computed in float64, which this device lacks: pass `outputs.to("cpu")`')
        check_features(self._parsed.values(), outputs)
        rule = "the outputs must be of the model that the scorer was fitted for"
        check_sizes(rule, outputs, self.num_classes, self.num_features)

    def only(self, specs: str | Sequence[str]) -> Scorer:
        """The same fit with only some of its specs, or of the scores inside them."""
        wanted = check_specs(specs)
        inside = {str(part) for spec in self._parsed.values() for part in all_parts(spec)}
        if unknown := [text for text in wanted if str(parse(text)) not in inside]:
            raise ValueError(f"`{unknown[0]}` is not among the scorer's specs: {', '.join(self.specs)}")
        if wanted == self.specs:
            return self
        parts = [part for spec in map(self.parsed, wanted) for part in all_parts(spec)]
        learnt = any(str(part) in self.parameters for part in parts)
        return Scorer(
            wanted,
            self.parameters,
            num_classes=self.num_classes,
            num_features=self.num_features,
            fitted_on=self.fitted_on if learnt else None,
            fitted_rows=self.fitted_rows if learnt else 0,
        )

    def seen(self, outputs: Outputs | Iterable[object]) -> float:
        """The estimated share of these rows that the scorer was fitted on; 0 for a scorer without a fit.

        It compares the logits, up to rounding, with those of up to 4096 random fitting rows. Rows in half precision are
        recognised if the scorer was fitted on them in half precision.
        """
        if self.fitted_on is None or not len(self.fitted_on):
            return 0.0
        marks = torch.cat([row_marks(batch.logits).cpu() for batch in _batches(outputs)])
        # The share of the sample that is among these rows estimates the share of all fitting rows.
        share = float(matching_rows(self.fitted_on.cpu(), marks).double().mean())
        return min(1.0, share * self.fitted_rows / max(1, len(marks)))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write a safetensors file with a checksum; its header holds the specs and sizes as JSON.

        Example:
            >>> import sirc, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     sirc.Scorer("msp").save(f"{folder}/scorer.safetensors")
            ...     sirc.Scorer.load(f"{folder}/scorer.safetensors")
            Scorer(['msp'])
        """
        write_safetensors(Path(path), *self._contents(), overwrite=overwrite)

    @property
    def digest(self) -> str:
        """The checksum of its specs and parameters."""
        return content_digest(*self._contents())

    def _contents(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The tensors and the metadata of its file."""
        tensors = tensors_of(self.parameters)
        header = {
            "format": "sirc-scorer",
            "version": _VERSION,
            "specs": list(self.specs),
            "num_classes": self.num_classes,
            "num_features": self.num_features,
            "fitted_rows": self.fitted_rows,
        }
        if self.fitted_on is not None:
            tensors["fitted_on"] = self.fitted_on
        # A safetensors file needs at least one tensor, and an unfitted scorer has none.
        tensors["version"] = torch.tensor([_VERSION], device="cpu")
        return tensors, {"sirc": json.dumps(header)}

    @classmethod
    def load(cls, path: str | Path) -> Scorer:
        """Read what `save` wrote; the loaded scorer gives the same scores, bit for bit.

        Example:
            >>> import sirc, tempfile
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     sirc.Scorer(["msp", "energy"]).save(f"{folder}/scorer.safetensors")
            ...     sirc.Scorer.load(f"{folder}/scorer.safetensors").specs
            ('msp', 'energy')
        """
        tensors, metadata = read_safetensors(check_path("path", path))
        header = read_header(path, metadata, "scorer", _VERSION)
        try:
            return cls(
                header["specs"],
                parameters_in(tensors),
                num_classes=header["num_classes"],
                num_features=header["num_features"],
                fitted_on=tensors.get("fitted_on"),
                fitted_rows=header.get("fitted_rows", 0),
            )
        except ValueError as error:
            raise StoreError(f"'{path}' was saved with scores that are not known here: {error}") from None


def _batches(outputs: Outputs | Iterable[object]) -> Iterator[Outputs]:
    if not isinstance(outputs, Outputs) and not iterates(outputs):
        got = type(outputs).__name__
        raise ValueError(f"`outputs` must be an `Outputs`, an `OutputStore` or an iterable of batches; got {got}")
    batch = None
    for batch in [outputs] if isinstance(outputs, Outputs) else outputs:
        yield Outputs.of(batch)
    if batch is None:
        raise ValueError("`outputs` must hold at least one batch; got an empty iterable")


def tensors_of(parameters: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """The parameters as the tensors of a file, named `spec/parameter`."""
    return {f"{key}/{name}": value for key, part in parameters.items() for name, value in part.items()}


def parameters_in(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The parameters among the tensors of a file, named by `tensors_of`."""
    parameters: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        spec, slash, key = name.rpartition("/")
        if slash:
            parameters.setdefault(spec, {})[key] = value.clone()
    return parameters


def check_specs(specs: str | Sequence[str]) -> tuple[str, ...]:
    """The distinct specs as a tuple; an error if one does not parse."""
    if not iterates(specs):
        raise ValueError(f"`specs` must be a spec or a list of specs; got {type(specs).__name__}")
    texts = (specs,) if isinstance(specs, str) else tuple(specs)
    if not texts:
        raise ValueError('`specs` must name at least one score; got none. For example `["msp", "sirc(msp, l1)"]`')
    for text in texts:
        parse(text)
    return tuple(dict.fromkeys(texts))


def needs_fit(spec: Spec) -> bool:
    """Whether `fit` finds parameters of the spec itself, not only of specs inside it."""
    if spec.is_leaf:
        return registry.get(spec.name).solve is not None
    return is_vim(spec) or spec.finds_spread or spec.tunes


def learns(specs: Iterable[Spec]) -> bool:
    """Whether any part of these specs learns from training data."""
    parts = [part for spec in specs for part in all_parts(spec)]
    return any(needs_fit(part) and not _from_val_alone(part) for part in parts)


def _from_val_alone(spec: Spec) -> bool:
    if not spec.is_leaf:
        return spec.name == "both"
    score = registry.get(spec.name)
    return score.val and not score.evidence


def check_features(specs: Iterable[Spec], outputs: Outputs) -> None:
    """Require features if some scores read them."""
    if outputs.features is None and (reading := reads_features(specs)):
        raise ValueError(missing_features(reading))


def check_sizes(rule: str, outputs: Outputs, num_classes: int | None, num_features: int | None) -> None:
    """Require as many classes and features as the training rows had; an error starts with the `rule`."""
    sizes = {"classes": (num_classes, outputs.num_classes), "features": (num_features, outputs.num_features)}
    for what, (fitted, got) in sizes.items():
        if None not in (fitted, got) and fitted != got:
            raise ValueError(f"{rule}, with {fitted} {what}; got {got}. Did you swap files?")


def missing_features(leaves: Iterable[Spec]) -> str:
    """The error text for outputs without the features that these leaves read."""
    return (
        f"features are needed for {', '.join(f'`{leaf}`' for leaf in leaves)}; these outputs have none. "
        "Give `features`, what the final linear layer receives; in Python `Outputs(logits, features)`"
    )


def check_values(columns: Mapping[str, Tensor], outputs: Outputs) -> None:
    """Refuse NaN and infinite values, which cannot be ranked."""
    # One sum makes a GPU wait only once. A sum of finite values may overflow: then look at every value.
    if math.isfinite(torch.stack([column.sum() for column in columns.values()]).sum()):
        return
    for name, column in columns.items():
        if len(wrong := column.isfinite().logical_not().nonzero()):
            row = int(wrong[0])
            inputs = {"logits": outputs.logits, "features": outputs.features}
            given = {key: x[row] for key, x in inputs.items() if x is not None}
            sizes = " and ".join(f"{key} up to {float(x.abs().max()):.3g}" for key, x in given.items())
            narrow = any(x.dtype != torch.float64 for x in given.values())
            raise ValueError(
                f"`{name}` must be a finite number for every row; got {column[row].item()} at row {row}, with {sizes}: "
                "too large or too small to compute with. "
                f"{'Pass `outputs.to(dtype=torch.float64)`' if narrow else 'Scale them'}, or leave the row out"
            )


def cast_parameters(
    parameters: Mapping[str, Mapping[str, Tensor]], device: torch.device, dtype: torch.dtype
) -> dict[str, dict[str, Tensor]]:
    """The parameters of leaves on the features' device, in their working type; those of combinations as they are."""

    def cast(spec: Spec, name: str, value: Tensor) -> Tensor:
        return value.to(device, dtype) if spec.is_leaf and not option_of(spec, name) else value

    return {
        key: {name: cast(parse(key), name, value) for name, value in part.items()} for key, part in parameters.items()
    }
