"""Photos for the loader: JPEG files in the folders of ImageNet, and the same in tar shards."""

from __future__ import annotations

import importlib
import io
import os
import random
import tarfile
from typing import Any, List, Tuple

from harness.failures import DataError
from harness.formats.data import Source

SIZE = (500, 375)  # the commonest of ImageNet
COUNT, CLASSES, SHARDS = 256, 8, 8
QUALITY = 90
SUFFIXES = (".jpeg", ".jpg", ".png")
TRAIN, TARS = "train", "shards"

File = Tuple[str, int]
"""The path of an image, and the number of its class."""


def make(folder: str) -> None:
    """Draw photos into `train/CLASS/NAME.JPEG`, and write them again into `shards/*.tar`.

    A shard is as WebDataset has it: of each photo a `.jpg` and, after it, a `.cls` with its class.
    """
    image = importlib.import_module("PIL.Image")
    draws = random.Random(1)
    classes = [f"n{number:08}" for number in range(CLASSES)]
    contents = [_drawn(image, draws) for _ in range(COUNT)]
    for name in (*(os.path.join(TRAIN, one) for one in classes), TARS):
        os.makedirs(os.path.join(folder, name))
    for number, content in enumerate(contents):
        name = classes[number % CLASSES]
        with open(os.path.join(folder, TRAIN, name, f"{name}_{number}.JPEG"), "wb") as file:
            file.write(content)
    each = COUNT // SHARDS
    for place in range(SHARDS):
        path = os.path.join(folder, TARS, f"train-{place:06}.tar")
        with tarfile.open(path, "w") as shard:
            for number in range(place * each, (place + 1) * each):
                _add(shard, f"{number:06}.jpg", contents[number])
                _add(shard, f"{number:06}.cls", str(number % CLASSES).encode())


def photos(path: str) -> List[File]:
    """Return the images of a folder with a folder for each class, there or in `train`, in order.

    Raises DataError where there is none.
    """
    inner = os.path.join(path, TRAIN)
    root = inner if os.path.isdir(inner) else path
    classes = sorted(one.name for one in os.scandir(root) if one.is_dir())
    found = [
        (os.path.join(root, name, file), label)
        for label, name in enumerate(classes)
        for file in sorted(os.listdir(os.path.join(root, name)))
        if file.lower().endswith(SUFFIXES)
    ]
    if not found:
        raise DataError(
            f"{root} has no folder with JPEG or PNG files. Give a folder that has one for each "
            "class, there or in train, as ImageNet has"
        )
    return found


def shards(path: str) -> List[str]:
    """Return the tar files of a folder, there or in `shards`, in order.

    Raises DataError where there is none.
    """
    inner = os.path.join(path, TARS)
    root = inner if os.path.isdir(inner) else path
    found = sorted(os.path.join(root, one) for one in os.listdir(root) if one.endswith(".tar"))
    if not found:
        raise DataError(
            f"{root} has no .tar file. Give a folder with shards as WebDataset has them, there or "
            "in shards"
        )
    return found


def refuse(_folder: str) -> None:
    """Say that ImageNet cannot be downloaded without a login."""
    raise DataError("ImageNet needs a login. Download it there and give its folder with --data")


SOURCE = Source("photos 1", make, refuse)


def _drawn(image: Any, draws: random.Random) -> bytes:  # noqa: ANN401  Pillow's module
    """Return a JPEG of large soft shapes with some grain, about as long as a photo of its size."""
    shapes = _noise(image, draws, (10, 8))
    grain = _noise(image, draws, (SIZE[0] // 4, SIZE[1] // 4))
    stream = io.BytesIO()
    image.blend(shapes, grain, 0.25).save(stream, "JPEG", quality=QUALITY)
    return stream.getvalue()


def _noise(image: Any, draws: random.Random, size: tuple[int, int]) -> Any:  # noqa: ANN401
    content = draws.getrandbits(24 * size[0] * size[1]).to_bytes(3 * size[0] * size[1], "big")
    return image.frombytes("RGB", size, content).resize(SIZE, image.Resampling.BICUBIC)


def _add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = len(content)
    shard.addfile(entry, io.BytesIO(content))
