"""The candidate plans of a job: degrees, spares, and the samples a second that each earns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import product
from math import comb
from typing import Any, NamedTuple

import numpy as np

from parenvs.errors import InfeasibleError, refuse_unknown
from parenvs.tasks.elastic.movement import (
    Array,
    Costs,
    Degrees,
    Layout,
    Movement,
    State,
    atom_bytes,
    fewest_bytes,
    minimal,
)
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.uniform import Uniform

MAX_PLANS = 64
"""Most candidates, that of waiting among them."""
CHECKPOINT = MAX_PLANS
"""Stands for a plan: keep the one in force, and write a checkpoint at the end of the interval."""
MAX_DEGREES = 46
"""Most different degrees; the other candidates are the best of them with spares."""
MAX_SPARES = 2
"""Most nodes that a candidate keeps as spares."""
LOST = 4
"""So many lost nodes stand for more, too."""
EVENTS = 1 + LOST + MAX_SPARES + 1
"""What may have happened to a plan: nothing; 1 to 4 of its nodes lost; 1 or 2 lost, and spares
ready; and more lost than replicas hold (``GONE``)."""
READY, GONE = LOST, EVENTS - 1
"""``READY + k``: k nodes lost, with spares ready. ``GONE``: a part of the state is lost."""
RECOVERIES = ("move", "checkpoint", "redundant")
"""What a system does when nodes leave: it moves the state from replicas that are left; it restarts
all from the last checkpoint, at every change (Varuna, EuroSys 2022); or every stage computes its
successor's work, too, and goes on for it (Bamboo, NSDI 2023)."""
REDUNDANCY = 0.15
"""Share of the samples that redundant computation takes.

It is a guess: Bamboo hides forward passes in bubbles, and what is left depends on the model.
"""
# Micro-batches and modes of recomputation, of which each plan has the fastest.
_MODES = (1, 2, 4, 8, 16), ("none", "selective", "full")


class Candidate(NamedTuple):
    """A plan: its degrees, the nodes that it keeps as spares, and its samples a second."""

    degrees: Degrees
    spares: int
    rate: float


@dataclass(frozen=True, eq=False)
class Library:
    """At most 64 candidate plans of one job, number 0 of which is to wait.

    Attributes:
        name: of the model and where its figures are from.
        candidates: the plans, without the one that waits.
        recovery: one of ``RECOVERIES``, see ``under``.
    """

    name: str
    state: State
    costs: Costs
    devices: int
    candidates: tuple[Candidate, ...]
    recovery: str = RECOVERIES[0]

    def __post_init__(self) -> None:
        """Raise an error if there are no candidates, or too many."""
        if not 1 <= len(self.candidates) < MAX_PLANS:
            raise InfeasibleError(
                f"{self.name}: {len(self.candidates)} candidate plans; from 1 to {MAX_PLANS - 1} "
                "are possible, give another cluster or batch"
            )

    def __len__(self) -> int:
        """Return K, the number of plans, with the one that waits."""
        return len(self.candidates) + 1

    @cached_property
    def rate(self) -> Array:
        """(K,) samples a second."""
        return np.array([0.0, *(plan.rate for plan in self.candidates)])

    @cached_property
    def used(self) -> Array:
        """(K,) nodes that train."""
        return np.array([0, *(x.degrees.hosts(self.devices) for x in self.candidates)], np.int64)

    @cached_property
    def spares(self) -> Array:
        """(K,) nodes that are kept as spares."""
        return np.array([0, *(plan.spares for plan in self.candidates)], np.int64)

    @cached_property
    def sizes(self) -> list[tuple[int, int, int]]:
        """(used, spares, replicas) of each plan."""
        return [*map(tuple, np.transpose([self.used, self.spares, self.replicas]).tolist())]

    @property
    def needed(self) -> Array:
        """(K,) nodes that must be there."""
        return self.used + self.spares

    @cached_property
    def replicas(self) -> Array:
        """(K,) nodes that hold the same part of the state."""
        plans = [replica_nodes(plan.degrees, self.devices) or 1 for plan in self.candidates]
        replicas = np.array([1, *plans], np.int64)
        # Replicas decide which losses are losses of state, so a recovery is a change of them.
        if self.recovery == "checkpoint":  # every loss is one of the state
            replicas[:] = 1
        elif self.recovery == "redundant":  # neighbors hold each other's
            replicas[1:] = np.minimum(2 * replicas, self.used)[1:]
        return replicas

    @cached_property
    def borders(self) -> Array:
        """(K, G+1) first node of each group of replicas, and the end, again and again.

        The i-th oldest node in use is replica i % R of group i // R. Where R does not divide the
        nodes, the last group is smaller.
        """
        max_borders = int((-(-self.used // self.replicas)).max())
        return np.minimum(np.arange(max_borders + 1) * self.replicas[:, None], self.used[:, None])

    @cached_property
    def movements(self) -> dict[tuple[Degrees, Degrees, int], Movement]:
        """What moves from degrees to degrees with so many nodes lost, by ``minimal``.

        The nodes lost are of different groups, so that a replica of each part is left. They are
        exchanged for empty ones.
        """
        distinct = list(dict.fromkeys(plan.degrees for plan in self.candidates))
        # On the least common multiple of the tensor degrees no shard cuts an atom.
        grid = math.lcm(*(degrees.tensor for degrees in distinct))
        size = atom_bytes(self.state, grid)
        layouts = [Layout.of(self.state, degrees, grid, self.devices) for degrees in distinct]
        result = {}
        for old in layouts:
            replicas = replica_nodes(old.degrees, self.devices) or 1
            groups = old.hosts // replicas
            # More losses leave no replica of some part: nothing can be moved then.
            for count in range(min(LOST, old.hosts - groups) + 1):
                # Of each group one after the other, but never its last node.
                lost = [(i % groups + 1) * replicas - 1 - i // groups for i in range(count)]
                for new in layouts:
                    contents = old.contents(max(old.hosts, new.hosts), lost)
                    result[old.degrees, new.degrees, count] = minimal(size, contents, old, new)
        return result

    @cached_property
    def tables(self) -> tuple[Array, Array]:
        """Seconds of a change, and bytes that the busiest node sends, (EVENTS, K, K) each.

        Indices are what happened, the plan in force, and the next one. Waiting costs nothing; after
        it, and after a loss of state, a checkpoint is read.
        """
        seconds, egress = np.zeros((2, EVENTS, len(self), len(self)))
        movements, costs = self.movements, self.costs
        for k, old in enumerate((None, *self.candidates)):
            for j, new in enumerate(self.candidates, 1):
                restart = costs.unplanned(None, new.degrees, self.devices)
                seconds[:, k, j] = restart
                if old is None:
                    continue
                # The same degrees go on; only further spares have to join.
                goes_on = old.degrees == new.degrees
                is_change = not goes_on or new.spares > old.spares
                if self.recovery == "checkpoint":  # one is written before a change
                    seconds[0, k, j] = (costs.save + restart) * is_change
                    continue
                for event in range(GONE):
                    lost = event if event <= READY else event - READY
                    movement = movements.get((old.degrees, new.degrees, lost))
                    # A neighbor computes the lost stage's work already: nothing is read.
                    if movement is None and self.recovery == "redundant":
                        movement = movements[old.degrees, new.degrees, 0]
                    if movement is None:  # no replica can be left
                        continue
                    egress[event, k, j] = movement.egress_bytes
                    # Groups of processes with newcomers take longer to form.
                    joins = bool(self.used[j] > self.used[k] - lost)
                    if event == 0:
                        spent = costs.planned(movement, new.degrees, joins or goes_on) * is_change
                    elif event > READY or self.recovery == "redundant":
                        spent = costs.planned(movement, new.degrees, joins)
                    else:
                        spent = costs.unplanned(movement, new.degrees, self.devices)
                    seconds[event, k, j] = spent
        return seconds, egress

    def moved(
        self, old: Degrees, new: Degrees, holdings: Sequence[int | None], takers: int
    ) -> Movement:
        """Return what moves between nodes with known contents, by ``minimal``.

        Args:
            old: degrees that the state is laid out for.
            new: degrees that it is wanted for.
            holdings: host-full of the old ranks that each node has; None: nothing.
            takers: nodes that may run the new plan, from number 0 on.
        """
        grid = math.lcm(old.tensor, new.tensor)
        size = atom_bytes(self.state, grid)
        before, after = (Layout.of(self.state, x, grid, self.devices) for x in (old, new))
        # Number -1, behind the last host-full, is an empty host.
        with_empty = before.contents(before.hosts + 1)
        contents = with_empty[[-1 if number is None else number for number in holdings]]
        assignment = fewest_bytes(np.any(contents[:takers], axis=1), after.asked, size)
        return minimal(size, contents, before, after, assignment)

    def under(self, recovery: str) -> Library:
        """Return the library of a system that recovers in another way; it is cached.

        Plans of redundant computation are slower by ``REDUNDANCY``; that it takes memory, too, is
        left out. A stage and its neighbor are taken as a pair that guards each other, and what
        a node that takes the place of a lost one reads of it is not counted.

        Args:
            recovery: one of ``RECOVERIES``.

        Raises:
            ParenvsError: it is none of them.
        """
        refuse_unknown("unknown recovery", recovery, RECOVERIES)
        if recovery not in self._others:
            # All candidates are slower alike, so their order stays.
            factor = 1.0 - REDUNDANCY * (recovery == "redundant")
            candidates = tuple(plan._replace(rate=plan.rate * factor) for plan in self.candidates)
            library = replace(self, candidates=candidates, recovery=recovery)
            # Of the same degrees, and the same family of libraries.
            library.__dict__.update(movements=self.movements, _others=self._others)
            self._others[recovery] = library
        return self._others[recovery]

    @cached_property
    def _others(self) -> dict[str, Library]:
        return {self.recovery: self}

    @classmethod
    def measured(cls, content: dict[str, Any], state: State) -> Library:
        """Return the library of a file of measured steps, whose nodes have one device each.

        Args:
            content: of ``gpt-1.5b.json`` or ``bert-large.json`` of the shipped measurements.
            state: the model's.
        """
        rows = content["measured"]  # of data and pipeline degree, and what these take
        plans = [(Degrees(1, int(p), int(d)), float(rate)) for d, p, _, rate in rows]
        costs = Costs.of_parcae(content["model_build_ms"])
        return cls(f"{content['model']}-measured", state, costs, 1, chosen(plans, 1))

    @classmethod
    def modeled(cls, problem: Hybrid) -> Library:
        """Return the library of uniform plans on parts of a cluster, by the cost model.

        All degrees have the micro-batch and the recomputation that are fastest of those that fit
        the memory. Every replica holds the whole optimizer state (ZeRO 0), so that one can be lost.
        The problem's servers are the nodes.
        """
        cluster, devices = problem.cluster, problem.cluster.devices_per_server
        options = list(degrees_of(problem))
        best = np.zeros(len(options))
        tensor, pipeline, data = np.array(options).T
        for micro_batch, mode in product(*_MODES):
            batch = np.ceil(problem.batch / (data * micro_batch)) * data * micro_batch
            plans = Uniform(
                tensor, pipeline, data, micro_batch, batch, recompute=mode,
                sequence_parallel=tensor > 1,
            )  # fmt: skip
            seconds, memory = plans.judged(problem.model, cluster, problem.machine)
            fits = memory["total"] <= problem.memory_limit
            rate = (fits & (data * micro_batch <= problem.batch)) * problem.batch
            best = np.fmax(best, rate / seconds["length"])
        rated = [pair for pair in zip(options, best.tolist(), strict=True) if pair[1] > 0]
        state = State.of(problem.model)
        name, costs = f"{problem.instance} on {cluster}", Costs.of_state(state.bytes)
        return cls(name, state, costs, devices, chosen(rated, devices))


def happened(lost: Array, used: Array, needed: Array, borders: Array) -> Array:
    """Return what happened to plans, see ``EVENTS``, (k,) int64.

    Args:
        lost: (k, N+1) how many of the m oldest nodes left, by m.
        used: (k,) nodes of each plan that trained.
        needed: (k,) the same with its spares.
        borders: (k, G+1) first node of each group with the same part, see ``Library.borders``.
    """
    row = np.arange(len(lost))
    count = lost[row, used].astype(np.int64)
    # Spares stand in if no more nodes left, spares among them, than there are spares.
    ready = lost[row, np.minimum(needed, lost.shape[1] - 1)] <= needed - used
    event = np.where(ready, READY + count, np.minimum(count, LOST))
    # A group is gone if as many of its nodes left as it has.
    before, sizes = lost[row[:, None], borders], borders[:, 1:] - borders[:, :-1]
    event[((before[:, 1:] - before[:, :-1] == sizes) & (sizes > 0)).any(axis=1)] = GONE
    event[count == 0] = 0
    return event


@lru_cache(maxsize=4096)
def binomial(count: int, chance: float) -> Array:
    """Return the probabilities of 0 to ``count`` of so many nodes, (count + 1,)."""
    numbers = np.arange(count + 1)
    ways = np.array([comb(count, i) for i in range(count + 1)], float)
    return ways * chance**numbers * (1.0 - chance) ** numbers[::-1]


def replica_nodes(degrees: Degrees, devices: int) -> int | None:
    """Return on how many nodes each part of the state lies; None if that differs by part."""
    tensor, pipeline, data = degrees
    # A tensor-parallel group fills whole nodes: replicas are the data-parallel ranks.
    if tensor % devices == 0:
        return data
    if devices % tensor or (tensor * pipeline * data) % devices:
        return None
    # A stage fills whole nodes, each of which holds several data-parallel ranks.
    if (tensor * data) % devices == 0:
        return tensor * data // devices
    return 1 if devices % (tensor * data) == 0 else None


def chosen(plans: Iterable[tuple[Degrees, float]], devices: int) -> tuple[Candidate, ...]:
    """Return the candidates of a library, by their nodes.

    Of the degrees, those that come closest to the fastest of at most as many nodes; and with one
    spare, then with two, those that no other of at most as many nodes is faster than.
    """
    best, rows = 0.0, []
    for nodes, negative_rate, degrees in sorted((d.hosts(devices), -rate, d) for d, rate in plans):
        # Plans come by ascending nodes, so this is the fastest of at most as many.
        best = max(best, -negative_rate)
        rows.append((1 + negative_rate / best, nodes, degrees, -negative_rate))
    rows = sorted(rows)[:MAX_DEGREES]
    max_nodes = max(nodes for _, nodes, _, _ in rows)
    # A spare pays only beside a plan that is the fastest of its size.
    fastest = [row for row in sorted(rows, key=lambda row: -row[1]) if row[0] == 0.0]
    spared = [
        (nodes + spares, spares, degrees, rate)
        for spares, (_, nodes, degrees, rate) in product(range(1, MAX_SPARES + 1), fastest)
        if nodes + spares <= max_nodes
    ]
    bare = [(nodes, 0, degrees, rate) for _, nodes, degrees, rate in rows]
    rated = sorted(bare + spared[: MAX_PLANS - 1 - len(bare)])
    return tuple(Candidate(degrees, spares, rate) for _, spares, degrees, rate in rated)


def degrees_of(problem: Hybrid) -> Iterable[Degrees]:
    """Yield the degrees that fill whole nodes of a problem's cluster."""
    cluster, devices = problem.cluster, problem.cluster.devices_per_server
    for tensor in (t for t in range(1, devices + 1) if devices % t == 0):
        if problem.model.reasons_against_tp(tensor) is not None:
            continue
        # Devices that a tensor-parallel group leaves bound stages and replicas.
        max_replicas = cluster.devices // tensor
        for pipeline in range(1, min(len(problem.model), max_replicas) + 1):
            for data in range(1, min(max_replicas // pipeline, problem.batch) + 1):
                degrees = Degrees(tensor, pipeline, data)
                if replica_nodes(degrees, devices) is not None:
                    yield degrees


PRIOR = (3.6, 1200.0)
"""Departures, and intervals of a node, that ``departures`` counts before any are seen.

Chosen on the problem pool of training jobs.
"""


def departures(left: Any, exposure: Any, prior: tuple[float, float] = PRIOR) -> Any:
    """Return the expected probability that a node leaves, elementwise.

    It is the mean of a gamma distribution after Poisson counts, whose prior is known counts.

    Args:
        left: departures that were seen.
        exposure: intervals of a node in which they were seen.
        prior: the same, before any are seen; zeros give the share of departures itself.
    """
    # (k + alpha) / (n + beta): the posterior mean of a Poisson rate under a gamma prior.
    return (left + prior[0]) / np.maximum(exposure + prior[1], 1.0)


@lru_cache(maxsize=4096)
def intact(groups: int, replicas: int) -> tuple[float, ...]:
    """Return the probability that a replica of every part is left, by the number of nodes lost.

    All sets of lost nodes are equally likely: those that leave a replica in each group are counted
    by the coefficients of ((1 + x)^R - x^R)^G.
    """
    # (1 + x)^R - x^R: any loss within a group but that of all of its replicas.
    group_losses = np.array([float(comb(replicas, i)) for i in range(replicas)] + [0.0])
    sets = np.ones(1)
    for _ in range(groups):
        sets = np.convolve(sets, group_losses)
    nodes = groups * replicas
    # All C(nodes, a) sets of a lost nodes are equally likely.
    return tuple(float(sets[a]) / comb(nodes, a) for a in range(nodes + 1))


@lru_cache(maxsize=65536)
def plan_chances(used: int, spares: int, replicas: int, leave: float) -> Array:
    """Return the probabilities of what happens to a plan, (EVENTS, used + spares + 1).

    The second axis is the number of its nodes that leave, spares included.

    Args:
        used: nodes that train.
        spares: nodes that are kept as spares.
        replicas: nodes that hold the same part of the state.
        leave: probability that a node leaves.
    """
    result = np.zeros((EVENTS, used + spares + 1))
    used_chances = binomial(used, leave)
    spare_chances = binomial(spares, leave)
    # Given a lost nodes of a plan, all sets of them are equally likely.
    intact_chances = intact(used // replicas, replicas) if used else (1.0,)
    for lost, used_chance in enumerate(used_chances.tolist()):
        for spares_lost, spare_chance in enumerate(spare_chances.tolist()):
            chance = used_chance * spare_chance
            # A spare that leaves cannot stand in: a lost nodes need a spares that stay.
            is_ready = 0 < lost <= spares - spares_lost
            event = READY + lost if is_ready else min(lost, LOST)
            result[event, lost + spares_lost] += chance * intact_chances[lost]
            # Spares do not help where no replica of a part of the state is left.
            result[GONE, lost + spares_lost] += chance * (1.0 - intact_chances[lost])
    return result


@lru_cache(maxsize=1024)
def event_chances(library: Library, leave: float) -> Array:
    """Return the probabilities of what happens to each plan, (EVENTS, K); see ``plan_chances``."""
    return np.stack([plan_chances(*size, leave).sum(axis=1) for size in library.sizes], axis=1)
