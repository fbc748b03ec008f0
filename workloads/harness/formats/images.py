"""MNIST as tensors, read by torchvision from its IDX files."""

from __future__ import annotations

import importlib
import os
from typing import Any

from harness import torchparts
from harness.failures import DataError
from harness.formats.data import Folder

KINDS = ("images-idx3-ubyte", "labels-idx1-ubyte")


def read_digits(path: str | None, *, train: bool) -> tuple[Any, Any]:
    """Return the images (n, 28, 28; bytes) and the labels (n) of the training or the test set.

    The path is a folder that holds the four IDX files, unpacked: in it, in raw or in MNIST/raw.
    """
    if path is None:
        raise DataError("no data was given. Prepare some (--prepare DIR) or name an MNIST folder")
    raw = _raw_folder(path)
    folder = Folder(path)
    for kind in KINDS:
        name = os.path.join(raw, f"{'train' if train else 't10k'}-{kind}")
        folder.check(os.path.relpath(name, path))
    torchparts.repair_torchvision()
    mnist = importlib.import_module("torchvision.datasets").MNIST
    found = type("MNIST", (mnist,), {"raw_folder": raw})
    try:
        digits = found(path, train=train)
    except (AssertionError, RuntimeError, ValueError, OSError, IndexError) as error:
        raise DataError(
            f"{raw} holds no readable IDX files: {str(error) or 'sizes disagree'}"
        ) from error
    return digits.data, digits.targets


def _raw_folder(path: str) -> str:
    places = [os.path.join(path, *parts) for parts in ((), ("raw",), ("MNIST", "raw"))]
    for place in places:
        if os.path.exists(os.path.join(place, f"train-{KINDS[0]}")):
            return place
    raise DataError(
        f"{path} has no train-{KINDS[0]}, there or in MNIST/raw. "
        "Unpack the four IDX files of MNIST there"
    )
