"""Tasks of dm_control's suite from pixels, behind Gymnasium's interface.

    env = Control("cartpole-swingup")                  # one
    env = vector("cartpole-swingup", envs=2)           # several, each in a process of its own
    frames, _ = env.reset(seed=1)

As in CURL and the works that it compares with: 100 x 100 pixels of camera 0, each action repeated as often as
:data:`ACTION_REPEAT` says, three frames stacked, actions in [-1, 1]. An episode that the time limit ends is
``truncated``, so that its last state's value still counts; ``terminated`` is what the task itself ends.

An episode depends on nothing but the seed that ``reset`` got, its number since then, and its actions. So these three
are :attr:`Control.state`: a few numbers per step, from which the simulation is repeated exactly, whatever a task keeps
to itself, and without rendering what nobody looks at.

dm_control is wrapped here, in one class, because shimmy and torchrl, which wrap it too, leave the repetition of
actions, the stacking and the resizing to further wrappers, and have no state to go back to.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import deque
from contextlib import closing
from functools import cache, partial
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np

from counterpoint.hyper import nearest

from . import MISSING

try:
    import gymnasium
    from gymnasium.spaces import Box
    from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
except ImportError as error:
    raise ImportError(MISSING) from error

CURL_TASKS = ("finger-spin", "cartpole-swingup", "reacher-easy", "cheetah-run", "walker-walk", "ball_in_cup-catch")
ACTION_REPEAT = {"cartpole-swingup": 8, "finger-spin": 2, "walker-walk": 2}
REPEAT = 4  # of all other tasks
SIZE, STACK, CAMERA = 100, 3, 0
HEADLESS = ("egl", "osmesa")
DRAW_ONCE = """
import mujoco
model = mujoco.MjModel.from_xml_string("<mujoco/>")
drawn = mujoco.Renderer(model, 8, 8)
drawn.update_scene(mujoco.MjData(model))
drawn.render()
"""
HELP = (
    "Install EGL (Debian, Ubuntu: apt install libegl1 libgl1-mesa-dri) or OSMesa (libosmesa6), or set MUJOCO_GL to "
    "what there is: egl, osmesa or glfw"
)


class NoRendererError(OSError):
    """There is no OpenGL here that can draw frames."""


_nothing: list[NoRendererError] = []  # why MUJOCO_GL was set to disabled, if it was


def action_repeat(task: str) -> int:
    """How often CURL repeats each action of a task."""
    return ACTION_REPEAT.get(task, REPEAT)


def check_task(task: str) -> str:
    """The name of a task, ``domain-task`` in the suite's own words, if there is such a task."""
    known = ["-".join(names) for names in suite().ALL_TASKS]
    if task not in known:
        raise ValueError(f"unknown task {task!r}.{nearest(str(task), known)}")
    return task


def find_renderer() -> str:
    """The name of what draws frames here, for ``MUJOCO_GL``.

    What stands in that variable is taken as it is. Otherwise EGL (on the graphics card, or in software) and OSMesa
    (in software) are tried, in processes of their own, since a process that has loaded one cannot change to another;
    they need no screen, which dm_control's own first choice does.
    """
    if asked := os.environ.get("MUJOCO_GL"):
        return asked
    if sys.platform != "linux":
        return "glfw"
    said = []
    for name in HEADLESS:
        child = [sys.executable, "-c", DRAW_ONCE]
        done = subprocess.run(child, env={**os.environ, "MUJOCO_GL": name}, capture_output=True, text=True)
        if done.returncode == 0:
            return name
        said.append(f"{name}: {(done.stderr.splitlines() or [f'exit code {done.returncode}'])[-1]}")
    raise NoRendererError(f"nothing here can draw frames ({'; '.join(said)}). {HELP}")


def check_frames() -> None:
    """Raises :class:`NoRendererError` if frames cannot be drawn here."""
    with closing(Control(CURL_TASKS[0], size=8, stack=1)) as env:
        env.reset()


@cache
def suite() -> ModuleType:
    """dm_control's suite, loaded with what draws frames here, or without anything if there is nothing."""
    if find_spec("dm_control") is None:
        raise ImportError(MISSING)
    if "dm_control._render" not in sys.modules:
        if find_spec("triton") is not None:
            import triton  # noqa: F401  torch's optimisers load it; its LLVM after a software renderer's is a crash
        try:
            os.environ["MUJOCO_GL"] = find_renderer()
        except NoRendererError as error:
            os.environ["MUJOCO_GL"] = "disabled"
            _nothing.append(error)
    try:
        from dm_control import suite
    except (ImportError, RuntimeError, AttributeError) as error:  # of the OpenGL that MUJOCO_GL names
        name = os.environ.get("MUJOCO_GL")
        raise NoRendererError(f"MUJOCO_GL={name} cannot draw frames here ({error}). {HELP}") from error
    return suite  # type: ignore[no-any-return]


class Control(gymnasium.Env):  # type: ignore[misc]
    """A task of the suite.

    Observations are ``(3 * stack, size, size)`` bytes, the oldest frame first; with ``pixels=False`` the task's own
    observation as numbers.

    Args:
        task: ``domain-task``, such as ``cartpole-swingup``.
        pixels: whether to observe frames, or the task's own numbers.
        size: height and width of the frames, at least 1.
        repeat: how often each action is applied, at least 1; by default as CURL does.
        stack: frames per observation, at least 1.
    """

    metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012  Gymnasium's

    def __init__(
        self, task: str, *, pixels: bool = True, size: int = SIZE, repeat: int | None = None, stack: int = STACK
    ) -> None:
        for name, value in (("size", size), ("repeat", 1 if repeat is None else repeat), ("stack", stack)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name}: expected a whole number of at least 1, got {value!r}.")
        domain, _, name = check_task(task).partition("-")
        self.task, self.pixels, self.size, self.stack = task, pixels, size, stack
        self.repeat = repeat or action_repeat(task)
        self.render_mode = "rgb_array"
        self._env = suite().load(domain, name, task_kwargs={"random": 0})
        self._cameras: dict[int, Any] = {}
        self._frames: deque[Any] = deque(maxlen=stack)
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

    # ---- Gymnasium's interface -----------------------------------------------------------------

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begins the first episode of ``seed``, or without one the next episode."""
        super().reset(seed=seed)
        if seed is not None:
            self._seed, self._episode = seed, -1
        elif self._episode < 0:
            self._seed = int(self.np_random.integers(2**32))
        self._begin(self._episode + 1)
        self._draw()
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self._over:
            raise RuntimeError(f"{self.task}: the episode is over, or has not begun; call reset.")
        action = np.asarray(action, np.float32)
        if action.shape != self.action_space.shape or not np.isfinite(action).all():
            raise ValueError(
                f"{self.task}: action: expected {self.action_space.shape[0]} finite numbers in [-1, 1], got {action}."
            )
        reward, terminated, truncated = self._act(action)
        self._draw()
        return self.observation, reward, terminated, truncated, {}

    def render(self, size: int = 240) -> Any:
        """The present state as ``(size, size, 3)`` bytes."""
        try:
            return self._camera(size).render().copy()  # of what it draws into each time
        except Exception as error:  # each OpenGL has errors of its own
            if _nothing:
                raise _nothing[0] from error
            raise NoRendererError(
                f"MUJOCO_GL={os.environ.get('MUJOCO_GL')} cannot draw frames here ({error}). {HELP}"
            ) from error

    def close(self) -> None:
        self._cameras.clear()
        self._env.physics.free()  # dm_control's own close leaves its OpenGL to the garbage collector

    # ---- what Gymnasium does not ask for -------------------------------------------------------

    @property
    def observation(self) -> Any:
        """What the last ``reset`` or ``step`` has returned."""
        if not self.pixels:
            return self._numbers
        first = [self._frames[0]] * (self.stack - len(self._frames))  # where the episode has only just begun
        return np.concatenate([*first, *self._frames])

    @property
    def timestep(self) -> float:
        """Simulated seconds between two applications of an action."""
        return float(self._env.control_timestep())

    @property
    def quantities(self) -> dict[str, float]:
        """The task's own observation of the simulator's state, number by number."""
        found: dict[str, float] = {}
        for name, value in self._env.task.get_observation(self._env.physics).items():
            flat = np.ravel(value)
            found |= {f"{name}[{i}]" if len(flat) > 1 else name: float(x) for i, x in enumerate(flat)}
        return found

    @property
    def state(self) -> dict[str, Any]:
        """All that the present moment depends on, as plain data; can be set where the arguments are the same."""
        return {"seed": self._seed, "episode": self._episode, "actions": [a.tolist() for a in self._actions]}

    @state.setter
    def state(self, state: dict[str, Any]) -> None:
        self._seed = state["seed"]
        self._begin(state["episode"])
        seen = len(state["actions"]) - self.stack  # frames after that are part of the observation
        if seen < 0:
            self._draw()
        for i, action in enumerate(state["actions"]):
            self._act(np.asarray(action, np.float32))
            if i >= seen:
                self._draw()

    def _begin(self, episode: int) -> None:
        self._episode, self._over = episode, False
        self._frames.clear()
        self._actions.clear()
        self._env.task.random.seed(np.random.SeedSequence([self._seed, episode]).generate_state(1)[0])
        self._look(self._env.reset())

    def _act(self, action: Any) -> tuple[float, bool, bool]:
        """Reward, whether the task has ended the episode, and whether its time has."""
        self._actions.append(action)
        scaled = self._low + (np.clip(action, -1, 1) + 1.0) * (self._high - self._low) / 2
        reward = 0.0
        for _ in range(self.repeat):
            time = self._env.step(scaled)
            reward += time.reward or 0.0
            if time.last():
                break
        self._over = time.last()
        self._look(time)
        return reward, self._over and time.discount == 0, self._over and time.discount > 0

    def _look(self, time: Any) -> None:
        if not self.pixels:
            self._numbers = np.concatenate([np.ravel(x) for x in time.observation.values()]).astype(np.float32)

    def _camera(self, size: int) -> Any:
        """What draws frames of one size: kept, and into buffers no larger than what is drawn.

        A software renderer goes over all of a buffer for each frame, and the suite's have at least 640 x 480 pixels.
        """
        if size not in self._cameras:
            import mujoco
            from dm_control.mujoco import Camera

            physics, side = self._env.physics, max([size, *self._cameras])
            buffers = physics.model.vis.global_
            buffers.offwidth = buffers.offheight = side
            with physics.contexts.gl.make_current() as context:
                context.call(mujoco.mjr_resizeOffscreen, side, side, physics.contexts.mujoco.ptr)
            self._cameras[size] = Camera(physics, size, size, CAMERA)
        return self._cameras[size]

    def _draw(self) -> None:
        if self.pixels:
            self._frames.append(np.ascontiguousarray(self.render(self.size).transpose(2, 0, 1)))


def vector(task: str, envs: int = 1, **how: Any) -> VectorEnv:
    """Several environments as one; more than one run in processes of their own. Episodes that are over are to be reset.

    Args:
        task: as for :class:`Control`.
        envs: how many, at least 1.
        how: further arguments of :class:`Control`.
    """
    if not isinstance(envs, int) or envs < 1:
        raise ValueError(f"envs: expected a whole number of at least 1, got {envs!r}.")
    check_task(task)  # here, since errors in other processes come with a long tail
    make = [partial(Control, task, **how)] * envs
    if envs == 1:
        return SyncVectorEnv(make, autoreset_mode=AutoresetMode.DISABLED)
    # spawn: a forked process would share the OpenGL and the threads of this one
    return AsyncVectorEnv(make, context="spawn", autoreset_mode=AutoresetMode.DISABLED)
