"""Scorer: fitted specs in one object; scores outputs, saves and loads."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import final

import torch
from torch import Tensor

from sirc._utils.arrays import as_tensor
from sirc._utils.files import read_safetensors, write_safetensors
from sirc._utils.precision import exact
from sirc.errors import NotFittedError, StoreError
from sirc.outputs import Outputs
from sirc.scores import registry
from sirc.scores.fitting.row_marks import matching_rows, row_marks
from sirc.scores.spec import Spec, is_vim, parse
from sirc.scores.values import Columns, needed_leaves, option_of, working_dtype

_FORMAT = "sirc-scorer"
_VERSION = 1


class Confidences(dict[str, Tensor]):
    """Confidences by spec, under the text each was asked with; another spelling of the same spec finds it too."""

    def __missing__(self, text: str) -> Tensor:
        wanted = str(parse(text))
        for known, value in self.items():
            if str(parse(known)) == wanted:
                return value
        raise KeyError(f"`{text}` was not among the specs scored: {', '.join(self)}")

    def __contains__(self, text: object) -> bool:
        return super().__contains__(text) or (
            isinstance(text, str) and any(str(parse(known)) == str(parse(text)) for known in self)
        )


@final
class Scorer:
    """Scores outputs by each of its specs: `scorer(outputs)` → `{spec: 1-D float64 tensor}`; higher means accept.

    Made by `sirc.fit`. Specs that learn nothing from data need no fit: `sirc.Scorer(["msp", "energy"])`.
    `parameters` holds what was learnt, by canonical spec: `scorer.parameters["vim"]["c"]`.
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
        self.parameters = {
            key: {name: as_tensor(f"{key}/{name}", value) for name, value in part.items()}
            for key, part in (parameters or {}).items()
        }
        self.num_classes = num_classes
        self.num_features = num_features
        self.fitted_on = fitted_on
        """Marks of a sample of the rows that it was fitted on, if it learnt from any."""
        self.fitted_rows = fitted_rows
        self._parsed = {text: parse(text) for text in self.specs}
        self._cast: dict[tuple[torch.device, torch.dtype], dict[str, dict[str, Tensor]]] = {}

    def __repr__(self) -> str:
        return f"Scorer({list(self.specs)})"

    def __call__(self, outputs: Outputs | Iterable[object], *, compile: bool | None = None) -> Confidences:
        """Confidences of each row, in order, on the rows' device.

        Takes `Outputs`, an `OutputStore`, or an iterable of batches. `compile` is passed to the pass over the logits.
        """
        self._check_fitted()
        if isinstance(outputs, Outputs):
            return self._score(outputs, compile)
        if not isinstance(outputs, Iterable):
            raise ValueError(
                "`outputs` must be an `Outputs`, an `OutputStore` or an iterable of batches; got "
                f"{type(outputs).__name__}"
            )
        parts = [self._score(Outputs.of(batch), compile) for batch in outputs]
        if not parts:
            raise ValueError("`outputs` must hold at least one batch; got an empty iterable")
        return Confidences({text: torch.cat([part[text] for part in parts]) for text in self.specs})

    @exact
    def _score(self, outputs: Outputs, compile: bool | None) -> Confidences:
        columns = self._columns(outputs, compile)
        return Confidences({text: columns.confidence(spec) for text, spec in self._parsed.items()})

    def _columns(self, outputs: Outputs, compile: bool | None = None) -> Columns:
        """The values of all leaves on these rows."""
        self._check_outputs(outputs)
        dtype = torch.float64 if outputs.features is None else working_dtype(outputs.features.dtype)
        return Columns(outputs, self._parsed.values(), self._parameters_as(outputs.device, dtype), compile=compile)

    def _uniform_log_gap(self, leaf: Spec) -> float:
        """log(S1max − S1) of a leaf where all classes are equally likely."""
        assert self.num_classes is not None
        zeros = torch.zeros(1, self.num_classes, dtype=torch.float64, device="cpu")
        return float(Columns(Outputs(zeros), [], self.parameters).log_gap(leaf))

    def _parameters_as(self, device: torch.device, dtype: torch.dtype) -> dict[str, dict[str, Tensor]]:
        """The parameters of leaves where and as the features are; a, b and c stay as they are."""
        if (device, dtype) not in self._cast:
            self._cast[device, dtype] = cast_parameters(self.parameters, device, dtype)
        return self._cast[device, dtype]

    def _check_fitted(self) -> None:
        for text, spec in self._parsed.items():
            for part in (*needed_leaves([spec]), *spec.walk()):
                if needs_fit(part) and str(part) not in self.parameters:
                    raise NotFittedError(
                        f"`{text}` learns from ID training data and was not fitted: make the scorer with "
                        f"`sirc.fit([{text!r}], train{', head=head' if needs_head([spec]) else ''})`"
                    )
                if not part.is_leaf:
                    continue
                wanted = set(registry.get(part.name).parameters)
                found = {name for name in self.parameters.get(str(part), {}) if not option_of(part, name)}
                if found != wanted:
                    raise ValueError(
                        f"the parameters of `{part}` must be {', '.join(sorted(wanted)) or 'none'}; got "
                        f"{', '.join(sorted(found)) or 'none'}. Make the scorer with `sirc.fit`"
                    )

    def _check_outputs(self, outputs: Outputs) -> None:
        if outputs.device.type == "mps":
            raise ValueError('scores are computed in float64, which this device has not: pass `outputs.to("cpu")`')
        check_features(self._parsed.values(), outputs)
        for what, mine, theirs in (
            ("logits", self.num_classes, outputs.num_classes),
            ("features", self.num_features, outputs.num_features),
        ):
            if mine is not None and theirs is not None and mine != theirs:
                raise ValueError(
                    f"this scorer was fitted on outputs with {mine} {what}; got {theirs}. Are they from the same model?"
                )

    def only(self, specs: str | Sequence[str]) -> Scorer:
        """The same fit, for some of the specs."""
        wanted = check_specs(specs)
        known = {str(spec) for spec in self._parsed.values()}
        if unknown := [text for text in wanted if str(parse(text)) not in known]:
            raise ValueError(f"`{unknown[0]}` is not among the scorer's specs: {', '.join(self.specs)}")
        if wanted == self.specs:
            return self
        parsed = [parse(text) for text in wanted]
        tuned = any(str(leaf) in self.parameters for leaf in needed_leaves(parsed))
        learnt = tuned or learns(parsed)
        return Scorer(
            wanted,
            self.parameters,
            num_classes=self.num_classes,
            num_features=self.num_features,
            fitted_on=self.fitted_on if learnt else None,
            fitted_rows=self.fitted_rows if learnt else 0,
        )

    def seen(self, outputs: Outputs | Iterable[object]) -> float:
        """About which share of these rows were among those it was fitted on; 0 for a scorer that learnt from none.

        It compares the logits, up to rounding, with a sample of up to 4096 fitting rows. Rows in half precision are
        recognised if they were fitted on as they are.
        """
        if self.fitted_on is None or not len(self.fitted_on):
            return 0.0
        batches = [outputs] if isinstance(outputs, Outputs) else outputs
        found = torch.cat([row_marks(Outputs.of(batch).logits).cpu() for batch in batches])
        # Each row of the sample that is met stands for as many fitting rows as it was drawn from.
        share = float(matching_rows(self.fitted_on.cpu(), found).double().mean())
        return min(1.0, share * self.fitted_rows / max(1, len(found)))

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write one safetensors file whose header carries specs and sizes as JSON, with a checksum."""
        tensors = {f"{key}/{name}": value for key, part in self.parameters.items() for name, value in part.items()}
        about = {
            "format": _FORMAT,
            "version": _VERSION,
            "specs": list(self.specs),
            "num_classes": self.num_classes,
            "num_features": self.num_features,
            "fitted_rows": self.fitted_rows,
        }
        if self.fitted_on is not None:
            tensors["fitted_on"] = self.fitted_on
        # safetensors wants at least one tensor; an unfitted scorer has none of its own.
        tensors["version"] = torch.tensor([_VERSION], device="cpu")
        write_safetensors(Path(path), tensors, {"sirc": json.dumps(about)}, overwrite=overwrite)

    @classmethod
    def load(cls, path: str | Path) -> Scorer:
        """Read what `save` wrote; the scores are bit for bit those of the scorer that was saved."""
        tensors, metadata = read_safetensors(Path(path))
        try:
            about = json.loads(metadata.get("sirc", "{}"))
        except json.JSONDecodeError:
            about = {}
        if not isinstance(about, dict) or about.get("format") != _FORMAT:
            raise StoreError(f"{path} is not a saved scorer: write one with `scorer.save(path)`")
        if about["version"] != _VERSION:
            raise StoreError(
                f"{path} has scorer format {about['version']} and this version of sirc reads {_VERSION}: "
                "use the version that wrote it, or fit again"
            )
        try:
            return cls(
                about["specs"],
                parameters_in(tensors),
                num_classes=about["num_classes"],
                num_features=about["num_features"],
                fitted_on=tensors.get("fitted_on"),
                fitted_rows=about.get("fitted_rows", 0),
            )
        except ValueError as error:
            raise StoreError(
                f"{path} was saved with scores that are not known here: {error}. Import the module that registers them "
                "first"
            ) from None


def parameters_in(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The parameters among the tensors of a file, which are named `spec/parameter`."""
    parameters: dict[str, dict[str, Tensor]] = {}
    for name, value in tensors.items():
        spec, slash, key = name.rpartition("/")
        if slash:
            parameters.setdefault(spec, {})[key] = value.clone()
    return parameters


def check_specs(specs: str | Sequence[str]) -> tuple[str, ...]:
    """The specs as a tuple of distinct texts, each of which parses."""
    if not isinstance(specs, Iterable):
        raise ValueError(f"`specs` must be a spec or a list of specs; got {type(specs).__name__}")
    texts = (specs,) if isinstance(specs, str) else tuple(specs)
    if not texts:
        raise ValueError('`specs` must name at least one score; got none. For example `["msp", "sirc(msp, l1)"]`')
    for text in texts:
        parse(text)
    return tuple(dict.fromkeys(texts))


def needs_fit(spec: Spec) -> bool:
    """Whether a spec itself, apart from what is inside it, has parameters from training data."""
    if spec.is_leaf:
        return registry.get(spec.name).solve is not None
    return is_vim(spec) or spec.finds_spread


def learns(specs: Iterable[Spec]) -> bool:
    """Whether any of these specs has something from training data in it."""
    return any(needs_fit(part) for spec in specs for part in (*needed_leaves([spec]), *spec.walk()))


def needs_head(specs: Iterable[Spec]) -> bool:
    """Whether any score inside these specs is solved with the head."""
    return any(registry.get(leaf.name).head for leaf in needed_leaves(specs))


def check_features(specs: Iterable[Spec], outputs: Outputs) -> None:
    """Features must be there for the scores that look at them."""
    if outputs.features is None:
        wanting = [str(leaf) for leaf in needed_leaves(specs) if "features" in registry.get(leaf.name).needs]
        if wanting:
            raise ValueError(
                f"features are needed for {', '.join(f'`{name}`' for name in wanting)}; these outputs have none. "
                "Pass `Outputs(logits, features=…)`: what the final linear layer receives"
            )


def cast_parameters(
    parameters: Mapping[str, Mapping[str, Tensor]], device: torch.device, dtype: torch.dtype
) -> dict[str, dict[str, Tensor]]:
    """Parameters of leaves on the features' device and in their working type; numbers, such as a and b, as they are."""

    def cast(spec: Spec, name: str, value: Tensor) -> Tensor:
        return value.to(device, dtype) if spec.is_leaf and not option_of(spec, name) else value

    return {
        key: {name: cast(parse(key), name, value) for name, value in part.items()} for key, part in parameters.items()
    }
