"""Tasks of dm_control's suite from pixels, behind Gymnasium's interface.

    env = Control("cartpole-swingup")
    frames, _ = env.reset(seed=1)

As in CURL and the papers that it compares with: 100 x 100 pixels of camera 0, actions repeated by
:data:`ACTION_REPEAT`, three stacked frames, actions in [-1, 1]. An episode that reaches the time limit is
``truncated``, so the value of its last state still counts; an episode that the task ends is ``terminated``.

An episode depends only on the seed of ``reset``, its number since then, and its actions. These three are
:attr:`Control.state`: a few numbers per step, from which the simulation is replayed exactly, including a task's hidden
state, and without rendering frames that are not observed.
"""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import os
import sys
from collections import defaultdict
from collections.abc import Mapping
from contextlib import closing
from functools import cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from counterpoint.names import check_known

from ..domain import check_whole, require
from .settings import CURL_TASKS

# the number of times that CURL repeats each action, by task
ACTION_REPEAT = defaultdict(lambda: 4, {"cartpole-swingup": 8, "finger-spin": 2, "walker-walk": 2})
SIZE, STACK, CAMERA = 100, 3, 0
HELP = (
    "Install EGL (Debian, Ubuntu: apt install libegl1 libgl1-mesa-dri) or OSMesa (libosmesa6), and set MUJOCO_GL "
    "to the one you have: egl (the default on Linux), osmesa or glfw. `counterpoint doctor` says which of them work"
)


class NoRendererError(OSError):
    """No OpenGL on this machine can render frames."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"MUJOCO_GL={os.environ.get('MUJOCO_GL')} cannot draw frames here ({error}). {HELP}")


_no_renderer: list[NoRendererError] = []  # the reason, if the suite was imported without a renderer


def check_task(task: str) -> str:
    """Return the name of a task, ``domain-task`` as in the suite; raise if there is no such task."""
    check_known("unknown task", task, ["-".join(names) for names in suite().ALL_TASKS])
    return task


def check_frames() -> None:
    """Raise :class:`NoRendererError` if frames cannot be rendered here."""
    with closing(Control(CURL_TASKS[0], size=8, stack=1)) as env:
        env.reset()


@cache
def suite() -> ModuleType:
    """Import dm_control's suite, with EGL, which needs no screen, unless MUJOCO_GL names another renderer.

    Where that fails, tasks work without frames.
    """
    require("control needs", "control", "dm_control")
    if "dm_control._render" not in sys.modules:
        if find_spec("triton") is not None:
            import triton  # noqa: F401  torch's optimizers load it; its LLVM crashes after a software renderer's
        if sys.platform == "linux":
            os.environ.setdefault("MUJOCO_GL", "egl")
    try:
        from dm_control import suite
    except (ImportError, RuntimeError, AttributeError) as error:  # raised by the OpenGL that MUJOCO_GL names
        _no_renderer.append(NoRendererError(error))
        os.environ["MUJOCO_GL"] = "disabled"
        from dm_control import suite
    return suite  # type: ignore[no-any-return]


class Control(gymnasium.Env):  # type: ignore[misc]
    """A task of the suite.

    Observations are ``(3 * stack, size, size)`` bytes, the oldest frame first; with ``pixels=False`` they are the
    task's own observation, ``(numbers,)``.

    Args:
        task: ``domain-task``, such as ``cartpole-swingup``.
        pixels: observe frames rather than the task's own numbers.
        size: height and width of the frames, at least 1.
        repeat: times each action is applied, at least 1; by default as CURL does.
        stack: frames per observation, at least 1.
    """

    def __init__(
        self, task: str, *, pixels: bool = True, size: int = SIZE, repeat: int | None = None, stack: int = STACK
    ) -> None:
        for name, value in (("size", size), ("repeat", 1 if repeat is None else repeat), ("stack", stack)):
            check_whole(f"{name}: expected", value, 1)
        domain, _, name = check_task(task).partition("-")
        self.task, self.pixels, self.size, self.stack = task, pixels, size, stack
        self.repeat = repeat or ACTION_REPEAT[task]
        self.observation: Any = None  # what the last reset or step returned
        self._env = suite().load(domain, name, task_kwargs={"random": 0})
        buffer = self._env.physics.model.vis.global_  # software renderers process all of it, and the suite's is large
        buffer.offwidth = buffer.offheight = size
        self._actions: list[Any] = []
        self._seed, self._episode, self._over = 0, -1, True
        spec = self._env.action_spec()
        self._low, self._high = (np.broadcast_to(x, spec.shape) for x in (spec.minimum, spec.maximum))
        self.action_space = Box(-1.0, 1.0, spec.shape, np.float32)
        if pixels:
            self.observation_space = Box(0, 255, (3 * stack, size, size), np.uint8)
        else:
            width = sum(int(np.prod(part.shape)) for part in self._env.observation_spec().values())
            self.observation_space = Box(-np.inf, np.inf, (width,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Start the first episode of ``seed``, or without a seed the next episode."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._episode = seed, -1
        elif self._episode < 0:
            self._seed = int(self.np_random.integers(2**32))
        self._observe(self._begin(self._episode + 1))
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply an action ``repeat`` times; returns observation, summed reward, terminated, truncated, info."""
        if self._over:
            raise RuntimeError(f"{self.task}: the episode is over or has not started; call reset.")
        action = np.asarray(action, np.float32)
        if action.shape != self.action_space.shape or not np.isfinite(action).all():
            count = self.action_space.shape[0]
            raise ValueError(f"{self.task}: action: expected {count} finite numbers in [-1, 1], got {action}.")
        timestep, reward = self._act(action)
        self._observe(timestep)
        return self.observation, reward, self._over and timestep.discount == 0, self._over and timestep.discount > 0, {}

    def render(self) -> Any:
        """Render the current state as ``(size, size, 3)`` bytes."""
        try:
            return self._env.physics.render(self.size, self.size, camera_id=CAMERA)
        except Exception as error:  # each OpenGL raises its own errors
            raise (_no_renderer[0] if _no_renderer else NoRendererError(error)) from error

    def close(self) -> None:
        self._env.physics.free()  # dm_control's close leaves OpenGL to the garbage collector

    @property
    def quantities(self) -> dict[str, float]:
        """The task's own observation of the simulator's state, number by number."""
        quantities: dict[str, float] = {}
        for name, value in self._env.task.get_observation(self._env.physics).items():
            flat = np.ravel(value)
            quantities |= {f"{name}[{i}]" if len(flat) > 1 else name: float(x) for i, x in enumerate(flat)}
        return quantities

    @property
    def state(self) -> dict[str, Any]:
        """The simulation as plain data; assign it to an environment with the same arguments to restore it."""
        return {"seed": self._seed, "episode": self._episode, "actions": [a.tolist() for a in self._actions]}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._seed, actions = state["seed"], state["actions"]
        timestep = self._begin(state["episode"])
        for left in range(len(actions), -1, -1):
            if left < self.stack:  # from here on, frames are part of the observation
                self._observe(timestep)
            if left:
                timestep, _ = self._act(np.asarray(actions[-left], np.float32))

    def _begin(self, episode: int) -> Any:
        """Start an episode; returns the simulator's first time step."""
        self._episode, self._over, self.observation, self._actions = episode, False, None, []
        self._env.task.random.seed(np.random.SeedSequence([self._seed, episode]).generate_state(1)[0])
        return self._env.reset()

    def _act(self, action: Any) -> tuple[Any, float]:
        """Apply an action ``repeat`` times; returns the simulator's last time step and the summed reward."""
        self._actions.append(action)
        scaled = self._low + (np.clip(action, -1, 1) + 1.0) * (self._high - self._low) / 2
        reward = 0.0
        for _ in range(self.repeat):
            timestep = self._env.step(scaled)
            reward += timestep.reward or 0.0
            if timestep.last():
                break
        self._over = timestep.last()
        return timestep, reward

    def _observe(self, timestep: Any) -> None:
        if self.pixels:
            frame = self.render().transpose(2, 0, 1)
            before = np.tile(frame, (self.stack, 1, 1)) if self.observation is None else self.observation
            self.observation = np.concatenate([before[3:], frame])
        else:
            self.observation = np.concatenate([np.ravel(x) for x in timestep.observation.values()]).astype(np.float32)


def prepare(arguments: Mapping[str, Any]) -> Control:
    """Start the environment of a cell; close it after use."""
    size, stack = arguments["settings"]["size"], arguments["settings"]["stack"]
    return Control(arguments["dataset"], size=size, repeat=arguments["repeat"], stack=stack)
