"""One training step of a diffusion model (Ho et al., 2020) with a small U-Net of convolutions."""

from __future__ import annotations

from typing import Any, ClassVar

import torch  # noqa: TID251  its home is workloads/
from harness.loading import require_multiple
from harness.training import Trained
from torch import nn  # noqa: TID251


class Unet(Trained):
    """Trains a U-Net to find the noise in random images."""

    BOTTLENECK: ClassVar[str] = "convolutions"
    PARAMS: ClassVar[dict[str, Any]] = {
        "batch": 2,
        "side": 64,
        "width": 32,
        "levels": 3,
        "channels_last": False,
    }
    RANGES: ClassVar[dict[str, Any]] = {  # least and most; the choices of a text
        "side": (1, None),
        "width": (8, None),
        "levels": (1, 8),
    }

    def __init__(self, **params: Any) -> None:  # noqa: ANN401  checked against PARAMS and RANGES
        super().__init__(**params)
        require_multiple(params, "width", of=8)
        require_multiple(params, "side", of=2 ** params["levels"])

    def model(self) -> nn.Module:
        """Return the network."""
        width = self.params["width"]
        inner: nn.Module = convolved(width << self.params["levels"], width << self.params["levels"])
        for level in reversed(range(self.params["levels"])):
            inner = Level(inner, width << level)
        return nn.Sequential(nn.Conv2d(3, width, 3, padding=1), inner, nn.Conv2d(width, 3, 1))

    def data(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return noisy images and their noise, each (batch, 3, side, side)."""
        side = self.params["side"]
        images, noise = torch.randn(2, self.batch, 3, side, side)
        return (images + noise) / 2**0.5, noise

    def loss(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean square of what is wrong with the noise that was found."""
        return nn.functional.mse_loss(outputs, targets)


class Level(nn.Module):
    """Works on a map, on one of half its size with twice the channels, and on both together."""

    def __init__(self, inner: nn.Module, width: int) -> None:
        super().__init__()
        self.before = convolved(width, width)
        self.inner = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, 2, padding=1),
            inner,
            nn.ConvTranspose2d(2 * width, width, 2, 2),
        )
        self.after = convolved(2 * width, width)

    def forward(self, maps: torch.Tensor) -> torch.Tensor:
        """Return maps (n, width, height, width of the map) of the same shape."""
        maps = self.before(maps)
        return self.after(torch.cat([maps, self.inner(maps)], 1))


def convolved(before: int, after: int) -> nn.Module:
    """Return a convolution of 3 x 3, normalised by groups of channels, with SiLU."""
    conv = nn.Conv2d(before, after, 3, padding=1)
    return nn.Sequential(conv, nn.GroupNorm(8, after), nn.SiLU())
