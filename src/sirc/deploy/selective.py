"""The selective classifier: a model with a confidence score and a calibrated threshold."""

from __future__ import annotations

import math
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, Self, final

import torch
from torch import Tensor, nn

from sirc._utils.checks import check_number, check_type, iterates
from sirc._utils.files import PathLike, write_safetensors
from sirc._utils.graphs import for_new_shapes
from sirc._utils.precision import Convolutions, may_convolve_in_tf32
from sirc._utils.text import listed, percent
from sirc.data import Preprocess
from sirc.deploy.confidence_graph import LOWEST, ConfidenceGraph, precisely
from sirc.deploy.guard_data import Data, is_unprepared, opened, renumbered, require_labels
from sirc.deploy.hub import push
from sirc.deploy.saved import contents, load
from sirc.deploy.summary import summary
from sirc.deploy.threshold import Threshold, at_cost, at_coverage, at_recall, at_risk
from sirc.deploy.threshold.counts import typical_size
from sirc.errors import NotFittedError
from sirc.extraction import extract, ran_in_half
from sirc.models import (
    FeatureHook,
    call_model,
    copy_of,
    features_at,
    fingerprint,
    is_parallel,
    model_logits,
    rows_of,
    unwrap,
)
from sirc.outputs import Head, Outputs, OutputStore, warn_of_labels
from sirc.scores import Scorer

_HEAD_LOCK = threading.Lock()  # one thread looks for a head at a time
_TOLERANCE = {torch.float64: 1e-7, torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 3e-2}
_TF32 = 1e-2  # the tolerance of convolutions in TF32 if no images can show it: TF32 has the precision of float16
_NOTHING = nullcontext()
TRIED = 16  # images that run again to see how much confidences change
TRIED_FIRST = 4  # of them; the others follow unless these change far less than the tolerance allows
_MAX_OVERLAP = 0.01  # a guarantee is refused if a larger share of the calibration rows was used to fit


class Decision(NamedTuple):
    """The decisions about a batch, one row for each input.

    Example:
        >>> import sirc, torch
        >>> label, confidence, accepted = torch.tensor([2, 0]), torch.tensor([4.5, 1.5]), torch.tensor([True, False])
        >>> decision = sirc.Decision(label, confidence, accepted, logits=torch.randn(2, 3))
        >>> decision.label[decision.accepted]
        tensor([2])
    """

    label: Tensor
    """The predicted class, int64."""
    confidence: Tensor
    """The score, float64; higher means accept."""
    accepted: Tensor
    """True where the confidence reaches the threshold."""
    logits: Tensor


class GivenBatch(NamedTuple):
    """A batch of model inputs, and the logits of its first rows if they are known."""

    images: Any
    logits: Tensor | None


@contextmanager
def largest_batch(model: nn.Module) -> Iterator[list[GivenBatch]]:
    """Record the largest batch that the model receives in this context; the list stays empty if it receives none."""
    batches: list[GivenBatch] = []
    largest, given = 0, None

    @for_new_shapes
    def before(_: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal largest, given
        size = max((len(x) for x in (*args, *named.values()) if isinstance(x, Tensor) and x.ndim), default=0)
        given = copy_of([args] if args else named) if size > largest else None
        largest = max(size, largest)

    @for_new_shapes
    def after(_: nn.Module, __: object, output: object) -> None:
        if given is not None:
            batches[:] = [GivenBatch(given, model_logits(output)[:TRIED].clone())]

    # Before all other hooks, as those run again when the batch does.
    with (
        model.register_forward_pre_hook(before, with_kwargs=True, prepend=True),
        model.register_forward_hook(after),
    ):
        yield batches


@final
class SelectiveClassifier(nn.Module):
    """A classifier that may abstain: one forward pass of `model` gives labels, confidences and decisions.

    `spec` is one of the scorer's. Features are the input of `head`, the final linear layer: a `Head`, its name, or None
    to find it with the first batch. `classes` names the columns of the logits; `preprocess` says how images are
    prepared. The model is put into evaluation mode and stays there.

    Example:
        >>> import sirc, torch
        >>> _ = torch.manual_seed(0)
        >>> model, images = torch.nn.Linear(4, 3), torch.randn(200, 4)
        >>> val = [(images, model(images).argmax(1))]
        >>> sel = sirc.SelectiveClassifier(model, sirc.Scorer("msp"), "msp").calibrate(val, recall=0.95, delta=0.05)
        >>> label, confidence, accepted, logits = sel(images)
        >>> torch.equal(accepted, confidence >= sel.threshold.value)
        True
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
        check_type("model", model, nn.Module, "a torch.nn.Module")
        refuse_compiled(model)
        check_type("scorer", scorer, Scorer, "a `sirc.Scorer`, made by `sirc.fit`")
        check_type("head", head, Head | str | None, "a `sirc.Head`, or the name of a layer")
        self.scorer = scorer.only(spec)
        self.spec = spec
        self.classes = names_of(classes)
        if self.classes is not None and scorer.num_classes not in (None, len(self.classes)):
            raise ValueError(
                f"`classes` must name each of the {scorer.num_classes} classes; got {len(self.classes)} names"
            )
        self.preprocess = preprocess
        self.threshold: Threshold | None = None
        self.calibration: Tensor | None = None
        """Confidences of the ID rows that set the threshold, for `sirc.monitor`."""
        self.calibration_correct: Tensor | None = None
        """Which of those rows the model predicted right, where that is known."""
        self.remarks: tuple[str, ...] = ()
        """Extra lines for `print(classifier)`, such as the notes of `sirc.guard`."""
        self.model = model if is_parallel(model) else unwrap(model)
        first = next((weight for weight in model.parameters() if weight.is_floating_point()), None)
        self.scoring = ConfidenceGraph(scorer, spec, torch.float32 if first is None else first.dtype)
        if first is not None and not first.is_meta:
            self.scoring.to(first.device)
        self._calibrated_for: str | None = None
        self._headless = False
        self._hook = FeatureHook(scorer.num_features, scorer.num_classes)
        if isinstance(head, str) or (head is not None and head.name):  # arrays have no name: the layer is found later
            self._attach(head)
        self.eval()

    def _attach(self, head: Head | str) -> None:
        hooks = self._hook.attach(self.model, head)
        weakref.finalize(self, hooks.close)  # the model outlives what wraps it

    @property
    def head_name(self) -> str | None:
        """The name of the layer whose input is the features, once it is known."""
        return self._hook.name

    def forward(self, images: Any = None, /, **named: Any) -> Decision:
        """Classify a batch: a tensor, a batch of the model's loader, or the model's keyword arguments.

        Example:
            >>> import sirc, torch
            >>> model = torch.nn.Linear(4, 3)
            >>> sel = sirc.SelectiveClassifier(model, sirc.Scorer("msp"), "msp").set_threshold(float("-inf"))
            >>> sel(torch.zeros(2, 4)).accepted
            tensor([True, True])
        """
        self._check_threshold()
        if (images is None) == (not named):
            got = "both" if named else "neither"
            raise ValueError(f"give one batch, `sel(batch)`, or keyword arguments, `sel(**batch)`; got {got}")
        logits, features = self.outputs(named if images is None else images)
        label, confidence, accepted = self.scoring.decide(logits, features)
        return Decision(label, confidence, accepted, logits)

    def _score(self, images: Any) -> Tensor:
        logits, features = self.outputs(copy_of(images))
        with precisely(logits.device):
            confidence: Tensor = self.scoring(logits, features)
        return confidence

    def _check_threshold(self) -> Threshold:
        if self.threshold is None:
            raise NotFittedError(
                "there is no threshold yet: call `calibrate(val, recall=0.95)` on labelled ID validation data, or "
                "`set_threshold(value)`"
            )
        return self.threshold

    def outputs(self, images: Any) -> tuple[Tensor, Tensor | None]:
        """The logits and features of a batch, without gradients.

        The last layer of a model in half precision is computed again in float32: confident inputs would tie otherwise.
        """
        model, compiling = self.model, torch.compiler.is_compiling()
        if model.training:
            raise ValueError("the model was put into training mode after it was wrapped: call `selective.eval()`")
        if self._hook.name is None and not self._headless:
            self._find_head(images)
        try:
            self._hook.open()
            # To enter `no_grad` takes longer than to ask whether gradients are on.
            with torch.no_grad() if compiling or torch.is_grad_enabled() else _NOTHING:
                logits = model_logits(call_model(model, images))
            features = None if self._headless else self._hook.take()
        finally:
            if not compiling:
                self._hook.close()
        if logits.element_size() == 2 and features is not None and self._hook.is_last:
            with torch.no_grad(), precisely(logits.device):
                logits = self._hook.exact_logits(features)
        return logits, features

    def _find_head(self, images: Any) -> None:
        if torch.compiler.is_compiling():
            raise ValueError("the head must be known before compiling: name it, `head=…`, or run one batch first")
        with _HEAD_LOCK:
            if self._hook.name is not None:
                return  # another thread found it
            try:
                self._attach(features_at(self.model, rows_of(images, slice(2))))
            except ValueError:
                if self.scoring.needs_features:
                    raise
                self._headless = True  # a score on the logits needs no head

    def calibrate(
        self,
        val: Data,
        *,
        images: Any = None,
        rows: Tensor | None = None,
        recall: float | None = None,
        coverage: float | None = None,
        risk: float | None = None,
        delta: float | None = None,
        ood: Data | Mapping[str, Data] | None = None,
        alpha: float | None = None,
        beta: float | None = None,
        reject_cost: float | None = None,
    ) -> Self:
        """Set the threshold on labelled ID validation data; `self.threshold` has its guarantee.

        `val` is `Outputs` or a store, or images and labels to run the model on: a loader, a dataset, or the path of a
        folder with one folder for each class. `rows` are the indices of the rows to use, all by default. `images` may
        be a batch of the images that the outputs came from.

        Choose one goal:
        - `recall` or `coverage`: the highest threshold that accepts at least this share of ID✓, or of ID input. With
          `delta` it does so on future data with probability 1 − δ.
        - `risk`: the largest coverage with at most this share of errors, with probability 1 − δ (0.05 by default).
        - `ood`, `alpha` and `beta`: the least expected cost, where a rejected input costs `reject_cost`, or where at
          least `recall` of ID✓ is accepted. `ood` is OOD data, or a dict of sets; all their samples weigh the same.

        A guarantee is refused if more than 1% of the rows were used to fit `spec` (see `Scorer.seen`).

        Confidences change a little with batch size, device and runtime, so the threshold has a margin: the
        `self.tolerance` of the types of these outputs, and of the precision that a store was computed in. If there are
        images, some also run one at a time, and the margin is at least four times the largest change. GPUs round the
        inputs of convolutions to TF32 unless `torch.backends.cudnn.allow_tf32` is False: the margin is also at least
        four times what this changes in some images, or a share of 1e-2 if there are no images.

        Example:
            >>> import sirc, torch
            >>> _ = torch.manual_seed(0)
            >>> logits = 3 * torch.randn(400, 3)
            >>> val = sirc.Outputs(logits, labels=logits.argmax(1))
            >>> sel = sirc.SelectiveClassifier(torch.nn.Linear(4, 3), sirc.Scorer("msp"), "msp")
            >>> sel.calibrate(val, recall=0.9, delta=0.05).threshold.bounds
            {'recall': 0.9}
        """
        _check_goal(
            recall=recall, coverage=coverage, risk=risk, delta=delta,
            alpha=alpha, beta=beta, reject_cost=reject_cost, ood=ood,
        )  # fmt: skip
        val = opened(val, self.classes, labelled=coverage is None)  # a store knows its precision, its path does not
        if self.classes is not None and coverage is None:
            val = renumbered(val, self.classes)
        with largest_batch(self.model) as batches:
            outputs = self._as_outputs(val, labelled=coverage is None)
        if images is not None:
            batches = [images if isinstance(images, GivenBatch) else GivenBatch(images, None)]
        outputs = outputs if rows is None else outputs[rows]
        guaranteed = delta is not None or risk is not None
        if guaranteed and (share := self.scorer.seen(outputs)) > _MAX_OVERLAP:
            raise ValueError(
                "rows that a score was fitted on may not set a threshold with a guarantee; about "
                f"{share:.0%} of these {len(outputs)} rows are among them. Pass validation data that the fit did "
                "not see, or split the data"
            )
        confidence = self._confidences(outputs)
        tolerance = self._tolerance(val, outputs, confidence, batches[0] if batches else None)
        if outputs.labels is not None:
            warn_of_labels("val", outputs.predictions, outputs.labels)
        if ood is not None and alpha is not None and beta is not None:
            sets = ood.values() if isinstance(ood, Mapping) else [ood]
            if not sets:
                raise ValueError("`ood` must hold at least one OOD set; got an empty dict")
            threshold = at_cost(
                confidence,
                outputs.correct,
                torch.cat([self._confidences(self._as_outputs(one, labelled=False)) for one in sets]),
                alpha=alpha,
                beta=beta,
                reject_cost=reject_cost,
                recall=recall,
                tolerance=tolerance,
            )
        elif recall is not None:
            threshold = at_recall(confidence, outputs.correct, recall, delta=delta, tolerance=tolerance)
        elif coverage is not None:
            threshold = at_coverage(confidence, coverage, delta=delta, tolerance=tolerance)
        else:
            assert risk is not None
            delta = 0.05 if delta is None else delta
            threshold = at_risk(confidence, outputs.correct, risk, delta=delta, tolerance=tolerance)
        self.calibration = confidence.cpu()
        self.calibration_correct = None if outputs.labels is None else outputs.correct.cpu()
        return self._use(threshold)

    def _confidences(self, outputs: Outputs) -> Tensor:
        # In float64 on any device, like the graph that decides: the row that sets the threshold must reach it.
        return self.scorer(outputs, compile=False)[self.spec]

    def tolerance(self, *dtypes: torch.dtype) -> float:
        """The share by which confidences may change with batch size, device and runtime: 1e-4 for float32.

        The least precise type decides, among these and those of the model's parameters.
        """
        return max(_TOLERANCE.get(dtype, 0.0) for dtype in (*dtypes, *(x.dtype for x in self.model.parameters())))

    def _tolerance(self, val: object, outputs: Outputs, confidence: Tensor, batch: GivenBatch | None) -> float:
        """The tolerance for these outputs, or a larger one if the batch shows larger changes."""
        dtypes = [x.dtype for x in (outputs.logits, outputs.features) if x is not None]
        if isinstance(val, OutputStore) and ran_in_half(val):
            dtypes.append(torch.bfloat16)
        share = self.tolerance(*dtypes)
        # A weight of more than two dimensions is a kernel, as a rule.
        kernels = any(x.ndim > 2 and x.dtype == torch.float32 for x in self.model.parameters())
        in_tf32 = kernels and may_convolve_in_tf32()
        if batch is None:
            return max(share, _TF32) if in_tf32 else share
        scale = typical_size(confidence.cpu().numpy())

        def allowed(values: Tensor, others: Tensor) -> float:
            """Four times the largest relative change."""
            change = (others - values).abs() / values.abs().clamp(min=scale)
            return min(0.4, 4 * float(change.nan_to_num(0, 0).max()))

        few, together = rows_of(batch.images, slice(TRIED)), self._scored_together(batch, outputs, confidence)
        if in_tf32:
            exact = together
            if together.is_cuda:  # the convolutions were rounded already
                with Convolutions(rounded=False):
                    exact = self._score(few)
            with Convolutions(rounded=True):
                share = max(share, allowed(exact, self._score(few)))
        by_batch = 0.0
        for i, value in enumerate(together):
            if i == TRIED_FIRST and by_batch < share / 10:
                break
            by_batch = max(by_batch, allowed(value, self._score(rows_of(few, slice(i, i + 1)))))
        return max(share, by_batch)

    def _scored_together(self, batch: GivenBatch, outputs: Outputs, confidence: Tensor) -> Tensor:
        """The confidences of a batch's first images: found among the known ones by its logits, or else computed."""
        if batch.logits is not None:
            logits = batch.logits.to(outputs.logits)
            equal = (outputs.logits == logits[0]).all(1).nonzero()
            start = int(equal[0]) if len(equal) else 0
            rows = slice(start, start + len(logits))
            if torch.equal(outputs.logits[rows], logits):
                return confidence[rows].to(batch.logits.device)
        return self._score(batch.images)[:TRIED]

    def set_threshold(self, value: float) -> Self:
        """Set a threshold of your own, without a guarantee."""
        number = check_number("threshold", value)
        self.calibration = self.calibration_correct = None
        text = "none: the threshold was given"
        return self._use(Threshold(number, "given", None, None, True, {}, {}, {}, text, ""))

    def _use(self, threshold: Threshold) -> Self:
        self.threshold, self.remarks = threshold, ()
        # An input without a computable confidence is never accepted, not even by a threshold of −∞.
        self.scoring.limit.fill_(threshold.value if threshold.value != -math.inf else math.nextafter(LOWEST, 0))
        self._calibrated_for = None if threshold.delta is None else fingerprint(self.model)
        return self

    def _as_outputs(self, data: Data, labelled: bool = True) -> Outputs:
        known = opened(data, self.classes, labelled=labelled)
        if is_unprepared(known):
            if self.preprocess is None:
                raise ValueError(
                    "images of a folder must be prepared as the model was trained; this classifier does not say how. "
                    "Pass a dataset that prepares them, or give the classifier a `preprocess`"
                )
            known = known.with_transform(self.preprocess.test())
        if isinstance(known, OutputStore):
            known.check_model(fingerprint(self.model))
            known = known.load()
        elif not isinstance(known, Outputs):
            features = self.scoring.needs_features
            known = extract(self.model, known, head=self._hook.name, features=features, labels=labelled)
        assert isinstance(known, Outputs)
        if labelled:
            require_labels("val", known)
        return known

    def explain(self, images: Any) -> tuple[Decision, list[str]]:
        """Decide, and give the reason of each rejection: "softmax", or the S2 score that lowered the confidence most.

        The reason is "softmax" if S1 alone would reject the input too, "not computable" if it has no confidence, and ""
        if it is accepted.
        """
        self._check_threshold()
        logits, features = self.outputs(images)
        label, confidence, accepted, numbers = self.scoring.explain(logits, features)
        reasons = [self.scoring.reasons[number] for number in numbers.tolist()]
        return Decision(label, confidence, accepted, logits), reasons

    def report(
        self,
        path: PathLike,
        *,
        ood: Mapping[str, Data] | None = None,
        title: str | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write a page about the labelled rows that set the threshold and about the promise; return its path.

        It first says how many of these rows, and of each set in `ood`, the threshold accepts; sliders show other
        thresholds.
        """
        from sirc.evaluation import evaluate

        threshold = self._check_threshold()
        if self.calibration is None or self.calibration_correct is None:
            raise ValueError(
                "a page needs labelled rows that set the threshold; there are none: call `calibrate(val, …)` first"
            )
        check_type("ood", ood, Mapping | None, "a dict of OOD sets", "Name each: `ood={'textures': data}`")
        others = {name: self._confidences(self._as_outputs(data, labelled=False)) for name, data in (ood or {}).items()}
        recall = float((self.calibration[self.calibration_correct] >= threshold.value).double().mean().nan_to_num())
        ev = evaluate(
            {self.spec: (self.calibration, self.calibration_correct)},
            ood={name: {self.spec: values} for name, values in others.items()},
            recall=round(recall, 2) or 0.95,  # the sliders start near the guard's own threshold, in whole percents
        )
        done, accepts, *promises = str(self).splitlines()
        counts = [f"{int((one >= threshold.value).sum()):,} of {len(one):,} in {name}" for name, one in others.items()]
        outside, sliders = [], "The sliders show other thresholds, each by its recall of these validation rows."
        if threshold.value < math.inf:
            outside = [f"Of OOD input it accepts {listed(counts)}."] if counts else []
            own = f"{threshold.value:.6g}, with a recall of {percent(recall)} of them"
            sliders += f" This classifier's own threshold is {own}."
        notes = [done, accepts, *outside, *promises, sliders]
        return ev.report(path, title=title or "What this classifier accepts", notes=notes, overwrite=overwrite)

    def __str__(self) -> str:
        return super().__str__() if self.threshold is None else summary(self)

    def save(self, path: PathLike, *, overwrite: bool = False) -> None:
        """Write scorer, threshold, guarantee, class names, preprocessing and the model's fingerprint, but no model.

        Example:
            >>> import sirc, tempfile, torch
            >>> path = f"{tempfile.mkdtemp()}/selective.safetensors"
            >>> model = torch.nn.Linear(4, 3)
            >>> sirc.SelectiveClassifier(model, sirc.Scorer("msp"), "msp").set_threshold(1.5).save(path)
            >>> sirc.load_guard(path, model).threshold.value
            1.5
        """
        write_safetensors(path, *contents(self), overwrite=overwrite)

    @classmethod
    def load(cls, path: PathLike, model: nn.Module) -> SelectiveClassifier:
        """Load a saved classifier from a file or `hf://owner/name`. `model` must be the network it was saved with.

        Example:
            >>> import sirc, tempfile, torch
            >>> path = f"{tempfile.mkdtemp()}/selective.safetensors"
            >>> model = torch.nn.Linear(4, 3)
            >>> sirc.SelectiveClassifier(model, sirc.Scorer("msp"), "msp").set_threshold(1.5).save(path)
            >>> sirc.SelectiveClassifier.load(path, model).spec
            'msp'
        """
        check_type("model", model, nn.Module, "a torch.nn.Module")
        return load(path, model)

    def push_to_hub(
        self,
        repo_id: str,
        *,
        onnx: PathLike | None = None,
        network: str | None = None,
        private: bool | None = None,
    ) -> str:
        """Push what `save` writes to the Hugging Face Hub, with a card that states the promise; return its address.

        `sirc.load_guard` takes the address, `hf://owner/name@commit`; without the commit it loads the newest version. A
        missing repository is created, private if `private` says so. `onnx` is the path of this guard's exported graph,
        to push it too. `network` is the model's name for the example on the card, as `sirc.load_guard` takes it. A
        README.md that sirc did not write is kept, and the card becomes GUARD.md. Needs
        `pip install 'torch-sirc[hub]'`, and `hf auth login` or `HF_TOKEN`.
        """
        return push(self, repo_id, onnx=onnx, network=network, private=private)

    def export_onnx(
        self,
        path: PathLike,
        example: Tensor | Mapping[str, Tensor],
        *,
        overwrite: bool = False,
        opset: int | None = None,
    ) -> None:
        """Write one graph, images → label, confidence, accepted, logits, reason, for batches of any size, and test it.

        `example` is a batch as the model takes it: a tensor, or a dict whose keys become the names of the inputs. The
        reason is a number, which `OnnxGraph.explain` turns into words. The file's metadata hold what `save` writes.
        Needs `pip install 'torch-sirc[onnx]'`.

        Example:
            >>> import sirc, tempfile, torch
            >>> from sirc.deploy.onnx import OnnxGraph
            >>> path = f"{tempfile.mkdtemp()}/model.onnx"
            >>> sel = sirc.SelectiveClassifier(torch.nn.Linear(4, 3), sirc.Scorer("msp"), "msp").set_threshold(0.0)
            >>> sel.export_onnx(path, torch.randn(2, 4))
            >>> OnnxGraph(path).inputs
            ['images']
        """
        from sirc.deploy.onnx import export

        export(self, Path(path), example, overwrite=overwrite, opset=opset)

    def train(self, mode: bool = True) -> Self:
        """Refuse to train: scores and threshold hold for the model as it was calibrated."""
        if mode:
            raise ValueError("a selective classifier stays in evaluation mode; train `model`, then fit and calibrate")
        return super().train(mode)

    def extra_repr(self) -> str:
        """The score and its threshold."""
        return f"{self.spec!r}, threshold={None if self.threshold is None else self.threshold.value}"


def _check_goal(**goal: object) -> None:
    """Require exactly one goal of `calibrate`: a recall, a coverage, a risk or the least cost."""
    given = {name for name, value in goal.items() if value is not None}
    costs = {"ood", "alpha", "beta"}
    if costs <= given <= {*costs, "reject_cost", "recall"} or given - {"delta"} in ({"recall"}, {"coverage"}, {"risk"}):
        return
    raise ValueError(
        "give exactly one of recall=, coverage= and risk=; or, for a threshold of least cost, which needs "
        "`ood` and has no delta=, alpha= and beta= with reject_cost= or recall=; got "
        + (", ".join(f"{name}=" for name in goal if name in given) or "none")
    )


def names_of(classes: Sequence[str] | None) -> list[str] | None:
    """The class names as a list, or None."""
    if classes is not None and not iterates(classes):
        raise ValueError(f"`classes` must be a list of names; got {type(classes).__name__}")
    return None if classes is None else [str(name) for name in classes]


def refuse_compiled(model: nn.Module) -> None:
    """Refuse a compiled model: no features can be caught inside it."""
    if hasattr(model, "_orig_mod") or getattr(model, "_compiled_call_impl", None) is not None:
        raise ValueError(
            "`model` must not be compiled yet: features are caught inside it. Wrap the plain model, and compile the "
            "selective classifier: `torch.compile(selective)`"
        )
