"""Problems of many episodes, looked up once: what episodes ask for again and again."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from parenvs.core.sets import proven_optimum
from parenvs.tasks.hybrid.turns.actions import MICRO_BATCHES, SERVERS, TPS
from parenvs.tasks.hybrid.turns.columns import Columns
from parenvs.tasks.hybrid.turns.problems import Setting
from parenvs.tasks.hybrid.turns.rules import Rules, TurnLimits, next_divisors

DOUBLINGS = 32
"""Batches and samples are below 2 to this."""
NEVER = 255
"""Stands for more stages than any plan has."""
CONSTANTS = 10
"""Whole numbers of a problem: see the attributes of ``Episodes``."""


class Slots:
    """What is looked up of problems, a row for each problem.

    Attributes:
        rules: what plans have in common.
        settings: the problems.
        groups: the problems as arrays; those of one group are judged together.
        arrays: name -> array, one row for each problem.
    """

    def __init__(self, rules: Rules) -> None:
        """Start without problems."""
        self.rules = rules
        self.groups: list[Columns] = []
        self.settings: list[Setting] = []
        self.arrays: dict[str, np.ndarray] = {}
        self._slot: dict[Setting, int] = {}

    @property
    def differ(self) -> bool:
        """Whether servers of a problem differ in speed."""
        return any(group.differ for group in self.groups)

    def find(self, setting: Setting) -> int:
        """Return the row of a problem, which is looked up if it is new."""
        if setting not in self._slot:
            self._slot[setting] = len(self.settings)
            self.settings.append(setting)
            self._add(setting)
        return self._slot[setting]

    def _add(self, setting: Setting) -> None:
        """Fill the next row of every array."""
        columns, problem = setting.columns, setting.problem
        number = next((k for k, x in enumerate(self.groups) if x.kind == columns.kind), None)
        if number is None:
            number, row = len(self.groups), 0
            self.groups.append(copy.copy(columns))  # what is added makes arrays of its own
        else:
            row = self.groups[number].add(columns)
        limits, shown = setting.limits, setting.shown
        constants = (number, row, limits.layers, limits.devices, limits.servers, limits.inside,
                     limits.batch, limits.unit, limits.least, _halvings(limits.batch))  # fmt: skip
        values: dict[str, Any] = {
            "constants": np.array(constants),
            "possible": bits_of([limits.tp, limits.shared]), "alone": _alone(limits),
            "rounds": _rounds(limits.batch), "opening": limits.opening,
            "longest": setting.longest, "work": shown.work, "speeds": shown.speeds,
            "optimum": proven_optimum(problem.instance) or np.nan,
            "chain": shown.chain, "cluster": shown.cluster, "numbers": shown.numbers,
        }  # fmt: skip
        count = len(self.settings)
        for name, value in values.items():
            array = self.arrays.get(name)
            if array is None or len(array) < count:
                wider = np.zeros((2 * count, *np.shape(value)), np.asarray(value).dtype)
                if array is not None:
                    wider[: len(array)] = array
                self.arrays[name] = array = wider
            array[count - 1] = value


def bits_of(which: Any) -> np.ndarray:
    """(...) uint8, bit b of which says whether entry b of (..., 4) is true."""
    return np.packbits(np.asarray(which, dtype=np.bool_), axis=-1, bitorder="little")[..., 0]


def _halvings(number: int) -> int:
    """Return how often a number can be halved."""
    return (number & -number).bit_length() - 1


def _alone(limits: TurnLimits) -> np.ndarray:
    """(5,) bits of the ``TPS`` by which one stage on all devices takes whole micro-batches.

    Entry j is for micro-batches of ``MICRO_BATCHES[j]`` samples in a replica.
    """
    ranks, samples = np.array(TPS), np.array(MICRO_BATCHES)[:, None]
    whole = samples * np.maximum(limits.devices // ranks, 1)
    return bits_of((limits.devices % ranks == 0) & (limits.batch % whole == 0))


def _rounds(batch: int) -> np.ndarray:
    """(32, 66) smallest divisor, from each number on, of a batch over 2 to the row's number."""
    table = np.full((DOUBLINGS, SERVERS + 2), NEVER, dtype=np.uint8)
    for doublings in range(_halvings(batch) + 1):
        table[doublings] = np.minimum(next_divisors(batch >> doublings), NEVER)
    return table
