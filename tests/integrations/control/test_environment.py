"""The environments: CURL's protocol, determinism, states to go back to, and what is said when all fails."""

import os
import subprocess
import sys
from contextlib import closing
from importlib.util import find_spec

import numpy as np
import pytest

if find_spec("dm_control") is None or find_spec("gymnasium") is None:
    pytest.skip("dm_control is not installed", allow_module_level=True)

from counterpoint.integrations.control import environment

Control = environment.Control


def actions(env, count, seed=0):
    return np.random.default_rng(seed).uniform(-1, 1, (count, *env.action_space.shape)).astype(np.float32)


def play(env, moves):
    found = [env.step(move)[:2] for move in moves]
    return np.stack([seen for seen, _ in found]), [reward for _, reward in found]


def test_it_is_a_gymnasium_environment(frames):
    from gymnasium.utils.env_checker import check_env

    with closing(Control("cartpole-swingup", size=16)) as env:
        check_env(env)


def test_the_protocol_is_curls(frames):
    repeats = {task: Control(task, pixels=False).repeat for task in environment.CURL_TASKS}
    assert repeats == {
        "finger-spin": 2,
        "cartpole-swingup": 8,
        "reacher-easy": 4,
        "cheetah-run": 4,
        "walker-walk": 2,
        "ball_in_cup-catch": 4,
    }
    with closing(Control("cartpole-swingup")) as env:
        seen, _ = env.reset(seed=1)
        assert (seen.shape, seen.dtype) == ((9, 100, 100), np.uint8)
        assert (seen[:3] == seen[3:6]).all()  # at the beginning there is only one frame
        new, *_ = env.step([0.5])
        assert (new[:6] == seen[3:]).all()
        assert (new[6:] != seen[6:]).any()
        assert (new[6:] == env.render().transpose(2, 0, 1)).all()


@pytest.mark.parametrize(
    "task",
    [
        "cartpole-swingup",
        "finger-spin",
        *(pytest.param(t, marks=pytest.mark.slow) for t in ("dog-stand", "quadruped-escape")),
    ],
)
def test_frames_are_dm_controls_own(frames, task):
    """Over resets and sizes, beside an environment that keeps the buffers the suite has given it."""
    with closing(Control(task, stack=1)) as env, closing(Control(task, pixels=False)) as other:
        kept = []
        for one in (env, other):
            one.reset(seed=4)
        for size in (100, 100, 64, 37, 100):
            theirs = other._env.physics.render(size, size, camera_id=environment.CAMERA)
            env.size = size
            kept.append((env.render(), theirs))
            env.size = 100
            seen = env.reset()[0] if size == 37 else env.step(env.action_space.low)[0]
            other.reset() if size == 37 else other.step(env.action_space.low)
            theirs = other._env.physics.render(100, 100, camera_id=environment.CAMERA)
            kept.append((seen.transpose(1, 2, 0), theirs))
        for ours, theirs in kept:  # at the end, since what is given out must not change any more
            assert (ours == theirs).all()


def test_closing_one_leaves_the_others_alone(frames):
    with closing(Control("cartpole-swingup", size=16)) as env:
        seen, _ = env.reset(seed=1)
        for _ in range(2):
            with closing(Control("cartpole-swingup", size=16)) as other:
                assert (other.reset(seed=1)[0] == seen).all()
                other.close()  # as often as one likes
            assert (env.reset(seed=1)[0] == seen).all()


def test_rewards_add_up_over_repeated_actions_and_time_truncates():
    with closing(Control("cartpole-balance", pixels=False)) as env:
        env.reset(seed=1)
        single = closing(Control("cartpole-balance", pixels=False, repeat=1))
        with single as slow:
            slow.reset(seed=1)
            _, rewards = play(slow, [[0.3]] * 4)
            assert env.step([0.3])[1] == pytest.approx(sum(rewards))
        ends = [env.step([0.0])[2:4] for _ in range(249)]
        assert ends[-1] == (False, True)
        assert not any(any(end) for end in ends[:-1])
        with pytest.raises(RuntimeError, match="the episode is over"):
            env.step([0.0])


def test_actions_reach_the_bounds_of_the_task():
    with closing(Control("reacher-easy", pixels=False)) as env:
        env.reset(seed=0)
        env.step([-1, 1])
        spec = env._env.action_spec()
        assert env._env.physics.control().tolist() == [spec.minimum[0], spec.maximum[1]]


@pytest.mark.parametrize("task", ["cartpole-swingup", "reacher-easy", "finger-spin"])
def test_an_episode_follows_from_seed_number_and_actions(task):
    with closing(Control(task, pixels=False)) as env, closing(Control(task, pixels=False)) as other:
        first = env.reset(seed=3)[0]
        moves = actions(env, 5)
        here = [play(env, moves), play_next(env, moves)]
        assert (here[0][0] != here[1][0]).any()
        other.reset(seed=9)
        assert (other.reset(seed=3)[0] == first).all()
        for (seen, rewards), (known, gained) in zip([play(other, moves), play_next(other, moves)], here, strict=True):
            assert (seen == known).all()
            assert rewards == gained


def play_next(env, moves):
    env.reset()
    return play(env, moves)


@pytest.mark.parametrize("before", [0, 1, 7])
def test_a_state_goes_back_exactly(frames, before):
    """Reacher keeps its target in the model and not in the physics' state, which is why actions are repeated."""
    with closing(Control("reacher-easy", size=16)) as env, closing(Control("reacher-easy", size=16)) as other:
        env.reset(seed=5)
        env.reset()
        moves = actions(env, 12)
        if before:
            play(env, moves[:before])
        state = env.state
        other.state = state
        assert (other.observation == env.observation).all()
        for one, two in zip(play(env, moves[before:]), play(other, moves[before:]), strict=True):
            assert (np.asarray(one) == np.asarray(two)).all()
        assert (env.reset()[0] == other.reset()[0]).all()


def test_quantities_are_named_numbers_of_the_state():
    with closing(Control("cartpole-swingup", pixels=False)) as env:
        seen, _ = env.reset(seed=0)
        names = ["position[0]", "position[1]", "position[2]", "velocity[0]", "velocity[1]"]
        assert list(env.quantities) == names
        assert np.allclose(list(env.quantities.values()), seen)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Control("cartpole-swingupp"), "unknown task 'cartpole-swingupp'. Did you mean 'cartpole-swingup'?"),
        (lambda: Control("walker"), "unknown task 'walker'"),
        (lambda: Control("walker-walk", size=0), "size: expected a whole number of at least 1, got 0"),
        (lambda: Control("walker-walk", repeat=1.5), "repeat: expected a whole number of at least 1, got 1.5"),
    ],
)
def test_what_cannot_be_made_is_said(make, says):
    with pytest.raises(ValueError, match=r"expected|unknown") as raised:
        make()
    assert says in str(raised.value)


@pytest.mark.parametrize("action", [[float("nan")], [0.1, 0.2], []])
def test_actions_that_are_none_are_refused(action):
    with closing(Control("cartpole-swingup", pixels=False)) as env:
        env.reset(seed=0)
        with pytest.raises(ValueError, match=r"action: expected 1 finite numbers in \[-1, 1\]"):
            env.step(action)


AFTER_DM_CONTROL = """
from dm_control.mujoco import Camera
from counterpoint.integrations.control.environment import Control
print(Control("cartpole-swingup", size=8, stack=1).reset(seed=0)[0].shape)
"""


def test_dm_control_may_have_been_loaded_before(frames):
    done = subprocess.run([sys.executable, "-c", AFTER_DM_CONTROL], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "(3, 8, 8)\n"), done.stderr


NO_RENDERER = """
import counterpoint.integrations.control.environment as environment
print(environment.Control("cartpole-swingup", pixels=False).reset(seed=0)[0].shape)
try:
    environment.check_frames()
except environment.NoRendererError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"PYOPENGL_PLATFORM": "osmesa"}, "MUJOCO_GL=egl cannot draw frames here (Cannot use EGL"),
        ({"MUJOCO_GL": "disabled"}, "MUJOCO_GL=disabled cannot draw frames here (No OpenGL"),
        ({"MUJOCO_GL": "elg"}, "MUJOCO_GL=elg cannot draw frames here (Environment variable MUJOCO_GL must be one of"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="the default elsewhere is not EGL")
def test_without_a_renderer_states_work_and_frames_say_what_to_install(variables, says):
    env = {key: value for key, value in os.environ.items() if key != "MUJOCO_GL"} | variables
    done = subprocess.run([sys.executable, "-c", NO_RENDERER], env=env, capture_output=True, text=True, check=True)
    shape, error = done.stdout.splitlines()
    assert shape == "(5,)"
    assert error.startswith(says)
    assert "apt install libegl1 libgl1-mesa-dri" in error
