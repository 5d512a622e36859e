"""``Game`` and ``RowGame``: the dynamics of environments, for n episodes; sources of problems."""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np
from gymnasium import spaces
from gymnasium.utils.seeding import np_random

from parenvs.compiled import Array
from parenvs.core.plan import ILLEGAL, Plan
from parenvs.errors import ParenvsError, refuse_unknown

ORDERS = ("random", "sequential")
"""Orders in which the problems of a set are played: sampled, or one after the other."""


class Stream:
    """The random generator and the problem counter of one environment.

    Attributes:
        number: index of the next problem; environment i of n takes i, i + n, and so on.
    """

    def __init__(self, row: int = 0, count: int = 1) -> None:
        self.row, self.count, self.number = row, count, row
        self._seed: int | None = None
        self._rng: np.random.Generator | None = None
        self._first: Any = None  # state of the generator when it was made

    def reseed(self, seed: int) -> None:
        """Begin anew with a seed."""
        # To restore the state is faster than to make a generator of the same seed.
        if self._rng is not None and seed == self._seed:
            self._rng.bit_generator.state = self._first
        else:
            self._seed, self._rng = seed, None
        self.number = self.row

    @property
    def rng(self) -> np.random.Generator:
        """The generator; without a seed it has a random one.

        It is made on the first use, as making it takes longer than a step.
        """
        if self._rng is None:
            self._rng, self._seed = np_random(self._seed)
            self._first = self._rng.bit_generator.state
        return self._rng

    @property
    def seed(self) -> int:
        """The seed of the generator."""
        self.rng  # noqa: B018  # without a seed it is drawn
        assert self._seed is not None
        return self._seed


def word_of(rng: np.random.Generator) -> str:
    """Return a generator's state as a text, from which its next numbers can be reproduced.

    Args:
        rng: a generator of PCG64, such as those of environments.
    """
    state: Any = rng.bit_generator.state
    words = [state["state"][key].to_bytes(16, "little") for key in ("state", "inc")]
    if state["has_uint32"]:  # half of the last 64 bits is left
        words.append(state["uinteger"].to_bytes(4, "little"))
    return base64.urlsafe_b64encode(b"".join(words)).decode().rstrip("=")


def generator_of(word: str) -> np.random.Generator | None:
    """Return a generator in the state of a text of ``word_of``; None if the text is no state."""
    try:
        data = base64.b64decode(word + "=" * (-len(word) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None
    if len(data) not in (32, 36):
        return None
    parts = data[:16], data[16:32], data[32:]
    state, increment, half = (int.from_bytes(part, "little") for part in parts)
    bits = np.random.PCG64(0)
    bits.state = {
        "bit_generator": "PCG64",
        "state": {"state": state, "inc": increment},
        "has_uint32": int(len(data) > 32),
        "uinteger": half,
    }
    rng = np.random.Generator(bits)
    # One word per state: the last character of base64 has bits that decoding ignores.
    return rng if word_of(rng) == word else None


class Source(ABC):
    """A source of problems; it is pickled with its environment.

    Attributes:
        only: the problem of all episodes, or None if they differ.
    """

    only: Any = None

    @abstractmethod
    def draw(self, stream: Stream) -> Any:
        """Return the problem that a stream's generator or number selects."""

    def next(self, stream: Stream) -> Any:
        """Return the problem of an environment's next episode."""
        problem = self.draw(stream)
        # n environments share a sequence: each takes every n-th problem, none twice.
        stream.number += stream.count
        return problem

    def preview(self) -> Any:
        """Return a problem to show before the first reset; no environment's stream advances."""
        stream = Stream()
        # Seeded, so that an environment renders the same picture before each first reset.
        stream._rng, stream._seed = np.random.default_rng(0), 0
        return self.draw(stream)


class Fixed(Source):
    """The source of a single problem."""

    def __init__(self, problem: Any) -> None:
        self.only = problem

    def draw(self, stream: Stream) -> Any:
        """Return the problem."""
        return self.only


class Members(Source):
    """The source of the problems of a set, in order or sampled.

    Args:
        load: returns the problem of a member; a function of a module, so that it can be pickled.
        order: one of ``ORDERS``.

    Raises:
        ParenvsError: the order is none of them.
    """

    def __init__(
        self, members: Sequence[Any], load: Callable[[Any], Any], order: str = ORDERS[0]
    ) -> None:
        self.members, self.load, self.sequential = members, load, is_sequential(order)

    def draw(self, stream: Stream) -> Any:
        """Return a problem of the set: the next one if the order is sequential, else a sample."""
        count = len(self.members)
        index = stream.number % count if self.sequential else int(stream.rng.integers(count))
        return self.load(self.members[index])


class Drawn(Source):
    """The source of problems that a function generates.

    Args:
        function: takes a stream and returns a problem; it can be pickled.
    """

    def __init__(self, function: Callable[[Stream], Any]) -> None:
        self.function = function

    def draw(self, stream: Stream) -> Any:
        """Return a generated problem."""
        return self.function(stream)


class Mixed(Source):
    """A source that samples uniformly from several sources.

    Args:
        sources: the sources.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = list(sources)

    def draw(self, stream: Stream) -> Any:
        """Return a problem of a sampled source."""
        return self.sources[int(stream.rng.integers(len(self.sources)))].draw(stream)


def is_sequential(order: str) -> bool:
    """Return whether the problems of a set are played one after the other.

    Raises:
        ParenvsError: ``order`` is none of ``ORDERS``.
    """
    refuse_unknown("unknown order", order, ORDERS)
    return order == ORDERS[1]


def check_place(
    named_source: Any, sets: Collection[Any], banks: Collection[Any], like: str, order: str,
    family: str | None, fresh: bool,
) -> tuple[bool, bool]:  # fmt: skip
    """Return whether a set is played, or a bank, by the arguments of a game.

    ``named_source`` is a problem, or the name of one, of a set or of a bank; ``like`` is a set.

    Raises:
        ParenvsError: an order, a family or fresh draws are asked for where there are none.
    """
    is_name = named_source is None or isinstance(named_source, str)
    is_set, is_bank = (is_name and named_source in names for names in (sets, banks))
    for name, is_given, words in (
        ("order", is_sequential(order) and not is_set, f"of a set, like {like!r}"),
        ("family", family is not None and not (is_set or is_bank), "of a set or a bank"),
        ("fresh", fresh and not is_bank, "of problems that are drawn"),
    ):
        if is_given:
            raise ParenvsError(f"{name}: it is {words}; leave it out")
    return is_set, is_bank


EVERY = slice(None)
"""All rows of a game."""
Rows = Any
"""``EVERY``, or the numbers of rows, (k,) int64."""


class Game(ABC):
    """Plays n episodes at once, of n problems or of one problem n times.

    Row i of every array is of episode i; a single environment is the case n = 1. The constructor of
    a subclass takes n, and by keyword the arguments of its environment; it sets ``source``,
    ``action_space`` and ``observation_space``. The docstring of a subclass specifies the
    environment, under the headings that Gymnasium's have.

    ``put`` gives rows a problem, ``start`` begins their episodes, ``play`` takes an action in each.
    A source may return prepared tables in place of the problem, as long as ``problem`` returns the
    problem itself.

    Attributes:
        options: keys of ``reset(options=...)``.
        local: arguments that settings files must not contain: objects, and paths of one machine.
        exact: ``"module:function"``, ``(game, row) -> Answer``: proves the best plan that an
            episode can build; empty if it is what the planner ``exact`` of the task proves.
        agents: name of each agent in the game's multi-agent form -> number of its actions; the
            action ranges follow one another, and only the current agent's actions are legal.
        after_end: the reward of an action after an episode's end.
        source: where the problems of episodes come from.
        over: (n,) bool, whether each episode has ended.
    """

    options: ClassVar[tuple[str, ...]] = ()
    local: ClassVar[tuple[str, ...]] = ("problem",)
    exact: ClassVar[str] = ""
    agents: ClassVar[Mapping[str, int]] = {}
    render_fps: ClassVar[int] = 1
    after_end: ClassVar[float] = ILLEGAL
    source: Source
    action_space: spaces.Discrete
    observation_space: spaces.Dict
    _arguments: dict[str, Any]  # of the constructor
    _last_reset: tuple[dict[str, Any], Source] | None = None  # the last options, and their source

    def __new__(cls, *args: Any, **arguments: Any) -> Game:
        """Keep the arguments, for games with changed ones (``elsewhere``)."""
        game = super().__new__(cls)
        game._arguments = arguments
        return game

    def __init__(self, count: int) -> None:
        self.count = count
        self.over = np.zeros(count, bool)
        self._rows = np.arange(count)
        self._problems: list[Any] = [None] * count  # what ``put`` gave each row
        self._shared: Any = None  # what all rows hold, if it is the same

    @property
    def legal(self) -> Array:
        """The legal actions, (n, a) bool, by default all; rows of ended episodes mean nothing.

        What later calls change is returned as a view, as in ``observation``.
        """
        return np.ones((self.count, int(self.action_space.n)), bool)

    def put(self, rows: Rows, problem: Any) -> None:
        """Give rows a problem of a source; their episodes have to be started then."""
        self._shared = None
        for row in self._rows[rows].tolist():
            self._problems[row] = problem

    @abstractmethod
    def start(self, rows: Rows) -> None:
        """Start the episodes of rows, of the problems that they hold; none of them is over."""

    @abstractmethod
    def play(self, rows: Rows, actions: Array) -> Array:
        """Step episodes that are not over.

        Args:
            rows: the episodes.
            actions: (k,) int64 of any size; an illegal one ends its episode.

        Returns:
            (k,) float64 rewards; ``over`` is updated.
        """

    @abstractmethod
    def observation(self, rows: Rows) -> dict[str, Array]:
        """Return the observation, (k, ...) each; arrays that later calls change are views."""

    @abstractmethod
    def plan(self, row: int) -> Plan:
        """Return the plan of an episode so far."""

    def problem(self, row: int) -> Any:
        """Return the problem of an episode, by default what the source gave."""
        return self._problems[row]

    def outcome(self, rows: Rows) -> dict[str, Array]:
        """Return the entries of infos of ended episodes, (k,) float64 each, NaN where unknown.

        In every environment ``cost`` is what ``judge`` says of the plan, ``reference`` the least
        cost known of the problem, ``bound`` one that no plan is below, and ``gap`` the share by
        which the cost is above the reference, ``cost / reference - 1``.
        """
        return {}

    @classmethod
    def documented(cls) -> str | None:
        """Return the docstring of the environment."""
        return cls.__doc__

    def view(self, row: int) -> Any:
        """Return what ``render`` shows of an episode: the report on its plan, or its problem."""
        return self.problem(row).report(self.plan(row))

    def undecided(self, row: int) -> Collection[str] | None:
        """Return the paths of undecided variables; None if the game does not decide variables."""
        return None

    def instance(self, row: int) -> str:
        """Return the name of an episode's problem, from which it can be built again."""
        return str(self.problem(row).instance)

    def instances(self, rows: Array) -> str | list[str]:
        """Return the name of each of the problems of rows, or the name that they share."""
        if self._shared is not None:
            return self.instance(0)
        return [self.instance(row) for row in rows.tolist()]

    @property
    @abstractmethod
    def episode_steps(self) -> int:
        """Steps of the longest episode."""

    @property
    def largest_return(self) -> float:
        """An upper bound of absolute returns, by which learners scale: the first problem's."""
        return 1.0

    @property
    def draws(self) -> bool:
        """Whether the problem changes between episodes without options of ``reset``."""
        return self.source.only is None

    def elsewhere(self, options: dict[str, Any]) -> Source:
        """Return the source of the problem that options of ``reset`` name, for one episode.

        By default it is the source of a game with the same arguments, updated by the options.

        Args:
            options: keys are those of the class attribute ``options``.

        Raises:
            ParenvsError: a value is refused, or would change the spaces.
        """
        # Building a game may load a graph, and resets often repeat their options.
        if self._last_reset is not None and self._last_reset[0] == options:
            return self._last_reset[1]
        arguments = dict(self._arguments)
        if arguments.get("problem") is not None and "problem" not in options:
            if "instance" not in options:
                raise ParenvsError(
                    f"options: {next(iter(options))!r} does not apply to the problem that the "
                    "environment was made of; give 'problem' or 'instance'"
                )
            del arguments["problem"]
        other = type(self)(self.count, **{**arguments, **options})
        # Wrappers and policies hold on to the spaces that they were made with.
        for kind in ("action_space", "observation_space"):
            space, new_space = getattr(self, kind), getattr(other, kind)
            if space != new_space:
                raise ParenvsError(
                    f"options: {', '.join(options)} would change the {kind.replace('_', ' ')} from "
                    f"{_brief(space)} to {_brief(new_space)}; make another environment for it"
                )
        # Objects are not kept: they may change, and comparing them may be slow.
        if all(isinstance(value, (str, int, float)) for value in options.values()):
            self._last_reset = (dict(options), other.source)
        return other.source

    def deal(self, rows: Rows, streams: Sequence[Stream], source: Source | None = None) -> None:
        """Start the next episodes of rows, each of the next problem of its stream."""
        # The usual case of one fixed problem: every row holds it already.
        if source is None and self.source.only is not None and self._shared is self.source.only:
            self.start(rows)
            return
        problems = self._problems
        new_rows: dict[int, list[int]] = {}  # rows of each new problem
        for row in self._rows[rows].tolist():
            stream = streams[row]
            problem = self.source.next(stream) if source is None else source.draw(stream)
            if problem is not problems[row]:
                problems[row] = problem
                new_rows.setdefault(id(problem), []).append(row)
        # One call per problem, as ``put`` may build tables for it.
        for numbers in new_rows.values():
            self.put(np.array(numbers), problems[numbers[0]])
        self._shared = problems[0] if all(x is problems[0] for x in problems) else None
        self.start(rows)

    def preview(self) -> None:
        """Give all rows a problem that can be rendered before the first reset."""
        problem = self.source.preview()
        self._problems = [problem] * self.count
        self.put(EVERY, problem)
        self._shared = problem
        self.start(EVERY)

    def by_problem(self, rows: Array) -> Iterator[tuple[Any, Rows]]:
        """Yield each problem of rows, (k,), and the indices among them of those that hold it."""
        if self._shared is not None:
            yield self._shared, EVERY
            return
        indices: dict[int, list[int]] = {}
        for index, row in enumerate(rows.tolist()):
            indices.setdefault(id(self._problems[row]), []).append(index)
        for group in indices.values():
            yield self._problems[rows[group[0]]], np.array(group)

    def close(self) -> None:  # noqa: B027  # most games hold nothing else
        """Free what the game holds besides memory."""

    def within(self, actions: Array) -> Array:
        """Return actions, (k,) int64, with every number outside of the space replaced by a."""
        # As unsigned integers, negative numbers are large.
        last = np.uint64(self.action_space.n)
        return np.minimum(actions.view(np.uint64), last).view(np.int64)


def check_options(options: dict[str, Any], known: Collection[str]) -> None:
    """Check the keys of ``reset(options=...)``.

    Raises:
        ParenvsError: a key is unknown; the message names the known ones.
    """
    for key in options:
        refuse_unknown("options: unknown", key, known)


def _brief(space: Any) -> str:
    if isinstance(space, Mapping):
        return "{" + ", ".join(f"{key}: {_brief(part)}" for key, part in space.items()) + "}"
    return str(space.shape) if space.shape else str(space)


AHEAD, BARE = LOOKS = ("ahead", "bare")
"""Values of the argument ``rows``: with look-ahead features, or without them."""
RANGE = 100.0
"""Features are clipped to plus and minus this; most lie in [-1, 1]."""


class Rowed(Game):
    """Plays episodes whose actions are described by features.

    The observation has ``actions`` (A, F), ``context`` (C,) and ``action_mask`` (A,). Feature 0 of
    an action is a greedy heuristic's score, whose argmax plays the heuristic. Look-ahead features
    evaluate the plan after each action; ``rows="bare"`` leaves them out. Features are 0 for illegal
    actions and for ended episodes.

    Attributes:
        columns: name of each action feature -> its description, the heuristic's score first.
        ahead: names of the look-ahead features.
        contexts: name of each feature of the state -> its description.
        foreseen: whether the environment is deterministic, so the best of several plays counts.
        fixed_length: whether, in addition, all episodes of a problem have as many steps.
    """

    foreseen: ClassVar[bool] = True
    fixed_length: ClassVar[bool] = False
    columns: ClassVar[Mapping[str, str]]
    ahead: ClassVar[frozenset[str]]
    contexts: ClassVar[Mapping[str, str]]
    rule: ClassVar[str]
    looks = False
    shown: tuple[str, ...] = ()

    @classmethod
    def documented(cls) -> str:
        """Return the docstring with a table of the features behind those of the spaces."""
        lines = [f"Features are from -{RANGE:g} to {RANGE:g}; those with * only look ahead.", ""]
        for key, described in (("actions", cls.columns), ("context", cls.contexts)):
            lines += [f"| ``{key}`` | name | meaning |", "|--:|:--|:--|"]
            for number, (name, words) in enumerate(described.items()):
                star = "*" if name in cls.ahead else ""
                lines.append(f"| {number}{star} | ``{name}`` | {words.replace('|', '/')} |")
            lines.append("")
        head, heading, rest = (cls.__doc__ or "").partition("    ## Rewards")
        return "".join([head, *(f"    {line}\n" for line in lines), heading, rest])

    def show_rows(self, size: int, rows: str) -> None:
        """Set up the spaces for A actions and the features that ``rows`` selects.

        Raises:
            ParenvsError: ``rows`` is none of ``LOOKS``.
        """
        refuse_unknown("unknown rows", rows, LOOKS)
        self.looks = rows == AHEAD
        self.shown = tuple(x for x in self.columns if self.looks or x not in self.ahead)
        self.action_space = spaces.Discrete(size)
        self.observation_space = spaces.Dict(
            {
                "actions": spaces.Box(-RANGE, RANGE, (size, len(self.shown)), np.float32),
                "context": spaces.Box(-RANGE, RANGE, (len(self.contexts),), np.float32),
                "action_mask": spaces.Box(0, 1, (size,), np.int8),
            }
        )

    def restarts(self, problem: Any, count: int) -> list[Any]:
        """Return ``count`` arguments of ``put`` that start a problem differently, itself first."""
        return [problem]

    def as_rows(
        self, rows: Mapping[str, Array], context: Array, legal: Array, over: Any
    ) -> dict[str, Array]:
        """Return the observation of k episodes; arguments are (k, A) or (k, C)."""
        over = np.asarray(over)
        actions = np.zeros((*legal.shape, len(self.shown)), np.float32)
        for index, name in enumerate(self.shown):
            actions[..., index] = rows[name]
        actions[~legal | over[:, None]] = 0.0
        context[over] = 0.0
        # After the end every action is legal, as an all-zero mask would break samplers.
        return {
            "actions": actions,
            "context": context,
            "action_mask": (legal | over[:, None]).astype(np.int8),
        }


class RowGame(Rowed):
    """Plays episodes whose return is ``log(reference / cost)``, observed as action features.

    The reference is the best known cost of the problem, or the cost of a start plan where none is
    known. A problem states a ``worst`` cost that no legal plan exceeds, or else counts as; an
    illegal action ends the episode with the return ``log(reference / worst) - 1``. The reward of a
    step is the change of the return so far; steps before the first complete plan have reward 0.

    A subclass writes features into ``actions`` and ``context`` and legal actions into ``mask`` in
    ``look``, and costs into ``cost`` in ``move``; ``put`` passes known costs to ``know``. If
    ``keeps`` is false, it builds ``actions`` in ``rows_of``, which saves the observation a copy.

    Attributes:
        keeps: whether ``actions`` are kept between steps.
        actions: (n, A, F) float32.
        context: (n, C) float32.
        mask: (n, A) bool.
        cost: (n,) float64, cost of the best plan of each episode so far, NaN without one.
        reference: (n,) float64, the cost at which the return is 0.
        worst: (n,) float64, the cost that no legal plan exceeds.
    """

    keeps: ClassVar[bool] = True
    after_end: ClassVar[float] = 0.0

    def __init__(self, count: int, size: int, rows: str = AHEAD) -> None:
        super().__init__(count)
        self.show_rows(size, rows)
        kept = count if self.keeps else 0
        self.actions = np.zeros((kept, size, len(self.shown)), np.float32)
        self.context = np.zeros((count, len(self.contexts)), np.float32)
        self.mask = np.zeros((count, size), bool)
        self.cost = np.full(count, np.nan)
        self.reference, self.worst = np.ones((2, count))
        self._known = np.full((3, count), np.nan)  # start, bound, best
        self._returns, self._largest = np.zeros(count), 0.0
        self._stale = np.ones(count, bool)

    @abstractmethod
    def look(self, rows: Array, part: Rows) -> None:
        """Compute ``actions``, ``context`` and ``mask`` of running episodes.

        Features of illegal actions must be 0 afterwards.

        Args:
            rows: numbers of the episodes, (k,) int64.
            part: the same as an index of arrays: ``EVERY`` if they are all.
        """

    def rows_of(self, rows: Rows) -> Array:
        """Return ``actions`` of episodes, (k, A, F), as ``look`` computed them last."""
        return self.actions[rows]

    @abstractmethod
    def move(self, rows: Array, actions: Array, part: Rows) -> None:
        """Apply legal actions, (k,) int64; update ``cost`` and ``over``. Rows as in ``look``."""

    def know(
        self, rows: Rows, start: Any, bound: Any = np.nan, best: Any = np.nan, *, worst: Any
    ) -> None:
        """Set the known costs of the problems of rows; NaN where one but ``worst`` is unknown."""
        for row, value in enumerate((start, bound, best)):
            self._known[row, rows] = value
        # Without a known plan the return is relative to the start plan, and still comparable
        # between policies on the same problem.
        self.reference[rows] = np.where(np.isnan(best), start, best)
        self.worst[rows] = worst
        if not self._largest:  # one number for all problems, as learners divide rewards by it
            gained = np.log(self.reference / self._known[1])
            self._largest = float(np.fmax(gained, -self._illegal(EVERY)).max())

    @property
    def known(self) -> Array:
        """The best known cost of each problem, (n,); its lower bound where no plan is known."""
        _, bound, best = self._known
        return np.where(np.isnan(best), bound, best)

    def fresh(self, rows: Rows) -> None:
        """Reset the state of episodes: return 0, not over, features out of date."""
        self._returns[rows] = 0.0
        self.over[rows] = False
        self._stale[rows] = True

    @property
    def legal(self) -> Array:
        self._refresh()
        return self.mask[:]

    def play(self, rows: Rows, actions: Array) -> Array:
        self._refresh()
        rows, chosen = self._rows[rows], np.asarray(actions, np.int64)
        rewards = np.zeros(len(rows))
        legal = chosen.view(np.uint64) < self.mask.shape[1]  # where negative numbers are large
        legal &= self.mask[rows, np.where(legal, chosen, 0)]
        moving, moved = rows, cast(Rows, EVERY)
        if not legal.all():
            moving, chosen, moved = rows[legal], chosen[legal], legal
            illegal = rows[~legal]
            # The return becomes the same whatever the episode had reached before.
            returns = self._illegal(illegal)
            rewards[~legal] = returns - self._returns[illegal]
            self.over[illegal], self.cost[illegal] = True, np.nan
            self._returns[illegal] = returns
        if moving.size:
            part = EVERY if moving.size == self.count else moving
            self.move(moving, chosen, part)
            cost, before = self.cost[part], self._returns[part]
            returns = np.log(self.reference[part] / np.minimum(cost, self.worst[part]))
            # No complete plan yet: nothing is gained or lost.
            returns = np.where(np.isnan(cost), before, returns)
            rewards[moved] = returns - before
            self._returns[part], self._stale[part] = returns, True
        return rewards

    def observation(self, rows: Rows) -> dict[str, Array]:
        self._refresh()
        return {
            "actions": self.rows_of(rows),
            "context": self.context[rows],
            "action_mask": self.mask[rows].view(np.int8),
        }

    def outcome(self, rows: Rows) -> dict[str, Array]:
        start, bound, reference = self._known[:, rows]
        return costs(self.cost[rows], reference, bound) | {"start": start}

    @property
    def largest_return(self) -> float:
        return self._largest

    def _illegal(self, rows: Rows) -> Array:
        """Return the returns of episodes that end with an illegal action."""
        # Below all that is legal, by a margin that rounding does not reach.
        return np.asarray(np.log(self.reference[rows] / self.worst[rows]) - 1.0)

    def _refresh(self) -> None:
        """Compute the features of the episodes that have stepped since the last time."""
        stale = self._stale
        if not np.count_nonzero(stale):  # faster than any()
            return
        rows = (stale & ~self.over).nonzero()[0]
        if rows.size:
            self.look(rows, EVERY if rows.size == self.count else rows)
        ended = (stale & self.over).nonzero()[0]
        if ended.size:
            self.context[ended], self.mask[ended] = 0.0, True
            if self.keeps:
                self.actions[ended] = 0.0
        stale[:] = False


def costs(cost: Array, reference: Any, bound: Any) -> dict[str, Array]:
    """Return the entries of infos that all environments have; see ``Game.outcome``."""
    return {
        "cost": cost,
        "reference": np.broadcast_to(reference, cost.shape),
        "bound": np.broadcast_to(bound, cost.shape),
        "gap": cost / reference - 1.0,
    }
