"""CURL in one file: soft actor-critic from pixels, with a contrastive loss between crops of each observation.

Laskin et al. 2020, https://arxiv.org/abs/2004.04136. Read it from the top down: settings, environment, replay buffer,
networks, losses, loop. The contrastive loss is any objective of counterpoint:

- on bilinear scores ``z W key``, as in CURL: ``infonce:t=1`` is CURL's own loss;
- on cosines of ``z`` and ``key``, for objectives that expect similarities between -1 and 1.

The defaults are small enough for a CPU; the help of each flag has the paper's value.

examples:
  python examples/curl_single_file.py --steps 2000 --task cartpole-swingup
  python examples/curl_single_file.py --steps 2000 --objective adnce:t=0.2 --scores cosine
  python examples/curl_single_file.py --device cuda --steps 100000 --random-steps 1000 --capacity 100000 --batch 128 \\
      --size 100 --crop 84 --filters 32 --hidden 1024                           # as in the paper
"""

from __future__ import annotations

import argparse
import ast
import copy
import inspect
import math
import os
import sys
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import counterpoint as cp

if sys.platform == "linux":
    os.environ.setdefault("MUJOCO_GL", "egl")  # renders without a screen
with suppress(ImportError):
    import triton  # noqa: F401  torch loads it later, and its LLVM crashes after a software renderer's

from dm_control import suite

Array = np.ndarray[Any, Any]

# ---- settings ----------------------------------------------------------------------------------


@dataclass
class Args:
    task: str = "cartpole-swingup"
    """task of dm_control's suite, domain-task"""
    objective: str = "infonce:t=1"
    """spec of the contrastive objective"""
    scores: str = "bilinear"
    """bilinear, z W key as in CURL, or cosine"""
    steps: int = 20_000
    """steps of the simulator (paper: 100000 and 500000)"""
    repeat: int = 8
    """times each action is applied (paper: 8 for cartpole, 2 for finger and walker, else 4)"""
    random_steps: int = 100
    """random actions before the first update (paper: 1000)"""
    batch: int = 64
    """transitions per update (official script: 128)"""
    capacity: int = 10_000
    """transitions in the replay buffer (paper: 100000)"""
    size: int = 64
    """pixels a side of the frames (paper: 100)"""
    crop: int = 54
    """pixels a side of the crops (paper: 84)"""
    stack: int = 3
    """frames per observation (paper: 3)"""
    filters: int = 16
    """channels of each convolution (paper: 32)"""
    features: int = 50
    """width of the encoder's output (paper: 50)"""
    hidden: int = 256
    """width of actor and critics (paper: 1024)"""
    lr: float = 1e-3
    """learning rate of encoder, actor and critics (paper: 1e-3; 2e-4 for cheetah-run)"""
    alpha: float = 0.1
    """initial temperature of the entropy (paper: 0.1)"""
    alpha_lr: float = 1e-4
    """learning rate of that temperature (paper: 1e-4)"""
    discount: float = 0.99
    """of future rewards (paper: 0.99)"""
    tau: float = 0.01
    """rate at which the target critics follow (paper: 0.01)"""
    encoder_tau: float = 0.05
    """rate at which the target encoder follows (paper: 0.05)"""
    actor_every: int = 2
    """updates of the critic per update of actor and targets (paper: 2)"""
    episodes: int = 1
    """episodes of the final evaluation (paper: 10)"""
    seed: int = 0
    """of networks, environment and replay buffer"""
    device: str = "cpu"
    """cpu or cuda"""


def parse(argv: Sequence[str] | None = None) -> Args:
    """Make a flag of every field of ``Args``; the string below a field is its help."""
    body = ast.parse(inspect.getsource(Args)).body[0].body  # type: ignore[attr-defined]
    helps = [part.value.value for part in body if isinstance(part, ast.Expr)]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for field, text in zip(fields(Args), helps, strict=True):
        kind, about = type(field.default), f"{text} [%(default)s]"
        parser.add_argument(f"--{field.name.replace('_', '-')}", type=kind, default=field.default, help=about)
    args = Args(**vars(parser.parse_args(argv)))
    if args.scores not in ("bilinear", "cosine"):
        parser.error(f"argument --scores: expected bilinear or cosine, got {args.scores!r}")
    if not 15 <= args.crop <= args.size:
        parser.error(f"argument --crop: expected 15 to {args.size} pixels, got {args.crop}")
    if args.batch > args.random_steps:
        parser.error(f"argument --batch: expected at most --random-steps, {args.random_steps}, got {args.batch}")
    return args


# ---- environment -------------------------------------------------------------------------------


class Pixels:
    """A task from pixels: ``(3 * stack, size, size)`` bytes, actions in [-1, 1], each applied ``repeat`` times."""

    def __init__(self, args: Args, seed: int) -> None:
        domain, _, task = args.task.partition("-")
        self.env = suite.load(domain, task, task_kwargs={"random": seed})
        spec = self.env.action_spec()
        self.low, self.high, self.actions = spec.minimum, spec.maximum, spec.shape[0]
        self.size, self.repeat = args.size, args.repeat
        self.frames: deque[Array] = deque(maxlen=args.stack)

    def reset(self) -> Array:
        self.env.reset()
        frame = self.render()
        self.frames.extend([frame] * (self.frames.maxlen or 1))
        return np.concatenate(self.frames)

    def step(self, action: Array) -> tuple[Array, float, bool, bool]:
        """Observation, summed reward, whether the episode is over, and whether the task (not the clock) ended it."""
        scaled = self.low + (action.clip(-1, 1) + 1) / 2 * (self.high - self.low)
        reward = 0.0
        for _ in range(self.repeat):
            timestep = self.env.step(scaled)
            reward += timestep.reward or 0.0
            if timestep.last():
                break
        self.frames.append(self.render())
        return np.concatenate(self.frames), reward, timestep.last(), timestep.last() and timestep.discount == 0

    def render(self) -> Array:
        return self.env.physics.render(self.size, self.size, camera_id=0).transpose(2, 0, 1)  # type: ignore[no-any-return]


# ---- replay buffer -----------------------------------------------------------------------------


class ReplayBuffer:
    def __init__(self, args: Args, actions: int) -> None:
        shape = (args.capacity, 3 * args.stack, args.size, args.size)
        self.x, self.x_next = np.empty(shape, np.uint8), np.empty(shape, np.uint8)
        self.action = np.empty((args.capacity, actions), np.float32)
        self.reward, self.alive = np.empty(args.capacity, np.float32), np.empty(args.capacity, np.float32)
        self.capacity, self.added, self.device = args.capacity, 0, args.device
        self.rng = np.random.default_rng(args.seed)

    def add(self, *transition: Any) -> None:
        for column, value in zip((self.x, self.action, self.reward, self.x_next, self.alive), transition, strict=True):
            column[self.added % self.capacity] = value
        self.added += 1

    def sample(self, batch: int) -> list[Tensor]:
        rows = self.rng.integers(min(self.added, self.capacity), size=batch)
        columns = (self.x, self.action, self.reward, self.x_next, self.alive)
        return [torch.as_tensor(column[rows], device=self.device) for column in columns]


def random_crop(x: Tensor, size: int) -> Tensor:
    """Crop each image at a random position."""
    corners = torch.randint(x.shape[-1] - size + 1, (len(x), 2)).tolist()
    return torch.stack([image[:, i : i + size, j : j + size] for image, (i, j) in zip(x, corners, strict=True)])


# ---- networks ----------------------------------------------------------------------------------


def mlp(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    layers = nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, outputs)
    return nn.Sequential(*layers)


class Encoder(nn.Module):
    """Four convolutions, then a linear layer and LayerNorm: bytes ``(B, C, crop, crop)`` to ``(B, features)``."""

    def __init__(self, args: Args) -> None:
        super().__init__()
        channels, width = 3 * args.stack, args.filters
        layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, stride=2), nn.ReLU()]
        for _ in range(3):
            layers += [nn.Conv2d(width, width, 3), nn.ReLU()]
        self.convolutions = nn.Sequential(*layers, nn.Flatten())
        side = (args.crop - 3) // 2 + 1 - 6
        self.head = nn.Sequential(nn.Linear(width * side**2, args.features), nn.LayerNorm(args.features))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.convolutions(x / 255))  # type: ignore[no-any-return]


class Critic(nn.Module):
    """Two estimates of the value of an action, on one encoder."""

    def __init__(self, args: Args, actions: int) -> None:
        super().__init__()
        self.encoder = Encoder(args)
        self.q1, self.q2 = (mlp(args.features + actions, args.hidden, 1) for _ in range(2))

    def forward(self, z: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        inputs = torch.cat([z, action], 1)
        return self.q1(inputs).squeeze(1), self.q2(inputs).squeeze(1)


class Actor(nn.Module):
    """A squashed Gaussian on the critic's convolutions, with a head of its own."""

    def __init__(self, args: Args, actions: int) -> None:
        super().__init__()
        self.head = copy.deepcopy(Encoder(args).head)
        self.trunk = mlp(args.features, args.hidden, 2 * actions)

    def forward(self, h: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The mean action, a sample, and the log density of the sample."""
        mean, log_std = self.trunk(self.head(h)).chunk(2, 1)
        log_std = -10 + 6 * (log_std.tanh() + 1)  # in [-10, 2]
        noise = torch.randn_like(mean)
        action = (mean + noise * log_std.exp()).tanh()
        log_density = -(noise**2) / 2 - log_std - math.log(2 * math.pi) / 2 - torch.log(1 - action**2 + 1e-6)
        return mean.tanh(), action, log_density.sum(1)


def initialize(module: nn.Module) -> None:
    """Orthogonal weights; convolutions only at their centre (https://arxiv.org/abs/1806.05393)."""
    if isinstance(module, nn.Linear):
        nn.init.orthogonal_(module.weight)
        nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Conv2d):
        nn.init.zeros_(module.weight)
        nn.init.orthogonal_(module.weight.data[:, :, 1, 1], nn.init.calculate_gain("relu"))


@torch.no_grad()
def follow(target: nn.Module, source: nn.Module, tau: float) -> None:
    """``target = (1 - tau) target + tau source``."""
    for slow, fast in zip(target.parameters(), source.parameters(), strict=True):
        slow.lerp_(fast, tau)


# ---- losses ------------------------------------------------------------------------------------


def contrastive_loss(objective: Any, z: Tensor, keys: Tensor, w: Tensor, scores: str) -> Tensor:
    """Compare each anchor ``z`` with all keys ``(B, features)``; the key of the same row is its positive."""
    if scores == "cosine":
        return objective(z, keys, pairing="one_way")  # type: ignore[no-any-return]
    logits = z @ w @ keys.T  # (B, B)
    return objective.from_logits(logits, torch.arange(len(z), device=z.device), scale=1.0)  # type: ignore[no-any-return]


class Agent:
    def __init__(self, args: Args, actions: int) -> None:
        self.args, self.updates, device = args, 0, args.device
        self.critic = Critic(args, actions).apply(initialize).to(device)
        self.actor = Actor(args, actions).apply(initialize).to(device)
        self.target = copy.deepcopy(self.critic).requires_grad_(False)
        self.log_alpha = torch.tensor(math.log(args.alpha), device=device, requires_grad=True)
        self.target_entropy = -actions
        self.objective = cp.objective(args.objective).to(device)
        if self.objective.needs or (self.objective.views or 2) != 2:
            raise ValueError(f"--objective: expected an objective of two views, got {self.objective}")
        self.w = torch.rand(args.features, args.features, device=device, requires_grad=True)
        contrastive = [*self.critic.encoder.parameters(), self.w, *self.objective.parameters()]
        self.optimizers = {
            "critic": torch.optim.Adam(self.critic.parameters(), args.lr),
            "actor": torch.optim.Adam(self.actor.parameters(), args.lr),
            "alpha": torch.optim.Adam([self.log_alpha], args.alpha_lr, betas=(0.5, 0.999)),
            "contrastive": torch.optim.Adam(contrastive, args.lr),
        }

    @torch.no_grad()
    def act(self, x: Array, explore: bool) -> Array:
        start, crop = (self.args.size - self.args.crop) // 2, self.args.crop
        frames = torch.as_tensor(x[None], device=self.args.device)[..., start : start + crop, start : start + crop]
        mean, sample, _ = self.actor(self.critic.encoder.convolutions(frames / 255))
        return (sample if explore else mean)[0].cpu().numpy()  # type: ignore[no-any-return]

    def minimize(self, name: str, loss: Tensor) -> float:
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()
        return float(loss.detach())

    def update(self, batch: Sequence[Tensor]) -> dict[str, float]:
        args, encoder = self.args, self.critic.encoder
        frames, action, reward, next_frames, alive = batch
        x, x_next = random_crop(frames, args.crop), random_crop(next_frames, args.crop)

        # 1. critic: y = r + gamma (min Q_target(s', a') - alpha log pi(a'|s')), minimize (Q1 - y)^2 + (Q2 - y)^2
        with torch.no_grad():
            _, next_action, log_density = self.actor(encoder.convolutions(x_next / 255))
            value = torch.minimum(*self.target(self.target.encoder(x_next), next_action))
            y = reward + args.discount * alive * (value - self.log_alpha.exp() * log_density)
        q1, q2 = self.critic(encoder(x), action)
        losses = {"critic": self.minimize("critic", F.mse_loss(q1, y) + F.mse_loss(q2, y))}

        # 2. actor: minimize alpha log pi(a|s) - min Q(s, a), with frozen convolutions; alpha; targets
        if self.updates % args.actor_every == 0:
            with torch.no_grad():
                h = encoder.convolutions(x / 255)
                z = encoder.head(h)
            _, sample, log_density = self.actor(h)
            alpha = self.log_alpha.exp()
            actor_loss = (alpha.detach() * log_density - torch.minimum(*self.critic(z, sample))).mean()
            losses["actor"] = self.minimize("actor", actor_loss)
            self.minimize("alpha", (alpha * (-log_density - self.target_entropy).detach()).mean())
            follow(self.target.encoder, encoder, args.encoder_tau)
            follow(self.target.q1, self.critic.q1, args.tau)
            follow(self.target.q2, self.critic.q2, args.tau)

        # 3. encoder: the contrastive loss between two crops, the keys from the target encoder
        with torch.no_grad():
            keys = self.target.encoder(random_crop(frames, args.crop))
        loss = contrastive_loss(self.objective, encoder(x), keys, self.w, args.scores)
        losses["contrastive"] = self.minimize("contrastive", loss)
        self.updates += 1
        return losses


# ---- loop --------------------------------------------------------------------------------------


def evaluate(agent: Agent, args: Args) -> float:
    """The mean return of episodes with the mean action."""
    env, total = Pixels(args, seed=args.seed + 1_000_000), 0.0
    for _ in range(args.episodes):
        x, over = env.reset(), False
        while not over:
            x, reward, over, _ = env.step(agent.act(x, explore=False))
            total += reward
    return total / args.episodes


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
    """Train and evaluate; returns the returns of the episodes, the last losses and the final score."""
    args = parse(argv)
    torch.manual_seed(args.seed)
    rng, env = np.random.default_rng(args.seed), Pixels(args, args.seed)
    agent, buffer = Agent(args, env.actions), ReplayBuffer(args, env.actions)
    x, episode_return, start = env.reset(), 0.0, time.monotonic()
    returns: list[float] = []
    losses: dict[str, float] = {}
    for step in range(0, args.steps, args.repeat):
        explore = buffer.added >= args.random_steps
        action = agent.act(x, explore=True) if explore else rng.uniform(-1, 1, env.actions).astype(np.float32)
        x_next, reward, over, terminated = env.step(action)
        buffer.add(x, action, reward, x_next, not terminated)
        x, episode_return = x_next, episode_return + reward
        if buffer.added >= args.random_steps:
            losses |= agent.update(buffer.sample(args.batch))
        if over:
            numbers = "".join(f", {name} {value:.3f}" for name, value in losses.items())
            print(f"step {step + args.repeat}: return {episode_return:.1f}{numbers}, {time.monotonic() - start:.0f} s")
            returns.append(episode_return)
            x, episode_return = env.reset(), 0.0
    score = evaluate(agent, args)
    print(f"score {score:.1f} over {args.episodes} episodes, after {agent.updates} updates")
    return {"returns": returns, "losses": losses, "score": score, "updates": agent.updates}


if __name__ == "__main__":
    main()
