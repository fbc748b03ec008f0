"""Digits for the CNN: real MNIST downloaded, or digits drawn here into the same IDX files.

The drawing uses only operations that IEEE 754 defines to the last bit, and `Random.random`, whose
sequence Python keeps between versions: the same files come out on every machine.
"""

from __future__ import annotations

import contextlib
import glob
import importlib
import math
import os
import random
import struct
from typing import Iterator, Sequence

from harness import torchparts
from harness.failures import DataError
from harness.formats.data import Source

RAW = os.path.join("MNIST", "raw")
SIDE = 28
TRAIN, TEST = 6400, 1000
HEIGHT, WIDTH = 18.0, 11.0  # of a digit, in pixels

Point = tuple[float, float]
# Strokes on a square of side 1, x to the right and y down: each digit has one or more shapes.
SHAPES: tuple[tuple[tuple[tuple[Point, ...], ...], ...], ...] = (
    (
        (
            ((0.5, 0), (0.2, 0.1), (0, 0.35), (0, 0.65), (0.2, 0.9), (0.5, 1)),
            ((0.5, 1), (0.8, 0.9), (1, 0.65), (1, 0.35), (0.8, 0.1), (0.5, 0)),
        ),
    ),
    (
        (((0.5, 0), (0.5, 1)),),
        (((0.2, 0.22), (0.55, 0), (0.55, 1)),),
        (((0.2, 0.22), (0.55, 0), (0.55, 1)), ((0.2, 1), (0.9, 1))),
    ),
    (
        (
            ((0.05, 0.25), (0.2, 0.06), (0.5, 0), (0.8, 0.08), (0.92, 0.3), (0.75, 0.55)),
            ((0.75, 0.55), (0.4, 0.8), (0.05, 1), (0.95, 1)),
        ),
    ),
    (
        (
            ((0.1, 0.12), (0.45, 0), (0.8, 0.1), (0.85, 0.3), (0.65, 0.46), (0.4, 0.5)),
            ((0.4, 0.5), (0.7, 0.54), (0.92, 0.72), (0.8, 0.92), (0.45, 1), (0.08, 0.88)),
        ),
        (
            ((0.1, 0), (0.9, 0), (0.45, 0.4), (0.75, 0.48)),
            ((0.75, 0.48), (0.92, 0.7), (0.78, 0.93), (0.4, 1), (0.08, 0.9)),
        ),
    ),
    (
        (((0.65, 0), (0.05, 0.65), (0.95, 0.65)), ((0.7, 0.3), (0.7, 1))),
        (((0.15, 0), (0.1, 0.5), (0.85, 0.5)), ((0.85, 0), (0.8, 1))),
    ),
    (
        (
            ((0.9, 0), (0.2, 0), (0.12, 0.45), (0.5, 0.38), (0.85, 0.5)),
            ((0.85, 0.5), (0.92, 0.72), (0.75, 0.94), (0.4, 1), (0.05, 0.9)),
        ),
    ),
    (
        (
            ((0.75, 0), (0.35, 0.2), (0.1, 0.55), (0.1, 0.8), (0.35, 1), (0.7, 0.97)),
            ((0.7, 0.97), (0.9, 0.75), (0.75, 0.52), (0.4, 0.5), (0.12, 0.7)),
        ),
    ),
    (
        (((0.05, 0), (0.95, 0), (0.4, 1)),),
        (((0.05, 0), (0.95, 0), (0.4, 1)), ((0.3, 0.5), (0.8, 0.5))),
    ),
    (
        (
            ((0.5, 0.48), (0.2, 0.35), (0.2, 0.1), (0.5, 0), (0.8, 0.1), (0.8, 0.35), (0.5, 0.48)),
            ((0.5, 0.48), (0.12, 0.65), (0.12, 0.9), (0.5, 1)),
            ((0.5, 1), (0.88, 0.9), (0.88, 0.65), (0.5, 0.48)),
        ),
    ),
    (
        (
            ((0.88, 0.3), (0.7, 0.05), (0.35, 0), (0.1, 0.2), (0.2, 0.45), (0.55, 0.5)),
            ((0.55, 0.5), (0.88, 0.3), (0.85, 0.6), (0.6, 1)),
        ),
    ),
)


def draw(label: int, draws: random.Random) -> bytes:
    """Return one drawn digit, 28 rows of 28 bytes: each shape, slant, size, pen and ink differs."""
    shapes = SHAPES[label]
    shape = shapes[int(draws.random() * len(shapes))]
    place = _Affine(draws)
    radius, ink = _between(draws, 0.7, 1.5), _between(draws, 160.0, 255.0)
    image = bytearray(SIDE * SIDE)
    for _ in range(40):  # specks of dust
        image[int(draws.random() * SIDE * SIDE)] = int(draws.random() * 90)
    for stroke in shape:
        points = [place(x + _between(draws, -0.04, 0.04), y) for x, y in stroke]
        for x, y in _along(points):
            _stamp(image, (x, y), radius=radius, ink=ink)
    return bytes(image)


def write_idx(path: str, content: bytes, *, sizes: Sequence[int]) -> None:
    """Write unsigned bytes as an IDX file: 0, 0, type 8, dimensions, each size, the bytes."""
    with open(path, "wb") as file:
        file.write(struct.pack(f">BBBB{len(sizes)}I", 0, 0, 8, len(sizes), *sizes) + content)


def make(folder: str) -> None:
    """Draw the training and the test digits into the four files of MNIST."""
    raw = os.path.join(folder, RAW)
    os.makedirs(raw)
    for name, count, seed in (("train", TRAIN, 1), ("t10k", TEST, 2)):
        draws = random.Random(seed)
        labels = bytes(int(draws.random() * 10) for _ in range(count))
        images = b"".join(draw(label, draws) for label in labels)
        path = os.path.join(raw, name)
        write_idx(f"{path}-labels-idx1-ubyte", labels, sizes=[count])
        write_idx(f"{path}-images-idx3-ubyte", images, sizes=[count, SIDE, SIDE])


def download(folder: str) -> None:
    """Fetch real MNIST with torchvision, which knows its mirrors and checksums."""
    torchparts.repair_torchvision()
    datasets = importlib.import_module("torchvision.datasets")
    try:
        datasets.MNIST(folder, download=True)
    except (RuntimeError, OSError) as error:
        reason = (str(error).strip().splitlines() or ["no reason given"])[-1]
        raise DataError(
            f"MNIST cannot be downloaded here: {reason}. Give its files as data instead"
        ) from error
    for path in glob.glob(os.path.join(folder, RAW, "*.gz")):
        with contextlib.suppress(OSError):
            os.remove(path)


SOURCE = Source("digits 1", make, download)


class _Affine:
    """Maps the unit square onto the image, turned, slanted, scaled and shifted at random."""

    def __init__(self, draws: random.Random) -> None:
        half = _between(draws, -0.13, 0.13)  # tangent of half the angle: exact, unlike a sine
        self._cos = (1 - half * half) / (1 + half * half)
        self._sin = 2 * half / (1 + half * half)
        self._slant = _between(draws, -0.25, 0.25)
        self._width = WIDTH * _between(draws, 0.7, 1.15)
        self._height = HEIGHT * _between(draws, 0.85, 1.1)
        self._x = SIDE / 2 + _between(draws, -2.0, 2.0)
        self._y = SIDE / 2 + _between(draws, -2.0, 2.0)

    def __call__(self, x: float, y: float) -> Point:
        """Return where a point of the unit square comes to lie, in pixels."""
        across = (x - 0.5) * self._width
        down = (y - 0.5) * self._height
        across -= down * self._slant
        return (
            self._x + across * self._cos - down * self._sin,
            self._y + across * self._sin + down * self._cos,
        )


def _along(points: Sequence[Point]) -> Iterator[Point]:
    """Yield points at most 1.3 pixels apart on the lines from each point to the next."""
    for (x0, y0), (x1, y1) in zip(points, points[1:]):
        length = math.sqrt((x1 - x0) * (x1 - x0) + (y1 - y0) * (y1 - y0))
        count = int(length / 1.3) + 1
        for index in range(count + 1):
            part = index / count
            yield x0 + (x1 - x0) * part, y0 + (y1 - y0) * part


def _stamp(image: bytearray, centre: Point, *, radius: float, ink: float) -> None:
    """Darken the pixels under a round pen, its edge soft over one pixel.

    This is the inner loop of `make`: distances stay squared where that will do.
    """
    x, y = centre
    outer, inner = (radius + 0.5) * (radius + 0.5), (radius - 0.5) * (radius - 0.5)
    for row in _pixels(y, radius + 0.5):
        rest = outer - (row - y) * (row - y)
        for column in _pixels(x, radius + 0.5):
            across = (column - x) * (column - x)
            if across < rest:
                apart = outer - rest + across
                cover = 1.0 if apart <= inner else radius + 0.5 - math.sqrt(apart)
                index = row * SIDE + column
                image[index] = max(image[index], int(ink * cover))


def _pixels(centre: float, reach: float) -> range:
    """Return the pixels of a row or column within reach."""
    return range(max(0, int(centre - reach)), min(SIDE, int(centre + reach) + 1))


def _between(draws: random.Random, low: float, high: float) -> float:
    return low + (high - low) * draws.random()
