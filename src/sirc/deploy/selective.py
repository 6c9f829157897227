"""SelectiveClassifier: a model with a confidence score and a calibrated threshold."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Self, final

import torch
from torch import Tensor, nn

from sirc._utils.checks import check_number
from sirc._utils.files import PathLike
from sirc._utils.precision import full_products
from sirc.data import Preprocess
from sirc.deploy.confidence_module import ConfidenceGraph, FixedDtypeModule
from sirc.deploy.threshold import Threshold, at_cost, at_coverage, at_recall, at_risk
from sirc.errors import NotFittedError
from sirc.models import FeatureHook, call_model, find_head, fingerprint, model_logits
from sirc.outputs import Head, Outputs, OutputStore
from sirc.scores import Scorer

_HEAD_LOCK = threading.Lock()  # one thread looks for a head at a time
_MAX_OVERLAP = 0.01  # share of calibration rows among the fitting rows above which a guarantee is refused


class Decision(NamedTuple):
    """The decisions about a batch, one row for each input."""

    label: Tensor
    """The predicted class, int64."""
    confidence: Tensor
    """The score, float64; higher means accept."""
    accepted: Tensor
    """True where the confidence reaches the threshold."""
    logits: Tensor


@final
class SelectiveClassifier(nn.Module):
    """A classifier that may abstain: one forward of `model` gives labels, confidences and decisions.

    ```python
    sel = SelectiveClassifier(model, scorer, "sirc(entropy, residual)").calibrate(val, recall=0.95, delta=0.05)
    label, confidence, accepted, logits = sel(images)
    ```

    `spec` is one of the scorer's. Features are the input of `head`, the final linear layer: a `Head`, its name, or None
    to find it on the first batch. `classes` names the columns of the logits; `preprocess` is how images are prepared.
    The model is put into evaluation mode, and stays in it.
    """

    def __init__(
        self,
        model: nn.Module,
        scorer: Scorer,
        spec: str,
        *,
        head: Head | str | None = None,
        classes: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(model, nn.Module):
            raise ValueError(f"`model` must be a torch.nn.Module; got {type(model).__name__}")
        if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
            raise ValueError(
                "`model` must not be compiled yet: features are caught inside it. Wrap the plain model, and compile "
                "the selective classifier: `torch.compile(selective)`"
            )
        if not isinstance(scorer, Scorer):
            raise ValueError(f"`scorer` must be a `sirc.Scorer`, made by `sirc.fit`; got {type(scorer).__name__}")
        self.scorer = scorer.only(spec)
        self.spec = spec
        self.classes = _check_classes(classes, scorer.num_classes)
        self.preprocess = preprocess
        self.threshold: Threshold | None = None
        self.calibration: Tensor | None = None
        """Confidences of the ID rows that set the threshold, for `sirc.monitor`."""
        self.model = model
        first = next((weight for weight in model.parameters() if weight.is_floating_point()), None)
        self.graph = ConfidenceGraph(scorer, spec, torch.float32 if first is None else first.dtype)
        self.limit = _Limit()
        self._calibrated_for: str | None = None
        self._headless = False
        self._tap = FeatureHook(scorer.num_features, scorer.num_classes)
        if isinstance(head, Head):
            self._attach(head.name)
        elif head is not None:
            self._attach(head, last=False)  # more may follow a layer that was named
        self.eval()

    def _attach(self, name: str, *, last: bool = True) -> None:
        handle = self._tap.attach(self.model, name, last=last)
        weakref.finalize(self, handle.remove)  # the model outlives what wraps it

    @property
    def head_name(self) -> str | None:
        """The layer whose input is the features, once it is known."""
        return self._tap.name

    def forward(self, images: Any) -> Decision:
        """Classify a batch: a tensor, or whatever batch the model's loader gives."""
        self._check_threshold()
        logits, features = self.outputs(images)
        with _precisely(logits.device):
            confidence = self.graph(logits, features)
        return Decision(logits.argmax(-1), confidence, confidence >= self.limit.value, logits)

    def _check_threshold(self) -> None:
        if self.threshold is None:
            raise NotFittedError(
                "there is no threshold yet: call `calibrate(val, recall=0.95)` on labelled ID validation data, or "
                "`set_threshold(value)`"
            )

    def outputs(self, images: Any) -> tuple[Tensor, Tensor | None]:
        """The logits and features of a batch, without gradients.

        A model in half precision computes its last layer again in float32: confident inputs would tie otherwise.
        """
        if self.model.training:
            raise ValueError("the model was put into training mode after it was wrapped: call `selective.eval()`")
        if self._tap.name is None and not self._headless:
            self._find_head(images)
        if torch.compiler.is_compiling():
            logits, features = self._run(images)
        else:
            try:
                logits, features = self._run(images)
            finally:
                self._tap.close()
        if logits.element_size() == 2 and features is not None and self._tap.is_last:
            with torch.no_grad(), _precisely(logits.device):
                logits = self._tap.exact_logits(features)
        return logits, features

    def _run(self, images: Any) -> tuple[Tensor, Tensor | None]:
        self._tap.open()
        with torch.no_grad():
            logits = model_logits(call_model(self.model, images))
        return logits, None if self._headless else self._tap.take()

    def _find_head(self, images: Any) -> None:
        if torch.compiler.is_compiling():
            raise ValueError("the head must be known before compiling: name it, `head=…`, or run one batch first")
        with _HEAD_LOCK:
            if self._tap.name is not None:
                return  # another thread found it
            try:
                self._attach(find_head(self.model, _first_rows(images)).name)
            except ValueError:
                if self.graph.needs_features:
                    raise
                self._headless = True  # a score on the logits needs no head

    def calibrate(
        self,
        val: Outputs | OutputStore | Iterable[object],
        *,
        recall: float | None = None,
        coverage: float | None = None,
        risk: float | None = None,
        delta: float | None = None,
        ood: Outputs | OutputStore | Iterable[object] | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        reject_cost: float | None = None,
    ) -> Self:
        """Set the threshold on labelled ID validation data; `self.threshold` has its guarantee.

        `val` is `Outputs` or a store, or a loader or dataset of images and labels to run the model on.
        `recall`, `coverage`: the highest threshold that accepts at least that share of ID✓, or of ID input; with
        `delta` it does so on future data with probability 1 − δ. `risk`: the largest coverage whose share of errors is
        at most that, with probability 1 − δ (0.05 by default). With `ood`, `alpha` and `beta`: the least expected cost,
        a rejected input costing `reject_cost`, or under the floor `recall`.

        A guarantee is refused if more than 1% of the rows were used to fit `spec` (see `Scorer.seen`).
        """
        outputs = self._as_outputs(val, labelled=coverage is None)
        guaranteed = delta is not None or risk is not None
        if guaranteed and (share := self.scorer.seen(outputs)) > _MAX_OVERLAP:
            raise ValueError(
                "rows that a score was fitted on may not set a threshold with a guarantee; about "
                f"{share:.0%} of these {len(outputs)} rows are among them. Pass validation data that `sirc.fit` did "
                "not see, or split the data"
            )
        confidence = self._confidence(outputs)
        if ood is not None:
            if alpha is None or beta is None or coverage is not None or risk is not None:
                raise ValueError("with `ood`, pass alpha=, beta=, and one of reject_cost= and recall=")
            if delta is not None:
                raise ValueError("a threshold of least cost has no guarantee: leave `delta` out")
            other = self._confidence(self._as_outputs(ood, labelled=False))
            threshold = at_cost(
                confidence, outputs.correct, other, alpha=alpha, beta=beta, reject_cost=reject_cost, recall=recall
            )
        else:
            if (alpha, beta, reject_cost) != (None, None, None):
                raise ValueError("alpha=, beta= and reject_cost= are for a threshold of least cost, which needs `ood`")
            if sum(goal is not None for goal in (recall, coverage, risk)) != 1:
                raise ValueError("give exactly one of recall=, coverage= and risk=, or `ood` with alpha= and beta=")
            if recall is not None:
                threshold = at_recall(confidence, outputs.correct, recall, delta=delta)
            elif coverage is not None:
                threshold = at_coverage(confidence, coverage, delta=delta)
            else:
                assert risk is not None
                threshold = at_risk(confidence, outputs.correct, risk, delta=0.05 if delta is None else delta)
        self.calibration = confidence.cpu()
        return self._with(threshold)

    def set_threshold(self, value: float) -> Self:
        """Take a threshold from elsewhere, which promises nothing."""
        number = check_number("threshold", value)
        self.calibration = None
        text = "none: the threshold was given"
        return self._with(Threshold(number, "given", None, None, True, {}, {}, {}, text, ""))

    def _with(self, threshold: Threshold) -> Self:
        self.threshold = threshold
        self.limit.value.fill_(threshold.value)
        self._calibrated_for = None if threshold.delta is None else fingerprint(self.model)
        return self

    def _confidence(self, outputs: Outputs) -> Tensor:
        # In float64 on any device, as the graph that decides does it: a row that sets the threshold must reach it.
        return self.scorer(outputs, compile=False)[self.spec]

    def _as_outputs(self, data: Outputs | OutputStore | Iterable[object], labelled: bool = True) -> Outputs:
        if isinstance(data, Outputs):
            outputs = data
        elif isinstance(data, OutputStore):
            data.check_model(fingerprint(self.model))
            outputs = data.load()
        else:
            from sirc.extraction import extract

            features = self.graph.needs_features
            extracted = extract(self.model, data, head=self._tap.name, features=features, labels=labelled)
            assert isinstance(extracted, Outputs)
            outputs = extracted
        if labelled and outputs.labels is None:
            raise ValueError("validation data must have labels, to know which predictions are right; these have none")
        return outputs

    def explain(self, images: Any) -> tuple[Decision, list[str]]:
        """Decide, and for each rejection name what drove it: "softmax", or the S2 that took the confidence away.

        It is "softmax" if the input would be rejected even without the features' part; accepted inputs have "".
        """
        self._check_threshold()
        logits, features = self.outputs(images)
        with _precisely(logits.device):
            confidence, first, _ = self.graph.parts(logits, features)
            terms = self.graph.ood_terms(logits, features)
        accepted = confidence >= self.limit.value
        if terms:
            names = list(terms)
            largest = torch.stack(list(terms.values())).argmax(0).tolist()
            by_softmax = (first < self.limit.value).tolist()
            drivers = ["softmax" if soft else names[i] for soft, i in zip(by_softmax, largest, strict=True)]
        else:
            drivers = [self.spec if self.graph.needs_features else "softmax"] * len(logits)
        reasons = ["" if ok else driver for ok, driver in zip(accepted.tolist(), drivers, strict=True)]
        return Decision(logits.argmax(-1), confidence, accepted, logits), reasons

    def save(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write scorer, threshold, guarantee, class names, preprocessing and the model's fingerprint; not the model."""
        from sirc.deploy.saved import save

        save(self, Path(path), overwrite=overwrite)

    @classmethod
    def load(cls, path: PathLike, model: nn.Module) -> SelectiveClassifier:
        """Read what `save` wrote for this model; another model is refused."""
        from sirc.deploy.saved import load

        return load(Path(path), model)

    def export_onnx(
        self, path: PathLike, example: Tensor, *, overwrite: bool = False, opset: int | None = None
    ) -> None:
        """Write one graph, images → label, confidence, accepted, logits, for batches of any size, and test it.

        Needs `pip install 'sirc[onnx]'`. The metadata of the file has what `save` writes.
        """
        from sirc.deploy.onnx import export

        export(self, Path(path), example, overwrite=overwrite, opset=opset)

    def train(self, mode: bool = True) -> Self:
        """Refuse to train: scores and threshold hold for the model as it was calibrated."""
        if mode:
            raise ValueError(
                "a selective classifier stays in evaluation mode; train `model` itself, then fit and calibrate"
            )
        return super().train(mode)

    def extra_repr(self) -> str:
        """The score and its threshold."""
        return f"{self.spec!r}, threshold={None if self.threshold is None else self.threshold.value}"


class _Limit(FixedDtypeModule):
    """The threshold, in float64 wherever the model is."""

    value: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("value", torch.tensor(float("inf"), dtype=torch.float64), persistent=False)


@contextmanager
def _unrounded(device: torch.device) -> Iterator[None]:
    with full_products(), torch.autocast(device.type, enabled=False):
        yield


def _precisely(device: torch.device) -> AbstractContextManager[object]:
    """Switch off a caller's autocast and TF32, which are for the network and would round the score."""
    if not torch.compiler.is_compiling():
        return _unrounded(device)
    return torch.autocast(device.type, enabled=False) if torch.is_autocast_enabled(device.type) else nullcontext()


def _first_rows(images: Any) -> Any:
    if isinstance(images, Tensor):
        return images[:2]
    if isinstance(images, tuple | list):
        return [_first_rows(images[0])]
    return {key: _first_rows(value) for key, value in images.items()} if isinstance(images, Mapping) else images


def _check_classes(classes: Sequence[str] | None, wanted: int | None) -> list[str] | None:
    if classes is None:
        return None
    names = [str(name) for name in classes]
    if wanted is not None and len(names) != wanted:
        raise ValueError(f"`classes` must name each of the {wanted} classes; got {len(names)} names")
    return names
