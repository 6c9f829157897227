"""Neighbours: the training images with the features nearest to an image's."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import normalize

from sirc._utils.files import PathLike
from sirc.data import image_folder, printable
from sirc.deploy.selective import SelectiveClassifier
from sirc.models import fingerprint
from sirc.outputs import STORE_FILE, OutputStore

_COUNT = 6
_BATCH = 4096  # rows of the store compared at a time
_SIDE = 240  # pixels of the longer side of a thumbnail


@final
class Neighbours:
    """A folder of training images and the store of their outputs, to find those nearest to an image."""

    def __init__(self, guard: SelectiveClassifier, folder: PathLike, store: PathLike) -> None:
        place = Path(store)
        if not (place / STORE_FILE).exists() and (place / "train" / STORE_FILE).exists():
            place /= "train"  # the folder of `guard(…, path=…)`
        self._store = OutputStore(place)
        prepare = None if guard.preprocess is None else guard.preprocess.test()
        self._images = image_folder(folder, classes=guard.classes, transform=prepare)
        if len(self._images) != self._store.size:
            raise ValueError(
                f"'{printable(place)}' must be the outputs of the images in '{printable(folder)}', in their order; it "
                f"has {self._store.size:,}, the folder {len(self._images):,}. Name the folder that they were made from"
            )
        self._store.require_complete()
        if self._store.num_features is None:
            raise ValueError(
                f"outputs must have features to find the nearest images; those of '{printable(place)}' have none. "
                "Guard with a score that reads features, such as `scod`"
            )
        self._store.check_model(fingerprint(guard.model))
        self._store.check_data(self._images.fingerprint)

    def nearest(self, features: Tensor) -> list[dict[str, object]]:
        """The nearest images: number, file, class and cosine similarity of the features."""
        wanted = normalize(features.detach().cpu().float(), dim=0)
        values, items = torch.empty(0), torch.empty(0, dtype=torch.int64)
        for i in range(self._store.num_shards):
            batches = self._store.shard(i).batches(_BATCH)
            near = torch.cat([normalize(batch.features.float(), dim=1) @ wanted for batch in batches])  # type: ignore[union-attr]
            values, items = torch.cat([values, near]), torch.cat([items, self._store.index(i)])
            values, order = values.topk(min(_COUNT, len(values)))
            items = items[order]
        return [self._described(item, value) for item, value in zip(items.tolist(), values.tolist(), strict=True)]

    def _described(self, item: int, value: float) -> dict[str, object]:
        labels, path = self._images.labels, self._images.path(item)
        assert labels is not None
        name = printable(path.relative_to(self._images.root))
        return {"number": item, "file": name, "class": self._images.classes[int(labels[item])], "similarity": value}

    def thumbnail(self, number: int) -> bytes:
        """A training image as a small JPEG."""
        image, file = self._images.image(number), BytesIO()
        image.thumbnail((_SIDE, _SIDE))
        image.save(file, "JPEG", quality=88)
        return file.getvalue()
