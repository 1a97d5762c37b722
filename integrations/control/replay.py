"""The replay buffer: stores every frame once, in bytes, and stacks frames when it samples.

Consecutive transitions share frames, so 100,000 transitions of 100 x 100 pixels take 2.8 GiB; as two stacks each, as
CURL's own code stores them, they take 16.8 GiB.

Checkpoints are incremental: :meth:`Replay.save` writes the frames since the last save, and keeps the files that the
previous checkpoint needs.
"""

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
    """The last transitions of an environment, in a ring buffer.

    Args:
        capacity: frames to store, at least ``stack + 2``.
        frame: shape of one frame, ``(3, height, width)``.
        actions: dimension of an action.
        stack: frames per observation.
        device: of the frames.
    """

    def __init__(
        self, capacity: int, frame: Sequence[int], actions: int, stack: int = 3, device: str | torch.device = "cpu"
    ) -> None:
        if capacity < stack + 2:
            raise ValueError(f"capacity: expected at least {stack + 2} frames, got {capacity}.")
        self.capacity, self.stack, self.device = capacity, stack, torch.device(device)
        self._ring = {
            # empty: the operating system allocates pages when they are written
            "frames": torch.empty(capacity, *frame, dtype=torch.uint8, device=device),
            "actions": torch.zeros(capacity, actions),
            "rewards": torch.zeros(capacity),
            "alive": torch.zeros(capacity),
            # frames before this one in its episode, and whether the next slot holds its successor
            "age": torch.zeros(capacity, dtype=torch.int32),
            "acted": torch.zeros(capacity, dtype=torch.bool),
        }
        self._written = self._saved = 0  # frames so far, and at the last save
        self._files: list[tuple[int, int]] = []  # the first frame of each file, and the one after its last

    def __len__(self) -> int:
        """The number of stored transitions."""
        return int(self._ring["acted"].sum())

    def begin(self, observation: Any) -> None:
        """Add the first observation of an episode."""
        self._append(observation, 0)

    def add(self, action: Any, reward: float, observation: Any, terminated: bool) -> None:
        """Add an action, its reward, and the observation that follows."""
        if not self._written:
            raise ValueError("add: there is no observation to act on; call begin first.")
        ring, here = self._ring, (self._written - 1) % self.capacity
        ring["actions"][here] = _finite("action", torch.as_tensor(action))
        ring["rewards"][here] = _finite("reward", torch.tensor(float(reward)))
        ring["alive"][here] = float(not terminated)
        self._append(observation, int(ring["age"][here]) + 1)
        ring["acted"][here] = True

    def _append(self, observation: Any, age: int) -> None:
        ring, here = self._ring, self._written % self.capacity
        shape = ring["frames"].shape[1:]
        frame = torch.as_tensor(observation)[-shape[0] :]  # the newest of the stack
        if frame.shape != shape:
            raise ValueError(f"observation: expected one that ends in {tuple(shape)}, got {tuple(frame.shape)}.")
        ring["frames"][here], ring["age"][here], ring["acted"][here] = frame.to(self.device), age, False
        self._written += 1

    def sample(self, batch: int) -> Transitions:
        """Sample transitions uniformly with replacement, by torch's global generator."""
        if batch > len(self):
            raise ValueError(f"batch: expected at most the {len(self)} transitions in the buffer, got {batch}.")
        ring, oldest = self._ring, max(0, self._written - self.capacity)
        # 1. draw frames until enough have a successor and all frames of their stack
        accepted: list[Tensor] = []
        while sum(map(len, accepted)) < batch:
            at = torch.randint(oldest, self._written, (batch,))
            whole = ring["age"][at % self.capacity].clamp(max=self.stack - 1) <= at - oldest
            accepted.append(at[whole & ring["acted"][at % self.capacity]])
        rows = torch.cat(accepted)[:batch] % self.capacity
        # 2. slots of both stacks, padded with the first frame of the episode: (B, stack + 1)
        steps = torch.arange(1 - self.stack, 2).expand(batch, -1).maximum(-ring["age"][rows].unsqueeze(1))
        slots = (rows.unsqueeze(1) + steps) % self.capacity
        # 3. gather whole frames by row, which is many times faster than indexing each dimension
        frames = ring["frames"].index_select(0, slots.flatten().to(self.device)).unflatten(0, slots.shape)
        actions, rewards, alive = (ring[name][rows].to(self.device) for name in ("actions", "rewards", "alive"))
        return Transitions(frames[:, :-1].flatten(1, 2), actions, rewards, frames[:, 1:].flatten(1, 2), alive)

    def save(self, folder: Path) -> dict[str, Any]:
        """Write the frames since the last save to a new file; returns the state to put into the checkpoint.

        Keeps every file that one of the last two checkpoints needs.
        """
        folder.mkdir(exist_ok=True)
        needed = {_name(end) for _, end in self._files}
        for path in folder.iterdir():
            if path.name not in needed:
                path.unlink()
        if self._written > self._saved:
            # start at the newest frame of the last save: its action and reward came later
            start = max(self._saved - 1, self._written - self.capacity, 0)
            rows = torch.arange(start, self._written) % self.capacity
            with store.atomic(folder / _name(self._written)) as file:
                torch.save({name: part[rows.to(part.device)].cpu() for name, part in self._ring.items()}, file)
            self._files = [part for part in self._files if part[1] > self._saved - self.capacity]
            self._files.append((start, self._written))
            self._saved = self._written
        return {"written": self._written, "files": self._files}

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`save` returned; a file of it that is damaged or missing leaves nothing."""
        self._files = [(start, end) for start, end in state["files"]]
        for start, end in self._files:
            try:
                if (content := load_checked(folder / _name(end), self._ring)) is None:
                    raise store.DamagedError(f"{folder / _name(end)}: missing")
            except store.DamagedError:
                self._ring["acted"].zero_()
                raise
            for name, part in content.items():
                ring = self._ring[name]
                ring[torch.arange(start, end, device=ring.device) % self.capacity] = part.to(ring.device)
        self._written = self._saved = state["written"]


def _name(end: int) -> str:
    return f"{end:010}.pt"


def _finite(name: str, x: Tensor) -> Tensor:
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError(f"{name}: expected finite numbers, got {x.numpy()}.")
    return x
