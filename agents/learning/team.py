"""``Team``: the processes of a training, as its distribution says, and the updates they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from parenvs.agents.learning.algorithm import Algorithm, Batch, algorithm
from parenvs.agents.learning.config import (
    ACTORS,
    DEVICE,
    ENVS,
    MODEL,
    SERVED,
    TrainConfig,
    distribution_of,
)
from parenvs.agents.learning.device import Fused, device_env
from parenvs.agents.learning.engine import (
    Engine,
    Here,
    Local,
    Meeting,
    OnRay,
    Reduced,
    Served,
    Server,
    own_host,
)
from parenvs.agents.learning.net import Seen, beside
from parenvs.agents.learning.options import SCRATCH, STARTS
from parenvs.agents.learning.play import Envs, Play, Share, Summary, Transition
from parenvs.agents.learning.ray_tasks import LOCAL, RAY
from parenvs.errors import ParenvsError
from parenvs.machine import LOOPBACK, stay_on, store_at
from parenvs.tensors import check_finite

CHECKED = 100
"""Updates from one comparison of learners' networks to the next; the first one is compared."""
Tick = Callable[[Any], object]


class Recipe:
    """A configuration, with the environments and agents that only the training process knows."""

    def __init__(
        self, config: TrainConfig, engine: str | None = None, address: str | None = None
    ) -> None:
        self.config, self.engine_name, self.address = config, engine, address
        self.kind, self.settings = algorithm(config.agent), config.agent_settings()
        self.spec = gym.registry.get(config.env_id)
        self.distribution = distribution_of(config.distribution, config.staleness)
        self.copies = int(getattr(self.settings, "copies", 1))
        self.learners = config.size

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make the environment known to another process, too."""
        self.__dict__.update(state)
        if self.spec is not None:
            gym.registry.setdefault(self.config.env_id, self.spec)

    def engine(self, plays: bool = False) -> Engine:
        """Return a new engine, of learners and a server, or of what plays for a learner."""
        config, distribution = self.config, self.distribution
        players = self.learners * config.actors if distribution.plays in (ACTORS, ENVS) else 0
        count = players + self.learners + (distribution.learns == SERVED)
        device, inner = ("cpu", 0) if plays else (config.device, players)
        if (self.engine_name or (RAY if find_spec("ray") else LOCAL)) == RAY:
            return OnRay(self.address, device, inner, count)
        return Local()

    def envs(self, share: Share) -> Envs:
        """Make environments."""
        return Envs(self.config, share, self.kind.taught)

    def look(self) -> Any:
        """Return a closed environment that shows ``lens``, ``seats`` and ``draws`` of all."""
        make = self.fused if self.distribution.plays == DEVICE else self.envs
        sample: Any = make(Share(0, 1, 1))
        sample.close()
        return sample

    def fused(self, share: Share) -> Fused:
        """Return what plays on a device."""
        config = self.config
        env = device_env(config.env_id, config.env_kwargs, share.size, config.device)
        return Fused(env, share, self.copies, config.seed)

    def player(self, share: Share) -> Any:
        """Return what plays the environments of a learner's share, here or in other processes."""
        if self.distribution.plays == DEVICE:
            return self.fused(share)
        if self.distribution.plays == ACTORS:
            return Actors(self, share)
        envs = Remote(self, share) if self.distribution.plays == ENVS else self.envs(share)
        return Play(envs, self.copies, self.config.seed)

    def agent(self, lens: Any, device: str | None = None) -> Algorithm:
        """Make the agent."""
        config, settings = self.config, self.settings
        if config.start == SCRATCH:
            settings = replace(settings, sharpness=0.0)
        agent = self.kind(lens, settings, device or config.device, config.seed)
        if config.start not in STARTS:
            agent.read(Path(config.start) / MODEL)
        return agent

    def host(self) -> str:
        """Return the address of this machine at which learners meet."""
        return LOOPBACK if self.address is None else own_host()

    def server(self) -> Server:
        """Make the server of learners."""
        agent = self.agent(self.look().lens)
        return Server(agent, self.learners, self.config.staleness, self.host())


class Processes:
    """Processes of an engine that play a learner's share; ``make`` takes a recipe and a part."""

    def __init__(self, recipe: Recipe, share: Share, make: Callable[..., Any]) -> None:
        self.share, self.parts = share, share.dealt(recipe.config.actors, recipe.copies)
        sample = recipe.look()
        self.lens, self.seats, self.draws = sample.lens, sample.seats, sample.draws
        self.engine = recipe.engine(plays=True)
        self.processes = self.engine.start(make, [recipe] * len(self.parts), self.parts)

    def each(self, name: str, *given: Any) -> list[Any]:
        """Call a method of every process by the same arguments; see ``Engine.all``."""
        return self.engine.all(self.processes, name, *([x] * len(self.processes) for x in given))

    def spent(self) -> float:
        return self.engine.spent(self.processes)

    def close(self) -> None:
        self.engine.end()


class Remote(Processes):
    """Environments in processes of their own, like ``Envs``."""

    def __init__(self, recipe: Recipe, share: Share) -> None:
        super().__init__(recipe, share, Recipe.envs)
        sizes = [part.size * self.seats for part in self.parts]
        self.begins = np.cumsum([0, *sizes[:-1]]).tolist()

    def reset(self, seeds: list[int]) -> tuple[Seen, Tensor | None]:
        given = [part.tolist() for part in np.split(np.array(seeds), self.begins[1:])]
        seen, worth = zip(*self.engine.all(self.processes, "reset", given), strict=True)
        return beside(seen), _beside(worth)

    def step(self, actions: np.ndarray) -> Transition:
        given = np.split(actions, self.begins[1:])
        steps: list[Transition] = self.engine.all(self.processes, "step", given)
        ends = [step.last for step in steps if step.last is not None]
        return Transition(
            beside([step.seen for step in steps]),
            np.concatenate([step.rewards for step in steps]),
            np.concatenate([step.over for step in steps]),
            np.concatenate([x.cut + begin for x, begin in zip(steps, self.begins, strict=True)]),
            beside(ends) if ends else None,
            _beside([step.worth for step in steps]),
        )


class Actor(Play):
    """Environments and a copy of the policy, in a process of an actor."""

    def __init__(self, recipe: Recipe, share: Share) -> None:
        super().__init__(recipe.envs(share), recipe.copies, recipe.config.seed)
        self.agent = recipe.agent(self.lens, "cpu")

    def play_as(self, played: dict[str, Any], turns: int) -> tuple[Batch, Summary]:
        """Play turns as an agent whose ``played`` this is."""
        self.agent.play_as(played)
        return self.collect(self.agent, turns), Summary.of(self)


class Actors(Processes):
    """Actors that play side by side, like ``Play``."""

    def __init__(self, recipe: Recipe, share: Share) -> None:
        super().__init__(recipe, share, Actor)
        self.count = share.size * self.seats

    def restart(self, part: int) -> None:
        self.each("restart", part)

    def collect(self, agent: Algorithm, turns: int, tick: Tick) -> Batch:
        batches, summaries = zip(*self.each("play_as", agent.played(), turns), strict=True)
        self.returns, self.turns, self.episodes, self.best, _ = Summary.joined(summaries)
        tick(self)
        return Batch.joined(batches)

    def state(self) -> list[Any]:
        return self.each("state")

    def load(self, state: list[Any], part: int | None) -> None:
        self.engine.all(self.processes, "load", state, [part] * len(state))


class Learner:
    """An agent that learns from the turns of its environments."""

    def __init__(self, recipe: Recipe, share: Share) -> None:
        self.recipe, self.play = recipe, recipe.player(share)
        self.agent = recipe.agent(self.play.lens)
        self.updated = 0

    def meet(self) -> Meeting:
        """Return where other learners meet this one."""
        self.store = store_at(self.recipe.host())
        return self.store.host, self.store.port, b""

    def join(self, meeting: Meeting, rank: int, size: int) -> None:
        """Learn together with others from now on."""
        register_optimizer_step_pre_hook(self._check_step)
        if self.recipe.distribution.learns == SERVED:
            self.agent.peers = Served(meeting, rank, self.recipe.config.staleness is None)
            return
        host, port, _ = meeting
        stay_on(host)
        store = self.store if rank == 0 else dist.TCPStore(host, port, None, False)
        self.agent.peers = Reduced(rank, size, self.agent.device, store)

    def updates(
        self, parts: Sequence[int | None], turns: int, tick: Tick | None = None
    ) -> list[Summary]:
        """Make updates: play some turns of each environment, and learn from them.

        A part restarts all episodes; None continues them. ``tick`` is called after each turn.
        """
        updates = []
        for part in parts:
            if part is not None:
                self.play.restart(part)
                self.agent.forget()
            batch = self.play.collect(self.agent, turns, tick or (lambda play: None))
            summary = Summary.of(self.play)
            with self._finite("an observation", "mend the environment"):
                check_finite([*batch.seen, *batch.after])
            with self._finite("a reward", "mend the environment"):
                check_finite(batch.rewards)
            progress = min(summary.turns / self.recipe.config.steps, 1.0)
            with self._finite("a loss or a weight", "train with a lower rate"):
                figures = self.agent.learn(batch, progress)
                weights = torch.nn.utils.parameters_to_vector(self.agent.weights)
                check_finite([figures, weights])
            updates.append(summary._replace(figures=figures))
            self.updated += 1
            if self.updated % CHECKED == 1:
                self._check_same()
        if isinstance(self.agent.peers, Served):
            self.agent.peers.done()
        return updates

    def _check_step(self, optimizer: Any, *given: Any) -> None:
        """Refuse a step that other learners would not know of; a hook of all optimizers."""
        if not self.agent.peers.inside:
            raise ParenvsError(
                f"{self.agent.name}: optimizer.step() in learn is a step of one learner alone; "
                "call self.step(losses), or a method of its own by self.peers.together"
            )

    def _check_same(self) -> None:
        """Refuse learners in lockstep whose networks are not the same, buffers included."""
        if not self.agent.peers.joined:
            return
        values = [x.double().sum() for x in self.agent.net.state_dict().values()]
        sums = self.agent.peers.gather(torch.stack(values).cpu()).view(-1, len(values))
        if (sums != sums[0]).any():
            raise ParenvsError(
                f"{self.agent.name}: after {self.updated:,} updates learners have different "
                "networks; weights and buffers may change in self.step and self.peers.together "
                "alone, and what these depend on must be that of all learners (moments, parts)"
            )

    @contextmanager
    def _finite(self, what: str, remedy: str) -> Iterator[None]:
        try:
            yield
        except ParenvsError:
            raise
        except ValueError:  # of distributions of sb3-contrib, too
            raise ParenvsError(
                f"{self.recipe.config.env_id}: {what} is not finite by step {self.play.turns:,}; "
                f"the last checkpoint is from before; {remedy}"
            ) from None

    def state(self) -> dict[str, Any]:
        """Return all that the next updates depend on."""
        return {"agent": self.agent.state(), "play": self.play.state()}

    def load(self, state: dict[str, Any], part: int | None) -> None:
        """Go on from what ``state`` returned; the part is that of ``Play.load``."""
        self.agent.load(state["agent"])
        self.play.load(state["play"], part)

    def close(self) -> None:
        self.play.close()


def _learner(recipe: Recipe, share: Share, rank: int) -> Learner:
    if recipe.config.device == "cuda":  # those on a machine have a GPU each
        torch.cuda.set_device(rank % torch.cuda.device_count())
    return Learner(recipe, share)


class Team:
    """All processes of a training.

    Attributes:
        agent: the agent; where learners are processes, as it is after ``fetch``.
        alone: whether one learner learns, in this process.
        count: rows of the environments, of an agent each.
        draws: whether problems change.
        every: all learners, and the server if there is one.
    """

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        distribution, size = recipe.distribution, recipe.learners
        whole = Share(0, recipe.settings.envs, recipe.settings.envs)
        self.alone = distribution.learns != SERVED and size == 1
        sample = None if self.alone else recipe.look()
        self.engine = Here() if self.alone else recipe.engine()
        self.server: Any = None
        shares = whole.dealt(size, recipe.copies)
        try:
            self.learners = self.every = self.engine.start(
                _learner, [recipe] * size, shares, range(size)
            )
            if sample is None:
                sample, self.agent = self.learners[0].play, self.learners[0].agent
            else:
                self.agent = recipe.agent(sample.lens, "cpu")
                self._join()
        except BaseException:
            self.engine.end()
            raise
        self.count, self.draws = whole.size * sample.seats, sample.draws

    def _join(self) -> None:
        """Let learners meet each other, or the server."""
        engine = self.engine
        if self.recipe.distribution.learns == SERVED:
            (self.server,) = engine.start(Recipe.server, [self.recipe])
            self.every = [*self.learners, self.server]
        (meeting,) = engine.all([self.server or self.learners[0]], "meet")
        size = len(self.learners)
        calls = [engine.ask(x, "join", meeting, i, size) for i, x in enumerate(self.learners)]
        if self.server:
            calls.append(engine.ask(self.server, "accept"))
        engine.answers(calls)

    def updates(
        self, parts: Sequence[int | None], turns: int, tick: Tick | None = None
    ) -> list[Summary]:
        """Make updates; see ``Learner.updates``. After ``LostError`` it can only be closed."""
        # Other processes cannot call back.
        given = (list(parts), turns, tick if self.alone else None)
        calls = [self.engine.ask(learner, "updates", *given) for learner in self.learners]
        if self.server:
            calls.append(self.engine.ask(self.server, "serve"))
        summaries = self.engine.answers(calls)[: len(self.learners)]
        return [Summary.joined(update) for update in zip(*summaries, strict=True)]

    def fetch(self) -> None:
        """Give ``agent`` the weights that have been learned."""
        if not self.alone:
            (played,) = self.engine.all([self.server or self.learners[0]], "agent.played")
            self.agent.play_as(played)

    def state(self) -> list[Any]:
        """Return all that the next updates depend on, of each process that learns."""
        return self.engine.all(self.every, "state")

    def load(self, states: list[Any], part: int | None) -> None:
        """Go on from each process's state; ``part`` None if the next update begins a part."""
        self.engine.all(self.every, "load", states, [part] * len(states))

    def spent(self) -> float:
        nested = sum(self.engine.all(self.learners, "play.spent"))
        return float(nested) + self.engine.spent(self.every)

    def close(self) -> None:
        self.engine.end()


def _beside(worth: Sequence[Tensor | None]) -> Tensor | None:
    return None if worth[0] is None else torch.cat([part for part in worth if part is not None])
