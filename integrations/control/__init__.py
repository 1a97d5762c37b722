"""Control: CURL on dm_control's suite with any objective.

Use the parts in your own code::

    from counterpoint.integrations import control

    env = control.Control("cartpole-swingup")
    agent = control.Agent(env.observation_space.shape, env.action_space.shape[0], "adnce:t=0.2")
"""

from typing import TYPE_CHECKING

from counterpoint.names import lazy

if TYPE_CHECKING:
    from .agent import Agent, Contrast
    from .environment import Control
    from .evaluation import evaluate
    from .replay import Replay, Transitions
    from .settings import CURL_TASKS, AgentSettings, Settings
    from .training import restore, train

__all__ = [
    "CURL_TASKS", "Agent", "AgentSettings", "Contrast", "Control", "Replay", "Settings", "Transitions", "evaluate",
    "restore", "train",
]  # fmt: skip

__getattr__ = lazy(__name__, ("settings", "environment", "replay", "agent", "evaluation", "training"), __all__)
