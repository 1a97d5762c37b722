"""Control: CURL on dm_control's suite with any objective.

The parts can be had one by one::

    from . import agent, environment

    env = environment.Control("cartpole-swingup")
    curl = agent.Agent(env.observation_space.shape, 1, "adnce:t=0.2")
"""

MISSING = 'control needs dm_control and Gymnasium: pip install "counterpoint[control]"'
try:
    import numpy  # noqa: F401
except ImportError as error:
    raise ImportError(MISSING) from error
