"""The replay buffer: stores every frame once, in bytes, and stacks frames when it samples.

Consecutive transitions share frames, so 100,000 transitions of 100 x 100 pixels take 2.8 GiB; as two stacks each, as
CURL's own code stores them, they take 16.8 GiB.

Checkpoints are incremental: :meth:`Replay.save` writes the frames since the last save, and keeps the files that the
previous checkpoint needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import store
from ..store.files import load_checked


class Transitions(NamedTuple):
    """A batch of transitions."""

    observations: Tensor  # (B, ...)
    actions: Tensor  # (B, actions)
    rewards: Tensor  # (B,)
    next_observations: Tensor  # (B, ...)
    alive: Tensor  # (B,), 0 where the task ended the episode, else 1


class Replay:
    """The last transitions of one or several environments, in a ring buffer per environment.

    Args:
        capacity: frames to store, at least ``stack + 2`` per environment.
        frame: shape of one frame, ``(3, height, width)``, or ``(numbers,)`` for observations that are not pixels.
        actions: dimension of an action.
        stack: frames per observation.
    """

    def __init__(
        self, capacity: int, frame: Sequence[int], actions: int, envs: int = 1, stack: int = 3, device: str = "cpu"
    ) -> None:
        self.slots, self.envs, self.stack, self.device = capacity // envs, envs, stack, torch.device(device)
        if self.slots < stack + 2:
            raise ValueError(f"capacity: expected at least {envs * (stack + 2)} frames, got {capacity}.")
        shape, dtype = (envs, self.slots), torch.uint8 if len(frame) == 3 else torch.float32
        self._ring = {
            # empty: the operating system allocates pages when they are written
            "frames": torch.empty(*shape, *frame, dtype=dtype, device=device),
            "actions": torch.zeros(*shape, actions),
            "rewards": torch.zeros(shape),
            "alive": torch.zeros(shape),
            # frames before this one in its episode, and whether the next slot holds its successor
            "age": torch.zeros(shape, dtype=torch.int32),
            "acted": torch.zeros(shape, dtype=torch.bool),
        }
        self._written = torch.zeros(envs, dtype=torch.int64)  # frames so far, per environment
        self._saved = self._written.clone()
        self._files: list[dict[str, Any]] = []

    def __len__(self) -> int:
        """The number of stored transitions."""
        return int(self._ring["acted"].sum())

    def begin(self, env: int, observation: Any) -> None:
        """Add the first observation of an episode."""
        self._append(env, observation, 0)

    def add(self, env: int, action: Any, reward: float, observation: Any, terminated: bool) -> None:
        """Add an action, its reward, and the observation that follows."""
        if not self._written[env]:
            raise ValueError(f"add: environment {env} has no observation to act on; call begin first.")
        ring, here = self._ring, (env, int(self._written[env] - 1) % self.slots)
        ring["actions"][here] = _finite("action", torch.as_tensor(action))
        ring["rewards"][here] = _finite("reward", torch.tensor(float(reward)))
        ring["alive"][here] = float(not terminated)
        self._append(env, observation, int(ring["age"][here]) + 1)
        ring["acted"][here] = True

    def _append(self, env: int, observation: Any, age: int) -> None:
        ring, here = self._ring, (env, int(self._written[env]) % self.slots)
        shape = ring["frames"].shape[2:]
        frame = _finite("observation", torch.as_tensor(observation))[-shape[0] :]  # the newest of the stack
        if frame.shape != shape:
            raise ValueError(f"observation: expected one that ends in {tuple(shape)}, got {tuple(frame.shape)}.")
        ring["frames"][here], ring["age"][here], ring["acted"][here] = frame.to(self.device), age, False
        self._written[env] += 1

    def sample(self, batch: int) -> Transitions:
        """Sample transitions uniformly with replacement, by torch's global generator."""
        if batch > len(self):
            raise ValueError(f"batch: expected at most the {len(self)} transitions in the buffer, got {batch}.")
        ring, oldest = self._ring, (self._written - self.slots).clamp(min=0)
        # 1. draw frames until enough have a successor and all frames of their stack
        accepted: list[Tensor] = []
        while sum(map(len, accepted)) < batch:
            env = torch.randint(self.envs, (batch,))
            at = oldest[env] + (torch.rand(batch, dtype=torch.float64) * (self._written - oldest)[env]).long()
            age = ring["age"][env, at % self.slots]
            usable = ring["acted"][env, at % self.slots] & (age.clamp(max=self.stack - 1) <= at - oldest[env])
            accepted.append(torch.stack([env, at, age], dim=1)[usable])
        env, at, age = torch.cat(accepted)[:batch].T
        # 2. slots of both stacks, padded with the first frame of the episode: (B, stack + 1)
        steps = torch.arange(1 - self.stack, 2).expand(batch, -1).maximum(-age.unsqueeze(1))
        slots = (at.unsqueeze(1) + steps) % self.slots
        rows = (env.unsqueeze(1) * self.slots + slots).flatten().to(self.device)
        # 3. gather whole frames by row, which is many times faster than indexing each dimension
        frames = ring["frames"].flatten(0, 1).index_select(0, rows).unflatten(0, slots.shape)
        actions, rewards, alive = (
            ring[name][env, at % self.slots].to(self.device) for name in ("actions", "rewards", "alive")
        )
        return Transitions(frames[:, :-1].flatten(1, 2), actions, rewards, frames[:, 1:].flatten(1, 2), alive)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the frames since the last save to a new file; returns the state to put into the checkpoint.

        Keeps every file that one of the last two checkpoints needs.
        """
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            if path.name not in [file["name"] for file in self._files]:
                path.unlink()
        if not torch.equal(self._written, self._saved):
            # start at the newest frame of the last save: its action and reward came later
            start = torch.maximum(self._saved - 1, self._written - self.slots).clamp(min=0)
            name = f"{int(self._written.sum()):010}.pt"
            file = {"name": name, "from": start.tolist(), "to": self._written.tolist()}
            rows = [self._rows(file, env) for env in range(self.envs)]
            content = {k: [part[env, r].cpu() for env, r in enumerate(rows)] for k, part in self._ring.items()}
            with store.atomic(folder / name) as out:
                torch.save(content, out)
            needed = [old for old in self._files if (torch.tensor(old["to"]) > self._saved - self.slots).any()]
            self._files, self._saved = [*needed, file], self._written.clone()
        return {"written": self._written.tolist(), "files": self._files}

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`save` returned; a file of it that is damaged or missing leaves nothing."""
        for file in state["files"]:
            try:
                if (content := load_checked(folder / file["name"], self._ring)) is None:
                    raise store.DamagedError(f"{folder / file['name']}: missing")
            except store.DamagedError:
                self._ring["acted"].zero_()
                raise
            for name, parts in content.items():
                for env, part in enumerate(parts):
                    self._ring[name][env, self._rows(file, env)] = part.to(self._ring[name].device)
        self._written, self._files = torch.tensor(state["written"]), state["files"]
        self._saved = self._written.clone()

    def _rows(self, file: dict[str, Any], env: int) -> Tensor:
        return torch.arange(file["from"][env], file["to"][env]) % self.slots


def _finite(name: str, x: Tensor) -> Tensor:
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError(f"{name}: expected finite numbers, got {x.numpy()}.")
    return x
