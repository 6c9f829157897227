"""Data sources: a dataset as an experiment's TOML describes it, and how to open it."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from sirc._utils.checks import check_positive
from sirc.data.base import ImageSet, Transform, check_seed
from sirc.data.catalogue import Benchmark, benchmark, benchmarks, layout, unknown_name
from sirc.data.folder import image_folder
from sirc.data.lists import file_list
from sirc.data.noise import COUNT, Noise
from sirc.data.wrapped import call_function, torchvision_set

if TYPE_CHECKING:
    from sirc.data.preprocess import Preprocess

PLAIN = ("folder", "list")
_TORCHVISION = re.compile(r"torchvision:[A-Za-z_]\w*")
_FUNCTION = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_][\w.]*")


@final
@dataclass(frozen=True)
class Source:
    """One dataset: a benchmark's key, `folder`, `list`, `torchvision:NAME` or `package.module:function`.

    `path` may contain `~`, `$VARIABLES` and `{split}`, and is relative to the data root; the default of a benchmark is
    its usual folder there. `split` overrides the caller's. `list` is the file of a `list`, relative to `path`. `count`
    takes a random subset, chosen by `seed`; for Noise it is the number of images made. `options` go to the torchvision
    class or the function; a labelled folder takes `allow_empty`.
    """

    dataset: str
    path: str | None = None
    split: str | None = None
    list: str | None = None
    group: Literal["Close", "Far"] | None = None
    count: int | None = None
    seed: int = 0
    options: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("dataset", "path", "split", "list"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name == "dataset"):
                raise ValueError(f"`{name}` must be text; got {value!r}. Write it in quotes.")
        self._check_dataset()
        if self.split not in (None, "train", "test"):
            raise ValueError(f'`split` must be "train" or "test"; got {self.split!r}. Leave it out for the usual one.')
        if self.group not in (None, "Close", "Far"):
            raise ValueError(f'`group` must be "Close" or "Far"; got {self.group!r}. Leave it out to be in neither.')
        if self.count is not None:
            check_positive("count", self.count)
        check_seed(self.seed)
        self._check_options()

    @property
    def benchmark(self) -> Benchmark | None:
        """The benchmark of this name, if it is one."""
        return None if ":" in self.dataset or self.dataset in PLAIN else benchmark(self.dataset)

    @property
    def in_group(self) -> str | None:
        """The group of OOD sets that this belongs to: as given here, or the benchmark's."""
        return self.group or (self.benchmark.group if self.benchmark else None)

    def _check_dataset(self) -> None:
        if self.dataset in PLAIN:
            if not self.path:
                raise ValueError(
                    f'`path` must be given for dataset "{self.dataset}"; got none. Say where its files are.'
                )
        elif ":" in self.dataset:
            if not _FUNCTION.fullmatch(self.dataset):
                raise ValueError(
                    '`dataset` must be "torchvision:NAME" or "package.module:function" where it has a colon; got '
                    f"{self.dataset!r}. Write for example `torchvision:CIFAR10`."
                )
        else:
            try:
                benchmark(self.dataset)
            except ValueError:
                keys = [known.key for known in benchmarks()]
                raise ValueError(unknown_name("`dataset`", self.dataset, [*keys, *PLAIN, "torchvision:NAME"])) from None
        if self.dataset == "list" and not self.list:
            raise ValueError('`list` must be given for dataset "list"; got none. Name the file of lines `path label`.')
        if self.list is not None and self.dataset != "list" and not (self.benchmark and self.benchmark.lists):
            raise ValueError(f'`list` must be left out unless `dataset` is "list"; got {self.list!r}.')

    def _check_options(self) -> None:
        if not isinstance(self.options, dict):
            raise ValueError(f"`options` must be a table of names and values; got {self.options!r}.")
        allowed = {"allow_empty"} if self.dataset == "folder" else set()
        if ":" not in self.dataset and (extra := sorted(set(self.options) - allowed)):
            raise ValueError(
                f"`options` must be empty for dataset {self.dataset!r}"
                f"{' but for `allow_empty`' if allowed else ''}; got {', '.join(extra)}. "
                "They are for torchvision's datasets and functions of your own."
            )


def source_path(source: Source, root: Path) -> Path | None:
    """Resolve where the files must be: `path`, below `root` if relative; None where no files are needed."""
    if source.path is None:
        known = source.benchmark
        if known is not None:
            return None if known.key == "noise" else root / known.folder
        return root if _TORCHVISION.fullmatch(source.dataset) else None
    expanded = os.path.expanduser(os.path.expandvars(source.path))
    if left := re.search(r"\$(\w+|\{\w+\})", expanded):
        raise ValueError(
            f"`path` must use variables that are set; got {source.path!r}, where {left[0]} is not. Set it."
        )
    return root / expanded


def open_source(
    source: Source,
    *,
    root: Path,
    split: str | None = None,
    preprocess: Preprocess | None,
    labelled: bool = True,
    name: str | None = None,
) -> ImageSet:
    """Open the part `split` of a dataset, unless the source names another; `labelled=False` for OOD sets.

    `preprocess=None` gives the images themselves, for training, which preprocesses them in its own way.
    """
    if split not in (None, "train", "test"):
        raise ValueError(f'`split` must be "train" or "test"; got {split!r}. Leave it out for a set without parts.')
    root = Path(root)
    known = source.benchmark
    opened = (
        _open_benchmark(source, known, root, split, labelled) if known else _open_plain(source, root, split, labelled)
    )
    if source.count is not None and not isinstance(opened, Noise):
        opened = opened.subset(source.count, seed=source.seed)
    if name is not None:
        opened = opened.named(name)
    return opened.with_transform(None if preprocess is None else eval_transform(source, preprocess))


def _open_benchmark(source: Source, known: Benchmark, root: Path, split: str | None, labelled: bool) -> ImageSet:
    if labelled and known.role == "OOD":
        raise ValueError(
            f"`labelled` must be False for {known.title}, an OOD set whose labels mean nothing. Pass `labelled=False`, "
            'or read its files as a "folder".'
        )
    path = source_path(source, root)
    wanted = source.split or split or ("test" if known.role == "OOD" else None)
    known.split(wanted)
    if path is None:
        return Noise(COUNT if source.count is None else source.count, seed=source.seed)
    path = Path(str(path).replace("{split}", wanted or ""))
    return layout.open_split(known, path, wanted, labelled=labelled, list_name=source.list)


def _open_plain(source: Source, root: Path, split: str | None, labelled: bool) -> ImageSet:
    path, wanted = source_path(source, root), source.split or split
    if source.dataset in PLAIN:
        assert path is not None
        in_path = "{split}" in str(path)
        if wanted is None and ("{split}" in f"{path}{source.list}"):
            raise ValueError('`split` must be given where `path` or `list` has "{split}"; got none.')
        path = Path(str(path).replace("{split}", wanted or ""))
        if source.dataset == "list":
            assert source.list is not None
            listed = path / source.list.replace("{split}", wanted or "")
            return file_list(listed, path, labelled=labelled, name=path.name)
        if wanted is not None and not in_path:
            path = layout.split_folder(path, wanted, required=source.split is not None)
        allow_empty = source.options.get("allow_empty", False) is True
        return image_folder(path, labelled=labelled, allow_empty=allow_empty)
    if _TORCHVISION.fullmatch(source.dataset):
        assert path is not None
        kind = source.dataset.partition(":")[2]
        required = labelled or source.split is not None
        return torchvision_set(kind, path, wanted, source.options, labelled=labelled, split_required=required)
    return call_function(source.dataset, path, wanted, source.options, labelled=labelled)


def eval_transform(source: Source, preprocess: Preprocess) -> Transform:
    """Make the test-time preprocessing of a dataset; benchmarks of small images have their own."""
    known = source.benchmark
    if known is not None and known.scaled is not None:
        return preprocess.scaled(known.scaled)
    return preprocess.test()


def eval_geometry(source: Source, preprocess: Preprocess) -> Preprocess:
    """Describe the resize and crop of `eval_transform` as a `Preprocess`."""
    known = source.benchmark
    if known is not None and known.scaled is not None:
        return replace(preprocess, resize=preprocess.size, crop=None, interpolation=known.scaled)
    return preprocess
