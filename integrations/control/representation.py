"""How much of the simulator's state is in an encoder's features? Ridge regression on frames of unseen episodes.

Frames of short random episodes are rendered once and cached. An encoder learns by the contrastive term alone, without
rewards, from three quarters of the episodes. Then a linear map from its frozen features to the task's own observation
(positions, velocities, ...) is fitted to these episodes and judged on the others. Frames of one episode are never on
both sides: neighbours look alike, and a split by frames would measure memory.

The floors: the first principal components of the pixels, as many as the encoder has features, and the encoder as it
starts.
"""

from __future__ import annotations

import copy
from contextlib import closing
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from filelock import FileLock  # torch itself requires it
from torch import Tensor

from counterpoint.plugins import curl

from .. import store
from ..store.run import Run
from .agent import (
    Agent,
    Contrast,
    Encoder,
    Settings,
    center_crop,
    check_objective,
    follow,
    initialize,
    random_crop,
)
from .environment import Control, action_repeat, check_task

DOMAIN = "control-representation"
PCA, UNTRAINED = "pixels, PCA", "untrained encoder"
HELD_OUT = 0.25  # of the episodes
FOLDS = 5
PENALTIES = torch.logspace(-4, 6, 11, dtype=torch.float64)  # per sample, of standardised features

DEFAULTS: dict[str, Any] = {
    "updates": 200,
    "episodes": 120,
    "length": 25,
    "scores": None,
    "device": "cpu",
}
SMALL: dict[str, Any] = {"size": 64, "crop": 54, "filters": 16, "batch": 64}
"""What a cell's arguments are if it does not say otherwise, and where it differs from CURL's :class:`Settings`."""


@dataclass(frozen=True)
class Episodes:
    """Frames ``(episodes, length, 3, size, size)`` and the state's quantities ``(episodes, length, quantities)``."""

    frames: Tensor
    quantities: Tensor
    names: tuple[str, ...]

    @property
    def held_out(self) -> int:
        """The first episode that nothing is fitted to."""
        return round(len(self.frames) * (1 - HELD_OUT))

    def stacks(self, stack: int, first: int = 0, last: int | None = None) -> Tensor:
        """``(frames, 3 * stack, size, size)``: all observations of these episodes that have a whole stack."""
        windows = self.frames[first:last].unfold(1, stack, 1)  # (episodes, observations, 3, size, size, stack)
        return windows.movedim(-1, 2).flatten(2, 3).flatten(0, 1)

    def targets(self, stack: int, first: int = 0, last: int | None = None) -> Tensor:
        """The quantities at the last frame of each of these."""
        return self.quantities[first:last, stack - 1 :].flatten(0, 1)


def collect(folder: Path, task: str, episodes: int = 120, length: int = 25, size: int = 64, seed: int = 0) -> Episodes:
    """Random episodes, from the cache in ``folder`` or simulated now and left there.

    Args:
        folder: where the cache is.
        task: ``domain-task``.
        episodes: how many, at least 8.
        length: observations of each, at least 4.
        size: height and width of the frames.
        seed: of the initial states and the actions.
    """
    for name, value, low in (("episodes", episodes, 8), ("length", length, 4)):
        if not isinstance(value, int) or value < low:
            raise ValueError(f"{name}: expected a whole number of at least {low}, got {value!r}.")
    path = Path(folder) / f"{check_task(task)}-{episodes}x{length}-{size}px-{action_repeat(task)}-seed{seed}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if not path.exists():
            _simulate(path, task, episodes, length, size, seed)
    try:
        with np.load(path, allow_pickle=False) as found:
            names = tuple(found["names"].tolist())
            return Episodes(torch.from_numpy(found["frames"]), torch.from_numpy(found["quantities"]), names)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise ValueError(f"{path}: not readable ({error}); delete it to have it simulated anew.") from error


def _simulate(path: Path, task: str, episodes: int, length: int, size: int, seed: int) -> None:
    """Actions wander, as independent ones would cancel each other out and leave the body where it is."""
    rng = np.random.default_rng(seed)
    frames, quantities = [], []
    with closing(Control(task, size=size, stack=1)) as env:
        for episode in store.track(range(episodes), f"{task}, frames"):
            seen, _ = env.reset(seed=seed * 100_000 + episode)
            action = rng.normal(size=env.action_space.shape)
            for t in range(length):
                if t:
                    seen, *_ = env.step(np.clip(action, -1, 1))
                    action = 0.8 * action + 0.6 * rng.normal(size=action.shape)
                frames.append(seen)
                quantities.append(list(env.quantities.values()))
        names = list(env.quantities)
    shape = (episodes, length)
    with store.atomic(path) as file:
        np.savez(
            file,
            frames=np.stack(frames).reshape(*shape, 3, size, size),
            quantities=np.array(quantities, np.float32).reshape(*shape, -1),
            names=np.array(names),
        )


# ---- what is judged ----------------------------------------------------------------------------


def pretrain(
    frames: Tensor, objective: str, settings: Settings, updates: int, scores: str | None = None, run: Run | None = None
) -> Encoder:
    """An encoder trained by the contrastive term alone, as CURL's is beside its critic.

    Args:
        frames: observations ``(n, channels, size, size)``, at least one batch of them.
        objective: a spec.
        settings: of encoder, batch and learning.
        updates: how many.
        scores: ``bilinear`` or ``cosine``, see :class:`Contrast`.
        run: where the losses are logged.
    """
    if settings.batch > len(frames):
        raise ValueError(f"batch: {settings.batch} frames are asked for, but there are {len(frames)}.")
    encoder = new_encoder(frames.shape[1], settings).to(frames.device)
    target = copy.deepcopy(encoder).requires_grad_(False)
    contrast = Contrast(objective, encoder, target, settings.features, scores).to(frames.device)
    adam = contrast.optimizer(settings.lr)
    steps = range(updates)
    for step in steps if run is None else run.track(steps):
        seen = frames[torch.randint(len(frames), (settings.batch,)).to(frames.device)]
        loss = contrast(encoder(random_crop(seen, settings.crop)), contrast.keys(seen, settings.crop))
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % settings.every == 0:
            follow(target, encoder, settings.encoder_tau)
        if run is not None and (step + 1) % max(1, updates // 20) == 0:
            run.log(step + 1, loss=float(loss.detach()))
    return encoder


def new_encoder(channels: int, settings: Settings) -> Encoder:
    encoder = Encoder(channels, settings)
    encoder.apply(initialize)
    return encoder


@torch.no_grad()
def features(encoder: Encoder, frames: Tensor, crop: int) -> Tensor:
    """The encoder's output for centre crops."""
    return torch.cat([encoder(center_crop(part, crop)) for part in frames.split(256)])


def principal(fitted: Tensor, others: Tensor, count: int, crop: int) -> tuple[Tensor, Tensor]:
    """The first principal components of the pixels of ``fitted``, in both."""
    x, y = (center_crop(part, crop).flatten(1).float() / 255 for part in (fitted, others))
    mean = x.mean(0)
    _, _, v = torch.svd_lowrank(x - mean, q=min(count, len(x)), niter=4)
    return (x - mean) @ v, (y - mean) @ v


def of_agent(agent: Agent, given: dict[str, Any], cache: Path) -> dict[str, float]:
    """What an agent's encoder has learned beside its policy: R^2 of every quantity, and their means.

    Args:
        agent: one that learns from pixels.
        given: the arguments of its cell.
        cache: folder of the episodes.
    """
    settings, encoder = agent.settings, agent.critic.encoder
    if not isinstance(encoder, Encoder):
        raise ValueError("representation: an agent that observes the state has no encoder.")
    data = collect(cache, given["dataset"], size=settings.size)
    parts = data.stacks(settings.stack, 0, data.held_out), data.stacks(settings.stack, data.held_out)
    x, x_new = (features(encoder, part.to(agent.device), settings.crop) for part in parts)
    means, details = judge(data, settings.stack, x, x_new)
    return {**means, **details["quantities"]}


# ---- ridge regression --------------------------------------------------------------------------


def predictable(x: Tensor, y: Tensor, x_new: Tensor, y_new: Tensor, group: Tensor) -> Tensor:
    """R^2 of every column of ``y_new``, predicted from ``x_new`` by ridge regression fitted to ``x`` and ``y``.

    Each column has the penalty that is best in cross-validation over the groups. 1 is perfect, and 0 no better than
    the mean of ``y_new``; NaN where a column does not vary.

    Args:
        x, y: ``(n, features)`` and ``(n, quantities)``.
        x_new, y_new: of other groups.
        group: ``(n,)`` integers: the rows of one group, an episode, are never on both sides.
    """
    x, y, x_new, y_new = (part.double().cpu() for part in (x, y, x_new, y_new))
    fold = group.cpu() % FOLDS
    errors = torch.zeros(len(PENALTIES), y.shape[1], dtype=torch.float64)
    for k in range(FOLDS):
        predicted = _ridge(x[fold != k], y[fold != k], x[fold == k])
        errors += ((predicted - y[fold == k]) ** 2).sum(1)
    best = errors.argmin(0)
    predicted = _ridge(x, y, x_new)[best, :, torch.arange(y.shape[1])].T
    spread = ((y_new - y_new.mean(0)) ** 2).mean(0)
    r2 = 1 - ((predicted - y_new) ** 2).mean(0) / spread
    return r2.masked_fill((spread < 1e-10) | (y.var(0) < 1e-10), float("nan"))


def _ridge(x: Tensor, y: Tensor, x_new: Tensor) -> Tensor:
    """Predictions ``(penalties, n, quantities)``."""
    mean, scale, middle = x.mean(0), x.std(0).clamp(min=1e-8), y.mean(0)
    u, s, vt = torch.linalg.svd((x - mean) / scale, full_matrices=False)
    shrunk = s / (s**2 + PENALTIES.unsqueeze(1) * len(x))  # (penalties, components)
    weights = shrunk.unsqueeze(2) * (u.T @ (y - middle))
    predicted: Tensor = ((x_new - mean) / scale) @ vt.T @ weights + middle
    return predicted


# ---- a cell of a grid --------------------------------------------------------------------------


def cell(task: str, objective: str | None, seed: int, **changes: Any) -> dict[str, Any]:
    """The arguments of one run; what is not changed is as in :data:`DEFAULTS`, :data:`SMALL` and :class:`Settings`.

    Args:
        task: ``domain-task``.
        objective: a spec; None for the rows without training, which need ``label=PCA`` or ``label=UNTRAINED``.
        seed: of networks, batches and crops. The episodes are the same for all.
        changes: of the defaults.
    """
    store.check_names(changes, (*DEFAULTS, "label", *(field.name for field in fields(Settings))))
    given = {**DEFAULTS, **{name: value for name, value in changes.items() if name in (*DEFAULTS, "label")}}
    if objective is None:
        if given.get("label") not in (PCA, UNTRAINED):
            raise ValueError(f"label: expected {PCA!r} or {UNTRAINED!r} without an objective.")
        given["updates"] = 0
    else:
        given["scores"] = given["scores"] or curl.natural_scores(check_objective(objective))
    settings = {**SMALL, **{name: value for name, value in changes.items() if name not in given}}
    about = {"domain": DOMAIN, "dataset": check_task(task), "objective": objective, "seed": seed}
    return {**about, **given, "settings": asdict(Settings(**settings))}


def train(run: Run, cache: Path) -> None:
    """Trains and judges one cell; with the folder of the cached episodes, what ``run_grid`` wants."""
    data, stack, x, x_new = learned(run, cache)
    result, details = judge(data, stack, x, x_new)
    run.finish(result, **details)


def learned(run: Run, cache: Path) -> tuple[Episodes, int, Tensor, Tensor]:
    """A cell's episodes, frames per observation, and features: of episodes that are fitted to, and of the others."""
    given, settings = run.arguments, Settings(**run.arguments["settings"])
    data = collect(cache, given["dataset"], given["episodes"], given["length"], settings.size)
    run.data(store.checksum(data.frames.numpy().tobytes()))
    run.load()  # nothing was saved, for it takes seconds: an interrupted run begins again
    known = data.stacks(settings.stack, 0, data.held_out).to(given["device"])
    new = data.stacks(settings.stack, data.held_out).to(given["device"])
    torch.manual_seed(given["seed"])
    if given.get("label") == PCA:
        x, x_new = principal(known, new, settings.features, settings.crop)
        return data, settings.stack, x, x_new
    if given["objective"] is None:
        encoder = new_encoder(known.shape[1], settings).to(given["device"])
    else:
        encoder = pretrain(known, given["objective"], settings, given["updates"], given["scores"], run)
    return data, settings.stack, features(encoder, known, settings.crop), features(encoder, new, settings.crop)


def judge(data: Episodes, stack: int, x: Tensor, x_new: Tensor) -> tuple[dict[str, float], dict[str, Any]]:
    """Mean R^2 over the quantities, over velocities and over all others, and every quantity's own."""
    y, y_new = data.targets(stack, 0, data.held_out), data.targets(stack, data.held_out)
    episode = torch.arange(data.held_out).repeat_interleave(len(y) // data.held_out)
    r2 = dict(zip(data.names, predictable(x, y, x_new, y_new, episode).tolist(), strict=True))
    left_out = [name for name, value in r2.items() if value != value]
    kept = {name: value for name, value in r2.items() if value == value}
    moving = [value for name, value in kept.items() if "velocity" in name]
    still = [value for name, value in kept.items() if "velocity" not in name]
    means = {"R2": list(kept.values()), "R2 positions": still, "R2 velocities": moving}
    return {name: fmean(values) for name, values in means.items() if values}, {"quantities": kept, "left out": left_out}
