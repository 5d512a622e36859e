"""Sequential tree-reweighted message passing (TRW-S) and the Lagrangian of the memory limit.

V. Kolmogorov, Convergent Tree-Reweighted Message Passing for Energy Minimization, TPAMI 2006: the
bound is that of section 5, taken in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from parenvs.agents.sharding.model import Arrays, ranges
from parenvs.compiled import compiled

_PATIENCE, _SHORTER, _MOMENTUM = 20, 0.85, 0.85
"""Sweeps without a better bound until steps become shorter, by how much, and their momentum."""
_PART = 1 << 24
"""Pairs of strategies that are swept at once, until the clock is looked at."""
_STEPS = 0.1, 2e-3
"""Length of the steps to begin with again, at the best prices, and length to end with."""


@compiled
def priced_costs(m: Arrays, price: np.ndarray, out: np.ndarray) -> None:
    """Write the costs of strategies with what their usage costs into ``out``, (s,).

    Args:
        m: the model.
        price: (T + 1,) sums of the prices of all times before each one.
        out: overwritten.
    """
    for node in range(len(m.offset) - 1):
        begin, end = m.offset[node], m.offset[node + 1]
        for s in range(begin, end):
            out[s] = m.costs[s]
        for term in range(m.term_start[node], m.term_start[node + 1]):
            each = price[m.term_times[term, 1]] - price[m.term_times[term, 0]]
            if each > 0.0:
                at = m.term_at[term] - begin
                for s in range(begin, end):
                    out[s] += each * m.usage[at + s]


@compiled
def sweep(
    m: Arrays,
    costs: np.ndarray,
    messages: np.ndarray,
    work: np.ndarray,
    marginals: np.ndarray,
    first: int,
    last: int,
) -> float:
    """Pass messages forward and backward once; return a lower bound of the minimum.

    It is infinite where everything is forbidden; messages are of no use then. A sweep of n nodes is
    2 n steps, and may be done in parts, whose bounds sum to its bound.

    Args:
        m: the model; its memory is left out.
        costs: (s,) costs of the strategies.
        messages: changed in place; zeros at first.
        work: as long as the most strategies of a node.
        marginals: (s,) overwritten: by how much each strategy raises the bound if it is taken. The
            least cost with it is no less than a bound of the same costs from the sweep before,
            plus this.
        first: first step.
        last: end of the steps.
    """
    count = len(m.offset) - 1
    bound = 0.0
    for turn in range(2):
        for step in range(max(first - turn * count, 0), min(last - turn * count, count)):
            node = step if turn == 0 else count - 1 - step
            begin, size = m.offset[node], m.offset[node + 1] - m.offset[node]
            after = 0
            for s in range(size):
                work[s] = costs[begin + s]
            for p in range(m.start[node], m.start[node + 1]):
                at = m.message[p]
                for s in range(size):
                    work[s] += messages[at + s]
                if m.neighbour[p] > node:
                    after += 1
            degree = m.start[node + 1] - m.start[node]
            share = 1.0 / max(after, degree - after, 1)
            if turn == 1:
                minimum = np.inf
                for s in range(size):
                    minimum = min(minimum, work[s])
                bound += minimum
                for s in range(size):
                    work[s] -= minimum if minimum < np.inf else 0.0
                    marginals[begin + s] = work[s]
            for p in range(m.start[node], m.start[node + 1]):
                other = m.neighbour[p]
                if (other > node) != (turn == 0):
                    continue
                width = m.offset[other + 1] - m.offset[other]
                into, row = m.message[m.reverse[p]], m.table[p]
                out = messages[into : into + width]
                own = messages[m.message[p] : m.message[p] + size]
                value = share * work[0] - own[0] if work[0] < np.inf else np.inf
                line = m.pair[row : row + width]
                for t in range(width):
                    out[t] = value + line[t]
                for s in range(1, size):
                    value = share * work[s] - own[s] if work[s] < np.inf else np.inf
                    row += width
                    line = m.pair[row : row + width]
                    for t in range(width):
                        total = value + line[t]
                        out[t] = total if total < out[t] else out[t]
                minimum = np.inf
                for t in range(width):
                    minimum = min(minimum, out[t])
                if minimum == np.inf:
                    return minimum
                for t in range(width):
                    out[t] -= minimum
                if turn == 1:
                    bound += minimum
    return bound


@compiled
def share_out(m: Arrays, costs: np.ndarray, messages: np.ndarray) -> None:
    """Leave to each edge to a node before the share that ``sweep`` sends on it, in place."""
    for node in range(len(m.offset) - 1):
        begin, size = m.offset[node], m.offset[node + 1] - m.offset[node]
        degree, before = m.start[node + 1] - m.start[node], 0
        for p in range(m.start[node], m.start[node + 1]):
            before += m.neighbour[p] < node
        share = 1.0 / max(degree - before, before, 1)
        for s in range(size):
            total = costs[begin + s]
            for p in range(m.start[node], m.start[node + 1]):
                total += messages[m.message[p] + s]
            for p in range(m.start[node], m.start[node] + before):
                messages[m.message[p] + s] -= share * total


@compiled
def decode(
    m: Arrays, costs: np.ndarray, messages: np.ndarray, chosen: np.ndarray, work: np.ndarray
) -> None:
    """Choose a strategy for each node in turn, by its costs, neighbours and messages.

    The memory is left out, and what is forbidden may be chosen where nothing else is left.
    """
    for node in range(len(m.offset) - 1):
        begin, size = m.offset[node], m.offset[node + 1] - m.offset[node]
        for s in range(size):
            work[s] = costs[begin + s]
        for p in range(m.start[node], m.start[node + 1]):
            other = m.neighbour[p]
            if other < node:
                row = m.table[m.reverse[p]] + chosen[other] * size
                for s in range(size):
                    work[s] += m.pair[row + s]
            else:
                at = m.message[p]
                for s in range(size):
                    work[s] += messages[at + s]
        best = 0
        for s in range(1, size):
            if work[s] < work[best]:
                best = s
        chosen[node] = best


@compiled
def profile(m: Arrays, chosen: np.ndarray, out: np.ndarray) -> None:
    """Write what a choice uses at each time into ``out``, (T + 1,) float64; the last is no time."""
    for t in range(len(out)):
        out[t] = 0.0
    for node in range(len(m.offset) - 1):
        for term in range(m.term_start[node], m.term_start[node + 1]):
            used = m.usage[m.term_at[term] + chosen[node]]
            out[m.term_times[term, 0]] += used
            out[m.term_times[term, 1]] -= used
    total = 0.0
    for t in range(len(out)):
        total += out[t]
        out[t] = total


class Dual:
    """Maximises the Lagrangian bound over the prices of memory.

    Attributes:
        bound: best bound so far.
        price: (T,) its prices.
        chosen: (n,) the last choice that was decoded; it may exceed the limit.

    Args:
        model: the problem.
        stopped: asked within sweeps whether to end; what is not swept by then stays as it is.
    """

    def __init__(self, model: Arrays, stopped: Callable[[], bool] = lambda: False) -> None:
        self.model, self.stopped = model, stopped
        steps = 2 * (len(model.offset) - 1)
        parts = max(2 * len(model.pair) // _PART, 1)
        self.part = max(-(-steps // parts), 1)
        times = len(model.slack)
        self.price = self.prices = np.zeros(times)
        self.momentum = np.zeros(times)
        self.costs = np.empty(len(model.costs))
        self.messages = np.zeros(int(model.message[-1]))
        self.best_messages = self.messages
        self.marginals = np.zeros(len(model.costs))
        self.work = np.zeros(int(np.diff(model.offset).max(initial=1)))
        self.chosen = np.zeros(len(model.offset) - 1, dtype=np.int64)
        self.used = np.zeros(times + 1)
        self.bound = -np.inf
        self.scale, self.stale = 1.0, 0

    def keep(self, kept: np.ndarray, model: Arrays) -> None:
        """Go on with some of the strategies, (s,) bool, whose model is given."""
        old = self.model
        sizes = np.diff(old.offset)
        source = np.repeat(np.arange(len(sizes)), np.diff(old.start))
        entry = kept[ranges(old.offset[source], sizes[source])]
        self.model, self.messages = model, self.messages[entry]
        self.best_messages = self.best_messages[entry]
        self.costs, self.marginals = self.costs[kept], self.marginals[kept]
        self.work = np.zeros(int(np.diff(model.offset).max(initial=1)))

    def sums(self, price: np.ndarray) -> np.ndarray:
        """(T + 1,) sums of the prices of all times before each one."""
        return np.concatenate([[0.0], np.cumsum(price)])

    def step(self, best: float) -> float:
        """Sweep once, then move the prices; return the bound at the prices before.

        Args:
            best: cost of the best plan so far, infinite if there is none.
        """
        model = self.model
        priced_costs(model, self.sums(self.prices), self.costs)
        value = self._sweep(self.messages) - float(self.prices @ model.slack)
        if not np.isfinite(value):  # it was stopped, or everything is forbidden
            return value
        if value > self.bound:
            gap = best - value if np.isfinite(best) else abs(value)
            much = not np.isfinite(self.bound) or value > self.bound + 1e-4 * abs(gap)
            self.stale = 0 if much else self.stale + 1
            self.bound, self.price = value, self.prices
            self.best_messages = self.messages.copy()
        else:
            self.stale += 1
        if self.stale > _PATIENCE:
            self.scale, self.stale = _SHORTER * self.scale, 0
            if self.scale < _STEPS[1]:
                self.scale = _STEPS[0]
                self.return_to_best()
        if len(model.slack):
            self.move(value, best)
        return value

    def return_to_best(self) -> None:
        """Go back to the best prices and their messages."""
        self.prices, self.messages = self.price, self.best_messages.copy()
        self.momentum = np.zeros(len(self.momentum))
        priced_costs(self.model, self.sums(self.prices), self.costs)

    def _sweep(self, messages: np.ndarray) -> float:
        """Pass messages once, in parts; return the bound without memory, -inf if it was stopped."""
        bound, end = 0.0, 2 * (len(self.model.offset) - 1)
        for first in range(0, end, self.part):
            if self.stopped():
                return -np.inf
            bound += sweep(
                self.model, self.costs, messages, self.work, self.marginals, first,
                min(first + self.part, end),
            )  # fmt: skip
        return bound

    def sweep(self, count: int) -> None:
        """Pass messages some times at the prices as they are."""
        for _ in range(count):
            self._sweep(self.messages)

    def settle(self, sweeps: int = 3) -> tuple[np.ndarray, np.ndarray]:
        """Return messages at the best prices, which are made better by some sweeps, and (s,) costs.

        The second is by how much each strategy raises the bound, nearly. Messages are such that
        least costs of nodes and of edges, each for itself, sum to it.
        """
        messages = self.best_messages.copy()
        priced_costs(self.model, self.sums(self.price), self.costs)
        for _ in range(sweeps):
            self._sweep(messages)
        share_out(self.model, self.costs, messages)
        return messages, self.marginals.copy()

    def move(self, value: float, best: float) -> None:
        """Take a step of Polyak's length along what the decoded choice uses beyond the limit."""
        model = self.model
        decode(model, self.costs, self.messages, self.chosen, self.work)
        profile(model, self.chosen, self.used)
        excess = self.used[:-1] - model.slack
        excess[(self.prices <= 0) & (excess < 0)] = 0.0
        length = float(excess @ excess)
        if not length:
            return
        top = best if np.isfinite(best) else value + 0.05 * abs(value) + 1.0
        target = self.bound + 0.3 * (top - self.bound)
        step = self.scale * max(target - value, 1e-6 * abs(value)) / length * excess
        self.momentum = _MOMENTUM * self.momentum + step
        self.prices = np.maximum(self.prices + self.momentum, 0.0)
