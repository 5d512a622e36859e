"""``Team``: the processes of a training, as its distribution says, and the updates they make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from parenvs.agents.learning.algorithm import Algorithm, Batch, algorithm
from parenvs.agents.learning.config import ACTORS, DEVICE, ENVS, HERE, SERVED, TrainConfig, word_of
from parenvs.agents.learning.device import Fused, device_env
from parenvs.agents.learning.engine import (
    Engine,
    Meeting,
    Reduced,
    Served,
    Server,
    engine_of,
    own_host,
)
from parenvs.agents.learning.net import Seen, beside
from parenvs.agents.learning.play import Envs, Play, Share, Told, Transition

Tick = Callable[[Any], object]


class Recipe:
    """A configuration, with the environments and agents that only the training process knows."""

    def __init__(
        self, config: TrainConfig, engine: str | None = None, address: str | None = None
    ) -> None:
        self.config, self.engine_name, self.address = config, engine, address
        self.kind, self.settings = algorithm(config.agent), config.agent_settings()
        self.spec = gym.registry.get(config.env_id)
        self.word = word_of(config.distribution, config.staleness)
        self.copies = int(getattr(self.settings, "copies", 1))
        self.learners = config.size

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the environment known to another process, too."""
        self.__dict__.update(state)
        if self.spec is not None:
            gym.registry.setdefault(self.config.env_id, self.spec)

    def engine(self, plays: bool = False) -> Engine:
        """Return a new engine, of learners and a server, or of what plays for a learner."""
        config, word = self.config, self.word
        players = self.learners * config.actors if word.plays in (ACTORS, ENVS) else 0
        count = players + self.learners + (word.learns == SERVED)
        device, inner = ("cpu", 0) if plays else (config.device, players)
        return engine_of(self.engine_name, self.address, device, inner, count)

    def envs(self, share: Share) -> Envs:
        """Make environments."""
        config = self.config
        return Envs(config.env_id, config.env_kwargs, share, self.kind.taught)

    def look(self) -> Any:
        """Return a closed environment that shows ``lens``, ``seats`` and ``draws`` of all."""
        one = self.envs(Share(0, 1, 1)) if self.word.plays != DEVICE else self.fused(Share(0, 1, 1))
        one.close()
        return one

    def fused(self, share: Share) -> Fused:
        """Return what plays on a device."""
        config = self.config
        env = device_env(config.env_id, config.env_kwargs, share.size, config.device)
        return Fused(env, share, self.copies, config.seed)

    def play(self, envs: Any) -> Play:
        """Return what plays in environments."""
        return Play(envs, self.copies, self.config.seed)

    def agent(self, lens: Any, device: str | None = None) -> Algorithm:
        """Make the agent."""
        config = self.config
        return self.kind(lens, self.settings, device or config.device, config.seed)


class Remote:
    """Environments in processes of their own, like ``Envs``."""

    def __init__(self, recipe: Recipe, share: Share) -> None:
        parts = share.dealt(recipe.config.actors, recipe.copies)
        one = recipe.look()
        self.share, self.lens, self.seats, self.draws = share, one.lens, one.seats, one.draws
        self.ends = np.cumsum([part.size * self.seats for part in parts]).tolist()
        self.engine = recipe.engine(plays=True)
        self.processes = self.engine.start(len(parts), _envs, [recipe] * len(parts), parts)

    def reset(self, seeds: list[int]) -> tuple[Seen, Tensor | None]:
        """See ``Envs.reset``."""
        given = [part.tolist() for part in np.split(np.array(seeds), self.ends[:-1])]
        found = self.engine.all(self.processes, "reset", [(each,) for each in given])
        return beside([each[0] for each in found]), _beside([each[1] for each in found])

    def step(self, actions: np.ndarray) -> Transition:
        """See ``Envs.step``."""
        given = np.split(actions, self.ends[:-1])
        found: list[Transition] = self.engine.all(
            self.processes, "step", [(each,) for each in given]
        )
        begins = [0, *self.ends[:-1]]
        ends = [each.last for each in found if each.last is not None]
        return Transition(
            beside([each.seen for each in found]),
            np.concatenate([each.paid for each in found]),
            np.concatenate([each.over for each in found]),
            np.concatenate([x.cut + begin for x, begin in zip(found, begins, strict=True)]),
            beside(ends) if ends else None,
            _beside([each.worth for each in found]),
        )  # fmt: skip

    def spent(self) -> float:
        """Return the processor seconds of the processes."""
        return self.engine.spent(self.processes)

    def close(self) -> None:
        """End the processes."""
        self.engine.end()


class Actor:
    """Environments and a copy of the policy, in a process of an actor."""

    def __init__(self, recipe: Recipe, share: Share) -> None:
        self.play = recipe.play(recipe.envs(share))
        self.agent = recipe.agent(self.play.lens, "cpu")

    def collect(self, played: dict[str, Any], turns: int) -> tuple[Batch, Told]:
        """Play turns as an agent whose ``played`` this is."""
        self.agent.play_as(played)
        return self.play.collect(self.agent, turns), self.play.told()

    def restart(self, part: int) -> None:
        """See ``Play.restart``."""
        self.play.restart(part)

    def state(self) -> dict[str, Any]:
        """See ``Play.state``."""
        return self.play.state()

    def load(self, state: dict[str, Any], part: int | None) -> None:
        """See ``Play.load``."""
        self.play.load(state, part)


class Actors:
    """Actors that play side by side, like ``Play``."""

    def __init__(self, recipe: Recipe, share: Share) -> None:
        parts = share.dealt(recipe.config.actors, recipe.copies)
        one = recipe.look()
        self.lens, self.draws, self.count = one.lens, one.draws, share.size * one.seats
        self.engine = recipe.engine(plays=True)
        self.processes = self.engine.start(len(parts), _actor, [recipe] * len(parts), parts)
        self.turns, self.returns, self._told = 0, [], Told([], 0, 0, None, {})  # type: ignore[var-annotated]

    def restart(self, part: int) -> None:
        """See ``Play.restart``."""
        self.engine.all(self.processes, "restart", [(part,)] * len(self.processes))

    def collect(self, agent: Algorithm, turns: int, tick: Tick) -> Batch:
        """See ``Play.collect``."""
        given = (agent.played(), turns)
        found = self.engine.all(self.processes, "collect", [given] * len(self.processes))
        batches: list[Batch] = [batch for batch, _ in found]
        self._told = Told.joined([told for _, told in found])
        self.turns, self.returns = self._told.turns, self._told.returns
        tick(self)
        first = batches[0]
        across = lambda name: torch.cat([getattr(each, name) for each in batches], dim=1)  # noqa: E731
        return Batch(
            beside([each.seen for each in batches], dim=1), across("actions"),
            {name: torch.cat([x.kept[name] for x in batches], dim=1) for name in first.kept},
            across("rewards"), across("ended"), across("episodes"),
            beside([each.after for each in batches]), first.place,
        )  # fmt: skip

    def told(self) -> Told:
        """See ``Play.told``."""
        return self._told

    def state(self) -> list[Any]:
        """Return the state of each actor."""
        return self.engine.all(self.processes, "state")

    def load(self, state: list[Any], part: int | None) -> None:
        """Go on from what ``state`` returned."""
        self.engine.all(self.processes, "load", [(each, part) for each in state])

    def spent(self) -> float:
        """Return the processor seconds of the processes."""
        return self.engine.spent(self.processes)

    def close(self) -> None:
        """End the processes."""
        self.engine.end()


class Learner:
    """An agent that learns from the turns of its environments."""

    def __init__(self, recipe: Recipe, share: Share) -> None:
        self.recipe = recipe
        make: dict[str, Callable[[], Any]] = {
            HERE: lambda: recipe.play(recipe.envs(share)),
            ACTORS: lambda: Actors(recipe, share),
            ENVS: lambda: recipe.play(Remote(recipe, share)),
            DEVICE: lambda: recipe.fused(share),
        }
        self.play: Any = make[recipe.word.plays]()
        self.agent = recipe.agent(self.play.lens)

    def meet(self) -> Meeting:
        """Return where other learners meet this one."""
        self.store = dist.TCPStore("0.0.0.0", 0, None, True, wait_for_workers=False)
        return own_host(), self.store.port, b""

    def join(self, meeting: Meeting, rank: int, size: int) -> None:
        """Learn together with others from now on."""
        if self.recipe.word.learns == SERVED:
            self.agent.peers = Served(meeting, rank, self.recipe.config.staleness is None)
            return
        host, port, _ = meeting
        store = self.store if rank == 0 else dist.TCPStore(host, port, None, False)
        self.agent.peers = Reduced(rank, size, self.agent.device, store)

    def update(self, part: int | None, turns: int, tick: Tick | None = None) -> Told:
        """Play some turns of each environment, and learn from them.

        ``part`` restarts all episodes; None continues them. ``tick`` is called after each turn.
        """
        if part is not None:
            self.play.restart(part)
            self.agent.forget()
        batch = self.play.collect(self.agent, turns, tick or (lambda play: None))
        told = self.play.told()
        progress = min(told.turns / self.recipe.config.steps, 1.0)
        return told._replace(figures=self.agent.learn(batch, progress))

    def updates(self, parts: Sequence[int | None], turns: int) -> list[Told]:
        """Make several updates; then tell the server, if there is one, that they are made."""
        told = [self.update(part, turns) for part in parts]
        if isinstance(self.agent.peers, Served):
            self.agent.peers.done()
        return told

    def played(self) -> dict[str, Any]:
        """See ``Algorithm.played``."""
        return self.agent.played()

    def spent(self) -> float:
        """Return the processor seconds of processes that play for it."""
        return float(self.play.spent())

    def state(self) -> dict[str, Any]:
        """Return all that the next updates depend on."""
        return {"agent": self.agent.state(), "play": self.play.state()}

    def load(self, state: dict[str, Any], part: int | None) -> None:
        """Go on from what ``state`` returned; the part is that of ``Play.load``."""
        self.agent.load(state["agent"])
        self.play.load(state["play"], part)

    def close(self) -> None:
        """End what it has started."""
        self.play.close()


class Team:
    """All processes of a training.

    Attributes:
        agent: the agent; where learners are processes, as it is after ``fetch``.
        count: rows of the environments, of an agent each.
        draws: whether problems change.
        apart: whether processes other than this one have a part.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        word = recipe.word
        whole = Share(0, recipe.settings.envs, recipe.settings.envs)
        several = word.learns == SERVED or recipe.learners > 1
        self.apart = several or word.plays in (ACTORS, ENVS)
        self.learner: Learner | None = None
        self.server: Any = None
        if not several:
            self.learner = Learner(recipe, whole.dealt(1, recipe.copies)[0])
            self.agent, play = self.learner.agent, self.learner.play
            self.count, self.draws = play.count, play.draws
            return
        one = recipe.look()
        self.count, self.draws = whole.size * one.seats, one.draws
        self.agent = recipe.agent(one.lens, "cpu")
        shares = whole.dealt(recipe.learners, recipe.copies)
        self.engine = recipe.engine()
        try:
            self._start(shares)
        except BaseException:
            self.engine.end()
            raise

    def _start(self, shares: Sequence[Share]) -> None:
        size = len(shares)
        given = ([self.recipe] * size, shares, range(size))
        self.learners = self.engine.start(size, _learner, *given)
        if self.recipe.word.learns == SERVED:
            (self.server,) = self.engine.start(1, _server, [self.recipe])
        host = self.server or self.learners[0]
        (meeting,) = self.engine.all([host], "listen" if self.server else "meet")
        asked = [
            self.engine.ask(each, "join", meeting, rank, size)
            for rank, each in enumerate(self.learners)
        ]
        if self.server:
            asked.append(self.engine.ask(self.server, "accept"))
        self.engine.answers(asked)

    def updates(
        self, parts: Sequence[int | None], turns: int, tick: Tick | None = None
    ) -> list[Told]:
        """Make updates; see ``Learner.update``. After ``LostError`` the team can only be closed."""
        if self.learner is not None:
            return [self.learner.update(part, turns, tick) for part in parts]
        asked = [self.engine.ask(each, "updates", list(parts), turns) for each in self.learners]
        if self.server:
            asked.append(self.engine.ask(self.server, "serve"))
        found = self.engine.answers(asked)[: len(self.learners)]
        return [Told.joined(each) for each in zip(*found, strict=True)]

    def fetch(self) -> None:
        """Give ``agent`` the weights that have been learnt."""
        if self.learner is None:
            self.agent.play_as(self.engine.all([self.server or self.learners[0]], "played")[0])

    def state(self) -> list[Any]:
        """Return all that the next updates depend on, of each process that learns."""
        if self.learner is not None:
            return [self.learner.state()]
        served = [self.server] if self.server else []
        return self.engine.all([*self.learners, *served], "state")

    def load(self, states: list[Any], part: int | None) -> None:
        """Go on from each process's state; ``part`` None if the next update begins a part."""
        if self.learner is not None:
            (state,) = states
            self.learner.load(state, part)
            return
        served = [self.server] if self.server else []
        self.engine.all([*self.learners, *served], "load", [(each, part) for each in states])

    def spent(self) -> float:
        """Return the processor seconds of all processes but this one."""
        if self.learner is not None:
            return self.learner.spent()
        every = [*self.learners, *([self.server] if self.server else [])]
        nested = sum(self.engine.all(self.learners, "spent"))
        return float(nested) + self.engine.spent(every)

    def close(self) -> None:
        """End all processes."""
        if self.learner is not None:
            self.learner.close()
        else:
            self.engine.end()


def _beside(worth: list[Tensor | None]) -> Tensor | None:
    return None if worth[0] is None else torch.cat([each for each in worth if each is not None])


def _envs(recipe: Recipe, share: Share) -> Envs:
    torch.set_num_threads(1)
    return recipe.envs(share)


def _actor(recipe: Recipe, share: Share) -> Actor:
    torch.set_num_threads(1)
    return Actor(recipe, share)


def _learner(recipe: Recipe, share: Share, rank: int) -> Learner:
    torch.set_num_threads(1)
    if recipe.config.device == "cuda":  # those on a machine have a GPU each
        torch.cuda.set_device(rank % torch.cuda.device_count())
    return Learner(recipe, share)


def _server(recipe: Recipe) -> Server:
    torch.set_num_threads(1)
    agent = recipe.agent(recipe.look().lens)
    return Server(agent, recipe.learners, recipe.config.staleness)
