"""``Algorithm``: how an agent acts, what it keeps of its turns, and how it learns from them.

An algorithm knows nothing of where environments run, or of how many learners there are: a trainer
gives it batches, and may put a reduction between its gradients and its step.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from parenvs.agents.learning.net import SHARPNESS, RowsNet, log_policy
from parenvs.agents.learning.seen import Lens, Seen
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tensors import check_finite

Reduce = Callable[[Iterable[nn.Parameter]], None]
"""Changes gradients in place, for example to their mean over learners."""

LARGEST = {"envs": 1 << 16, "turns": 1 << 16, "width": 1 << 12}
"""Largest values of settings that take memory."""


class Batch(NamedTuple):
    """What n environments did in T turns.

    Attributes:
        seen: (T, n).
        actions: (T, n) int64.
        kept: name -> (T, n, ...), what ``Algorithm.act`` kept.
        rewards: (T, n) float32.
        ended: (T, n) bool, whether the episode ended with the turn.
        episodes: (T, n) int64, the number of the episode in its environment.
        after: (n), what is seen behind the last turn.
    """

    seen: Seen
    actions: Tensor
    kept: dict[str, Tensor]
    rewards: Tensor
    ended: Tensor
    episodes: Tensor
    after: Seen


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that all algorithms have.

    Attributes:
        envs: n, environments that are played at once.
        turns: T, turns of each between two updates.
        rate: of Adam at the start; it falls in a line.
        last_rate: share of it at the end.
        width: of hidden layers.
        attention: whether rows attend to each other.
        sharpness: weight of the rule's score at the start.
        gradient: largest norm of a gradient.
    """

    envs: int = 64
    turns: int = 64
    rate: float = 3e-4
    last_rate: float = 0.1
    width: int = 64
    attention: bool = False
    sharpness: float = SHARPNESS
    gradient: float = 0.5


class Algorithm(ABC):
    """An agent that learns.

    Args:
        lens: what it sees.
        settings: an object of the class ``settings``.
        device: where its network is.
        seed: of the network's first weights.

    Attributes:
        name: by which it is asked for.
        copies: environments next to each other that play the same problems.
        taught: whether it keeps ``worth``, what a teacher says of each action, see ``Play``.
        net: the network.
        reduce: what is done to gradients before each step, if anything.
    """

    name: ClassVar[str]
    settings_class: ClassVar[type[Settings]] = Settings
    copies: int = 1
    taught: ClassVar[bool] = False
    net: RowsNet

    def __init__(
        self, lens: Lens, settings: Settings, device: str | torch.device = "cpu", seed: int = 0
    ) -> None:
        self.lens, self.settings, self.device = lens, settings, torch.device(device)
        self.reduce: Reduce | None = None
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = self.network().to(self.device)
        self.optimiser = torch.optim.Adam(self.net.parameters(), lr=settings.rate, eps=1e-5)
        self.random = torch.Generator().manual_seed(seed)

    def network(self) -> RowsNet:
        """Make the network."""
        return RowsNet(self.lens, **self.shape)

    @property
    def shape(self) -> dict[str, Any]:
        """Arguments of the network that settings decide."""
        return {name: getattr(self.settings, name) for name in ("width", "attention", "sharpness")}

    def logs(self, seen: Seen) -> Tensor:
        """Return the logarithms of the chances with which a plan is drawn, (n, A)."""
        return log_policy(self.net, seen.to(self.device))[0]

    @torch.no_grad()
    def act(self, seen: Seen) -> tuple[Tensor, dict[str, Tensor]]:
        """Return actions, (n,) int64, and what is kept beside them, (n, ...) each."""
        logs, values = log_policy(self.net, seen.to(self.device))
        logs, values = logs.cpu(), values.cpu()
        actions = chosen(logs, seen.mask.cpu(), self.random)
        return actions, {"logs": logs.gather(-1, actions[:, None])[:, 0], "values": values}

    @torch.no_grad()
    def best(self, seen: Seen) -> Tensor:
        """Return the actions that it holds for the best, (n,) int64."""
        return chosen(self.logs(seen).cpu(), seen.mask.cpu())

    @torch.no_grad()
    def values(self, seen: Seen) -> Tensor:
        """Return what turns are worth, (n,), in rewards: 0 for agents that hold no values."""
        return torch.zeros(len(seen.mask))

    @abstractmethod
    def learn(self, batch: Batch, progress: float) -> dict[str, float]:
        """Learn from a batch; return figures by name.

        Args:
            batch: what was done since the last call.
            progress: share of the training that is done, from 0 to 1.
        """

    def step(self, loss: Tensor) -> None:
        """Take a step of the optimiser."""
        self.optimiser.zero_grad()
        loss.backward()
        if self.reduce is not None:
            self.reduce(self.net.parameters())
        nn.utils.clip_grad_norm_(self.net.parameters(), self.settings.gradient)
        self.optimiser.step()

    def slow(self, progress: float) -> None:
        """Set the learning rate of a share of the training."""
        rate = self.settings.rate * (1.0 - (1.0 - self.settings.last_rate) * progress)
        for group in self.optimiser.param_groups:
            group["lr"] = rate

    def forget(self) -> None:  # noqa: B027  # most keep nothing
        """Drop what is kept of episodes that will not go on."""

    def state(self) -> dict[str, Any]:
        """Return all that the next updates depend on, as tensors, numbers and texts."""
        return {
            "net": self.net.state_dict(),
            "optimiser": self.optimiser.state_dict(),
            "random": self.random.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what ``state`` returned.

        Raises:
            Exception: it is of another algorithm, or has numbers that are not finite.
        """
        check_finite([state["net"], state["optimiser"]])
        self.net.load_state_dict(state["net"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.random.set_state(state["random"])


def chosen(logs: Tensor, mask: Tensor, random: torch.Generator | None = None) -> Tensor:
    """Return an action of each turn, (n,), a legal one whatever numbers a network gives.

    Args:
        logs: (n, A) logarithms of chances.
        mask: (n, A) bool, the legal actions.
        random: draws by the chances; None takes the likeliest.
    """
    if random is not None:
        noise = torch.rand(logs.shape, generator=random).clamp_(min=1e-20)
        logs = logs - (-noise.log()).log()
    return torch.where(mask, logs.nan_to_num(), -torch.inf).argmax(dim=-1)


def settings_of(kind: type[Algorithm], **given: Any) -> Settings:
    """Return the settings of an algorithm, those that are given in place of the default.

    Raises:
        ParenvsError: it has no such setting, or the value is of another type or out of its range.
    """
    default = kind.settings_class()
    known = {each.name: getattr(default, each.name) for each in fields(default)}
    for name, value in given.items():
        if name not in known:
            hint = did_you_mean(name, known)
            raise ParenvsError(
                f"{kind.name} has no setting {shown(name)}{hint}; known: {', '.join(known)}"
            )
        wanted = type(known[name])
        is_number = wanted is float and type(value) is int
        if type(value) is not wanted and not is_number:
            raise ParenvsError(f"{name} must be {wanted.__name__}, not {shown(value)}")
        largest = LARGEST.get(name, 1e9)
        least = min(1, known[name]) if wanted is int else -largest
        if not least <= value <= largest:
            raise ParenvsError(f"{name} must be from {least:g} to {largest:g}, not {shown(value)}")
    return replace(default, **given)
