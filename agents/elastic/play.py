"""Plays policies on the courses of problems: all courses at once, for tables and networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from parenvs.agents.elastic.formats import (
    CHANGE_COLUMNS,
    NUMBERS,
    PLAN_COLUMNS,
    Network,
    Ratings,
    Rule,
    Table,
)
from parenvs.agents.elastic.policies import RULES
from parenvs.tasks.elastic.library import (
    GONE,
    LOST,
    MAX_PLANS,
    MAX_SPARES,
    READY,
    Library,
    happened,
)
from parenvs.tasks.elastic.problem import MAX_NODES, Course, Elastic, Run, follow, replay
from parenvs.tasks.elastic.problems import Markov, courses, load_elastic

DEGREES = 128.0
"""Degrees are observed as log2(1 + degree) over log2 of this."""


class Tables(NamedTuple):
    """Problems as ``Turns`` plays them; rows of the arrays are (library, interval length).

    Attributes:
        problems: (P,) the problems.
        row: (P,) int64, row of each problem.
        ideal: (P,) float64, see ``Elastic.ideal``.
        earned: (L, EVENTS, 64, 64) float64, see ``Elastic.earned``.
        lost_samples: (L, 64) float64.
        saved: (L, 64) float64.
        best: (L, 65) float64, samples of an interval of the fastest plan, by nodes.
        every: (L,) int64, intervals between checkpoints.
        used: (L, 64) int64, nodes of each plan that train.
        held: (L, 64) int64, the same with its spares.
        borders: (L, 64, G+1) int64, see ``Library.borders``.
        fits: (L, 65, 65) int8, whether nodes are enough for a plan; the last column is no action.
        plans: (L, 64, 6) float32, the observation.
        change: (L, EVENTS, 64, 64, 3) float32, the observation, by event and plan in force.
    """

    problems: tuple[Elastic, ...]
    row: np.ndarray
    ideal: np.ndarray
    earned: np.ndarray
    lost_samples: np.ndarray
    saved: np.ndarray
    best: np.ndarray
    every: np.ndarray
    used: np.ndarray
    held: np.ndarray
    borders: np.ndarray
    fits: np.ndarray
    plans: np.ndarray
    change: np.ndarray

    @classmethod
    def of(cls, problems: Sequence[Elastic]) -> Tables:
        """Make the arrays of some problems."""
        rows: dict[tuple[int, float], Elastic] = {}
        slots = []
        for problem in problems:
            key = (id(problem.library), problem.seconds)
            rows.setdefault(key, problem)
            slots.append(list(rows).index(key))
        firsts = list(rows.values())
        libraries = [problem.library for problem in firsts]
        width = max(library.borders.shape[1] for library in libraries)
        nodes = np.arange(MAX_NODES + 1)[:, None]
        fits = np.zeros((len(firsts), MAX_NODES + 1, MAX_PLANS + 1), dtype=np.int8)
        best = np.zeros((len(firsts), MAX_NODES + 1))
        for i, (problem, library) in enumerate(zip(firsts, libraries, strict=True)):
            fits[i, :, : len(library)] = library.needed <= nodes
            best[i] = (fits[i, :, : len(library)] * library.rate).max(axis=1) * problem.seconds
        return cls(
            tuple(problems),
            np.array(slots),
            np.array([problem.ideal for problem in problems]),
            _stack([problem.earned for problem in firsts], MAX_PLANS, MAX_PLANS),
            _stack([problem.lost_samples for problem in firsts], MAX_PLANS),
            _stack([problem.saved for problem in firsts], MAX_PLANS),
            best,
            np.array([library.costs.every for library in libraries]),
            _stack([library.used for library in libraries], MAX_PLANS),
            _stack([library.needed for library in libraries], MAX_PLANS),
            _stack([_widened(library.borders, width) for library in libraries], MAX_PLANS, width),
            fits,
            _stack([_plans(library) for library in libraries], MAX_PLANS, len(PLAN_COLUMNS)),
            _stack([_change(x) for x in firsts], MAX_PLANS, MAX_PLANS, len(CHANGE_COLUMNS)),
        )


def _stack(arrays: Sequence[np.ndarray], *shape: int) -> np.ndarray:
    """Stack arrays, with their last axes filled up with zeros to a shape."""
    first = arrays[0]
    front = first.shape[: first.ndim - len(shape)]
    result = np.zeros((len(arrays), *front, *shape), dtype=first.dtype)
    for i, array in enumerate(arrays):
        index: Any = (i, *(slice(length) for length in array.shape))
        result[index] = array
    return result


def _widened(borders: np.ndarray, width: int) -> np.ndarray:
    """Repeat the end of every plan's nodes up to a width."""
    return np.pad(borders, ((0, 0), (0, width - borders.shape[1])), mode="edge")


def _plans(library: Library) -> np.ndarray:
    """Return what is observed of the plans themselves, (K, 6) float32; the one that waits is 0."""
    degrees = [plan.degrees for plan in library.candidates]
    result = np.zeros((len(library), len(PLAN_COLUMNS)))
    result[1:, :3] = np.log2(1.0 + np.array(degrees)) / np.log2(DEGREES)
    result[:, 3] = library.used / MAX_NODES
    result[:, 4] = library.spares / MAX_SPARES
    result[:, 5] = library.rate / library.rate.max()
    return np.minimum(result, 1.0).astype(np.float32)


def _change(problem: Elastic) -> np.ndarray:
    """Return what is observed of changes, (EVENTS, K, K, 3) float32."""
    library = problem.library
    seconds, egress = library.tables
    result = np.zeros((*seconds.shape, len(CHANGE_COLUMNS)), dtype=np.float32)
    result[..., 0] = np.minimum(seconds / problem.seconds, 1.0)
    result[..., 1] = np.minimum(egress / library.state.bytes, 1.0)
    result[..., 2] = np.eye(len(library))
    return result


QUIET = 60
"""Intervals since the last event beyond which they are not told apart."""
_BLOCK = 256  # courses that are laid out at a time
KEEP = 0.95
"""Weight of the past in the means of departures and joins."""


class Turns:
    """The turns of n episodes at once.

    Attributes:
        tables: the problems.
        problem: (n,) int64, number of each episode's problem.
        interval: (n,) int64, intervals that are over.
        plan: (n,) int64, the plan in force.
        event: (n,) int64, what happened to it.
        total: (n,) float64, samples so far.
        chosen: (n, S) int8, the plans chosen.
        course: the courses, with an axis n in front; all episodes share one of a named trace.
    """

    def __init__(self, count: int, tables: Tables) -> None:
        self.tables = tables
        self.size = max(problem.intervals for problem in tables.problems)
        nodes = max(problem.nodes for problem in tables.problems)
        self.problem, self.interval, self.plan, self.event, self.since, self.quiet = np.zeros(
            (6, count), dtype=np.int64
        )
        self.total, self.leaving, self.joining = np.zeros((3, count))
        self.chosen = np.zeros((count, self.size), dtype=np.int8)
        self.row = np.zeros(count, dtype=np.int64)
        self.length = np.full(count, self.size)
        self.is_shared = not any(problem.is_random for problem in tables.problems)
        slots = 1 if self.is_shared else count
        # Beside each other, as each episode reads all three of one interval.
        self._counts = counts = np.zeros((slots, self.size, 4), dtype=np.int16)
        lost = np.zeros((slots, self.size, nodes + 1), dtype=np.int8)
        self.course = Course(counts[:, :, 0], counts[:, :, 1], counts[:, :, 2], lost)
        self._own = np.zeros(count, dtype=np.int64) if self.is_shared else np.arange(count)
        if self.is_shared:
            self._put(0, tables.problems[0].course())
        self.nodes, self.joined, self.left = np.zeros((3, count), dtype=np.int64)

    def start(self, who: Any, problems: Sequence[int], drawn: Sequence[np.ndarray | None]) -> None:
        """Start episodes.

        Args:
            who: their indices, (k,).
            problems: number of the problem of each.
            drawn: what decides the course of each, of ``Elastic.draw``.
        """
        tables = self.tables
        self.problem[who] = problems
        self.row[who] = tables.row[self.problem[who]]
        self.length[who] = [tables.problems[i].intervals for i in problems]
        if not self.is_shared:
            self._lay(who, problems, drawn)
        self.rewind(who)

    def rewind(self, who: Any) -> None:
        """Start episodes ``who`` again, on the same courses."""
        for array in (self.interval, self.plan, self.event, self.since, self.quiet):
            array[who] = 0
        for sums in (self.total, self.leaving, self.joining):
            sums[who] = 0.0
        self.chosen[who] = 0
        own = self._own[who]
        self.nodes[who] = self.course.nodes[own, 0]
        self.joined[who] = self.course.joined[own, 0]
        self.left[who] = 0

    def step(self, who: np.ndarray, plan: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Play an interval of episodes ``who``, (k,), with legal plans (k,).

        Returns:
            Rewards (k,) float64, and which episodes are over, (k,) bool.
        """
        rows, who = who, self._all_of(who)
        tables, row = self.tables, self.row[who]
        old, event, since = self.plan[who], self.event[who], self.since[who]
        at = self.interval[who]
        samples = tables.earned[row, event, old, plan]
        stays = (plan == old) & (event == 0)
        since_next = since + 1
        written = stays & (since_next == tables.every[row])
        samples = np.where(written, samples - tables.saved[row, old], samples)
        gone = event == GONE
        if gone.any():
            lost = since * tables.lost_samples[row, old]
            samples = np.where(gone, samples - lost, samples)
        self.total[who] += samples
        self.chosen[rows, at] = plan
        at = at + 1
        self.interval[who] = at
        self.since[who] = np.where(stays & ~written & (old > 0), since_next, 0)
        self.plan[who] = plan
        over = at == self.length[who]
        self.event[who] = 0
        on, now = (rows[~over], at[~over]) if over.any() else (rows, at)
        if len(on):
            self._next(on, now)
        return samples / tables.ideal[self.problem[who]], over

    def _all_of(self, who: np.ndarray) -> Any:
        """Return episodes ``who``, (k,), as a slice if they are all: then nothing is gathered."""
        return slice(None) if len(who) == len(self.plan) else who

    def _next(self, rows: np.ndarray, at: np.ndarray) -> None:
        """Let nodes leave and come before interval ``at``, (k,), of episodes ``rows``."""
        who = self._all_of(rows)
        own = self._own[who]
        nodes, joined, left, _ = self._counts[own, at].T
        self.leaving[who] *= KEEP
        self.leaving[who] += (1 - KEEP) * left / np.maximum(self.nodes[who], 1)
        self.joining[who] *= KEEP
        self.joining[who] += (1 - KEEP) * joined / MAX_NODES
        self.nodes[who], self.joined[who], self.left[who] = nodes, joined, left
        self.quiet[who] = np.where((joined > 0) | (left > 0), 0, self.quiet[who] + 1)
        losing = left.nonzero()[0]
        if losing.size:
            hit_rows = rows[losing]
            row, plan = self.row[hit_rows], self.plan[hit_rows]
            lost = self.course.lost[own[losing], at[losing]]
            hit = lost[np.arange(len(hit_rows)), self.tables.used[row, plan]].nonzero()[0]
            if hit.size:
                hit_rows = hit_rows[hit]
                tables, row, plan = self.tables, row[hit], plan[hit]
                columns = (tables.used, tables.held, tables.borders)
                self.event[hit_rows] = happened(
                    lost[hit], *(column[row, plan] for column in columns)
                )

    def masks(self) -> np.ndarray:
        """Return the legal plans, (n, 64) int8; the nodes are enough for them."""
        return self.tables.fits[self.row, self.nodes][:, :MAX_PLANS]

    def legal(self, who: np.ndarray, plan: np.ndarray) -> np.ndarray:
        """Return whether plans of episodes ``who``, (k,) int64 from 0 to 64, are legal."""
        return self.tables.fits[self.row[who], self.nodes[who], plan] > 0

    def observation(self, who: Any) -> dict[str, np.ndarray]:
        """Return what changes of the observation: ``change`` and ``numbers`` of episodes ``who``.

        A plan that has broken is observed as the one in force, with what its exchange costs.
        """
        tables, row, plan, event = self.tables, self.row[who], self.plan[who], self.event[who]
        nodes = self.nodes[who]
        used, held = tables.used[row, plan], tables.held[row, plan]
        numbers = np.empty((len(row), len(NUMBERS)), dtype=np.float32)
        columns = (
            nodes / MAX_NODES,
            self.joined[who] / MAX_NODES,
            self.left[who] / MAX_NODES,
            used / MAX_NODES,
            (held - used) / MAX_NODES,
            np.maximum(nodes - held, 0) / MAX_NODES,
            tables.plans[row, plan, 5],
            np.where((event > 0) & (event < GONE), (event - 1) % LOST + 1, 0) / LOST,
            (event > READY) & (event < GONE),
            event == GONE,
            self.since[who] / tables.every[row],
            np.minimum(self.quiet[who], QUIET) / QUIET,
            1.0 - self.interval[who] / self.length[who],
            self.leaving[who],
            self.joining[who],
            1.0 / self.length[who],
        )
        for i, column in enumerate(columns):
            numbers[:, i] = column
        return {"change": tables.change[row, event, plan], "numbers": numbers}

    def shares(self, who: np.ndarray) -> np.ndarray:
        """Return the share of the ideal that finished episodes ``who`` reached, (k,)."""
        result = np.empty(len(who))
        for i, index in enumerate(who.tolist()):
            nodes = self.course.nodes[self._own[index], : self.length[index]]
            best = self.tables.best[self.row[index], nodes].sum()
            result[i] = self.total[index] / best if best else 0.0
        return result

    def run(self, index: int) -> Run:
        """Return an episode so far, as the simulation has it."""
        problem = self.tables.problems[self.problem[index]]
        course = self.course.of(self._own[index])
        course = Course(*(part[: problem.intervals] for part in course))
        return replay(problem, course, self.chosen[index, : self.interval[index]])

    def _lay(self, who: Any, problems: Sequence[int], drawn: Sequence[np.ndarray | None]) -> None:
        """Lay out the courses of episodes that start."""
        own = self._own[who].tolist()
        chains = [self.tables.problems[i].source for i in problems]
        if not isinstance(chains[0], Markov):  # a trace whose nodes have no names
            for slot, number, numbers in zip(own, problems, drawn, strict=True):
                self._put(slot, self.tables.problems[number].course(numbers))
            return
        block = np.empty((_BLOCK, self.size, self.course.lost.shape[2]), dtype=np.float32)
        for first in range(0, len(own), _BLOCK):
            block_rows = slice(first, first + _BLOCK)
            for mine, numbers in zip(block, drawn[block_rows], strict=False):
                assert numbers is not None
                mine[:, numbers.shape[1] :] = mine[len(numbers) :] = 1.0
                mine[: len(numbers), : numbers.shape[1]] = numbers
            drawn_courses = courses(chains[block_rows], block[: len(own[block_rows])])  # type: ignore[arg-type]
            for mine, new in zip(self.course, drawn_courses, strict=True):
                mine[own[block_rows]] = new

    def _put(self, slot: int, course: Course) -> None:
        """Write one course into the arrays."""
        for mine, new in zip(self.course, course, strict=True):
            if new.ndim == 1:
                mine[slot, : len(new)] = new
            else:
                mine[slot, : len(new), : new.shape[1]] = new


COURSES = 2
"""Courses of a problem on which chance decides; all policies have the same."""
Plans = list[list[int]]
"""Plans of each course of a problem, interval by interval."""


def seeds(problem: Elastic, seed: int) -> range:
    """Return the seeds of a problem's courses, as of ``Elastic.drawn``.

    Args:
        problem: the problem; where nothing is random it has one course.
        seed: of the checker.
    """
    count = COURSES if problem.is_random else 1
    return range(seed * COURSES, seed * COURSES + count)


def load(name: str) -> Elastic:
    """Load a problem: ``SET/NAME`` of a shipped set, or ``TRACE/MODEL``."""
    return load_elastic(name)


def play(
    policy: Table | Network | Ratings, problems: dict[str, Elastic], seed: int
) -> dict[str, Plans]:
    """Let a policy that is data choose on the courses of problems.

    Args:
        policy: the policy.
        problems: name -> problem.
        seed: of the courses.

    Returns:
        Name of a problem -> the plans chosen on each of its courses.
    """
    chains = {k: x for k, x in problems.items() if isinstance(x.source, Markov)}
    plans = together(policy, chains, seed) if chains else {}
    for name in problems.keys() - chains.keys():
        plans |= together(policy, {name: problems[name]}, seed)
    return plans


def followed(rule: Rule, problem: Elastic, seed: int) -> Plans:
    """Return what a rule chooses on the courses of a problem."""
    policy = RULES[rule.name]
    courses = [problem.drawn(number) for number in seeds(problem, seed)]
    return [follow(problem, course, policy()).chosen.tolist() for course in courses]


def together(
    policy: Table | Network | Ratings, problems: dict[str, Elastic], seed: int
) -> dict[str, Plans]:
    """Return what a policy chooses on the courses of problems, all played at once.

    Args:
        policy: the policy.
        problems: name -> problem, all of chains, or one of a trace.
        seed: of the checker.
    """
    tables = Tables.of(list(problems.values()))
    each = [
        (i, number)
        for i, problem in enumerate(problems.values())
        for number in seeds(problem, seed)
    ]
    drawn = [tables.problems[i].draw(np.random.default_rng(number)) for i, number in each]
    batch = Turns(len(each), tables)
    batch.start(np.arange(len(each)), [i for i, _ in each], drawn)
    rows = np.arange(len(each))
    while rows.size:
        chosen = np.zeros(len(each), dtype=np.int64)
        chosen[rows] = _chosen(policy, batch, rows)
        _, over = batch.step(rows, chosen[rows])
        rows = rows[~over]
    plans: dict[str, Plans] = {name: [] for name in problems}
    names = list(problems)
    for row, (i, _) in enumerate(each):
        plans[names[i]].append(batch.chosen[row, : batch.length[row]].tolist())
    return plans


def _chosen(policy: Table | Network | Ratings, batch: Turns, rows: np.ndarray) -> np.ndarray:
    """Return the plans that a policy chooses in episodes ``rows``, (k,)."""
    fits = batch.masks()[rows] > 0
    if isinstance(policy, Table):
        return _looked_up(policy, batch, rows, fits)
    tables = batch.tables
    observation = {"plans": tables.plans[batch.row[rows]], **batch.observation(rows)}
    scores = np.nan_to_num(policy.scores(observation), nan=-np.inf)
    return np.asarray(np.where(fits, scores, -np.inf).argmax(axis=1) * fits.any(axis=1))


def _looked_up(policy: Table, batch: Turns, rows: np.ndarray, fits: np.ndarray) -> np.ndarray:
    """Return what a table says; what it has no row for, or does not fit, is to wait."""
    result = np.zeros(len(rows), dtype=np.int64)
    libraries: Sequence[str] = [
        batch.tables.problems[i].library.name for i in batch.problem[rows].tolist()
    ]
    for name in set(libraries) & policy.choices.keys():
        mine = np.flatnonzero([library == name for library in libraries])
        table, these = policy.choices[name], rows[mine]
        nodes = np.minimum(batch.nodes[these], table.shape[1] - 1)
        plan = batch.plan[these]
        known = plan < table.shape[2]
        event = batch.event[these]
        result[mine] = np.where(known, table[event, nodes, plan * known], 0)
    return np.asarray(np.where(fits[np.arange(len(rows)), result % MAX_PLANS], result, 0))
