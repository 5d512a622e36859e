"""What a change of plan costs besides the bytes: seconds of restarts, groups and checkpoints."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from parenvs.tasks.elastic.movement import (
    EGRESS_BYTES,
    FIXED_SECONDS,
    SLICED_BYTES,
    Degrees,
    Movement,
)

CHECKPOINT_BYTES = 23e9
"""Bytes of the state of GPT-1.5B, to which the seconds of checkpoints apply."""


@dataclass(frozen=True)
class Costs:
    """Seconds and bytes a second of a system that changes plans.

    Attributes:
        fixed: seconds of every planned change: rendezvous, processes.
        join: seconds to form one group of processes when nodes join.
        leave: the same when none does.
        build: (stages, seconds) to build the model of a stage, at some numbers of stages.
        restart: (nodes, seconds) to start anew when nobody was ready, at some numbers of nodes.
        egress: bytes a second that a node sends.
        sliced: bytes a second that are cut or put together.
        save: seconds in which training waits for a checkpoint to be written.
        load: seconds to read one.
        every: intervals between two checkpoints.
        source: where the numbers are from.
    """

    fixed: float = FIXED_SECONDS
    join: float = 0.0
    leave: float = 0.0
    build: tuple[tuple[float, float], ...] = ((1, 0.0),)
    restart: tuple[tuple[float, float], ...] = (
        (1, 28.76), (2, 33.587), (4, 36.189), (8, 40.882), (12, 39.02), (16, 42.892), (20, 36.749),
        (24, 37.849), (32, 37.588),
    )  # fmt: skip
    egress: float = EGRESS_BYTES
    sliced: float = SLICED_BYTES
    save: float = 7.0
    load: float = 7.0
    every: int = 10
    source: str = (
        "changes: fit to Tenplex (SOSP 2024); restarts and checkpoints: Parcae (NSDI 2024)"
    )

    def planned(self, movement: Movement, new: Degrees, joins: bool) -> float:
        """Return the seconds of a change that was planned, or for which spares were ready.

        Args:
            movement: what moves.
            new: degrees of the new plan; there is a group for each replica and stage, one of all
                ranks, and one for each pair of replica and stage (Parcae's rule).
            joins: whether the new plan takes more nodes than are left of the old one.
        """
        data, stages = new.data, new.pipeline
        groups = data + stages + 1 + data * stages
        formed = groups * (self.join if joins else self.leave)
        moved = movement.seconds(0.0, self.egress, self.sliced)
        return self.fixed + formed + _at(self.build, stages) + moved

    def unplanned(self, movement: Movement | None, new: Degrees, devices: int) -> float:
        """Return the seconds of a stop, until a plan trains.

        Args:
            movement: what moves from the nodes that are left; None if a checkpoint is read.
            new: degrees of the new plan.
            devices: of a node.
        """
        moved = self.load if movement is None else movement.seconds(0.0, self.egress, self.sliced)
        return _at(self.restart, new.hosts(devices)) + moved

    @classmethod
    def of_state(cls, size: float) -> Costs:
        """Return the default costs, with checkpoints of so many bytes.

        They are written and read at the rate of the defaults, which are of GPT-1.5B.
        """
        seconds = size / CHECKPOINT_BYTES
        return cls(save=cls.save * seconds, load=cls.load * seconds)

    @classmethod
    def of_parcae(cls, build: dict[str, Any]) -> Costs:
        """Return what Parcae measured on p3.2xlarge, with a model's milliseconds by stages.

        A checkpoint is saved and loaded in 14 s there, of which either is taken to be half.
        """
        points = tuple(sorted((float(key), value / 1e3) for key, value in build.items()))
        return replace(
            cls(), fixed=6.6 + 0.24 + 0.035, join=0.5, leave=0.0393, build=points,
            egress=2**30 / 1.1982559, source="Parcae (NSDI 2024), liveput/cost_cfg.py at efedee7",
        )  # fmt: skip


@lru_cache(maxsize=4096)
def _at(points: tuple[tuple[float, float], ...], where: float) -> float:
    """Return a measured figure between and beyond the places where it was measured."""
    return float(np.interp(where, *np.array(points, dtype=float).T))
