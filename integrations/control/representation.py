"""Measure how much of the simulator's state an encoder's features contain, by ridge regression on unseen episodes.

Frames of short random episodes are rendered once and cached. An encoder trains by the contrastive term alone, without
rewards, on three quarters of the episodes. Then a linear map from its frozen features to the task's own observation
(positions, velocities, ...) is fitted on these episodes and evaluated on the others. The split is by episode, because
neighboring frames look alike, and a split by frame would reward memorization.

Two baselines: the first principal components of the pixels, as many as the encoder has features, and the encoder before
training.
"""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import copy
from contextlib import closing
from dataclasses import dataclass, fields, replace
from math import isnan
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
from filelock import FileLock  # torch itself requires it
from torch import Tensor

from counterpoint.plugins import curl
from counterpoint.plugins.encoders import follow

from .. import store
from ..domain import check_whole
from ..store.files import load_checked
from ..store.run import Run
from .agent import Contrast, check_objective
from .environment import ACTION_REPEAT, Control, check_task
from .networks import Encoder, center_crop, initialize, random_crop
from .settings import AgentSettings, RepresentationSettings

DOMAIN = "control-representation"
PCA, UNTRAINED = "pixels, PCA", "untrained encoder"
HELD_OUT = 0.25  # of the episodes
FOLDS = 5
PENALTIES = torch.logspace(-4, 6, 11, dtype=torch.float64)  # per sample, on standardized features


@dataclass(frozen=True)
class Episodes:
    """Frames ``(episodes, length, 3, size, size)`` and the state's quantities ``(episodes, length, quantities)``."""

    frames: Tensor
    quantities: Tensor
    names: tuple[str, ...]

    def split(self) -> "tuple[Episodes, ...]":
        """The episodes to train on, and those held out."""
        first = round(len(self.frames) * (1 - HELD_OUT))
        parts = slice(first), slice(first, None)
        return tuple(Episodes(self.frames[part], self.quantities[part], self.names) for part in parts)

    def stacks(self, stack: int) -> Tensor:
        """All observations with a full stack: ``(frames, 3 * stack, size, size)``."""
        windows = self.frames.unfold(1, stack, 1)  # (episodes, observations, 3, size, size, stack)
        return windows.movedim(-1, 2).flatten(2, 3).flatten(0, 1)

    def targets(self, stack: int) -> Tensor:
        """The quantities at the last frame of each observation: ``(frames, quantities)``."""
        return self.quantities[:, stack - 1 :].flatten(0, 1)


def collect(folder: Path, task: str, episodes: int = 120, length: int = 25, size: int = 64, seed: int = 0) -> Episodes:
    """Random episodes, at least 8 of at least 4 observations; from the cache in ``folder``, or simulated and cached."""
    for name, value, low in (("episodes", episodes, 8), ("length", length, 4)):
        check_whole(f"{name}: expected", value, low)
    path = Path(folder) / f"{check_task(task)}-{episodes}x{length}-{size}px-{ACTION_REPEAT[task]}-seed{seed}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{path}.lock"):
        if (content := load_checked(path, ("frames", "quantities", "names"))) is None:
            content = vars(_simulate(task, episodes, length, size, seed))
            with store.atomic(path) as file:
                torch.save(content, file)
    return Episodes(**content)


def _simulate(task: str, episodes: int, length: int, size: int, seed: int) -> Episodes:
    """Actions follow a random walk; independent ones would cancel out and leave the body where it is."""
    rng = np.random.default_rng(seed)
    frames, quantities = [], []
    with closing(Control(task, size=size, stack=1)) as env:
        for episode in store.track(range(episodes), f"{task}, frames"):
            observation, _ = env.reset(seed=seed * 100_000 + episode)
            action = rng.normal(size=env.action_space.shape)
            for t in range(length):
                if t:
                    observation, *_ = env.step(np.clip(action, -1, 1))
                    action = 0.8 * action + 0.6 * rng.normal(size=action.shape)
                frames.append(torch.from_numpy(observation))
                quantities.append(list(env.quantities.values()))
        names = tuple(env.quantities)
    shape = (episodes, length)
    return Episodes(torch.stack(frames).unflatten(0, shape), torch.tensor(quantities).unflatten(0, shape), names)


def pretrain(
    frames: Tensor,
    objective: str | None,
    settings: AgentSettings,
    updates: int,
    scores: str | None = None,
    run: Run | None = None,
) -> Encoder:
    """Train an encoder by CURL's contrastive term alone, on observations ``(n, channels, size, size)``.

    Without an objective, the encoder stays as it is before training.
    """
    encoder = Encoder(frames.shape[1], settings).apply(initialize).to(frames.device)
    if objective is None:
        return encoder
    if settings.batch > len(frames):
        raise ValueError(f"batch: expected at most the {len(frames)} frames, got {settings.batch}.")
    target = copy.deepcopy(encoder).requires_grad_(False)
    contrast = Contrast(objective, encoder, target, settings.features, scores).to(frames.device)
    adam = contrast.optimizer(settings.lr)
    for step in range(updates) if run is None else run.track(range(updates)):
        batch = frames[torch.randint(len(frames), (settings.batch,)).to(frames.device)]
        z, keys = encoder(random_crop(batch, settings.crop)), contrast.keys(batch, settings.crop)
        loss = contrast(z, keys)
        if run is not None and (step + 1) % max(1, updates // 20) == 0:
            run.log(step + 1, loss=float(loss.detach()), **contrast.report(z, keys))
        adam.zero_grad()
        loss.backward()
        adam.step()
        if step % settings.every == 0:
            follow(target, encoder, settings.encoder_tau)
    return encoder


@torch.no_grad()
def features(encoder: Encoder, frames: Tensor, crop: int) -> Tensor:
    """The encoder's output for center crops, ``(n, features)``."""
    return torch.cat([encoder(center_crop(part, crop)) for part in frames.split(256)])


def principal_components(frames: Tensor, new: Tensor, count: int, crop: int) -> tuple[Tensor, Tensor]:
    """Project both onto the first principal components of the pixels of ``frames``."""
    x, x_new = (center_crop(part, crop).flatten(1).float() / 255 for part in (frames, new))
    mean = x.mean(0)
    _, _, v = torch.svd_lowrank(x - mean, q=min(count, len(x)), niter=4)
    return (x - mean) @ v, (x_new - mean) @ v


def ridge_r2(x: Tensor, y: Tensor, x_new: Tensor, y_new: Tensor, group: Tensor) -> Tensor:
    """R^2 of every column of ``y_new``, predicted from ``x_new`` by ridge regression fitted to ``x`` and ``y``.

    Cross-validation over the groups selects the penalty of each column. 1 is perfect, 0 is as good as the mean of
    ``y_new``, NaN marks a constant column.

    Args:
        x, y: ``(n, features)`` and ``(n, quantities)``.
        x_new, y_new: of other groups.
        group: ``(n,)`` integers; cross-validation keeps the rows of a group, an episode, together.
    """
    x, y, x_new, y_new = (part.double().cpu() for part in (x, y, x_new, y_new))
    fold = group.cpu() % FOLDS
    errors = torch.zeros(len(PENALTIES), y.shape[1], dtype=torch.float64)
    for k in range(FOLDS):
        predicted = _ridge(x[fold != k], y[fold != k], x[fold == k])
        errors += ((predicted - y[fold == k]) ** 2).sum(1)
    predicted = _ridge(x, y, x_new)[errors.argmin(0), :, torch.arange(y.shape[1])].T
    spread = ((y_new - y_new.mean(0)) ** 2).mean(0)
    r2 = 1 - ((predicted - y_new) ** 2).mean(0) / spread
    return r2.masked_fill((spread < 1e-10) | (y.var(0) < 1e-10), float("nan"))


def _ridge(x: Tensor, y: Tensor, x_new: Tensor) -> Tensor:
    """Predictions ``(penalties, n, quantities)``."""
    mean, scale, middle = x.mean(0), x.std(0).clamp(min=1e-8), y.mean(0)
    u, s, vt = torch.linalg.svd((x - mean) / scale, full_matrices=False)
    weights = (s / (s**2 + PENALTIES.unsqueeze(1) * len(x))).unsqueeze(2) * (u.T @ (y - middle))  # one per penalty
    return ((x_new - mean) / scale) @ vt.T @ weights + middle  # type: ignore[no-any-return]


def cell(task: str, objective: str | None, seed: int, label: str | None = None, **changes: Any) -> dict[str, Any]:
    """The arguments of one run: the defaults of :class:`~.settings.RepresentationSettings`, changed as given.

    The objective is a spec; None for the baselines, which need ``label=PCA`` or ``label=UNTRAINED``. The episodes are
    the same for all seeds.
    """
    store.check_names(changes, [field.name for field in fields(RepresentationSettings)])
    settings = RepresentationSettings(**changes)
    if objective is not None:
        settings = replace(settings, scores=settings.scores or curl.default_scores(check_objective(objective)))
    elif label in (PCA, UNTRAINED):
        settings = replace(settings, updates=0)
    else:
        raise ValueError(f"label: expected {PCA!r} or {UNTRAINED!r} without an objective, got {label!r}.")
    named = {} if label is None else {"label": label}
    shared = {"domain": DOMAIN, "dataset": check_task(task), "objective": objective, "seed": seed}
    return {**shared, **named, **settings.arguments()}


def train(run: Run, cache: Path) -> None:
    """Train and evaluate one cell; bind ``cache``, the folder of the episodes, and pass it to ``run_grid``."""
    arguments, settings = run.arguments, AgentSettings(**run.arguments["settings"])
    data = collect(cache, arguments["dataset"], arguments["episodes"], arguments["length"], settings.size)
    run.data(store.checksum(data.frames.numpy().tobytes()))
    run.load()  # no checkpoint, because training takes seconds: an interrupted run restarts
    known, new = data.split()
    frames, frames_new = (part.stacks(settings.stack).to(arguments["device"]) for part in (known, new))
    torch.manual_seed(arguments["seed"])
    if arguments.get("label") == PCA:
        x, x_new = principal_components(frames, frames_new, settings.features, settings.crop)
    else:
        encoder = pretrain(frames, arguments["objective"], settings, arguments["updates"], arguments["scores"], run)
        x, x_new = (features(encoder, part, settings.crop) for part in (frames, frames_new))
    result, details = score(data, settings.stack, x, x_new)
    run.finish(result, **details)


def score(data: Episodes, stack: int, x: Tensor, x_new: Tensor) -> tuple[dict[str, float], dict[str, Any]]:
    """Mean R^2 over all quantities, over positions and over velocities; and R^2 of each quantity.

    ``x`` and ``x_new`` are the features of the observations of both parts of the episodes.
    """
    known, new = data.split()
    episode = torch.arange(len(known.frames)).repeat_interleave(len(x) // len(known.frames))
    r2 = ridge_r2(x, known.targets(stack), x_new, new.targets(stack), episode).tolist()
    varying = {name: value for name, value in zip(data.names, r2, strict=True) if not isnan(value)}
    velocities = {name: value for name, value in varying.items() if "velocity" in name}
    positions = {name: value for name, value in varying.items() if name not in velocities}
    groups = {"R2": varying, "R2 positions": positions, "R2 velocities": velocities}
    means = {name: fmean(values.values()) for name, values in groups.items() if values}
    return means, {"quantities": varying, "left out": [name for name in data.names if name not in varying]}
