"""``Algorithm``: how an agent acts, what it keeps of its steps, and how it learns from them.

An algorithm does not depend on where environments run, or on the number of learners. It gives
``step`` the loss of each of its steps, and takes means by ``mean`` and minibatches by ``parts``;
other learners are behind ``peers``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from parenvs.agents.learning.net import SHARPNESS, Lens, RowsNet, Seen, beside, log_policy
from parenvs.agents.learning.options import ALGORITHMS
from parenvs.core.registry import refuse_removed
from parenvs.core.task import late
from parenvs.errors import ParenvsError, one_line, refuse_unknown, shown
from parenvs.fields import plain
from parenvs.tensors import check_finite, read_saved

# The constants of splitmix64 (Steele, Lea, Flood 2014), as int64: torch has no unsigned arithmetic.
_STEP = 0x9E3779B97F4A7C15 - (1 << 64)
_FACTORS = (0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


class Place(NamedTuple):
    """A player's environments, ``first`` and so on of ``total``, and their next step ``turn``."""

    first: int
    total: int
    turn: Any


class Chance:
    """Uniform numbers of a turn of n environments.

    They are drawn by splitmix64 from a seed, the turn and the environment's number alone.

    Attributes:
        share: (n,), the environments' numbers, from 0 of the first to 1 of the last of all.
        turn: number of the turn, a tensor.
    """

    def __init__(self, seed: int, place: Place, count: int, device: Any = "cpu") -> None:
        # Keyed by the number among all environments, so that any split over processes draws alike.
        envs = torch.arange(place.first, place.first + count, device=device)
        turn = torch.as_tensor(place.turn, device=device)
        self._keys = keys_of(seed + turn * _STEP, envs)
        self.share = envs.float() / max(place.total - 1, 1)
        self.turn = turn

    def __call__(self, count: int) -> Tensor:
        """Return numbers from 0 to 1, (n, count), always the same first ones."""
        return uniform(self._keys, count)


def keys_of(words: Tensor, numbers: Tensor) -> Tensor:
    """Return keys for ``uniform`` of words and numbers, int64 of shapes that go together."""
    return _mixed(_mixed(words) + numbers)


def uniform(keys: Tensor, count: int) -> Tensor:
    """Return ``count`` numbers from 0 to 1 of each key, (n, count)."""
    words = _mixed(keys[:, None] + torch.arange(count, device=keys.device) * _STEP)
    # 24 bits: as many as a float32 below 1 holds without rounding up to 1.
    return ((words >> 40) & 0xFFFFFF).float() * 2**-24


def _mixed(words: Tensor) -> Tensor:
    """The finalizer of splitmix64."""
    # Shifts of int64 keep the sign, which the masks take away.
    words = (words ^ ((words >> 30) & ((1 << 34) - 1))) * _FACTORS[0]
    words = (words ^ ((words >> 27) & ((1 << 37) - 1))) * _FACTORS[1]
    return words ^ ((words >> 31) & ((1 << 33) - 1))


LARGEST = {"envs": 1 << 16, "turns": 1 << 16, "width": 1 << 12}
"""Largest values of settings that take memory."""
POSITIVE = ("rate", "last_rate", "gradient")
"""Settings of any number that cannot be below 0."""


class Batch(NamedTuple):
    """What n environments did in T turns.

    Attributes:
        seen: (T, n).
        kept: name -> (T, n, ...), what ``Algorithm.act`` kept.
        ended: (T, n) bool, whether the episode ended with the turn.
        episodes: (T, n) int64, the number of the episode in its environment.
        after: (n), what is seen behind the last turn.
        place: of the environments, and of the first turn.

    Tensors are on the CPU, or where a distribution plays on a device, there.
    """

    seen: Seen
    actions: Tensor
    kept: dict[str, Tensor]
    rewards: Tensor
    ended: Tensor
    episodes: Tensor
    after: Seen
    place: Place

    @classmethod
    def stacked(cls, steps: Sequence[dict[str, Tensor]], after: Seen, place: Place) -> Batch:
        """Return the batch of steps, each with the parts of ``seen`` and ``Batch``'s by name.

        What else a step has is ``kept``.
        """
        figures = {name: torch.stack([step[name] for step in steps]) for name in steps[0]}
        seen = Seen(*(figures.pop(name) for name in Seen._fields))
        named = {name: figures.pop(name) for name in ("actions", "rewards", "ended", "episodes")}
        return cls(seen=seen, kept=figures, after=after, place=place, **named)

    @classmethod
    def joined(cls, parts: Sequence[Batch]) -> Batch:
        """Return the batch of environments next to each other."""
        across = {
            name: torch.cat([getattr(part, name) for part in parts], dim=1)
            for name in ("actions", "rewards", "ended", "episodes")
        }
        return cls(
            seen=beside([part.seen for part in parts], dim=1),
            kept={k: torch.cat([part.kept[k] for part in parts], dim=1) for k in parts[0].kept},
            after=beside([part.after for part in parts]),
            place=parts[0].place,
            **across,
        )

    def to(self, device: Any) -> Batch:
        """Return the same on a device."""
        moved = {
            name: value.to(device) for name, value in self._asdict().items() if hasattr(value, "to")
        }
        return self._replace(**moved, kept={k: x.to(device) for k, x in self.kept.items()})

    def flat(self, **figures: Tensor) -> tuple[Seen, dict[str, Tensor]]:
        """Return what was seen, and figures of steps, one step behind another.

        Args:
            figures: (T, n, ...) each; ``actions`` and ``keys`` are added.

        Returns:
            (T n, ...) each. A key is the number of a step among those of all environments.
        """
        turns, envs = self.actions.shape
        first, total, turn = self.place
        keys = (turn + torch.arange(turns))[:, None] * total + first + torch.arange(envs)
        figures = {"actions": self.actions, "keys": keys, **figures}
        flat = {name: values.flatten(0, 1) for name, values in figures.items()}
        return Seen(*(values.flatten(0, 1) for values in self.seen)), flat


class Peers:
    """The learners of a training; here one. ``joined``: in lockstep, from the steps of all."""

    joined = True
    inside = False
    """Whether a method runs that ``together`` calls."""

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over learners of tensors of one shape."""
        return values

    def gather(self, values: Tensor) -> Tensor:
        """Return the tensors of all learners, joined along their first dimension."""
        return values

    def together(self, agent: Algorithm, name: str, values: Tensor) -> None:
        """Call the method ``name`` with the sum, where network and optimizer are kept."""
        total = self.sum(values)
        self.inside = True
        try:
            getattr(agent, name)(total)
        finally:
            self.inside = False


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings that all algorithms have.

    Attributes:
        envs: n, environments that are played at once.
        turns: T, turns of each between two updates.
        rate: of Adam at the start; it falls in a line.
        last_rate: share of it at the end.
        width: of hidden layers.
        sharpness: weight of the rule's score at the start.
        gradient: largest norm of a gradient.
    """

    envs: int = 64
    turns: int = 64
    rate: float = 3e-4
    last_rate: float = 0.1
    width: int = 64
    sharpness: float = SHARPNESS
    gradient: float = 0.5


class Algorithm(ABC):
    """An agent that learns.

    Attributes:
        name: by which it is selected.
        taught: whether it keeps ``worth``, a teacher's values of actions, see ``Envs``.
        divides: whether several learners can share an update, as it uses ``step``, ``mean`` and
            ``parts`` alone.
        central: names of numbers that are kept with the network and change by ``together``.
        local: names of other numbers that updates depend on.
        weights: parameters of the network ``net``.
        progress: share of the training that is done, from 0 to 1.
    """

    name: ClassVar[str]
    settings_class: ClassVar[type[Settings]] = Settings
    taught: ClassVar[bool] = False
    divides: ClassVar[bool] = True
    central: ClassVar[tuple[str, ...]] = ()
    local: ClassVar[tuple[str, ...]] = ()
    net: RowsNet

    def __init__(
        self, lens: Lens, settings: Settings, device: str | torch.device = "cpu", seed: int = 0
    ) -> None:
        self.lens, self.settings, self.device = lens, settings, torch.device(device)
        self.peers, self.progress = Peers(), 0.0
        # Weights depend on the seed alone, not on what else has drawn from torch's generator.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = self.network().to(self.device)
        self.weights = list(self.net.parameters())
        self.optimizer: torch.optim.Optimizer = torch.optim.Adam(
            self.weights, lr=settings.rate, eps=1e-5, fused=True
        )
        self.random = torch.Generator().manual_seed(seed)

    def network(self) -> RowsNet:
        """Make the network."""
        return RowsNet(self.lens, **self.shape)

    @property
    def shape(self) -> dict[str, Any]:
        """Arguments of the network that settings decide."""
        return {name: getattr(self.settings, name) for name in ("width", "sharpness")}

    def logs(self, seen: Seen) -> Tensor:
        """Return the log probabilities of actions, (n, A)."""
        return log_policy(self.net, seen.to(self.device))[0]

    @torch.no_grad()
    def act(self, seen: Seen, chance: Chance) -> tuple[Tensor, dict[str, Tensor]]:
        """Return actions, (n,) int64, and what is kept beside them, (n, ...) each.

        All randomness is from ``chance``, so that actions depend on no player's past.
        """
        logs, values = log_policy(self.net, seen.to(self.device))
        where = seen.mask.device
        logs, values = logs.to(where), values.to(where)
        actions = chosen(logs, seen.mask, chance(logs.shape[1]))
        return actions, {"logs": logs.gather(-1, actions[:, None])[:, 0], "values": values}

    @torch.no_grad()
    def best(self, seen: Seen) -> Tensor:
        """Return the actions that the policy rates highest, (n,) int64."""
        return chosen(self.logs(seen).to(seen.mask.device), seen.mask)

    @torch.no_grad()
    def values(self, seen: Seen) -> Tensor:
        """Return the values of states, (n,), in rewards, by the network: 0 if it is untrained."""
        return log_policy(self.net, seen.to(self.device))[1].to(seen.mask.device)

    @abstractmethod
    def learn(self, batch: Batch, progress: float) -> dict[str, float]:
        """Learn from a batch and return figures by name; ``progress`` is the share that is done."""

    def step(self, losses: Tensor) -> None:
        """Take a step of the optimizer down the mean loss of all learners' steps, (k,) here."""
        self.optimizer.zero_grad()
        losses.sum().backward()
        gradients = [
            torch.zeros_like(weight) if weight.grad is None else weight.grad
            for weight in self.weights
        ]
        # The sum and its count travel together, so that the mean is over all learners.
        count = losses.new_tensor([len(losses)])
        flat = torch.cat([*(gradient.flatten() for gradient in gradients), count])
        self.peers.together(self, "descend", flat)

    def descend(self, flat: Tensor) -> None:
        """Take a step by the flat gradient of a sum, whose number of addends is the last entry."""
        gradient = flat[:-1] / flat[-1]
        norm = torch.linalg.vector_norm(gradient)
        # Clipped by the norm of the mean over all learners, so that they stay equal to the bit.
        gradient *= (self.settings.gradient / (norm + 1e-6)).clamp(max=1.0)
        parts = gradient.split([weight.numel() for weight in self.weights])
        for weight, part in zip(self.weights, parts, strict=True):
            weight.grad = part.view_as(weight)
        self.optimizer.step()

    def moments(self, values: Tensor) -> tuple[float, float, float]:
        """Return mean, standard deviation and count of numbers of all learners, (k,) here."""
        # Sums of learners add up, means do not; doubles, as squares of like numbers cancel.
        values = values.double()
        sums = torch.stack([values.sum(), values.square().sum(), values.new_tensor(len(values))])
        total, squares, count = self.peers.sum(sums).tolist()
        mean = total / max(count, 1.0)
        return mean, (max(squares - count * mean**2, 0.0) / max(count - 1.0, 1.0)) ** 0.5, count

    def mean(self, values: Tensor) -> float:
        """Return the mean of numbers of all learners, (k,) here; 0 of none."""
        return self.moments(values)[0]

    def parts(self, keys: Tensor, size: int, passes: int = 1) -> Iterator[Iterator[Tensor]]:
        """Yield the steps of each pass over turns, each the indices of its turns, (j,).

        Turns are drawn without repetition from those of all learners. ``keys`` (k,) int64 are of
        ``Batch.flat``; a step has about ``size`` turns of all learners.
        """
        all_keys = self.peers.gather(keys)
        # By rank among all keys every learner draws the same order, wherever turns were played.
        rank = torch.searchsorted(all_keys.sort().values, keys)
        index = torch.full((len(all_keys),), -1).index_copy(0, rank, torch.arange(len(keys)))
        for _ in range(passes):
            order = index[torch.randperm(len(all_keys), generator=self.random)]
            steps = order.tensor_split(max(1, round(len(order) / size)))
            yield (step[step >= 0] for step in steps)

    def read(self, path: Path) -> None:
        """Take the weights of a run's file.

        Raises:
            ParenvsError: it is damaged, or of another network.
        """
        net = read_saved(path, "net")["net"]
        try:
            self.net.load_state_dict(net)
            check_finite(net)
        except Exception as error:  # of many kinds, as anything may be in a file
            raise ParenvsError(
                f"{path}: of another network ({one_line(error)}); remove it"
            ) from None

    def slow(self, progress: float) -> None:
        """Set the learning rate of a share of the training."""
        self.progress = progress
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate(progress)

    def rate(self, progress: float) -> float:
        """Return the learning rate of a share of the training."""
        return self.settings.rate * (1.0 - (1.0 - self.settings.last_rate) * progress)

    def forget(self) -> None:  # noqa: B027  # most keep nothing
        """Drop what is kept of episodes that will not go on."""

    def played(self) -> dict[str, Any]:
        """Return all that acting depends on."""
        numbers = {name: getattr(self, name) for name in (*self.central, "progress")}
        return {"net": self.net.state_dict(), "numbers": numbers}

    def play_as(self, state: dict[str, Any]) -> None:
        """Act as the agent whose ``played`` this is."""
        self.net.load_state_dict(state["net"])
        for name in (*self.central, "progress"):
            setattr(self, name, state["numbers"][name])

    def state(self) -> dict[str, Any]:
        """Return all that the next updates depend on, as tensors, numbers and texts."""
        return {
            **self.played(),
            "local": {name: getattr(self, name) for name in self.local},
            "optimizer": self.optimizer.state_dict(),
            "random": self.random.get_state(),
        }

    def load(self, state: dict[str, Any]) -> None:
        """Restore ``state``; raises if it is another algorithm's or has non-finite numbers."""
        check_finite([state[name] for name in ("net", "numbers", "local", "optimizer")])
        self.play_as(state)
        for name in self.local:
            setattr(self, name, state["local"][name])
        self.optimizer.load_state_dict(state["optimizer"])
        self.random.set_state(state["random"])


class ValueAlgorithm(Algorithm):
    """An algorithm that learns values, in units of the returns' spread.

    Attributes:
        discount: of rewards.
        spread: root mean square of returns.
        batches: batches that the spread is of, at most ``horizon``, as old ones decay.
    """

    central = ("spread", "batches")
    horizon: ClassVar[int] = 100

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.discount = getattr(self.settings, "discount", 0.0) or self.lens.discount
        self.spread, self.batches = 1.0, 0

    def rescale(self, returns: Tensor) -> None:
        """Update the spread of all learners by returns of any shape."""
        square = returns.double().square().sum()
        sums = torch.stack([square, square.new_tensor(returns.numel())])
        self.peers.together(self, "measure", sums)

    def measure(self, sums: Tensor) -> None:
        """Update the spread by a sum of squares and the count of its addends."""
        self.batches = min(self.batches + 1, self.horizon)
        # The first batch sets the spread: before it there is none that could be averaged.
        square = self.spread**2 if self.batches > 1 else 0.0
        square += (float(sums[0] / sums[1]) - square) / self.batches
        self.spread = max(square**0.5, 1e-6)


def chosen(logs: Tensor, mask: Tensor, noise: Tensor | None = None) -> Tensor:
    """Return an action of each turn, (n,), a legal one whatever numbers a network gives.

    ``logs`` (n, A) are log probabilities, ``mask`` (n, A) bool the legal actions, ``noise`` (n, A)
    uniform numbers from 0 to 1; without them the most likely action is taken.
    """
    if noise is not None:
        # Gumbel-max: the argmax of log p - log(-log u) is a draw from p.
        logs = logs - (-noise.clamp(min=1e-20).log()).log()
    return torch.where(mask, logs.nan_to_num(), -torch.inf).argmax(dim=-1)


def settings_of(kind: type[Algorithm], **given: Any) -> Settings:
    """Return the settings of an algorithm, those that are given in place of the default.

    Raises:
        ParenvsError: it has no such setting, or the value is of another type or out of its range.
    """
    default = kind.settings_class()
    known = asdict(default)
    given = {name: plain(value) for name, value in given.items()}
    for name, value in given.items():
        refuse_unknown(f"{kind.name} has no setting", name, known)
        kind_of_value = type(known[name])
        if type(value) is not kind_of_value and (kind_of_value, type(value)) != (float, int):
            raise ParenvsError(f"{name} must be {kind_of_value.__name__}, not {shown(value)}")
        largest = LARGEST.get(name, 1e9)
        least = 0 if name in POSITIVE else -largest
        least = min(1, known[name]) if kind_of_value is int else least
        if not least <= value <= largest:
            raise ParenvsError(f"{name} must be from {least:g} to {largest:g}, not {shown(value)}")
    return replace(default, **{name: type(known[name])(value) for name, value in given.items()})


GROUP = "parenvs.agents"
"""Entry-point group; what an entry names is a class derived from ``Algorithm``."""
_registered: dict[str, type[Algorithm]] = {}


def names() -> list[str]:
    """Return the names of all algorithms, those of this package first."""
    return list(
        dict.fromkeys((*ALGORITHMS, *(x.name for x in entry_points(group=GROUP)), *_registered))
    )


def algorithm(name: str) -> type[Algorithm]:
    """Return an algorithm by its name.

    Raises:
        ParenvsError: there is none.
    """
    if name in _registered:
        return _registered[name]
    refuse_removed("agent", name)
    # Names of this package win: an installed package cannot replace its agents.
    known = {x.name: x.value for x in entry_points(group=GROUP)} | ALGORITHMS
    refuse_unknown("unknown agent", name, names())
    kind: Any = late(known[name])
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise ParenvsError(
            f"agent {shown(name)}: {known[name]} is no class derived from "
            "parenvs.agents.learning.algorithm.Algorithm"
        )
    return kind


def register_agent(kind: type[Algorithm]) -> None:
    """Make an agent of one's own known to ``train`` and every command until the process ends.

    Args:
        kind: a class derived from ``parenvs.agents.learning.algorithm.Algorithm``, asked for by its
            attribute ``name``. A package registers its own with an entry point of that name, of the
            group ``parenvs.agents``, which names the class.

    Raises:
        ParenvsError: it is no such class, or the name is another agent's.
    """
    if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
        raise ParenvsError(f"an agent is a class derived from Algorithm, not {shown(kind)}")
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or (name in names() and algorithm(name) is not kind):
        raise ParenvsError(f"agent {shown(name)} is there already; choose another name")
    _registered[name] = kind
