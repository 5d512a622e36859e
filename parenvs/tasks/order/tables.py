"""Problems of ``MicroBatchOrder-v0`` in arrays of one size, and where environments get them from.

Stages are the last columns of every array: problems of fewer than ``STAGES`` have stages of 0
seconds in front, which change no bit (``parenvs.tasks.order.formulas``). Rows beyond the
micro-batches, and the one that stands for none, are 0.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from parenvs.core.problem import problem as problem_of
from parenvs.core.sets import proven_optimum
from parenvs.core.source import Stream
from parenvs.datasets.order import named as orders
from parenvs.datasets.order.drawing import TIERS
from parenvs.errors import InfeasibleError, ParenvsError, shown
from parenvs.tasks.order import formulas
from parenvs.tasks.order.load import ORDER_SETS, load_ordering
from parenvs.tasks.order.problem import Order
from parenvs.tasks.order.task import TASK

STAGES, MICRO_BATCHES = 16, 64
"""Most stages and micro-batches of a problem."""
NUMBERS = ("stages", "micro_batches", "placed", "bound", "elapsed")
"""Names of the observation's ``numbers``."""
SECONDS = ("forward_seconds", "backward_seconds")
"""Names of the observation's seconds; a network of torch cannot have a part called forward."""
WAIT = formulas.warming(STAGES, MICRO_BATCHES + STAGES)
"""Row of a turn: -inf for stages that do no backward pass yet."""


class OrderTables(NamedTuple):
    """A problem as the environments play it.

    Attributes:
        problem: the problem.
        stages: S.
        micro_batches: M.
        bound: seconds, ``Order.bound_seconds``.
        unit: seconds of the longest pass.
        before: (65, 16) float64, see ``formulas.Seconds``.
        through: (65, 16) float64.
        backward: (65, 16) float64.
        observed: (2, 64, 16) float32, forward and backward seconds over ``unit``.
        numbers: (5,) float32, constant part of the observation's ``numbers``.
        key: names the problem if it is one of a set or a pool, else empty.
        optimum: the largest return, if it is proven (problems of sets), else NaN.
    """

    problem: Order
    stages: int
    micro_batches: int
    bound: float
    unit: float
    before: np.ndarray
    through: np.ndarray
    backward: np.ndarray
    observed: np.ndarray
    numbers: np.ndarray
    key: str = ""
    optimum: float = np.nan

    @property
    def instance(self) -> str:
        """Name or path of the instance."""
        return self.problem.instance

    @classmethod
    def of(cls, problem: Order) -> OrderTables:
        """Make the arrays of a problem.

        Raises:
            InfeasibleError: it has more stages or micro-batches than the environment.
        """
        stages, count = problem.forward.shape
        if stages > STAGES or count > MICRO_BATCHES:
            raise InfeasibleError(
                f"{problem.instance}: {count} micro-batches on {stages} stages; MicroBatchOrder-v0 "
                f"has at most {MICRO_BATCHES} on {STAGES}"
            )
        padded = [np.zeros((STAGES, MICRO_BATCHES)) for _ in range(2)]
        padded[0][STAGES - stages :, :count] = problem.forward
        padded[1][STAGES - stages :, :count] = problem.backward
        unit = float(max(problem.forward.max(), problem.backward.max()))
        observed = np.stack([x.T for x in padded]) / unit
        numbers = [
            stages / STAGES,
            count / MICRO_BATCHES,
            0.0,
            min(problem.bound_seconds / unit / (2 * MICRO_BATCHES + 2 * STAGES), 1.0),
            0.0,
        ]
        return cls(
            problem,
            stages,
            count,
            problem.bound_seconds,
            unit,
            *formulas.Seconds.of(*padded),
            observed.astype(np.float32),
            np.array(numbers, dtype=np.float32),
        )


def drawn(tier: str | None, ranges: str, pool: int | None, stream: Stream) -> OrderTables:
    """Draw a problem.

    Args:
        tier: its tier, or None to draw the tier, too.
        ranges: a key of ``parenvs.datasets.order.named.RANGES``.
        pool: number of different problems (None: a new one each time).
        stream: what it is drawn from.
    """
    rng = stream.rng
    if tier is None:
        tier = list(TIERS)[int(rng.integers(len(TIERS)))]
    if pool is None:
        return OrderTables.of(orders.drawn_by(rng, tier, ranges))
    return pooled(tier, ranges, int(rng.integers(pool)))


@lru_cache(maxsize=8192)
def pooled(tier: str, ranges: str, number: int) -> OrderTables:
    """Return problem ``number`` of the pool of a tier, the same in every process."""
    problem = orders.numbered(number, tier, ranges)
    return OrderTables.of(problem)._replace(key=problem.instance)


@lru_cache(maxsize=512)
def _of_set(name: str) -> OrderTables:
    optimum = proven_optimum(name)
    tables = OrderTables.of(load_ordering(name))
    return tables._replace(key=name, optimum=np.nan if optimum is None else optimum)


def named(name: object) -> OrderTables:
    """Return the problem of a shipped set, a drawn one, or that of a file, which is read anew.

    Raises:
        ParenvsError: there is no such problem, or it is too large.
    """
    if not isinstance(name, str):
        raise ParenvsError(f"'instance' must be the name of a problem, not {shown(name)}")
    if name in ORDER_SETS:
        raise ParenvsError(f"'instance' must name one problem of {name}, such as {name}/p4-m8-000")
    if name.split("/")[0] in ORDER_SETS:
        return _of_set(name)
    return OrderTables.of(problem_of(name, task=TASK.name))
