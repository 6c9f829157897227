"""Evaluation of stores that do not fit in memory: their confidences are on disk, in sorted parts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, Unpack, final

import pandas as pd
import torch
from torch import Tensor

from sirc import __version__
from sirc._utils import distributed
from sirc._utils.checks import check_device, check_path
from sirc._utils.files import PathLike, tensor_places
from sirc._utils.parts import Parts
from sirc._utils.text import quoted
from sirc._utils.warn import warn
from sirc.errors import StoreError
from sirc.evaluation.inputs import COLUMNS, WRONG, as_names, as_sets, require_right, without_labels
from sirc.evaluation.tabulated import Settings, Tabulated
from sirc.metrics import Ranking, SortedBlock, ranking_of_blocks
from sirc.outputs import OutputStore, doubt_of_store
from sirc.progress import Progress, as_progress
from sirc.scores import Scorer

_VALUES = 1 << 24  # confidences in a part, of all scores together


@final
class SpilledEvaluation(Tabulated):
    """The table, sweeps and curves of stores whose confidences are in a folder; `sirc.evaluate(…, spill=…)` makes it.

    The folder takes 8 bytes for each row and score, and a ranking 20 more for each of its rows while it is in use.
    Delete the folder when you need no more results. A curve holds a point for each row in memory.
    """

    def __init__(
        self,
        scorer: object,
        test: object,
        ood: Mapping[str, object] | None,
        spill: PathLike,
        scores: Sequence[str] | None = None,
        *,
        device: torch.device | str = "cpu",
        progress: Progress | bool | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        distributed.require_joined("evaluate")
        if not isinstance(scorer, Scorer):
            raise ValueError(f"with `spill`, `scorer` must be a `Scorer`; got {type(scorer).__name__}. See `sirc.fit`")
        scorer = scorer if scores is None else scorer.only(as_names(scores))
        folder, where, bars = check_path("spill", spill), check_device(device), as_progress(progress)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"`spill` must be a folder, or the path of a new one; '{folder}' is a file")
        self._folder, sets = folder, as_sets(ood)
        made = {"scorer": scorer.digest, "sirc": __version__, "device": where.type}
        self._test = _SortedStore(_place(folder, "test", made), "test", test, scorer, made, labelled=True)
        self._ood = {
            name: _SortedStore(_place(folder, f"ood {name}", made), f"ood[{quoted(name)}]", sets[name], scorer, made)
            for name in sets
        }
        super().__init__(scorer.specs, list(sets), **settings)
        everything = [self._test, *self._ood.values()]
        jobs = [(store, number) for store in everything for number in store.numbers]
        with distributed.failing_together():
            mine = jobs[distributed.rank() :: distributed.world()]
            with bars.task(distributed.of_process("score"), len(mine), unit="parts") as task:
                for store, number in mine:
                    store.write(number, where)
                    task.advance()
        with distributed.failing_together():
            for store in everything:
                store.open()
            require_right(self.sizes)
            if distributed.is_main() and (doubt := doubt_of_store("test", self._test.store)):
                warn(doubt)
            rows = {}
            own = self.scores[distributed.rank() :: distributed.world()]
            with bars.task(distributed.of_process("rank"), len(own), unit="scores") as task:
                for score in own:
                    rows[score] = self._all_rows(score)
                    task.advance()
        for text in distributed.gather_texts(json.dumps(rows)):
            rows |= json.loads(text)
        self._table = pd.DataFrame([row for score in self.scores for row in rows[score]], columns=COLUMNS)

    @property
    def sizes(self) -> dict[str, int]:
        """The number of samples in `correct`, `wrong` and each OOD set."""
        return {**self._test.sizes, **{name: store.sizes["ood"] for name, store in self._ood.items()}}

    def _rank(self, score: str, negative: str) -> Ranking:
        column = self.scores.index(score)
        return ranking_of_blocks(
            self._test.blocks("correct", column),
            self._test.blocks(WRONG, column),
            [self._ood[name].blocks("ood", column) for name in self._members(negative)],
            self._folder,
            equal_sets=self.pool == "datasets",
        )

    def __getattr__(self, name: str) -> NoReturn:
        from sirc.evaluation.evaluation import Evaluation  # which imports this module

        if hasattr(Evaluation, name):
            raise AttributeError(
                f"an evaluation on disk has no `{name}`, which needs all rows in memory: evaluate without `spill`, on "
                "some of the rows if not all fit"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _place(folder: Path, name: str, made: Mapping[str, str]) -> Path:
    """The folder for one set's parts, with a hash that keeps sets of any name, scorers and versions apart."""
    mark = hashlib.sha256(json.dumps([name, made]).encode()).hexdigest()[:16]
    return folder / f"{name.partition(' ')[0]}-{mark}"


@final
class _SortedStore:
    """The confidences of one store, in parts of some shards each, sorted by group and score."""

    def __init__(
        self,
        folder: Path,
        name: str,
        store: object,
        scorer: Scorer,
        made: Mapping[str, str],
        *,
        labelled: bool = False,
    ) -> None:
        if not isinstance(store, OutputStore):
            raise ValueError(
                f"with `spill`, `{name}` must be an `OutputStore`; got {type(store).__name__}. "
                "Leave `spill` out, or write one, `OutputStore.from_outputs(path, outputs)`"
            )
        store.require_complete()
        if labelled and not store.has_labels:
            raise without_labels(name)
        self.store, self._name, self._scorer, self._labelled = store, name, scorer, labelled
        self._parts = Parts(folder, made)
        step = max(1, _VALUES // (len(scorer.specs) * store.shard_size))
        self.numbers = range(0, store.num_shards, step)
        self._shards = {first: range(first, min(first + step, store.num_shards)) for first in self.numbers}
        self._described = {number: {"shards": store.digest(shards)} for number, shards in self._shards.items()}
        self._blocks: dict[str, list[SortedBlock]] = {}

    def write(self, number: int, device: torch.device) -> None:
        """Score the shards of a part, unless they are on disk already."""
        if self._parts.has(number, self._described[number]):
            return
        columns: dict[str, list[Tensor]] = {}
        for shard in map(self.store.shard, self._shards[number]):
            outputs = shard.to(device)
            right = outputs.correct.cpu() if self._labelled else None
            for column, values in enumerate(self._scorer(outputs).values()):
                values = values.cpu()
                groups = {"ood": values} if right is None else {"correct": values[right], WRONG: values[~right]}
                for group, some in groups.items():
                    columns.setdefault(f"{group} {column}", []).append(some)
        tensors = {name: torch.cat(columns.pop(name)).sort().values for name in list(columns)}
        self._parts.write(number, tensors, self._described[number])

    def open(self) -> None:
        """Find the blocks of all parts, which other processes may have written."""
        self._blocks = {}
        for number in self.numbers:
            path = self._parts.path(number)
            if not self._parts.has(number, self._described[number], verify=False):
                raise StoreError(f"'{path}' was changed while it was in use. Give each evaluation a folder of its own")
            for name, (start, end) in tensor_places(path).items():
                self._blocks.setdefault(name, []).append(SortedBlock(path, start, end))
        if not any(self.sizes.values()):
            raise ValueError(f"`{self._name}` must have at least one row; all of its items were skipped")

    def blocks(self, group: str, column: int) -> list[SortedBlock]:
        """The blocks of a group, `correct`, `wrong` or `ood`, for the score with this number."""
        return self._blocks[f"{group} {column}"]

    @property
    def sizes(self) -> dict[str, int]:
        """The number of samples in each group."""
        groups = ("correct", WRONG) if self._labelled else ("ood",)
        return {group: sum(map(len, self.blocks(group, 0))) for group in groups}
