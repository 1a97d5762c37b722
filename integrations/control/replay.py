"""The replay buffer: every frame is kept once, in bytes, however many stacks it is part of.

A stack of three frames and the next one need four frames, of which the transition before has three. So 100,000
transitions of 100 x 100 pixels take 2.8 GiB; as two stacks each, as CURL's own code keeps them, they take 16.8 GiB.

A buffer outlives its process in parts: :meth:`Replay.save` writes what came since the last time, and never touches
what an older checkpoint may still need.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import store


class Transitions(NamedTuple):
    """A batch: what was seen, done and got, what was seen then, and 1 or, where the task had ended, 0."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    alive: Tensor


class Replay:
    """The last transitions of one or several environments, each in a ring of its own.

    Args:
        capacity: frames that are kept, at least ``stack + 2`` per environment.
        frame: shape of one frame, ``(3, height, width)``, or ``(numbers,)`` of observations that are no pixels.
        actions: numbers per action.
        envs: environments.
        stack: frames per observation.
        device: where the frames are kept and the batches made.
    """

    def __init__(
        self,
        capacity: int,
        frame: Sequence[int],
        actions: int,
        envs: int = 1,
        stack: int = 3,
        device: str | torch.device = "cpu",
    ) -> None:
        self.slots, self.envs, self.stack, self.device = capacity // envs, envs, stack, torch.device(device)
        if self.slots < stack + 2:
            raise ValueError(f"capacity: expected at least {envs * (stack + 2)} frames, got {capacity}.")
        shape, kind = (envs, self.slots), torch.uint8 if len(frame) == 3 else torch.float32
        self._ring = {
            # empty: the system gives memory only to what has been written
            "frames": torch.empty(*shape, *frame, dtype=kind, device=device),
            "actions": torch.zeros(*shape, actions),
            "rewards": torch.zeros(shape),
            "alive": torch.zeros(shape),
            # frames before this one in its episode, and whether the next slot holds what came of the action
            "age": torch.zeros(shape, dtype=torch.int32),
            "acted": torch.zeros(shape, dtype=torch.bool),
        }
        self._written = torch.zeros(envs, dtype=torch.int64)  # frames since the beginning
        self._saved = self._written.clone()
        self._files: list[dict[str, Any]] = []

    @property
    def nbytes(self) -> int:
        """Memory of the full buffer."""
        return sum(part.nbytes for part in self._ring.values())

    def __len__(self) -> int:
        """How many transitions it holds."""
        return int(self._ring["acted"].sum())

    # ---- writing -------------------------------------------------------------------------------

    def begin(self, env: int, observation: Any) -> None:
        """Notes the first observation of an episode."""
        self._append(env, observation, 0)

    def add(self, env: int, action: Any, reward: float, observation: Any, terminated: bool) -> None:
        """Notes what was done in an environment, and what came of it."""
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
        kept = ring["frames"].shape[2:]
        frame = _finite("observation", torch.as_tensor(observation))[-kept[0] :]  # the newest of the stack
        if frame.shape != kept:
            raise ValueError(f"observation: expected one that ends in {tuple(kept)}, got {tuple(frame.shape)}.")
        ring["frames"][here], ring["age"][here], ring["acted"][here] = frame.to(self.device), age, False
        self._written[env] += 1

    # ---- sampling ------------------------------------------------------------------------------

    def sample(self, batch: int) -> Transitions:
        """Transitions drawn uniformly and with replacement by torch's global generator."""
        if batch > len(self):
            raise ValueError(f"batch: {batch} transitions are asked for, but the buffer holds {len(self)}.")
        ring, oldest = self._ring, (self._written - self.slots).clamp(min=0)
        drawn: list[Tensor] = []
        while sum(map(len, drawn)) < batch:  # some frames were not acted on, or have lost those before them
            env = torch.randint(self.envs, (batch,))
            at = oldest[env] + (torch.rand(batch, dtype=torch.float64) * (self._written - oldest)[env]).long()
            age = ring["age"][env, at % self.slots]
            usable = ring["acted"][env, at % self.slots] & (age.clamp(max=self.stack - 1) <= at - oldest[env])
            drawn.append(torch.stack([env, at, age], dim=1)[usable])
        env, at, age = torch.cat(drawn)[:batch].T
        # of both stacks; an episode's first frame stands in for those before it
        steps = torch.arange(1 - self.stack, 2).expand(batch, -1).maximum(-age.unsqueeze(1))
        slots = (at.unsqueeze(1) + steps) % self.slots
        rows = (env.unsqueeze(1) * self.slots + slots).flatten().to(self.device)
        # frames as wholes, which is many times faster than by an index of each dimension
        frames = ring["frames"].flatten(0, 1).index_select(0, rows).unflatten(0, slots.shape)
        actions, rewards, alive = (ring[name][env, at % self.slots] for name in ("actions", "rewards", "alive"))
        return Transitions(
            frames[:, :-1].flatten(1, 2),
            actions.to(self.device),
            rewards.to(self.device),
            frames[:, 1:].flatten(1, 2),
            alive.to(self.device),
        )

    # ---- outliving the process -----------------------------------------------------------------

    def save(self, folder: Path) -> dict[str, Any]:
        """Writes what came since the last time as one more file; what it returns belongs into the checkpoint.

        The last two checkpoints remain whole: a file is deleted once neither needs it.
        """
        folder.mkdir(exist_ok=True)
        for path in folder.iterdir():
            if path.name not in [file["name"] for file in self._files]:
                path.unlink()
        if not torch.equal(self._written, self._saved):
            # from the newest frame of last time on: it has been acted on since
            start = torch.maximum(self._saved - 1, self._written - self.slots).clamp(min=0)
            name = f"{int(self._written.sum()):010}.pt"
            file = {"name": name, "from": start.tolist(), "to": self._written.tolist()}
            rows = [self._rows(file, env) for env in range(self.envs)]
            with store.atomic(folder / name) as out:
                torch.save(
                    {k: [part[env, r].cpu() for env, r in enumerate(rows)] for k, part in self._ring.items()}, out
                )
            older = [one for one in self._files if (torch.tensor(one["to"]) > self._saved - self.slots).any()]
            self._files, self._saved = [*older, file], self._written.clone()
        return {"written": self._written.tolist(), "files": self._files}

    def load(self, folder: Path, state: dict[str, Any]) -> None:
        """Goes back to what :meth:`save` returned."""
        for file in state["files"]:
            try:
                content = torch.load(folder / file["name"], map_location="cpu", weights_only=True)
            except Exception as error:
                said = f"{folder / file['name']}: damaged or missing ({error}); --fresh begins the run anew."
                raise ValueError(said) from error
            for name, parts in content.items():
                for env, part in enumerate(parts):
                    self._ring[name][env, self._rows(file, env)] = part.to(self._ring[name].device)
        self._written, self._files = torch.tensor(state["written"]), state["files"]
        self._saved = self._written.clone()

    def _rows(self, file: dict[str, Any], env: int) -> Tensor:
        return torch.arange(file["from"][env], file["to"][env]) % self.slots


def _finite(what: str, x: Tensor) -> Tensor:
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError(f"{what}: expected finite numbers, got {x.numpy()}.")
    return x
