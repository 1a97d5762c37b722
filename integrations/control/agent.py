"""CURL (Laskin et al., 2020): soft actor-critic from pixels, with a contrastive loss between crops of each observation.

One encoder, four convolutions and a linear layer with LayerNorm, serves the critic and the contrastive loss; the actor
sees its convolutions through a linear layer of its own. Targets of critic and encoder follow slowly. One update::

    critic        y = r + gamma (min Q_target(s', a') - alpha log pi(a'|s')),   (Q1(s, a) - y)^2 + (Q2(s, a) - y)^2
    actor, alpha  alpha log pi(a|s) - min Q(s, a),   alpha (-log pi(a|s) - target entropy),   convolutions unmoved
    contrastive   an objective of z = encoder(crop of s) and its keys, target_encoder(other crops of s)

The contrastive term is any objective, on the scores that :mod:`counterpoint.plugins.curl` knows: ``bilinear`` ones,
``z W key``, or cosines. ``infonce:t=1`` on bilinear scores is CURL's own loss.

What is computed is what CURL's code computes, to rounding, with less: the convolutions of a batch are computed once
for actor and contrastive loss, in the layout that is fastest and in parts that fit the memory already at hand, and of
CURL's two optimisers that both move the encoder by the contrastive gradient one is left, with twice the step.

Not on torchrl: its SACLoss duplicates the value network for each estimate, encoder included, where CURL shares it
between both and the actor, and its targets follow at one rate, where CURL's encoder follows faster than its critics.
Nor would it be faster: plain SAC from five numbers, the same networks and Adam in both, makes 1.6 times as many updates
per second here as on torchrl 0.14, and the replay buffer 1.5 times as many batches of frames
(``python tests/bench/bench_control.py torchrl``, CPU time of one thread, 7 interleaved rounds).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from counterpoint.hyper import nearest
from counterpoint.objective import Objective, as_objective
from counterpoint.plugins import curl
from counterpoint.plugins.host import SeamError

from .replay import Transitions

PART = 32  # images that a CPU convolves at a time


@dataclass(frozen=True)
class Settings:
    """CURL's hyper-parameters; the defaults are the paper's, and the batch the official script's.

    Attributes:
        batch: transitions per update.
        capacity: frames in the replay buffer.
        random_steps: actions at random before the first update.
        size, crop, stack: frames are rendered with ``size`` pixels a side and cropped to ``crop``, ``stack`` of them
            make an observation.
        layers, filters, features: convolutions, channels of each, width of the encoder's output.
        hidden: width of the two hidden layers of actor and critics.
        lr: of actor, critic and encoder; CURL uses 2e-4 for cheetah-run.
        alpha, alpha_lr: temperature of the entropy at the start, and its learning rate.
        discount: of future rewards.
        tau, encoder_tau: how far the targets of the critics and of the encoder go at a time.
        every: updates of the critic for each of actor and targets.
    """

    batch: int = 128
    capacity: int = 100_000
    random_steps: int = 1000
    size: int = 100
    crop: int = 84
    stack: int = 3
    layers: int = 4
    filters: int = 32
    features: int = 50
    hidden: int = 1024
    lr: float = 1e-3
    alpha: float = 0.1
    alpha_lr: float = 1e-4
    discount: float = 0.99
    tau: float = 0.01
    encoder_tau: float = 0.05
    every: int = 2

    def __post_init__(self) -> None:
        for field in fields(self):
            value, whole = getattr(self, field.name), field.type == "int"
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not value > 0:
                kind = "whole number" if whole else "number"
                raise ValueError(f"{field.name}: expected a {kind} above 0, got {value!r}.")
        if self.crop > self.size:
            raise ValueError(f"crop: expected at most the frames' size {self.size}, got {self.crop}.")
        if self.crop < 4 * self.layers - 1:
            raise ValueError(f"crop: {self.layers} convolutions need at least {4 * self.layers - 1}, got {self.crop}.")
        if self.batch > min(self.random_steps, self.capacity - 1):
            raise ValueError(
                f"batch: {self.batch} transitions, but the buffer holds {min(self.random_steps, self.capacity - 1)} "
                "at the first update; raise random_steps or capacity."
            )


# ---- frames ------------------------------------------------------------------------------------


def random_crop(frames: Tensor, size: int) -> Tensor:
    """``(B, C, size, size)``: a crop of each, at a place of its own."""
    if size == frames.shape[-1]:
        return frames
    places = torch.randint(frames.shape[-1] - size + 1, (2, len(frames)))
    if frames.device.type == "cpu":  # many small copies are faster there, and it is bytes that are cheap to reorder
        images = frames.permute(0, 2, 3, 1)
        parts = [x[i : i + size, j : j + size] for x, i, j in zip(images, *places.tolist(), strict=True)]
        return torch.stack(parts).permute(0, 3, 1, 2)
    top, left = places.to(frames.device)
    windows = frames.unfold(2, size, 1).unfold(3, size, 1)
    return windows[torch.arange(len(frames), device=frames.device), :, top, left]


def center_crop(frames: Tensor, size: int) -> Tensor:
    """``(B, C, size, size)``: the middle of each."""
    start = (frames.shape[-1] - size) // 2
    return frames[..., start : start + size, start : start + size]


# ---- networks ----------------------------------------------------------------------------------


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    sizes = [nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)]
    return nn.Sequential(*sizes)


def initialize(module: nn.Module) -> None:
    """Orthogonal matrices; in convolutions at the centre alone (Xiao et al., 2018)."""
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        nn.init.zeros_(module.weight)
        centre = module.kernel_size[0] // 2
        nn.init.orthogonal_(module.weight.data[:, :, centre, centre], nn.init.calculate_gain("relu"))
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class Encoder(nn.Module):
    """Bytes ``(B, channels, crop, crop)`` to ``(B, features)``: convolutions, then a linear layer with LayerNorm."""

    def __init__(self, channels: int, settings: Settings) -> None:
        super().__init__()
        widths = [channels] + [settings.filters] * settings.layers
        layers = [
            layer
            for i in range(settings.layers)
            for layer in (nn.Conv2d(widths[i], widths[i + 1], 3, stride=1 if i else 2), nn.ReLU(inplace=True))
        ]
        self.convolutions = nn.Sequential(*layers).to(memory_format=torch.channels_last)
        side = (settings.crop - 3) // 2 + 1 - 2 * (settings.layers - 1)
        self.found, self.features = settings.filters * side**2, settings.features
        self.head = self.new_head()

    def new_head(self) -> nn.Sequential:
        return nn.Sequential(nn.Linear(self.found, self.features), nn.LayerNorm(self.features))

    def prepare(self, frames: Tensor) -> Tensor:
        """Bytes as numbers between 0 and 1, in the order that convolutions are fastest in; numbers as they are."""
        if frames.is_floating_point():
            return frames
        kind = next(self.parameters()).dtype
        return frames.to(kind, memory_format=torch.channels_last).div_(255)

    def convolve(self, frames: Tensor) -> Tensor:
        """``(B, what the head gets)``, of bytes or of what was prepared."""
        # a CPU computes a part in memory that the one before has left, where a whole batch asks for new pages
        parts = frames.split(PART) if frames.device.type == "cpu" else (frames,)
        # flat in the order that is in memory: for the head, one order is as good as another
        return torch.cat([self.convolutions(self.prepare(part)).permute(0, 2, 3, 1).flatten(1) for part in parts])

    def forward(self, frames: Tensor) -> Tensor:
        return self.head(self.convolve(frames))  # type: ignore[no-any-return]


class NoEncoder(nn.Module):
    """Stands where the encoder does if observations are no pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.head = self.new_head()

    def new_head(self) -> nn.Module:
        return nn.Identity()

    def prepare(self, numbers: Tensor) -> Tensor:
        return numbers

    def convolve(self, numbers: Tensor) -> Tensor:
        return numbers

    def forward(self, numbers: Tensor) -> Tensor:
        return numbers


class Critic(nn.Module):
    """An encoder and two estimates of the value of an action."""

    def __init__(self, encoder: Encoder | NoEncoder, features: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.q1, self.q2 = mlp(features + actions, hidden, 1), mlp(features + actions, hidden, 1)

    def values(self, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([z, action], dim=1)
        return self.q1(both).squeeze(1), self.q2(both).squeeze(1)


class Actor(nn.Module):
    """A Gaussian, squashed to actions in (-1, 1), on top of the critic's convolutions."""

    LOW, HIGH = -10.0, 2.0  # of the logarithm of its standard deviation

    def __init__(self, head: nn.Module, features: int, actions: int, hidden: int) -> None:
        super().__init__()
        self.head, self.trunk = head, mlp(features, hidden, 2 * actions)

    def mean(self, h: Tensor) -> Tensor:
        """The action without chance, of what the convolutions found."""
        return self.trunk(self.head(h)).chunk(2, dim=1)[0].tanh()  # type: ignore[no-any-return]

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor]:
        """A drawn action, and the logarithm of its density."""
        mean, log_std = self.trunk(self.head(h)).chunk(2, dim=1)
        log_std = self.LOW + (self.HIGH - self.LOW) * (log_std.tanh() + 1) / 2
        noise = torch.randn_like(mean)
        action = (mean + noise * log_std.exp()).tanh()
        log_density = -(noise**2 / 2 + log_std + math.log(2 * math.pi) / 2)
        return action, (log_density - torch.log(F.relu(1 - action**2) + 1e-6)).sum(1)


def adam(parameters: Any, lr: float, **how: Any) -> torch.optim.Optimizer:
    """Adam in one pass over memory, which is what bounds it."""
    return torch.optim.Adam(parameters, lr, fused=True, **how)


# ---- the contrastive term ----------------------------------------------------------------------


def check_objective(objective: Objective | str) -> Objective:
    """The objective, if crops are all that it needs."""
    try:
        return curl.check(as_objective(objective))
    except SeamError as error:
        raise ValueError(str(error)) from error


class Contrast(nn.Module):
    """An objective between crops; its keys come from a slow copy of the encoder, without gradient.

    Args:
        objective: an objective or a spec.
        encoder: what is trained.
        target: the slow copy.
        features: width of its output.
        scores: ``bilinear`` or ``cosine``; by default what the objective needs, see :mod:`counterpoint.plugins.curl`.
    """

    def __init__(
        self, objective: Objective | str, encoder: nn.Module, target: nn.Module, features: int, scores: str | None
    ) -> None:
        super().__init__()
        self.objective = check_objective(objective)
        self.scores = scores or curl.natural_scores(self.objective)
        if self.scores not in curl.SCORES:
            raise ValueError(f"scores: unknown {self.scores!r}.{nearest(str(self.scores), curl.SCORES)}")
        self.crops = self.objective.views or 2
        self.w = nn.Parameter(torch.rand(features, features))
        self.encoder, self.target = [encoder], [target]  # in lists: parameters of somebody else

    def optimizer(self, lr: float) -> torch.optim.Optimizer:
        """Adam; twice the step for the encoder is what CURL's two optimisers come to."""
        moved: list[dict[str, Any]] = [{"params": self.encoder[0].parameters(), "lr": 2 * lr}]
        return adam([*moved, {"params": self.parameters()}], lr)

    def forward(self, z: Tensor, keys: list[Tensor]) -> Tensor:
        """The loss of anchors and, per further crop, of the target's output."""
        sides = curl.Sides(z, keys, self.w if self.scores == "bilinear" else None)
        return self.objective.from_pairings(sides, z.device)

    def keys(self, frames: Tensor, size: int) -> list[Tensor]:
        """What the target makes of all crops but the first."""
        with torch.no_grad():
            return [self.target[0](random_crop(frames, size)) for _ in range(self.crops - 1)]


# ---- the agent ---------------------------------------------------------------------------------


class Agent:
    """Acts, and learns from batches of transitions.

    Args:
        observation: shape of an observation: ``(channels, height, width)``, or ``(numbers,)`` for plain SAC.
        actions: numbers per action.
        objective: an objective or a spec; None leaves the contrastive term out.
        settings: hyper-parameters.
        scores: see :class:`Contrast`.
        device: where all is computed.
    """

    def __init__(
        self,
        observation: tuple[int, ...],
        actions: int,
        objective: Objective | str | None = "infonce:t=1",
        settings: Settings | None = None,
        scores: str | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        self.settings = s = settings or Settings()
        self.device, self.pixels, self.updates = torch.device(device), len(observation) == 3, 0
        features = s.features if self.pixels else observation[0]

        def critic() -> Critic:
            encoder = Encoder(observation[0], s) if self.pixels else NoEncoder()
            return Critic(encoder, features, actions, s.hidden).apply(initialize).to(self.device)

        self.critic, self.target = critic(), critic().requires_grad_(False)
        self.target.load_state_dict(self.critic.state_dict())
        self.actor = (
            Actor(self.critic.encoder.new_head(), features, actions, s.hidden).apply(initialize).to(self.device)
        )
        self.log_alpha = torch.tensor(s.alpha, device=self.device).log().requires_grad_()
        self.target_entropy = -float(actions)
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "critic": adam(self.critic.parameters(), s.lr),
            "actor": adam(self.actor.parameters(), s.lr),
            "alpha": adam([self.log_alpha], s.alpha_lr, betas=(0.5, 0.999)),
        }
        self.contrast: Contrast | None = None
        if objective is not None:
            if not self.pixels:
                raise ValueError("objective: crops need pixels; without these it must be None.")
            self.contrast = Contrast(objective, self.critic.encoder, self.target.encoder, features, scores)
            self.contrast.to(self.device)
            self.optimizers["contrast"] = self.contrast.optimizer(s.lr)

    @torch.no_grad()
    def act(self, observations: Any, explore: bool = False) -> Any:
        """Actions ``(B, actions)`` for observations ``(B, ...)``: drawn, or the policy's mean."""
        x = torch.as_tensor(observations, device=self.device)
        h = self.critic.encoder.convolve(center_crop(x, self.settings.crop) if self.pixels else x)
        return (self.actor(h)[0] if explore else self.actor.mean(h)).cpu().numpy()

    def update(self, batch: Transitions) -> dict[str, Tensor]:
        """One update of everything; returns the losses."""
        s, encoder = self.settings, self.critic.encoder
        seen, then = batch.observations, batch.next_observations
        x, y = (random_crop(frames, s.crop) if self.pixels else frames for frames in (seen, then))
        x = encoder.prepare(x)  # once for two passes
        numbers = {"critic": self._update_critic(x, y, batch)}
        h = encoder.convolve(x)
        z = encoder.head(h)
        if self.updates % s.every == 0:
            numbers |= self._update_actor(h.detach(), z.detach())
            follow(self.target.encoder, encoder, s.encoder_tau)
            for slow, fast in ((self.target.q1, self.critic.q1), (self.target.q2, self.critic.q2)):
                follow(slow, fast, s.tau)
        if self.contrast is not None:
            loss = self.contrast(z, self.contrast.keys(seen, s.crop))
            self._step("contrast", loss)
            numbers["contrast"] = loss.detach()
        self.updates += 1
        return numbers

    def _update_critic(self, x: Tensor, y: Tensor, batch: Transitions) -> Tensor:
        critic, target = self.critic, self.target
        with torch.no_grad():
            action, log_density = self.actor(critic.encoder.convolve(y))
            value = torch.minimum(*target.values(target.encoder(y), action)) - self.log_alpha.exp() * log_density
            wanted = batch.rewards + self.settings.discount * batch.alive * value
        q1, q2 = critic.values(critic.encoder(x), batch.actions)
        loss = F.mse_loss(q1, wanted) + F.mse_loss(q2, wanted)
        self._step("critic", loss)
        return loss.detach()

    def _update_actor(self, h: Tensor, z: Tensor) -> dict[str, Tensor]:
        self.critic.requires_grad_(False)  # it is only looked through
        action, log_density = self.actor(h)
        value = torch.minimum(*self.critic.values(z, action))
        alpha = self.log_alpha.exp()
        loss = (alpha.detach() * log_density - value).mean()
        self._step("actor", loss)
        self.critic.requires_grad_(True)
        self._step("alpha", (alpha * (-log_density - self.target_entropy).detach()).mean())
        return {"actor": loss.detach(), "alpha": alpha.detach(), "entropy": -log_density.detach().mean()}

    def _step(self, name: str, loss: Tensor) -> None:
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()

    # ---- as plain data -------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        return {
            **{name: module.state_dict() for name, module in self._modules()},
            "log_alpha": self.log_alpha.detach(),
            "optimizers": {name: one.state_dict() for name, one in self.optimizers.items()},
            "updates": self.updates,
        }

    def load(self, state: dict[str, Any]) -> None:
        for name, module in self._modules():
            module.load_state_dict(state[name])
        with torch.no_grad():
            self.log_alpha.copy_(state["log_alpha"])
        for name, one in self.optimizers.items():
            one.load_state_dict(state["optimizers"][name])
        self.updates = state["updates"]

    def _modules(self) -> Iterable[tuple[str, nn.Module]]:
        named = {"critic": self.critic, "target": self.target, "actor": self.actor, "contrast": self.contrast}
        return [(name, module) for name, module in named.items() if module is not None]


@torch.no_grad()
def follow(slow: nn.Module, fast: nn.Module, tau: float) -> None:
    """``slow = (1 - tau) slow + tau fast``."""
    for theirs, ours in zip(slow.parameters(), fast.parameters(), strict=True):
        theirs.lerp_(ours, tau)
