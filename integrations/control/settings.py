"""The settings of a control run, of its agent and of a representation run, and the domain; imports no torch."""

from dataclasses import dataclass, fields
from typing import Any

from ..domain import Domain, check, defined, known_settings, setting

CURL_TASKS = ("finger-spin", "cartpole-swingup", "reacher-easy", "cheetah-run", "walker-walk", "ball_in_cup-catch")
SCORES = ("bilinear", "cosine")  # a test compares these with the plugin's


def tasks() -> list[str]:
    """Return the tasks of the installed suite."""
    return ["-".join(names) for names in defined("dm_control", "suite", r"(?m)^@SUITE\.add\(.*\)\ndef (\w+)")]


@known_settings
@dataclass(frozen=True)
class AgentSettings:
    """The hyper-parameters of an agent; by default those of the CURL paper, with the batch of the official script."""

    batch: int = setting(128, "transitions per update", low=1)
    capacity: int = setting(100_000, "frames in the replay buffer", low=1)
    random_steps: int = setting(1000, "random actions before the first update", low=1)
    size: int = setting(100, "pixels a side of the frames", low=1)
    crop: int = setting(84, "pixels a side of the crops", low=1)
    stack: int = setting(3, "frames per observation", low=1, flag=False)
    layers: int = setting(4, "convolutions of the encoder", low=1, flag=False)
    filters: int = setting(32, "channels of each convolution", low=1)
    features: int = setting(50, "width of the encoder's output", low=1, flag=False)
    hidden: int = setting(1024, "width of actor and critics", low=1)
    lr: float = setting(1e-3, "learning rate of actor, critics and encoder; 2e-4 for cheetah-run", above=0)
    alpha: float = setting(0.1, "initial temperature of the entropy", above=0, flag=False)
    alpha_lr: float = setting(1e-4, "its learning rate", above=0, flag=False)
    discount: float = setting(0.99, "of future rewards", above=0, flag=False)
    tau: float = setting(0.01, "rate at which the targets of the critics follow", above=0, flag=False)
    encoder_tau: float = setting(0.05, "rate at which the target of the encoder follows", above=0, flag=False)
    every: int = setting(2, "updates of the critic per update of actor and targets", low=1, flag=False)

    def __post_init__(self) -> None:
        check(type(self), vars(self))
        if self.crop > self.size:
            raise ValueError(f"crop: expected at most the frames' size {self.size}, got {self.crop}.")
        if self.crop < 4 * self.layers - 1:
            raise ValueError(f"crop: {self.layers} convolutions need at least {4 * self.layers - 1}, got {self.crop}.")
        if self.batch > (stored := min(self.random_steps, self.capacity - 1)):
            buffer = f"the buffer holds {stored} at the first update"
            raise ValueError(f"batch: {self.batch} transitions, but {buffer}; raise random_steps or capacity.")

    def arguments(self) -> dict[str, Any]:
        """The settings as cells have them, with those of the agent under ``settings``."""
        agent = {field.name: getattr(self, field.name) for field in fields(AgentSettings)}
        return {**{name: value for name, value in vars(self).items() if name not in agent}, "settings": agent}


@known_settings
@dataclass(frozen=True)
class Settings(AgentSettings):
    """The settings of a run. Steps are the simulator's."""

    steps: int = setting(100_000, "of the simulator", low=1, flag=False)
    scores: str | None = setting(None, "similarities (what each objective needs)", choices=SCORES)
    repeat: int | None = setting(None, "times each action is applied (as CURL does)", type=int, low=1)
    eval_every: int = setting(10_000, "steps between evaluations", low=1)
    episodes: int = setting(10, "episodes per evaluation", low=1)
    device: str = setting("cpu", "of agent and replay buffer", flag=False)


@known_settings
@dataclass(frozen=True)
class RepresentationSettings(AgentSettings):
    """The settings of a representation run: an encoder trained on random episodes, smaller than CURL's."""

    batch: int = setting(64, low=1)
    size: int = setting(64, low=1)
    crop: int = setting(54, low=1)
    filters: int = setting(16, low=1)
    updates: int = setting(200)
    episodes: int = setting(120)
    length: int = setting(25)  # observations per episode
    scores: str | None = setting(None)
    device: str = setting("cpu")


DOMAIN = Domain(
    "control",
    Settings,
    dataset="task",
    default_dataset="cartpole-swingup",
    grids={  # CURL's temperature 1, and the grid of images, as frames are images
        "temperature": (0.1, 0.2, 0.3, 0.4, 0.5, 1.0),
        "mu": (0.5, 0.6, 0.7, 0.8, 0.9),
        "sigma": (0.5, 1.0),
    },
)
