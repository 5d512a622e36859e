"""The search for plans of a reduced problem: bound, plans and proofs side by side until time is up.

The search adapts to sizes, times and its own gains, never to a problem's name.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache

import numpy as np

from parenvs.agents.sharding.loops import Chain, Dual, complete, empty_tree
from parenvs.agents.sharding.program import (
    Certificate,
    CoreProgram,
    Tree,
    certify,
    core_size,
    restricted,
)
from parenvs.tasks.sharding.messages import arrays_of
from parenvs.tasks.sharding.problem import NEVER, Array, Reduced

# Pairs of a core that HiGHS is given as a whole, and the share of them that it is given anew.
_PROGRAM, _SHRUNK = 60_000, 2 / 3
# Share of the pairs that are left where the search goes on without the others.
_FEWER = 0.95
# Share of the time left that HiGHS has for plans of a core; the rest is for what proves them.
_HALF = 0.5
# Nodes of the trees of a core, and of a part, where no time ends them.
_NODES = 2_000
# A trivial bound.
_NOTHING = -(10**30)
# Pairs of a part that HiGHS solves anew.
_PART = 12_000
# Temperatures to begin with, as shares of the plan's cost by node.
_WARM = (30.0, 0.03, 3.0, 0.3)
# Temperatures of coolings that begin anew.
_HOT = (3.0, 10.0)
# Most nodes of a tree that is moved.
_LARGEST = (60, 400)
# Shares of the time left for first prices, and a first cooling by them; for good prices; and for
# coolings by those. Steps of prices are as long as the gap between bound and plan asks for, so
# that a plan that is bad makes prices bad, and those make bad plans.
_EARLY, _BOUND, _LONG = 0.05, 0.25, 0.5
# Moves of the shortest cooling, by node and at least, and sweeps that make its first plan
# another. Few nodes of many strategies need as many moves as many nodes.
_COOLING, _SWEEPS = (40, 200_000), (5, 50)
# Gap, as a share of the cost, from which on the proof is waited for.
_CLOSE = 2e-6
# Share of the gap by which a bound is better before it is made exact anew.
_GAIN = 1e-3
# The search looks for a smaller core so seldom that it takes one part of so many of the time.
_LOOKS = 50
# Least seconds that a move counts, whatever a clock says.
_FASTEST = 1e-7
# Seconds that HiGHS's thread has to end.
_ENDING = 1.0


def luby(number: int) -> int:
    """Return a member, from 1 on, of the sequence 1, 1, 2, 1, 1, 2, 4, ..."""
    whole = number.bit_length()
    return 2 ** (whole - 1) if number == 2**whole - 1 else luby(number - 2 ** (whole - 1) + 1)


class Clock:
    """The time, and the rounds, that a search has.

    Args:
        seconds: time limit; None: none.
        steps: limit of rounds; None: none.
        processor: whether seconds are those of the process, for a machine that others use, too.
    """

    def __init__(self, seconds: float | None, steps: int | None, processor: bool = False) -> None:
        self.now = time.process_time if processor else time.monotonic
        self.begin, self.seconds, self.steps, self.round = self.now(), seconds, steps, 0

    @property
    def spent(self) -> float:
        """Seconds since the beginning."""
        return self.now() - self.begin

    @property
    def left(self) -> float:
        """Seconds left; infinite without a limit."""
        return np.inf if self.seconds is None else self.seconds - self.spent

    @property
    def over(self) -> bool:
        """Whether time or rounds are used up."""
        return self.left <= 0 or (self.steps is not None and self.round >= self.steps)


class Solving(threading.Thread):
    """A thread that solves a core by HiGHS and by exact branch and bound.

    Args:
        kept: (s,) bool, strategies that a plan can take that costs less than ``cost``.
        numbers: (s,) the strategies' numbers, ascending, by which plans are reported.
        cost: cost to undercut, without the constant.
        start: (n,) a legal plan of the core, or None.
        price: (T,) prices of memory.
        seconds: time limit; None: nodes of the trees are limited, and it ends before this returns.

    Attributes:
        plans: legal plans that were found, (n,) numbers of strategies each.
        bound: lower bound of the cost of plans, without the constant.
        error: the exception that ended it, or None.
    """

    def __init__(
        self,
        reduced: Reduced,
        kept: Array,
        numbers: Array,
        cost: int,
        start: Array | None,
        price: Array,
        seconds: float | None,
    ) -> None:
        super().__init__(daemon=True)
        self.core, self.size = restricted(reduced, kept), core_size(reduced, kept)
        self.strategies = numbers[kept]
        self.cost, self.price, self.seconds = cost, price, seconds
        self.first = None
        if start is not None:
            index = np.searchsorted(self.strategies, numbers[reduced.offset[:-1] + start])
            self.first = index - self.core.offset[:-1]
        self.plans: deque[Array] = deque()
        self.bound = _NOTHING
        self.error: BaseException | None = None
        self.stopped = threading.Event()
        self.start()
        if seconds is None:
            self.join()

    def run(self) -> None:
        """Search, and keep the error that ends it for the thread that collects."""
        try:
            self._solve()
        except BaseException as error:
            self.error = error

    def _offer(self, chosen: Array) -> None:
        self.cost = min(self.cost, self.core.cost(chosen) - self.core.constant)
        self.plans.append(self.strategies[self.core.offset[:-1] + chosen])

    def _solve(self) -> None:
        end = np.inf if self.seconds is None else time.monotonic() + self.seconds
        node_limit = None if self.seconds is not None else _NODES
        tree = Tree(CoreProgram(self.core, self.price, self.stopped.is_set), self.cost)

        def grow(seconds: float, nodes: int) -> None:
            tree.cost = min(tree.cost, self.cost)
            tree.run(seconds, nodes)
            if tree.chosen is not None and tree.cost < self.cost:
                self._offer(tree.chosen)
            self.bound = max(self.bound, tree.bound)

        grow(end - time.monotonic(), 1)
        if not tree.over:
            # Not the tree's program, whose basis the change to whole numbers would lose.
            program = CoreProgram(self.core, self.price, self.stopped.is_set)
            program.solve(_HALF * (end - time.monotonic()), self._offer, self.first, node_limit)
        grown = 0
        while not (tree.over or self.stopped.is_set() or time.monotonic() >= end):
            if node_limit is not None and grown >= node_limit:
                break
            grow(end - time.monotonic(), 50)
            grown += 50


@cache
def prepare() -> None:
    """Compile the loops, or load them, once per process: this is no part of a time limit."""
    pair = np.arange(2)
    toy = Reduced(
        None, pair, 2 * np.arange(3), np.arange(4), pair[None], 4 * pair, np.arange(4), pair,
        np.array([[0, 1], [0, 1]]), 2 * np.arange(3), np.arange(4), np.ones(1, np.int64), 0,
        np.zeros(4, np.int64), (),
    )  # fmt: skip
    search = Search(toy, Clock(None, 1))
    search.raise_bound(1.0, 2)
    search.dual.settle()
    search.chosen = np.zeros(2, np.int64)
    search.anneal(Arm(0.03, 2), moves=1)


@dataclass
class Arm:
    """A way to search, and its success so far.

    Attributes:
        warm: first temperature, as a share of the cost by node; 0: a part by HiGHS.
        score: decayed gains by second, as shares of the cost.
    """

    warm: float
    largest: int
    score: float = 0.0
    tried: int = 0


@dataclass(eq=False)
class Search:
    """A search on one reduced problem of at least one node.

    Attributes:
        reduced: the problem; strategies that no better plan can take are removed during the search.
        threads: chains of moves that run at once.
        chosen: best choice so far, or None.
        cost: its cost without the constant, a whole number; infinite without one.
    """

    reduced: Reduced
    clock: Clock
    seed: int = 0
    threads: int = 1
    chosen: Array | None = None
    cost: float = np.inf
    bound: int = _NOTHING

    def __post_init__(self) -> None:
        """Make the arrays of the problem."""
        self.model = arrays_of(self.reduced)
        self.numbers = np.arange(len(self.reduced.costs))  # of the strategies that are left
        self.dual = Dual(self.model, lambda: self.clock.left <= 0)
        self.rng = np.random.default_rng(self.seed)
        others = [np.random.default_rng([self.seed, k]) for k in range(1, self.threads)]
        self.rngs = [self.rng, *others]
        self.empty = empty_tree(self.model)
        self.widest = int(self.model.size.max())
        self.decoded: Array | None = None  # cheapest plan that messages led to
        self.decoded_cost = np.inf
        self.solving: Solving | None = None
        self.certified = -np.inf  # bound of the dual at the last certificate
        self.looked_cost = np.inf  # cost at the last look for a core
        self.next_look = 0.0  # seconds from which on the next look may be
        # Strategies that better plans could take at the last look for a core.
        self.kept: Array | None = None
        self.length = 20 * len(self.reduced)
        self.move_seconds = 5e-5  # running mean

    # What is known

    @property
    def proven(self) -> bool:
        """Whether no plan is cheaper than the best one."""
        return self.bound >= self.cost

    @property
    def infeasible(self) -> bool:
        """Whether it is proven that there is no plan."""
        return self.chosen is None and self.bound >= NEVER

    def offer(self, chosen: Array) -> None:
        """Take a choice if it is legal and cheaper."""
        cost = self.reduced.cost(chosen) - self.reduced.constant
        if cost < self.cost and self.reduced.legal(chosen):
            self.chosen, self.cost = chosen.copy(), cost

    def certificate(self) -> Certificate:
        """Raise the bound to the exact one of the best prices; return its certificate."""
        messages, _ = self.dual.settle()
        certificate = certify(self.reduced, self.model, self.dual.price, messages)
        cost = int(min(self.cost, NEVER))
        closed = not np.logical_or.reduceat(certificate.better(cost), self.model.offset[:-1]).all()
        self.bound = max(self.bound, cost if closed else min(certificate.bound, cost))
        self.certified = self.dual.bound
        return certificate

    # The search

    def run(self) -> None:
        """Search until the time is up, the best plan is proven, or the user interrupts."""
        try:
            self._run()
        except KeyboardInterrupt:
            pass
        finally:
            if self.solving is not None:
                self.solving.stopped.set()
                # A thread inside HiGHS when the interpreter ends would abort the process.
                self.solving.join(_ENDING)

    def _run(self) -> None:
        self.raise_bound(0.03, 200)
        self.look_for_core()
        self._wait_for_small_core()
        is_large = self.solving is None and not self.proven
        is_long = is_large and self.clock.seconds is not None
        if is_long:
            self.raise_bound(_EARLY, 10_000)
            self.cool(_WARM[2], share=_EARLY)
        self.raise_bound(_BOUND if is_large else 0.3, 10_000)
        self.shrink()
        if is_long:
            self.restart(_LONG)
        self._try_arms()
        self.collect()

    def _wait_for_small_core(self) -> None:
        if self.solving is None or self.solving.size > _PART:
            return
        until = self.clock.spent + _EARLY * 5 * self.clock.left
        while self.solving.is_alive() and self.clock.spent < until:
            self.solving.join(0.05)
            self.collect()
        self.collect()

    def _try_arms(self) -> None:
        """Try arms, and raise the bound every sixth turn, until the time is over."""
        # The last arm solves a part by HiGHS, the others move over trees.
        arms = [Arm(warm, large) for large in _LARGEST for warm in _WARM] + [Arm(0.0, 0)]
        turn = 0
        while not self.clock.over and not self.proven:
            self.collect(look=True)
            self.shrink()
            is_close = self.cost - self.bound <= _CLOSE * abs(self.cost)
            if is_close and self.solving is not None and self.solving.is_alive():
                self.solving.join(0.05)
                continue
            self.clock.round += 1
            if self.chosen is None or turn % 6 == 5:
                self.raise_bound(0.05, 200)
            else:
                self.try_arm(self.pick(arms))
            turn += 1

    def raise_bound(self, share: float, sweeps: int) -> None:
        """Improve prices and bound, and decode plans from the messages on the way."""
        until = self.clock.spent + share * self.clock.left
        for turn in range(sweeps):
            if self.clock.left <= 0 or self.proven or (turn and self.clock.spent >= until):
                break
            self.dual.step(float(self.cost))
            if self.clock.left > 0 and (turn % 8 == 0 or self.chosen is None):
                self.decode()
                if self.dual.bound >= self.cost - 0.5:
                    self.certificate()
            self.collect(look=self.clock.seconds is not None)
        reached = self.dual.bound
        if np.isfinite(reached) and reached - self.certified > _GAIN * (self.cost - reached):
            self.certificate()

    def decode(self) -> Array | None:
        """Return the plan that the messages and prices lead to; None if it is illegal."""
        chosen = np.zeros(len(self.reduced), np.int64)
        allowed = np.ones(len(self.model.costs), np.int8)
        dual, tree = self.dual, self.empty.copy()
        missed = complete(self.model, dual.costs, dual.messages, tree, allowed, chosen, dual.work)
        if missed >= 0 or not self.reduced.legal(chosen):
            return None
        self.offer(chosen)
        cost = self.reduced.cost(chosen)
        if cost < self.decoded_cost:
            self.decoded, self.decoded_cost = chosen, cost
        return chosen

    # HiGHS

    def look_for_core(self) -> None:
        """Give HiGHS the strategies of better plans, if few and a third fewer than before."""
        if self.proven or self.clock.left <= 1:
            return
        begin = self.clock.spent
        certificate, self.looked_cost = self.certificate(), self.cost
        kept = certificate.better(int(min(self.cost, NEVER)))
        if self.chosen is not None:
            kept[self.model.offset[:-1] + self.chosen] = True
        before = _PROGRAM if self.solving is None else _SHRUNK * self.solving.size
        if not self.proven and core_size(self.reduced, kept) <= min(_PROGRAM, before):
            if self.solving is not None:
                self.solving.stopped.set()
                self.collect()
            # HiGHS counts seconds of the wall, of which there are more than those of the process.
            share = 10.0 if self.clock.now is time.process_time else 1.0
            seconds = None if self.clock.seconds is None else share * self.clock.left
            cost, price = int(min(self.cost, NEVER)), self.dual.price.copy()
            self.solving = Solving(
                self.reduced, kept, self.numbers, cost, self.chosen, price, seconds
            )
            self.collect()
        self.kept = kept
        self.next_look = self.clock.spent + _LOOKS * (self.clock.spent - begin)

    def shrink(self) -> None:
        """Remove the strategies that no better plan can take, if they are a good part of all.

        No chain may be moving, as the arrays of the problem are replaced.
        """
        kept, self.kept = self.kept, None
        if kept is None or self.chosen is None:
            return
        before = self.model.offset[:-1]
        kept[before + self.chosen] = True
        ratio = core_size(self.reduced, kept) / max(len(self.reduced.edge_costs), 1)
        # Rebuilding the arrays takes time, so a few pairs less are not worth it.
        if ratio > _FEWER:
            return
        strategies, plans = np.flatnonzero(kept), (self.chosen, self.decoded)
        self.reduced = restricted(self.reduced, kept)
        self.model = arrays_of(self.reduced)
        self.dual.keep(kept, self.model)
        self.numbers = self.numbers[kept]
        self.widest = int(self.model.size.max())
        self.chosen, self.decoded = (
            None if plan is None else self.choice_of(strategies, before + plan) for plan in plans
        )
        if self.decoded is None:
            self.decoded_cost = np.inf

    def choice_of(self, numbers: Array, strategies: Array) -> Array | None:
        """Return a plan, (n,) numbers of strategies, as a choice of the strategies that are left.

        Args:
            numbers: (s,) numbers of the strategies that are left, ascending.
            strategies: the plan.

        Returns:
            (n,), or None if the plan takes a strategy that was removed.
        """
        index = np.minimum(np.searchsorted(numbers, strategies), len(numbers) - 1)
        is_left = (numbers[index] == strategies).all()
        return index - self.model.offset[:-1] if is_left else None

    def collect(self, look: bool = False) -> None:
        """Take the plans and the bound that HiGHS has found; raise its errors.

        Args:
            look: whether to look for a smaller core if there is a better plan than last time.
        """
        solving = self.solving
        if solving is not None:
            if solving.error is not None:
                raise solving.error
            bound = solving.bound  # of plans that are offered by now
            while solving.plans:
                chosen = self.choice_of(self.numbers, solving.plans.popleft())
                if chosen is not None:  # else it is no better
                    self.offer(chosen)
            self.bound = max(self.bound, bound)
        is_due = self.clock.seconds is None or self.clock.spent >= self.next_look
        if look and is_due and self.cost < self.looked_cost:
            self.look_for_core()

    def solve_part(self) -> None:
        """Solve a connected part of the plan anew by HiGHS, the rest as it is."""
        assert self.chosen is not None
        model, count = self.model, len(self.reduced)
        kept = np.zeros(len(model.costs), bool)
        kept[model.offset[:-1] + self.chosen] = True
        _, marginals = self.dual.settle(2)
        depth = float(self.rng.choice([0.5, 0.8, 1.0]))
        waiting = [int(self.rng.integers(count))]
        seen = set(waiting)
        while waiting:
            node = waiting.pop(int(self.rng.integers(len(waiting))))
            begin, end = int(model.offset[node]), int(model.offset[node + 1])
            before = kept[begin:end].copy()
            top = np.quantile(marginals[begin:end], depth)
            kept[begin:end] |= marginals[begin:end] <= top
            if core_size(self.reduced, kept) > _PART + count:
                kept[begin:end] = before
                break
            for other in model.neighbor[model.start[node] : model.start[node + 1]].tolist():
                if other not in seen:
                    seen.add(other)
                    waiting.append(other)
        part, strategies = restricted(self.reduced, kept), np.flatnonzero(kept)
        is_timed = self.clock.seconds is not None
        limit = min(self.clock.left, max(2.0, 0.05 * self.clock.left), 20.0) if is_timed else np.inf
        first = model.offset[:-1]
        start = np.searchsorted(strategies, first + self.chosen) - part.offset[:-1]
        CoreProgram(part, self.dual.price).solve(
            limit,
            lambda chosen: self.offer(strategies[part.offset[:-1] + chosen] - first),
            start,
            None if is_timed else _NODES,
        )

    # Moves over trees

    def pick(self, arms: list[Arm]) -> Arm:
        """Return an arm that was not tried yet, the best one, or a random one."""
        if self.clock.seconds is None:
            return arms[self.clock.round % len(arms)]
        fresh = [arm for arm in arms if not arm.tried]
        if fresh:
            return fresh[0]
        # Explore: what gained nothing early may gain later.
        if self.rng.random() < 0.3:
            return arms[int(self.rng.integers(len(arms)))]
        return max(arms, key=lambda arm: arm.score)

    def try_arm(self, arm: Arm) -> None:
        """Search in one way, and update its score."""
        begin, before = self.clock.spent, self.cost
        if arm.warm:
            self.anneal(arm)
        elif self.solving is None or not self.solving.is_alive():
            self.solve_part()
        gain = (before - self.cost) / max(abs(before), 1.0)
        # Exponential average of gains per second.
        arm.score = 0.5 * arm.score + gain / max(self.clock.spent - begin, 1e-3)
        arm.tried += 1

    def restart(self, share: float) -> None:
        """Cool again and again for a share of the time, from decoded plans.

        Starts alternate between the cheapest decoded plan and a new one. Lengths follow M. Luby, A.
        Sinclair and D. Zuckerman (1993), as the best length is unknown.
        """
        turn, until = 0, self.clock.spent + share * self.clock.left
        while self.clock.spent < until and not self.proven:
            turn += 1
            least = max(_COOLING[0] * len(self.reduced), _COOLING[1])
            moves = min(least * luby(turn), int((until - self.clock.spent) / self.move_seconds))
            start = self.decoded if turn % 2 else None
            self.cool(_HOT[turn // 2 % len(_HOT)], moves=moves, start=start)

    def cool(
        self,
        warm: float,
        share: float | None = None,
        moves: int | None = None,
        start: Array | None = None,
    ) -> None:
        """Anneal from a decoded plan, or from the given one; see ``anneal``.

        The best plan is no good start: it fills the memory, so that moves from it are slow.
        """
        if self.clock.left <= 0:
            return
        self.dual.return_to_best()
        for _ in range(int(self.rng.integers(*_SWEEPS))):
            self.dual.sweep(self.dual.messages)
        fresh = self.decode()
        start = fresh if start is None else start
        if start is None:
            self.raise_bound(0.01, 20)
        if self.chosen is not None and not self.proven and self.clock.left > 0:
            before = self.chosen
            ended = self.anneal(Arm(warm, _LARGEST[0]), share, start, moves)
            self.combine(before, ended)
            self.shrink()

    def combine(self, *others: Array) -> None:
        """Take connected parts in which the best plan differs from others, where they are cheaper.

        Args:
            others: (n,) legal plans.
        """
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import connected_components

        assert self.chosen is not None
        for other in others:
            differs = self.chosen != other
            inside = self.reduced.ends[differs[self.reduced.ends].all(axis=1)]
            shape = len(other), len(other)
            links = coo_array((np.ones(len(inside)), (inside[:, 0], inside[:, 1])), shape=shape)
            part = connected_components(links, directed=False)[1]
            for label in np.unique(part[differs]).tolist():
                if self.clock.left <= 0:
                    return
                self.offer(np.where(differs & (part == label), other, self.chosen))

    def anneal(
        self,
        arm: Arm,
        share: float | None = None,
        start: Array | None = None,
        moves: int | None = None,
    ) -> Array:
        """Move over trees, from warm to cold.

        Args:
            arm: first temperature and size of trees.
            share: share of the time left (default: grows with the arm's trials).
            start: (n,) plan to begin with (default: the best one).
            moves: number of moves (default: as many as fit).

        Returns:
            (n,) the plan at which the first chain ended.
        """
        assert self.chosen is not None
        start = self.chosen if start is None else start
        model = self.model
        # The price of memory alone.
        priced = self.dual.priced(self.dual.price) - model.costs
        largest = min(arm.largest, len(self.chosen))
        chains = [Chain(model, self.empty, start, rng, largest, self.widest) for rng in self.rngs]
        warm = arm.warm * max(abs(self.cost), 1.0) / len(self.chosen)
        total = self.length * (1 + arm.tried)
        if moves is not None:
            total = max(moves, 50)
        elif np.isfinite(self.clock.left):
            total = max(int(min(total, 0.25 * self.clock.left / self.move_seconds)), 50)
        done, batch_size = 0, max(min(total // 10, int(0.5 / self.move_seconds)), 1)
        start_cost = self.reduced.cost(start) - self.reduced.constant
        until = self.clock.spent + (share or 0.0) * self.clock.left
        with ThreadPoolExecutor(len(chains)) as pool:
            while done < total and self.clock.left > 0 and not self.proven:
                begin = self.clock.spent
                if share is not None:
                    total = done + max(int((until - self.clock.spent) / self.move_seconds), 1)
                batch = min(batch_size, total - done)
                leads = [max(0.0, start_cost + chain.change - self.cost) for chain in chains]
                futures = [
                    pool.submit(chain.move, priced, warm, done, batch, total, lead)
                    for chain, lead in zip(chains, leads, strict=True)
                ]
                for chain, future in zip(chains, futures, strict=True):
                    future.result()
                    self.offer(chain.best)
                done += batch
                seconds = max((self.clock.spent - begin) / batch, _FASTEST)
                self.move_seconds += 0.3 * (seconds - self.move_seconds)
                self.collect(look=self.clock.seconds is not None)
        return chains[0].chosen
