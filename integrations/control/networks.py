"""The networks of CURL's agent, and the crops that they see."""

import math
from functools import partial
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .settings import AgentSettings

CHUNK = 32  # images that a CPU convolves at a time


def random_crop(frames: Tensor, size: int) -> Tensor:
    """Crop each image at a random position: ``(B, C, size, size)``."""
    if size == frames.shape[-1]:
        return frames
    corners = torch.randint(frames.shape[-1] - size + 1, (2, len(frames)))
    images = frames.permute(0, 2, 3, 1)  # small copies are fast, and channels-last suits convolutions
    crops = [x[i : i + size, j : j + size] for x, i, j in zip(images, *corners.tolist(), strict=True)]
    return torch.stack(crops).permute(0, 3, 1, 2)


def center_crop(frames: Tensor, size: int) -> Tensor:
    """Crop the center of each image: ``(B, C, size, size)``."""
    start = (frames.shape[-1] - size) // 2
    return frames[..., start : start + size, start : start + size]


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    sizes = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    return nn.Sequential(*sizes)


def initialize(module: nn.Module) -> None:
    """Initialize matrices orthogonally, convolutions only at their center (https://arxiv.org/abs/1806.05393)."""
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        nn.init.zeros_(module.weight)
        center = module.kernel_size[0] // 2
        nn.init.orthogonal_(module.weight.data[:, :, center, center], nn.init.calculate_gain("relu"))
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class Encoder(nn.Module):
    """Map bytes ``(B, channels, crop, crop)`` to ``(B, features)``: convolutions, a linear layer, LayerNorm."""

    def __init__(self, channels: int, settings: AgentSettings) -> None:
        super().__init__()
        widths = [channels] + [settings.filters] * settings.layers
        convolutions = (nn.Conv2d(*pair, 3, stride=1 if i else 2) for i, pair in enumerate(pairwise(widths)))
        layers = [layer for convolution in convolutions for layer in (convolution, nn.ReLU(inplace=True))]
        self.convolutions = nn.Sequential(*layers).to(memory_format=torch.channels_last)
        side = (settings.crop - 3) // 2 + 1 - 2 * (settings.layers - 1)
        self.flat_features, self.features = settings.filters * side**2, settings.features
        self.head = self.new_head()

    def new_head(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(self.flat_features, self.features), nn.LayerNorm(self.features))

    def prepare(self, frames: Tensor) -> Tensor:
        """Convert bytes to channels-last numbers in ``[0, 1]``; leave numbers unchanged."""
        if frames.is_floating_point():
            return frames
        return frames.to(next(self.parameters()).dtype, memory_format=torch.channels_last).div_(255)

    def convolve(self, frames: Tensor) -> Tensor:
        """The head's input, ``(B, flat_features)``, from bytes or prepared frames."""
        # on a CPU, chunks reuse the memory of the chunk before, while a whole batch allocates new pages
        chunks = frames.split(CHUNK) if frames.device.type == "cpu" else (frames,)
        # flatten in memory order (channels last), which saves a copy; the head learns any order
        return torch.cat([self.convolutions(self.prepare(chunk)).permute(0, 2, 3, 1).flatten(1) for chunk in chunks])

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.convolve(frames))  # type: ignore[no-any-return]


class Critic(nn.Module):
    """An encoder, and two estimates of the value of an action."""

    def __init__(self, encoder: Encoder, features: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.q1, self.q2 = mlp(features + actions, hidden, 1), mlp(features + actions, hidden, 1)

    def values(self, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both estimates, ``(B,)`` each, from features ``(B, features)`` and actions ``(B, actions)``."""
        inputs = torch.cat([z, action], dim=1)
        return self.q1(inputs).squeeze(1), self.q2(inputs).squeeze(1)


class Actor(nn.Module):
    """A Gaussian squashed to actions in (-1, 1), with a head of its own on the critic's convolutions."""

    LOW, HIGH = -10.0, 2.0  # bounds of the log standard deviation

    def __init__(self, head: nn.Module, features: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.head, self.trunk = head, mlp(features, hidden, 2 * actions)

    def mean(self, h: Tensor) -> Tensor:
        """The deterministic action, from the output of the convolutions."""
        return self.trunk(self.head(h)).chunk(2, dim=1)[0].tanh()  # type: ignore[no-any-return]

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """Sample an action; returns it and its log density."""
        mean, log_std = self.trunk(self.head(h)).chunk(2, dim=1)
        log_std = self.LOW + (self.HIGH - self.LOW) * (log_std.tanh() + 1) / 2
        noise = torch.randn_like(mean)
        action = (mean + noise * log_std.exp()).tanh()
        log_density = -(noise**2 / 2 + log_std + math.log(2 * math.pi) / 2)
        return action, (log_density - torch.log(F.relu(1 - action**2) + 1e-6)).sum(1)


adam = partial(torch.optim.Adam, fused=True)  # one pass over memory, which bounds its speed
