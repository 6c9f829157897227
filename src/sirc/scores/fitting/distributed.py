"""A fit by many processes: each takes its share of the rows in both passes, and all end with the same scorer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable

import torch
from torch import Tensor

from sirc._utils import distributed
from sirc._utils.checks import differences
from sirc._utils.distributed import failing_together, gather_texts, gathered
from sirc._utils.precision import exact
from sirc.outputs import Outputs, OutputStore
from sirc.progress import Progress
from sirc.scores.fitting.fitter import Fitter
from sirc.scores.fitting.kept import FeatureMoments
from sirc.scores.fitting.rows import numbered_share, share_length, shown
from sirc.scores.fitting.second_pass import SecondPass
from sirc.scores.fitting.statistics import Solved
from sirc.scores.moments import Moments
from sirc.scores.needs import warn_unsuited
from sirc.scores.scorer import Scorer


@exact
def fit_together(
    make: Callable[[], Fitter],
    train: object,
    *,
    device: torch.device | str | None,
    progress: Progress,
) -> Scorer:
    """What `fit` does with a fitter, by all processes of the default group of torch.distributed.

    Whatever one process finds is merged in the order of their numbers, everywhere alike; work that can fail is done
    between exchanges, so that no process waits for one that has stopped.
    """
    rank, world = distributed.rank(), distributed.world()
    with failing_together():
        if not isinstance(train, Outputs | OutputStore):
            raise ValueError(
                "`train` must be an `OutputStore` or an `Outputs` with `distributed=True`, so that each process can "
                f"take its share; got {type(train).__name__}. Write batches to a store: "
                "`sirc.OutputStore.from_outputs(path, batches)`"
            )
        if isinstance(train, OutputStore):
            train.require_complete()
        fitter = make()
        asked = _describe(fitter, train)
    _check_same(asked)
    with failing_together():
        share = share_length(train, rank, world)
        first = shown(numbered_share(train, rank, world), device, progress, "fit, first pass", share)
        for index, batch in first:
            if not fitter.count and rank == 0:
                warn_unsuited(fitter.specs, batch, progress)
            fitter.update(batch, index=index)
        fitter._gatherer.flush()
    where = torch.device(device or (train.device if isinstance(train, Outputs) else "cpu"))
    fitter = _merged(fitter, where)
    if device is not None:
        fitter._tuning = fitter._tuning.to(device)
    with failing_together():
        parameters, second = fitter._solve(sampled=False)
        if second is not None:
            rows = numbered_share(train, rank, world)
            second.read(shown(rows, device, progress, "fit, second pass", share))
    if second is not None:
        _merge_second(second, where)
        with failing_together():
            parameters |= second.settle(fitter.count, fitter._probe)
    parameters = _of_the_first(parameters)
    with failing_together():
        scorer = fitter._scorer(parameters)
    scorer.parameters = _of_the_first(scorer.parameters)
    return scorer


def _describe(fitter: Fitter, train: Outputs | OutputStore) -> dict[str, object]:
    """What every process must have been asked."""
    weights = () if fitter.head is None else (fitter.head.weight, fitter.head.bias)
    digest = hashlib.sha256()
    for weight in weights:
        digest.update(b"none" if weight is None else weight.detach().cpu().double().numpy().tobytes())
    layout = train.layout if len(train) else None
    return {
        "specs": ", ".join(fitter.specs),
        "crossfit": fitter.crossfit,
        "head": digest.hexdigest()[:12] if weights else "none",
        "train": type(train).__name__,
        "rows": len(train),
        "tuning_rows": [f"{len(x)} of mean {float(x.logits.double().mean()):.6g}" for x in fitter._tuning.rows()],
        "shard_size": train.shard_size if isinstance(train, OutputStore) else None,
        "layout": str(layout),
    }


def _check_same(asked: dict[str, object]) -> None:
    first, *others = (json.loads(text) for text in gather_texts(json.dumps(asked)))
    for number, other in enumerate(others, start=1):
        if words := differences(first, other):
            raise ValueError(
                f"every process must pass the same to `fit`; process {number} differs from process 0: {words}. Pass "
                "the whole of `train` in each: its share is taken from it"
            )


def _merged(fitter: Fitter, device: torch.device) -> Fitter:
    """One fitter with what those of all processes have seen."""
    kind = {name: dtype for name, dtype in fitter._kind.items() if name != "device"}
    facts = {
        "count": fitter.count,
        "num_classes": fitter.num_classes,
        "num_features": fitter.num_features,
        "probe": fitter._probe,
        "kind": kind,
        "folds": len(fitter._folds),
    }
    tensors = {f"{i} {name}": x for i, moments in enumerate(fitter._folds) for name, x in moments.state().items()}
    if fitter._reservoir is not None:
        index, columns = fitter._reservoir.rows()
        tensors |= {"row index": index} | {f"row {name}": x for name, x in columns.items()}
    if fitter._seen is not None:
        tensors["seen index"], tensors["seen mark"] = fitter._seen.rows()
    everyone = [json.loads(text) for text in gather_texts(json.dumps(facts))]

    def empty() -> Fitter:
        rows = fitter._tuning
        return Fitter(
            fitter.specs,
            head=fitter.head,
            crossfit=fitter.crossfit,
            val=rows.val,
            ood=rows.ood,
            unlabelled=rows.unlabelled,
        )

    whole = empty()
    classes = next((facts["num_classes"] for facts in everyone if facts["num_classes"]), None)
    for facts, parts in zip(everyone, gathered(tensors), strict=True):
        part = empty()
        part.count, part.num_classes, part.num_features = (facts[k] for k in ("count", "num_classes", "num_features"))
        part._own_index, part._probe = True, facts["probe"]
        part._kind = {**facts["kind"], "device": str(device)} if facts["kind"] else {}
        for i in range(facts["folds"]):
            part._folds.append(FeatureMoments(fitter._evidence, classes))
            part._folds[-1].restore(_under(f"{i} ", parts, device))
        rows = _under("row ", parts, device)
        if part._reservoir is not None and len(index := rows.pop("index")):
            part._reservoir.update(index, rows)
        if part._seen is not None:
            part._seen.restore(parts["seen index"].cpu(), parts["seen mark"].cpu())
        whole.merge(part)
    return whole


def _merge_second(second: SecondPass, device: torch.device) -> None:
    """Have the statistics of all processes in each."""
    moments = second.statistics.moments
    tensors = {f"{i} {name}": x for i, one in enumerate(moments) for name, x in one.state().items()}
    tensors["seen"] = torch.tensor(second.seen)
    tensors["checksum"] = torch.tensor(second.checksum, dtype=torch.float64)
    second.seen, second.checksum = 0, 0.0
    totals = tuple(Moments() for _ in moments)
    for parts in gathered(tensors):
        second.seen += int(parts["seen"])
        second.checksum += float(parts["checksum"])
        for i, total in enumerate(totals):
            total.merge(Moments.restored(_under(f"{i} ", parts, device)))
    second.statistics.moments = totals


def _of_the_first(parameters: Solved) -> Solved:
    """The parameters of process 0: bit for bit the same in all, whatever machine each runs on."""
    names = {json.dumps([spec, name]): (spec, name) for spec, values in parameters.items() for name in values}
    mine = {key: parameters[spec][name] for key, (spec, name) in names.items()}
    received = distributed.broadcast_tensors(mine)
    for key, (spec, name) in names.items():
        parameters[spec][name] = received[key].to(mine[key].device)
    return parameters


def _under(prefix: str, tensors: dict[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): x.to(device) for name, x in tensors.items() if name.startswith(prefix)}
