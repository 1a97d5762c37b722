"""CURL (https://arxiv.org/abs/2004.04136): soft actor-critic from pixels, with a contrastive loss between crops.

One encoder, four convolutions and a linear layer with LayerNorm, serves the critic and the contrastive loss; the actor
applies a linear layer of its own to its convolutions. Target networks of critic and encoder follow slowly. One update::

    critic        y = r + gamma (min Q_target(s', a') - alpha log pi(a'|s')),   (Q1(s, a) - y)^2 + (Q2(s, a) - y)^2
    actor, alpha  alpha log pi(a|s) - min Q(s, a),   alpha (-log pi(a|s) - target entropy),   convolutions frozen
    contrastive   an objective of z = encoder(crop of s) and its keys, target_encoder(other crops of s)

The contrastive term is any objective, on the scores of :mod:`counterpoint.plugins.curl`: ``bilinear``, ``z W key``, or
``cosine``. ``infonce:t=1`` on bilinear scores is CURL's own loss.

An update equals that of CURL's code up to rounding, but costs less: actor and contrastive loss share the convolutions
of a batch, which run channels-last and in chunks; and where CURL moves the encoder by the contrastive gradient with two
optimizers, one takes twice the step.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from counterpoint.base import Objective, as_objective
from counterpoint.plugins import curl
from counterpoint.plugins.encoders import follow
from counterpoint.treatments import Treatment

from ..domain import check_choice
from .networks import Actor, Critic, Encoder, adam, center_crop, initialize, random_crop
from .replay import Transitions
from .settings import AgentSettings


def check_objective(objective: Objective | str) -> Objective:
    """The objective; raises if it needs more than crops."""
    loss_fn = as_objective(objective)
    if isinstance(loss_fn, Treatment):
        raise ValueError(f"{loss_fn}: the criterion sees similarities, which do not say which keys these are")
    if loss_fn.needs:
        needs = " and ".join(sorted(loss_fn.needs))
        raise ValueError(f"{loss_fn} needs {needs} views, but the criterion sees embeddings")
    return loss_fn


class Contrast(nn.Module):
    """An objective between crops; ``target``, the encoder's slowly following copy, computes the keys, without gradient.

    ``scores`` are ``bilinear`` or ``cosine``, by default what the objective needs: :mod:`counterpoint.plugins.curl`.
    """

    def __init__(
        self, objective: Objective | str, encoder: nn.Module, target: nn.Module, features: int, scores: str | None
    ) -> None:
        super().__init__()
        self.objective = check_objective(objective)
        self.scores = scores or curl.default_scores(self.objective)
        check_choice("scores", self.scores, curl.SCORES)
        self.crops = self.objective.views or 2
        self.w = nn.Parameter(torch.rand(features, features))
        self.encoder, self.target = [encoder], [target]  # in lists: their parameters are not this module's

    def optimizer(self, lr: float) -> torch.optim.Optimizer:
        """Adam, with twice the step for the encoder, equivalent to CURL's two optimizers."""
        encoder: list[dict[str, Any]] = [{"params": self.encoder[0].parameters(), "lr": 2 * lr}]
        return adam([*encoder, {"params": self.parameters()}], lr)

    def forward(self, z: Tensor, keys: list[Tensor]) -> Tensor:
        """The loss of anchors ``(B, features)`` and keys, ``(B, features)`` per further crop."""
        return self.objective.compute_loss(self._sides(z, keys), z.device)

    def report(self, z: Tensor, keys: list[Tensor]) -> dict[str, float]:
        """What this batch looks like to the objective, see :meth:`Objective.report`."""
        numbers = self.objective.report(self._sides(z, keys), z.device, call="compute_loss")
        return {f"report/{name}": value for name, value in numbers.items()}

    def _sides(self, z: Tensor, keys: list[Tensor]) -> curl.Sides:
        return curl.Sides(z, keys, self.w if self.scores == "bilinear" else None)

    def keys(self, frames: Tensor, size: int) -> list[Tensor]:
        """The target encoder's output for all crops but the first."""
        with torch.no_grad():
            return [self.target[0](random_crop(frames, size)) for _ in range(self.crops - 1)]


class Agent(nn.Module):
    """Act, and learn from batches of transitions.

    ``observation`` is the shape of one, ``(channels, height, width)``, and ``actions`` the dimension of an action. The
    objective may be a spec; for ``scores`` see :class:`Contrast`.
    """

    def __init__(
        self,
        observation: tuple[int, int, int],
        actions: int,
        objective: Objective | str = "infonce:t=1",
        settings: AgentSettings | None = None,
        scores: str | None = None,
        device: str | torch.device = "cpu",
    ) -> None:
        super().__init__()
        self.settings = s = settings or AgentSettings()
        self.device, self.updates = torch.device(device), 0
        critics = (Critic(Encoder(observation[0], s), s.features, actions, s.hidden) for _ in range(2))
        self.critic, self.target = (critic.apply(initialize) for critic in critics)
        self.target.requires_grad_(False).load_state_dict(self.critic.state_dict())
        self.actor = Actor(self.critic.encoder.new_head(), s.features, actions, s.hidden).apply(initialize)
        self.contrast = Contrast(objective, self.critic.encoder, self.target.encoder, s.features, scores)
        self.log_alpha = nn.Parameter(torch.tensor(s.alpha).log())
        self.to(self.device)
        self.target_entropy = -float(actions)
        self.optimizers: dict[str, torch.optim.Optimizer] = {
            "critic": adam(self.critic.parameters(), s.lr),
            "actor": adam(self.actor.parameters(), s.lr),
            "alpha": adam([self.log_alpha], s.alpha_lr, betas=(0.5, 0.999)),
            "contrast": self.contrast.optimizer(s.lr),
        }

    @torch.no_grad()
    def act(self, observations: Any, explore: bool = False) -> Any:
        """Actions ``(B, actions)`` for observations ``(B, ...)``: the policy's mean, or samples to explore."""
        x = torch.as_tensor(observations, device=self.device)
        h = self.critic.encoder.convolve(center_crop(x, self.settings.crop))
        return (self.actor(h)[0] if explore else self.actor.mean(h)).cpu().numpy()

    def update(self, batch: Transitions, log: Callable[[dict[str, float]], object] | None = None) -> dict[str, Tensor]:
        """Update all networks once; returns the losses, and passes the report of the objective to ``log``."""
        s, encoder = self.settings, self.critic.encoder
        x, x_next = (random_crop(part, s.crop) for part in (batch.observations, batch.next_observations))
        x = encoder.prepare(x)  # once for two passes

        # 1. critic, with the encoder
        losses = {"critic": self._update_critic(x, x_next, batch)}
        h = encoder.convolve(x)
        z = encoder.head(h)

        # 2. actor, temperature and targets, on detached features
        if self.updates % s.every == 0:
            losses |= self._update_actor(h.detach(), z.detach())
            follow(self.target.encoder, encoder, s.encoder_tau)
            for slow, fast in ((self.target.q1, self.critic.q1), (self.target.q2, self.critic.q2)):
                follow(slow, fast, s.tau)

        # 3. encoder, by the contrastive loss
        keys = self.contrast.keys(batch.observations, s.crop)
        if log is not None:
            log(self.contrast.report(z, keys))
        loss = self.contrast(z, keys)
        self._step("contrast", loss)
        losses["contrast"] = loss.detach()
        self.updates += 1
        return losses

    def _update_critic(self, x: Tensor, x_next: Tensor, batch: Transitions) -> Tensor:
        critic, target = self.critic, self.target
        with torch.no_grad():
            action, log_density = self.actor(critic.encoder.convolve(x_next))
            value = torch.minimum(*target.values(target.encoder(x_next), action)) - self.log_alpha.exp() * log_density
            y = batch.rewards + self.settings.discount * batch.alive * value
        q1, q2 = critic.values(critic.encoder(x), batch.actions)
        loss = F.mse_loss(q1, y) + F.mse_loss(q2, y)
        self._step("critic", loss)
        return loss.detach()

    def _update_actor(self, h: Tensor, z: Tensor) -> dict[str, Tensor]:
        self.critic.requires_grad_(False)  # gradients pass through it to the actor
        action, log_density = self.actor(h)
        value = torch.minimum(*self.critic.values(z, action))
        alpha = self.log_alpha.exp()
        loss = (alpha.detach() * log_density - value).mean()
        self._step("actor", loss)
        self.critic.requires_grad_(True)
        self._step("alpha", (alpha * (-log_density - self.target_entropy).detach()).mean())
        return {"actor": loss.detach(), "alpha": alpha.detach(), "entropy": -log_density.detach().mean()}

    def _step(self, name: str, loss: Tensor) -> None:
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()

    def state(self) -> dict[str, Any]:
        """Networks, optimizers and counters as plain data."""
        optimizers = {name: optimizer.state_dict() for name, optimizer in self.optimizers.items()}
        return {"networks": self.state_dict(), "optimizers": optimizers, "updates": self.updates}

    def load(self, state: dict[str, Any]) -> None:
        """Restore :meth:`state`."""
        self.load_state_dict(state["networks"])
        for name, optimizer in self.optimizers.items():
            optimizer.load_state_dict(state["optimizers"][name])
        self.updates = state["updates"]
