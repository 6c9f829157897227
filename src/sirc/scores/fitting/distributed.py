"""A fit shared by many processes: each reads its share of the rows, and all get the same scorer."""

from __future__ import annotations

import json
from collections.abc import Iterator

import torch
from torch import Tensor

from sirc._utils import distributed
from sirc._utils.checks import differences
from sirc._utils.distributed import failing_together, gather_tensors, gather_texts
from sirc._utils.precision import exact
from sirc.outputs import Outputs, OutputStore
from sirc.progress import SILENT, Progress
from sirc.scores.fitting.fitter import Fitter
from sirc.scores.fitting.rows import share_of, with_progress
from sirc.scores.fitting.state import head_digest
from sirc.scores.moments import Parameters
from sirc.scores.scorer import Scorer, parameters_in, tensors_of


@exact
def fit_together(fitter: Fitter, train: object, *, device: torch.device | None, progress: Progress) -> Scorer:
    """Fit with all processes of the default torch.distributed group.

    Each process merges the states of all in the order of their ranks, so that all have the same state. Work that can
    fail is done between exchanges, so that no process waits for one that has stopped.
    """
    main_only = progress if distributed.is_main() else SILENT

    def batches(name: str) -> Iterator[tuple[Tensor, Outputs]]:
        indexed = ((torch.arange(rows.start, rows.stop, device="cpu"), read()) for rows, read in share if rows)
        return with_progress(indexed, device, progress, name, sum(len(rows) for rows, _ in share))

    with failing_together():
        if not isinstance(train, Outputs | OutputStore):
            raise ValueError(
                "`train` must be an `OutputStore` or an `Outputs` with `distributed=True`, so that each process can "
                f"take its share; got {type(train).__name__}. Write batches to a store: "
                "`sirc.OutputStore.from_outputs(path, batches)`"
            )
        arguments = _arguments(fitter, train)
    _check_same(arguments)
    with failing_together():
        share = share_of(train, distributed.rank(), distributed.world())
        fitter._read(batches("fit, first pass"), main_only)
        saved = fitter._state.save()
    place = device or (train.device if isinstance(train, Outputs) else torch.device("cpu"))
    merged = fitter._state.empty()
    for tensors in gather_tensors(saved):
        merged.merge(merged.empty().load(tensors, place))
    fitter._state = merged
    if device is not None:
        fitter._tuning = fitter._tuning.to(device)
    with failing_together():
        parameters, second = fitter._solve(sampled=False, progress=main_only)
        if second is not None:
            second.read(batches("fit, second pass"), merged.check_batch)
    if second is not None:
        second.load(gather_tensors(second.save()), place)
        with failing_together():
            parameters |= fitter._settle(second)
    parameters = _of_process_0(parameters)
    with failing_together():
        scorer = fitter._scorer(parameters)
    scorer.parameters = _of_process_0(scorer.parameters)
    return scorer


def _arguments(fitter: Fitter, train: Outputs | OutputStore) -> dict[str, object]:
    """What must be the same in every process."""
    return {
        "specs": ", ".join(fitter.specs),
        "crossfit": fitter.crossfit,
        "head": head_digest(fitter.head),
        "train": type(train).__name__,
        "rows": len(train),
        "tuning_rows": [
            f"{len(x)} of mean {float(x.logits.double().mean()):.6g}" for x in fitter._tuning.sets.values()
        ],
        "shard_size": train.shard_size if isinstance(train, OutputStore) else None,
        "layout": str(train.layout if len(train) else None),
    }


def _check_same(arguments: dict[str, object]) -> None:
    first, *others = (json.loads(text) for text in gather_texts(json.dumps(arguments)))
    for number, other in enumerate(others, start=1):
        if differing := differences(first, other):
            raise ValueError(
                f"every process must pass the same arguments to `fit`; process {number} differs from process 0: "
                f"{differing}. Pass the whole of `train` in each: `fit` takes the process's share"
            )


def _of_process_0(parameters: Parameters) -> Parameters:
    """The parameters of process 0, so that all have the same bits even if their machines round differently."""
    mine = tensors_of(parameters)
    received = distributed.broadcast_tensors(mine)
    return parameters_in({name: tensor.to(mine[name].device) for name, tensor in received.items()})
