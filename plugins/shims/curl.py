"""Shims for CURL and dmc2gym on today's numpy and gym."""

import importlib
from typing import Any

from ..host import Shim


def _np_int() -> bool:
    import numpy

    if hasattr(numpy, "int"):
        return False
    vars(numpy)["int"] = int
    return True


def _env_specs() -> bool:
    gym = _gym()
    if gym is None or hasattr(gym.envs.registry, "env_specs"):
        return False

    class Registry(dict):  # type: ignore[type-arg]
        """The registry, now a plain dict, under its former name too."""

        env_specs = property(lambda self: self)

    gym.envs.registry = gym.envs.registration.registry = Registry(gym.envs.registry)
    return True


def _old_make() -> bool:
    gym = _gym()
    if gym is None or tuple(map(int, gym.__version__.split(".")[:2])) < (0, 26):
        return False
    make = gym.make

    class TimeLimit(gym.Wrapper):  # type: ignore[name-defined, misc]
        """End episodes; ``reset`` returns the observation alone, and ``step`` four values."""

        def __init__(self, env: Any, steps: int) -> None:
            super().__init__(env)
            self._max_episode_steps, self._elapsed = steps, 0

        def reset(self, **options: Any) -> Any:
            self._elapsed = 0
            return self.env.reset(**options)

        def step(self, action: Any) -> Any:
            observation, reward, done, info = self.env.step(action)
            self._elapsed += 1
            return observation, reward, done or self._elapsed >= self._max_episode_steps, info

    def old_make(name: Any, *args: Any, **options: Any) -> Any:
        spec = gym.envs.registry.get(name)
        if spec is None or not str(spec.entry_point).startswith("dmc2gym"):
            return make(name, *args, **options)
        env = gym.envs.registration.load(spec.entry_point)(**spec.kwargs, **options)
        return TimeLimit(env, spec.max_episode_steps)

    gym.make = old_make
    return True


def _gym() -> Any:
    try:
        return importlib.import_module("gym")
    except ImportError:  # the script's own error is clearer
        return None


SHIMS = (
    Shim("np_int", "dmc2gym uses np.int, which numpy 1.24 removed", _np_int),
    Shim("env_specs", "dmc2gym uses registry.env_specs, which gym 0.26 removed", _env_specs),
    Shim("old_make", "gym.make of 0.26 and later expects environments with another reset and step", _old_make),
)
