"""Loading of training images: read, decoded, cropped and put into batches by PyTorch's loader."""

from __future__ import annotations

import io
import os
import random
import tarfile
from typing import Any, ClassVar, Iterator, Tuple

import torch  # noqa: TID251  its home is workloads/
import torch.utils.data  # noqa: TID251
from harness.failures import DataError
from harness.formats import photos
from harness.loading import ParameterError, require
from PIL import Image
from resnet18 import STAGES, basic, network
from torch import nn  # noqa: TID251

Sample = Tuple[torch.Tensor, int]
"""An image (3, side, side) of bytes, or how many bytes its file has; and its class."""
_CLASSES = 1000


class Loader:
    """Loads batches of photos, and trains ResNet-18 on them where asked to.

    `layout` is that of ImageNet, a folder for each class, or tar shards as WebDataset has them.
    Without workers the process that takes the batches loads them. `pin_memory` is for a GPU.
    """

    BOTTLENECK: ClassVar[str] = "reading and decoding images"
    DATA: ClassVar[str] = "harness.formats.photos"
    PARAMS: ClassVar[dict[str, Any]] = {
        "layout": "folder",
        "batch": 8,
        "side": 64,
        "workers": 0,
        "decode": True,
        "pin_memory": False,
        "model": "none",
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "layout": ("folder", "tar"),
        "batch": (2, None),
        "side": (32, None),
        "workers": (0, None),
        "model": ("none", "resnet18"),
    }

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        self.params = params
        self.batch = params["batch"]
        if not params["decode"] and params["model"] != "none":
            raise ParameterError("a model is trained on images: it needs decode=true")

    def load(self, data: str | None) -> None:
        """Find the files; the steps read their contents."""
        if data is None:
            raise DataError("no data was given. Prepare some (--prepare DIR) or name a folder")
        if self.params["layout"] == "folder":
            self._files = photos.photos(data)
            self._classes = max(_CLASSES, 1 + self._files[-1][1])
            self.steps_per_epoch = max(1, len(self._files) // self.batch)
        else:
            self._shards, self._classes = photos.shards(data), _CLASSES
            require("workers", self.params["workers"], least=0, most=len(self._shards))

    def setup(self, seed: int, device: str) -> None:
        """Start the loader and its workers, and build the model."""
        torch.manual_seed(seed)
        params = self.params
        self._device = device
        prepared = _Prepared(params["side"] if params["decode"] else 0, seed)
        is_folder = params["layout"] == "folder"
        loading = torch.utils.data.DataLoader(
            _Photos(self._files, prepared) if is_folder else _Shards(self._shards, prepared),
            batch_size=params["batch"],
            sampler=_Endless(len(self._files), seed) if is_folder else None,
            num_workers=params["workers"],
            pin_memory=params["pin_memory"] and device == "cuda",
            multiprocessing_context="fork" if params["workers"] else None,
        )
        self._batches = iter(loading)
        if params["model"] != "none":
            self._model = network(basic, STAGES, classes=self._classes).to(device)
            self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)

    def step(self) -> torch.Tensor:
        """Take a batch; return the loss of training on it, or the mean of some of its numbers."""
        images, labels = next(self._batches)
        images = images.to(self._device, non_blocking=True)
        if self.params["model"] == "none":
            seen = images[:, :, ::4, ::4] if self.params["decode"] else images
            return seen.float().mean()
        labels = labels.to(self._device, non_blocking=True)
        self._optimizer.zero_grad()
        loss = nn.functional.cross_entropy(self._model(images.float().div_(255)), labels)
        loss.backward()
        self._optimizer.step()
        return loss.detach()

    def finish(self) -> None:
        """End the workers."""
        del self._batches


class _Prepared:
    """Makes a sample of the bytes of a file: a random crop in the size that is asked for.

    With `side` 0 nothing is decoded.
    """

    def __init__(self, side: int, seed: int) -> None:
        self._side, self._seed = side, seed

    def __call__(self, content: bytes, label: int, number: int) -> Sample:
        """Return the sample; the crop depends on the seed and the number of the image alone."""
        if not self._side:
            return torch.tensor(len(content)), label
        image = Image.open(io.BytesIO(content)).convert("RGB")
        draws = random.Random(self._seed * 1_000_003 + number)
        width, height = image.size
        edge = int(min(width, height) * (0.5 + 0.5 * draws.random()))
        left, top = (int(draws.random() * (size - edge)) for size in (width, height))
        size = (self._side, self._side)
        image = image.resize(size, Image.BILINEAR, (left, top, left + edge, top + edge))
        pixels = torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8)
        return pixels.view(*size, 3).permute(2, 0, 1), label


class _Photos(torch.utils.data.Dataset):
    """The images of a folder by their numbers."""

    def __init__(self, files: list[photos.File], prepared: _Prepared) -> None:
        self._files, self._prepared = files, prepared

    def __getitem__(self, number: int) -> Sample:
        """Read an image."""
        path, label = self._files[number]
        with open(path, "rb") as file:
            return self._prepared(file.read(), label, number)


class _Endless(torch.utils.data.Sampler):
    """The numbers of all images in random order, again and again."""

    def __init__(self, count: int, seed: int) -> None:
        self._count, self._seed = count, seed

    def __iter__(self) -> Iterator[int]:
        """Yield numbers without end."""
        draws = torch.Generator().manual_seed(self._seed)
        while True:
            yield from torch.randperm(self._count, generator=draws).tolist()


class _Shards(torch.utils.data.IterableDataset):
    """The images of tar files, read from front to back, again and again; a worker has its own."""

    def __init__(self, paths: list[str], prepared: _Prepared) -> None:
        self._paths, self._prepared = paths, prepared

    def __iter__(self) -> Iterator[Sample]:
        """Yield samples without end, from the shards in random order."""
        info = torch.utils.data.get_worker_info()
        own = self._paths[info.id :: info.num_workers] if info else list(self._paths)
        draws = random.Random(torch.initial_seed() if info is None else info.seed - info.id)
        number = 0
        while True:
            draws.shuffle(own)
            before = number
            for path in own:
                for content, label in _pairs(path):
                    yield self._prepared(content, label, number)
                    number += 1
            if number == before:
                raise DataError(f"{own[0]} has no image with a class, nor has another shard")


def _pairs(path: str) -> Iterator[tuple[bytes, int]]:
    """Yield images with their classes; raises DataError for a shard that is not as it should be."""
    image: bytes | None = None
    try:
        with tarfile.open(path) as shard:
            for entry in shard:
                file = shard.extractfile(entry)
                content = file.read() if file else b""
                suffix = os.path.splitext(entry.name)[1].lower()
                if suffix in photos.SUFFIXES:
                    image = content
                elif suffix == ".cls" and image is not None:
                    yield image, int(content)
                    image = None
    except (tarfile.TarError, OSError, ValueError) as error:
        raise DataError(f"{path} is no shard of images and classes: {error}") from error
