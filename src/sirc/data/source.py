"""Data sources: descriptions of datasets, as in an experiment's TOML, and their opening."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, final

from sirc._utils.checks import check_at_least, check_choice, check_positive, check_type, expand_path
from sirc._utils.text import quoted
from sirc.data.base import SPLITS, ImageSet, Transform
from sirc.data.catalogue import benchmarks
from sirc.data.catalogue.benchmarks import Benchmark, find_benchmark, find_folder
from sirc.data.decode import printable
from sirc.data.folder import Sort, file_list, image_folder, read_lines
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
    """A dataset: a benchmark, a folder, a list of files, one of torchvision's, or one that your function returns."""

    dataset: str
    """A benchmark's key, `folder`, `list`, `torchvision:NAME` or `package.module:function`."""
    path: str | None = None
    """The folder, relative to the data root; it may have `~`, `$VARIABLES` and `{split}`. Benchmarks have a default."""
    split: str | None = None
    """`train` or `test`; by default the part that the experiment needs."""
    list: str | None = None
    """The file of a `list`, relative to `path`."""
    group: Literal["Close", "Far"] | None = None
    """The group of this OOD set; by default that of the benchmark."""
    count: int | None = None
    """How many images to choose at random; for Noise, how many to make."""
    seed: int = 0
    """The seed of the choice, or of Noise."""
    options: dict[str, object] = field(default_factory=dict)
    """Keyword arguments for the torchvision class or the function; a labelled folder takes `allow_empty`."""
    classes: str | tuple[str, ...] | None = None
    """The class folders of a labelled `folder` in the order of the network's outputs: a list, or a text file with one
    on each line, relative to the data root."""
    sort: Sort | None = None
    """The order of the classes of a labelled `folder`: "name" as text, as in torchvision, or "natural", 2 before 10."""

    def __post_init__(self) -> None:
        for name in ("dataset", "path", "split", "list"):
            value = getattr(self, name)
            if not isinstance(value, str) and (value is not None or name == "dataset"):
                raise ValueError(f"`{name}` must be text; got {quoted(value)}. Write it in quotes.")
        if ":" in self.dataset and not _FUNCTION.fullmatch(self.dataset):
            raise ValueError(
                '`dataset` must be "torchvision:NAME" or "package.module:function" if it has a colon; got '
                f"{quoted(self.dataset)}. Write for example `torchvision:CIFAR10`."
            )
        required = {"list": ("path", "list"), "folder": ("path",)}
        for name in required.get(self.dataset, ()):
            if not getattr(self, name):
                raise ValueError(f'`{name}` must be given for dataset "{self.dataset}"; got none.')
        benchmark = self.benchmark  # raises if the name is unknown
        if self.list is not None and self.dataset != "list" and not (benchmark and benchmark.lists):
            raise ValueError(f'`list` must be left out unless `dataset` is "list"; got {quoted(self.list)}.')
        for name in ("classes", "sort"):
            if getattr(self, name) is not None and self.dataset != "folder":
                raise ValueError(f'`{name}` must be left out unless `dataset` is "folder"; got "{self.dataset}".')
        if self.split is not None:
            check_choice("split", self.split, SPLITS)
        if self.group is not None:
            check_choice("group", self.group, ("Close", "Far"))
        if self.count is not None:
            check_positive("count", self.count)
        check_at_least("seed", self.seed, 0)
        check_type("options", self.options, dict, "a table of names and values")
        if self.dataset == "folder":
            check_type("options.allow_empty", self.options.get("allow_empty", False), bool, "true or false")
        allowed = {"allow_empty"} if self.dataset == "folder" else set()
        if ":" not in self.dataset and (extra := sorted(set(self.options) - allowed)):
            raise ValueError(
                f"`options` must be empty for dataset {quoted(self.dataset)}"
                f"{' but for `allow_empty`' if allowed else ''}; got {', '.join(extra)}. "
                "They are for torchvision's datasets and functions of your own."
            )

    @property
    def benchmark(self) -> Benchmark | None:
        """The benchmark that `dataset` names; None if it is something else."""
        if ":" in self.dataset or self.dataset in PLAIN:
            return None
        return find_benchmark("`dataset`", self.dataset, others=[*PLAIN, "torchvision:NAME"])

    @property
    def class_order(self) -> dict[str, object]:
        """Whichever of `classes` and `sort` is given."""
        order = {"classes": self.classes, "sort": self.sort}
        return {key: value for key, value in order.items() if value is not None}

    @property
    def in_group(self) -> str | None:
        """The group of this OOD set: its own, or the benchmark's."""
        return self.group or (self.benchmark.group if self.benchmark else None)


def source_path(source: Source, root: Path) -> Path | None:
    """Get the path of the files, which starts from `root` if it is relative; None if no files are needed."""
    if source.path is not None:
        return root / expand_path("path", source.path)
    if benchmark := source.benchmark:
        return None if benchmark.key == "noise" else root / benchmark.folder
    return root if _TORCHVISION.fullmatch(source.dataset) else None


def class_names(source: Source, root: Path) -> Sequence[str] | None:
    """Get the classes of a folder in the order of their numbers; None if the source does not list them."""
    if not isinstance(source.classes, str):
        return source.classes
    path = root / expand_path("classes", source.classes)
    try:
        return read_lines(path, "class")
    except OSError as error:
        raise FileNotFoundError(
            f"`classes` must be a list of names, or a text file with one on each line; '{printable(path)}' cannot be "
            f"read: {error.strerror}.{' Its path starts from the data root.' if root.parts else ''}"
        ) from error


def open_source(
    source: Source,
    *,
    root: Path,
    split: str | None = None,
    preprocess: Preprocess | None,
    labelled: bool = True,
    unpack: bool = True,
) -> ImageSet:
    """Open the part `split` of a dataset, or the source's own `split`; pass `labelled=False` for OOD sets.

    Items are prepared as for tests, or are the images themselves with `preprocess=None`. `unpack=False` does not unpack
    a benchmark's archives.
    """
    if split is not None:
        check_choice("split", split, SPLITS)
    benchmark, path, wanted = source.benchmark, source_path(source, Path(root)), source.split or split
    if benchmark is not None:
        opened = _open_benchmark(source, benchmark, path, wanted, labelled, unpack)
    elif source.dataset in PLAIN:
        assert path is not None
        opened = _open_plain(source, path, wanted, labelled, Path(root))
    elif _TORCHVISION.fullmatch(source.dataset):
        assert path is not None
        kind = source.dataset.partition(":")[2]
        required = labelled or source.split is not None
        opened = torchvision_set(kind, path, wanted, source.options, labelled=labelled, split_required=required)
    else:
        opened = call_function(source.dataset, path, wanted, source.options, labelled=labelled)
    if source.count is not None and not (isinstance(opened, Noise) and len(opened) == source.count):
        opened = opened.subset(source.count, seed=source.seed)
    return opened.with_transform(None if preprocess is None else eval_transform(source, preprocess))


def _open_benchmark(
    source: Source, benchmark: Benchmark, path: Path | None, split: str | None, labelled: bool, unpack: bool
) -> ImageSet:
    if labelled and benchmark.role == "OOD":
        raise ValueError(
            f"`labelled` must be False for {benchmark.title}, an OOD set without labels. Pass `labelled=False`, or "
            'read its files as a "folder".'
        )
    part = benchmark.split(split or ("test" if benchmark.role == "OOD" else None))
    if path is None:
        return Noise(COUNT if source.count is None else source.count, seed=source.seed)
    path = Path(str(path).replace("{split}", part.name))
    folder = find_folder(path, part)
    if unfinished := benchmarks.unfinished_unpacking(path, part):
        raise FileNotFoundError(f"{benchmark.title} cannot be read: {unfinished}")
    if folder is None and unpack and benchmarks.has_archives(path, benchmark, part):
        folder = benchmarks.unpack_imagenet(path, part)
    if folder is None:
        names = "' or '".join(part.folders)
        raise FileNotFoundError(
            f"{benchmark.title} must have its {part.name} images in '{names}' below '{printable(path)}'; there is no "
            f"such folder. {benchmark.how_to_get}, and see `sirc data check {benchmark.key} {printable(path)}`."
        )
    if not benchmark.lists:
        return image_folder(folder, labelled=labelled, name=benchmark.title)
    listed = path / source.list if source.list else benchmarks.find_list(path, benchmark)
    if listed is None:
        raise FileNotFoundError(f"{benchmark.title} cannot be read: {benchmarks.missing_list(path, benchmark)}")
    return file_list(listed, folder, labelled=False, within=part.folders, name=benchmark.title)


def _open_plain(source: Source, path: Path, split: str | None, labelled: bool, root: Path) -> ImageSet:
    in_path = "{split}" in str(path)
    if split is None and (in_path or "{split}" in (source.list or "")):
        raise ValueError('`split` must be given if `path` or `list` has "{split}"; got none.')
    path = Path(str(path).replace("{split}", split or ""))
    if source.list is not None:
        listed = path / source.list.replace("{split}", split or "")
        return file_list(listed, path, labelled=labelled, name=path.name)
    if split is not None and not in_path:
        path = _split_folder(path, split, required=source.split is not None)
    classes, allow_empty = class_names(source, root), bool(source.options.get("allow_empty"))
    return image_folder(path, labelled=labelled, allow_empty=allow_empty, classes=classes, sort=source.sort or "name")


def _split_folder(path: Path, split: str, *, required: bool) -> Path:
    """Find the folder of a split of a user's own data: `path/train`, `path/test` or `path/val`; otherwise `path`.

    A folder for the split must exist if it is `required`, or if the other split has one.
    """
    part = next(part for part in benchmarks.FOLDER_PARTS if part.name == split)
    if folder := find_folder(path, part):
        return folder
    others = [name for part in benchmarks.FOLDER_PARTS for name in part.folders if (path / name).is_dir()]
    if required or others:
        raise FileNotFoundError(
            f"'{printable(path)}' must have a folder {' or '.join(part.folders)} for split {quoted(split)}; it has "
            f"{', '.join(others) or 'neither train nor test'}. Make it, or pass the folder of that part as `path`."
        )
    return path


def eval_transform(source: Source, preprocess: Preprocess) -> Transform:
    """Make the test-time preprocessing of a dataset; benchmarks of small images are resized without cropping."""
    geometry = eval_geometry(source, preprocess)
    return preprocess.test() if geometry is preprocess else preprocess.scaled(geometry.interpolation)


def eval_geometry(source: Source, preprocess: Preprocess) -> Preprocess:
    """Get a `Preprocess` with the resize and crop of `eval_transform`."""
    scaling = source.benchmark.scaled if source.benchmark else None
    if scaling is None:
        return preprocess
    return replace(preprocess, resize=preprocess.size, crop=None, interpolation=scaling)
