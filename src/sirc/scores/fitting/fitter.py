"""`fit` and `Fitter`: parameters of specs from ID training data, in two passes over the rows."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from functools import partial
from threading import Event
from typing import final, get_args

import torch
from torch import Tensor

from sirc._utils.arrays import ArrayLike
from sirc._utils.checks import check_choice, check_device, check_type
from sirc._utils.distributed import failing_together, is_main, world
from sirc._utils.precision import exact
from sirc._utils.text import shorten
from sirc._utils.warn import warn
from sirc.errors import OnError
from sirc.outputs import Head, Outputs, OutputStore
from sirc.progress import SILENT, Progress, as_progress
from sirc.scores import registry
from sirc.scores.evaluator import needed_leaves
from sirc.scores.fitting.row_marks import empty_sample, mark_rows
from sirc.scores.fitting.rows import IndexedBatches, OutputsLike, indexed_batches, with_progress
from sirc.scores.fitting.second_pass import IdRows, SecondPass, check_bank, each_or_why, searching_terms
from sirc.scores.fitting.standing import Standing, warn_far
from sirc.scores.fitting.state import Crossfit, FitState, solve
from sirc.scores.fitting.tuning import Tuning
from sirc.scores.fitting.unfit import containing, unmet, why_unfit
from sirc.scores.moments import Evidence, Parameters
from sirc.scores.needs import warn_unsuited
from sirc.scores.scorer import Scorer
from sirc.scores.spec import WITNESSES, Spec, parse


def fit(
    specs: str | Sequence[str] = "scod",
    train: OutputsLike | None = None,
    *,
    head: Head | None = None,
    crossfit: Crossfit = "auto",
    val: OutputsLike | None = None,
    ood: OutputsLike | Mapping[str, OutputsLike] | None = None,
    unlabelled: OutputsLike | None = None,
    on_unfit: OnError = "stop",
    device: torch.device | str | None = None,
    distributed: bool = False,
    progress: Progress | bool | None = None,
) -> Scorer:
    """Find all parameters of the specs on ID training data and return a `Scorer`.

    Memory does not grow with the number of rows.

    Args:
        specs: one spec or several; by default `scod`.
        train: an `Outputs`, an `OutputStore`, or any iterable of batches (`Outputs`, dicts or tuples of arrays). It is
            read twice; if it is an iterator, once, and a random sample of 12,500 rows replaces the second pass.
        head: the final linear layer (`sirc.find_head(model, example)`), which `residual`, `vim` and others need.
        crossfit: how training rows are scored for the statistics inside `sirc`, `bayes` and `vim`. If there are fewer
            than 100 rows for each feature, `"auto"` scores each row without having fitted on it: by a formula or, for
            scores without such a formula, by leaving out its fold, one of five. With more rows it scores them with the
            parameters fitted to all. 0 always does so, which is the paper's rule; 2 or more is the number of folds.
        val: labelled ID rows that the network was not trained on. They tune the options of `max_logit_pnorm`,
            `tempered_msp` and `tempered_entropy`, the calibration of `bayes`, a `budget` of `sirc` and the quantiles of
            `both`; `delta_mahalanobis` and `delta_knn` compare rows with the right and wrong ones among them.
        ood: OOD rows, or a dict of sets that weigh the same, from which `bayes` learns how OOD rows differ from `val`.
        unlabelled: a mixture of ID and OOD rows, such as rows from production, for the same purpose.
        on_unfit: what to do if these data cannot fit some specs. "stop" raises an error that names them, before the
            first pass if possible; "skip" fits the others and warns which were left out and why.
        device: where to compute, if not where the rows are; batches are moved there one by one.
        distributed: whether all processes of the default torch.distributed group make this call, with the same
            arguments and an `OutputStore` or `Outputs` as `train`. Each reads its share of the rows, and all get the
            scorer that one process would make.
        progress: whether to show progress bars, by default at a terminal and in a notebook; or a
            `sirc.progress.Progress`. It also notes scores that do not suit the network's features.

    Example:
        >>> import sirc, torch
        >>> logits = torch.tensor([[4.0, 0, 0], [0, 3, 1], [1, 0, 2], [0, 2, 2]])
        >>> train = sirc.Outputs(logits, features=logits + 1)
        >>> scorer = sirc.fit(["msp", "sirc(msp, l1)"], train)
        >>> scorer.parameters["sirc(msp, l1)"]["a"]
        tensor([5.4510], dtype=torch.float64)
    """
    progress = as_progress(progress)
    if train is None:
        got = "" if isinstance(specs, str | list | tuple) else f"; got a {type(specs).__name__} as `specs`"
        ways = "`sirc.fit(specs, train)` or `sirc.fit(train=…)`"
        raise ValueError(f"`train`, the outputs of ID training data, is needed: {ways}{got}")
    device = None if device is None else check_device(device)
    if device is not None and isinstance(head, Head):
        head = head.to(device)
    one_shot = isinstance(train, Iterator)
    shared = distributed and world() > 1
    known = train if isinstance(train, Outputs | OutputStore) else None
    with failing_together() if shared else nullcontext():
        fitter = Fitter(
            specs,
            head=head,
            crossfit=crossfit,
            one_pass=one_shot and not shared,
            val=val,
            ood=ood,
            unlabelled=unlabelled,
            on_unfit=on_unfit,
            train=known,
        )
    if shared:
        from sirc.scores.fitting.distributed import fit_together  # which imports this module

        return fit_together(fitter, train, device=device, progress=progress)
    rows = None if known is None else len(known)
    fitter._read(with_progress(indexed_batches(train), device, progress, "fit, first pass", rows), progress)
    return fitter.finish(None if one_shot else train, device=device, progress=progress)


@final
class Fitter:
    """`fit` in steps, for data in several places: `update` with batches, `merge` with other fitters, `finish`.

    If several workers read parts of the data, pass the dataset indices of the rows with each batch: any split of the
    rows, in any order, then gives the parameters of a single pass. `finish(train)` makes the second pass over `train`.
    With `one_pass=True` a random sample of the rows replaces it: call `finish()`. Given `train`, the constructor checks
    at once whether it can fit the specs. The other arguments are those of `sirc.fit`.

    Example:
        >>> import sirc, torch
        >>> logits = torch.tensor([[4.0, 0, 0], [0, 3, 1], [1, 0, 2], [0, 2, 2]])
        >>> train = sirc.Outputs(logits, features=logits + 1)
        >>> left, right = sirc.Fitter("sirc(msp, l1)"), sirc.Fitter("sirc(msp, l1)")
        >>> left.update(train[:2], index=[0, 1]).merge(right.update(train[2:], index=[2, 3])).count
        4
        >>> left.finish(train)
        Scorer(['sirc(msp, l1)'])
    """

    def __init__(
        self,
        specs: str | Sequence[str],
        *,
        head: Head | None = None,
        crossfit: Crossfit = "auto",
        one_pass: bool = False,
        val: OutputsLike | None = None,
        ood: OutputsLike | Mapping[str, OutputsLike] | None = None,
        unlabelled: OutputsLike | None = None,
        on_unfit: OnError = "stop",
        train: Outputs | OutputStore | None = None,
    ) -> None:
        self._state = FitState(specs, head=head, crossfit=crossfit, one_pass=one_pass)
        self.head, self.crossfit = head, self._state.crossfit
        self.left_out: dict[str, str] = {}
        """The specs that could not be fitted, each with the reason."""
        self.missing: dict[str, str] = {}
        """The witnesses that `scod` goes without, each with the reason."""
        check_choice("on_unfit", on_unfit, get_args(OnError))
        self._on_unfit = on_unfit
        self._id_rows: IdRows = {}
        self._validates = val is not None
        self._warned = False
        if isinstance(train, OutputStore):
            train.require_complete()
        self._check(train)
        self._tuning = Tuning.of(self._state.parsed, val, ood, unlabelled)

    @property
    def specs(self) -> tuple[str, ...]:
        """The specs that are fitted."""
        return self._state.specs

    @property
    def count(self) -> int:
        """The number of rows read so far."""
        return self._state.count

    @exact
    def update(self, batch: object, *, index: ArrayLike | None = None) -> Fitter:
        """Read a batch; `index` holds the dataset indices of its rows, by default those that follow the rows so far."""
        outputs = Outputs.of(batch)
        if not self.count:
            self._check(outputs, whole=False)
            self._tuning.check_model(self._state.parsed, outputs.num_classes, outputs.num_features)
        self._state.update(outputs, index)
        return self

    def _check(self, rows: Outputs | OutputStore | None, *, whole: bool = True) -> None:
        """Leave out, or refuse, specs that rows like these cannot fit; with the `whole` data, also for lack of rows."""
        rows = rows if rows is not None and len(rows) else None
        find = partial(unmet, head=self.head is not None, val=self._validates, rows=rows, whole=whole)
        alone = [scod.with_only(witness) for scod in self._defaults for witness in scod.args[1:]]
        self._reduce({spec.args[1]: why for spec, why in find(alone).items()})
        self._drop(find(self._state.parsed))

    @property
    def _defaults(self) -> list[Spec]:
        """Each `scod`, alone or inside another spec, with the witnesses that it still has."""
        parts = (part for spec in self._state.parsed for part in spec.walk())
        return list({str(part): part for part in parts if part.is_default}.values())

    def _reduce(self, lacking: Mapping[Spec, str]) -> None:
        """Drop from each `scod` the witnesses that contain these specs."""
        before = dict(self._state.reduced)
        for spec in self._defaults:
            kept = [witness for witness in spec.args[1:] if not containing([witness], lacking)]
            if len(kept) < len(spec.args) - 1:
                self._state.reduced[str(spec)] = spec.witnessed_by(kept or WITNESSES[-1:])
                self.missing |= {str(part): why for part, why in lacking.items() if containing(spec.args[1:], [part])}
        if self._state.reduced != before:
            self._choose(self.specs)

    def _leave_out(self, unfit: Mapping[Spec, str]) -> None:
        """Leave out, or refuse, the specs that contain these parts."""
        self._reduce(unfit)
        self._drop({spec: why for part, why in unfit.items() for spec in containing(self._state.parsed, [part])})

    def _leave_out_statistics(self, unfit: Mapping[Spec, str]) -> None:
        """Leave out, or refuse, the specs with a fitted combination of these scores."""
        self._reduce(unfit)
        combinations = self._state.combinations
        self._leave_out({spec: why for leaf, why in unfit.items() for spec in containing(combinations, [leaf])})

    def _drop(self, reasons: Mapping[Spec, str]) -> None:
        """Leave these specs out; raise an error instead if `on_unfit` says so, or if no spec would be left."""
        parsed = zip(self.specs, self._state.parsed, strict=True)
        unfit = {text: reasons[spec] for text, spec in parsed if spec in reasons}
        kept = [text for text in self.specs if text not in unfit]
        if not unfit:
            return
        if self._on_unfit == "stop" or not kept:
            raise ValueError(why_unfit(unfit, kept))
        self.left_out |= unfit
        self._choose(kept)

    def _choose(self, specs: Sequence[str]) -> None:
        if self.count:
            self._state.choose(specs)
        else:  # a new state, which will accumulate no more than these specs need
            self._state = self._state.empty(specs)

    def _read(self, batches: IndexedBatches, progress: Progress) -> None:
        """Read the batches of the first pass, and note scores that do not suit the features of the first batch."""
        for index, batch in batches:
            if not self.count:
                warn_unsuited(self.specs, batch, progress)
            self.update(batch, index=index)

    @exact
    def merge(self, other: Fitter) -> Fitter:
        """Add all rows that another fitter with the same settings has read; returns itself."""
        check_type("other", other, Fitter, "a `Fitter`")
        if not self.count:
            self._reduce({parse(text): why for text, why in other.missing.items()})
        self._state.merge(other._state)
        return self

    @exact
    def finish(
        self, train: OutputsLike | None = None, *, device: torch.device | str | None = None, progress: Progress = SILENT
    ) -> Scorer:
        """Find all parameters, with a second pass over `train` if the specs need one."""
        if device is not None:
            self._tuning = self._tuning.to(device)
        parameters, second = self._solve(sampled=train is None, progress=progress)
        if second is not None:
            if train is not None:
                batches = with_progress(indexed_batches(train), device, progress, "fit, second pass", self.count)
                second.read(batches, self._state.check_batch)
            parameters |= self._settle(second)
        return self._scorer(parameters)

    def _settle(self, second: SecondPass) -> Parameters:
        """The parameters of combinations, after the second pass."""
        second.check_rows(self.count, self._state.checksums)
        parameters, unfit = second.settle(self._state.combinations)
        if defaults := containing(self._defaults, unfit):  # all have the same witnesses
            self._reduce(second.settle_each(defaults[0]))
            parameters, unfit = second.settle(self._state.combinations)
        settled = [spec for spec in self._state.combinations if str(spec) in parameters]
        self._leave_out(unfit)
        each = self.count / (self._state.num_features or 1)
        in_sample = "" if self._state.folds else " and `crossfit=0`"
        whose = f"with {each:.3g} rows for each feature{in_sample}, rows that were not fitted on"
        advice = 'Pass `crossfit="auto"`, or fit on more rows' if in_sample else "Fit on more rows"
        self._warned = warn_far(whose, second.standings(settled), advice)
        outliers = "A few huge values make σ large: leave those rows out, or use `bayes`, which takes the median"
        self._warned |= warn_far("typical training rows", second.typical_standings(settled), outliers)
        self._id_rows = second.sample(settled)
        for key, spec in self._state.reduced.items():
            if key in parameters:
                places = [WITNESSES.index(witness) for witness in spec.args[1:]]
                parameters[key]["witnesses"] = torch.tensor(places, device="cpu")
        return parameters

    def _solve(self, *, sampled: bool, progress: Progress) -> tuple[Parameters, SecondPass | None]:
        """The parameters of single scores, and the second pass if combinations are fitted.

        With `sampled`, that pass has already read its rows, a sample kept from the first pass.
        """
        state = self._state
        state.flush()
        if not state.count or state.num_classes is None:
            raise ValueError("`train` must hold at least one row of ID training data; got an empty iterable")
        if sampled and state.combinations and not state.one_pass:
            raise ValueError(
                f"`{state.combinations[0]}` needs statistics of the training rows: pass `finish(train)` for a second "
                "pass, or make the fitter with `one_pass=True`"
            )
        self._tuning.check_model(state.parsed, state.num_classes, state.num_features)
        evidence = state.evidence(self._tuning.val)
        tuned = self._tuning.options(state.parsed)
        solved, folds = self._solve_scores(evidence, progress)
        parameters = tuned | {leaf: _declared(leaf, values) for leaf, values in solved.items()}
        held_out = self._held_out(evidence, solved)
        index, columns = state.sample()
        rows = len(index) if sampled else state.count
        if rows <= len(index):
            check = partial(check_bank, rows=rows, excluding_self=True)
            self._leave_out_statistics(each_or_why(searching_terms(state.combinations), check)[1])
        if not state.combinations:
            return parameters, None
        judge_of = 0 if state.folds else state.count
        second = SecondPass(state.combinations, parameters, evidence, folds, held_out, judge_of)
        second.leave_out_bank(state.reservoir, rows)
        if sampled:
            second.read_sample(index, columns)
        return parameters, second

    def _solve_scores(self, evidence: Evidence, progress: Progress) -> tuple[Parameters, list[Parameters]]:
        """What each score's `solve` returns for all rows and, for scores that need folds, without each fold."""
        state = self._state
        steps = [partial(each_or_why, [leaf], partial(solve, evidence=evidence)) for leaf in state.leaves]
        folds = range(state.folds + 1) if state.crossfitted and state.folds else ()
        steps += [partial(state.solve_without, fold, self._tuning.val) for fold in folds]
        solutions = []
        name = f"fit, solving {shorten(', '.join(map(str, state.leaves)), 40)}"
        decompositions = len(state.leaves) + len(folds) * len(state.crossfitted)  # at most
        # Seconds: two to three times what they take on two idle cores.
        enough = decompositions * (0.05 + 2e-10 * (state.num_features or 0) ** 3)
        bar = (progress if steps else SILENT).task(name, len(steps), unit="steps")
        with bar as task, _waiting_asleep(enough, state.device):
            for step in steps:
                solutions.append(step())
                task.advance()
        solved, without = solutions[: len(state.leaves)], solutions[len(state.leaves) :]
        if without and without[-1][1]:  # the fit without the judging rows failed, so do not judge
            without[-1] = {}, {}
        self._leave_out({leaf: why for _, unfit in solved for leaf, why in unfit.items()})
        for _, unfit in without:
            self._leave_out_statistics(unfit)
        return {leaf: values for part, _ in solved for leaf, values in part.items()}, [part for part, _ in without]

    def _held_out(self, evidence: Evidence, solved: Parameters) -> dict[str, registry.HeldOut]:
        """The functions that score each training row as if `solve` had not seen it, for the scores that have one."""
        state = self._state

        def held_out(leaf: Spec) -> registry.HeldOut:
            score = registry.get(leaf.name)
            assert score.held_out is not None
            return score.held_out(evidence, solved[str(leaf)], **{**score.options, **leaf.options})

        functions, unfit = each_or_why(state.held_out if state.scarce or state.folds else [], held_out)
        if state.folds:  # without folds they only judge
            self._leave_out_statistics(unfit)
        return functions

    def _judge(self, scorer: Scorer) -> None:
        """Warn if validation rows stand far from 0 on the scale of an S2, unless there was a warning already."""
        val, scales = self._tuning.val, [spec for spec in self._state.combinations if spec.finds_spread]
        if val is None or not len(val) or not scales or self._warned:
            return
        columns = scorer._evaluator(val)
        standings = []
        for spec in scales:
            for s2, a, b in zip(spec.args[1:], *(scorer.parameters[str(spec)][name] for name in "ab"), strict=True):
                z = (columns.value(s2) - float(a)) * float(b) - 3
                compares = any(registry.get(leaf.name).val for leaf in needed_leaves([s2]))  # to these very rows
                if not compares and bool(z.isfinite().all()):  # scoring other rows raises an error
                    standings.append(Standing(s2, float(z.median()), float(z.std(correction=0)), len(z)))
        warn_far("rows of `val`", standings, "Fit on more rows, or on rows that are more like these")

    def _scorer(self, parameters: Parameters) -> Scorer:
        """Tune the combinations, and make the scorer, with marks of the rows that it learnt from."""
        state = self._state
        make = partial(Scorer, num_classes=state.num_classes, num_features=state.num_features)
        scorer = make(self.specs, parameters)
        tuned, unfit = self._tuning.combinations(scorer, self._id_rows)
        self._judge(scorer)
        self._leave_out(unfit)
        if self.left_out and is_main():
            warn(f"left out: {why_unfit(self.left_out)}")
        if self.missing and self._defaults and is_main():
            warn(f"`scod` uses fewer witnesses: {why_unfit(self.missing, what='of them')}")
        parameters = {**parameters, **{key: {**parameters.get(key, {}), **part} for key, part in tuned.items()}}
        marks, rows = empty_sample().merge(state.marks), state.count if state.learns else 0
        for outputs in self._tuning.sets.values() if self._tuning.used(state.parsed) else ():
            mark_rows(marks, torch.arange(rows, rows + len(outputs), device="cpu"), outputs.logits)
            rows += len(outputs)
        return make(self.specs, parameters, fitted_on=marks.rows()[1].get("mark"), fitted_rows=rows)


def _declared(leaf: str, solved: dict[str, Tensor]) -> dict[str, Tensor]:
    """The parameters of a score among all that its `solve` returned."""
    return {name: value for name, value in solved.items() if name in registry.get(parse(leaf).name).parameters}


@contextmanager
def _waiting_asleep(after: float, device: torch.device) -> Iterator[None]:
    """Let a CPU's threads sleep while they wait for each other if the block takes longer than `after` seconds.

    A matrix decomposition has thousands of steps, each on all threads, and at the end of each step the threads wait for
    the slowest. By default they keep their cores busy meanwhile, for milliseconds: the quickest way if each thread has
    a core, but if another program runs on one, the decomposition takes up to a hundred times as long. libgomp, the
    OpenMP of torch's packages for Linux, lets them sleep after microseconds while a process has more OpenMP threads
    than cores. So a late block gets idle threads until there are more. They change no number, since they do no work.
    """
    if device.type != "cpu" or torch.get_num_threads() == 1 or sys.platform != "linux":
        yield
        return
    cores, ended = len(os.sched_getaffinity(0)), Event()

    def crowd() -> None:
        if not ended.wait(after):
            torch.get_num_threads()  # torch gives a thread its number once, and must not do so below
            # `torch.set_num_threads` would also change the number of the threads to come.
            ctypes.CDLL(torch._C.__file__).omp_set_num_threads(cores + 1)
            torch.ones(1 << 16)  # large enough for all threads, which then stay until this one ends
            ended.wait()

    with ThreadPoolExecutor(1) as pool:
        try:
            pool.submit(crowd)
            yield
        finally:
            ended.set()
