"""The pruned search space of pipeline cutting: which pivots may be cut, and which next.

A cut at pivot p (the first pivot of the next stage) comes with the device cut
``d(p) = clip(round(D C_p / C_n), 1, D-1)``, C the prefix sum of forward plus backward seconds.
The k-th device cut must lie within ``radius`` of the centre solution, and only pivots at which few
bytes cross (local minima: layer boundaries) are kept (arXiv 2007.04069, section 3.5).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.pipeline.problem import Pipeline, check_stages

RADIUS = 3
"""Default distance of a device cut from the centre solution."""
PRUNINGS = ("minima", "all")
Cuts = tuple[np.ndarray, np.ndarray]
"""(S-1,) cuts and (S-1,) device cuts of a plan."""


def device_of_pivot(pipeline: Pipeline) -> np.ndarray:
    """(n+1,) int64, the device cut d(p) that belongs to a cut at each pivot."""
    devices = pipeline.cluster.devices
    share = devices * pipeline.seconds_sum / pipeline.seconds_sum[-1]
    return np.clip(np.rint(share), 1, devices - 1).astype(np.int64)


def centre_cuts(pipeline: Pipeline, stages: int) -> np.ndarray:
    """(S-1,) int64, device cuts of the centre solution: server boundaries if there are enough."""
    cluster = pipeline.cluster
    ideal = np.arange(1, stages) * cluster.devices / stages
    unit = cluster.devices_per_server if cluster.servers >= stages else 1
    return (np.rint(ideal / unit) * unit).astype(np.int64)


def local_minima(pipeline: Pipeline) -> np.ndarray:
    """Sorted pivots p such that, among those of its device cut, fewest bytes cross right before p.

    Of a plateau of equal cuts that is lower than both neighbours, the last one counts; pivots of
    another device cut are no neighbours, so that every device cut keeps at least one pivot.
    """
    crossing, device = pipeline.cut_before[1:-1], device_of_pivot(pipeline)[1:-1]
    new_device = device[1:] != device[:-1]
    last = np.flatnonzero(np.append((crossing[1:] != crossing[:-1]) | new_device, True))
    value, group = crossing[last], device[last]
    rises = np.append((group[1:] != group[:-1]) | (value[1:] > value[:-1]), True)
    falls = np.append(True, (group[1:] != group[:-1]) | (value[1:] < value[:-1]))
    return last[rises & falls] + 1


@dataclass(frozen=True)
class CutSpace:
    """Candidates of one pipeline problem and the rule of which may follow which.

    Attributes:
        pipeline: the problem.
        radius: the radius in force (wider than asked for where nothing fitted).
        pivots: (c,) int64, candidate pivots, ascending.
        devices: (c,) int64, their device cuts.
        allowed: (S-1, c) bool, candidate c may be cut k and the remaining cuts can still follow.
    """

    pipeline: Pipeline
    radius: int
    pivots: np.ndarray
    devices: np.ndarray
    allowed: np.ndarray
    _variables: np.ndarray = field(repr=False)

    @classmethod
    def build(
        cls,
        pipeline: Pipeline,
        radius: int = RADIUS,
        candidates: str = "minima",
    ) -> CutSpace:
        """The candidates of a problem.

        Args:
            pipeline: the problem.
            radius: largest distance of a device cut from the centre solution; it is widened by one
                until a plan exists.
            candidates: ``"minima"``, pivots at which fewest bytes cross, or ``"all"``.

        Raises:
            InfeasibleError: no plan exists even with every device cut allowed.
        """
        check_stages(pipeline)
        stages = pipeline.stages
        check_candidates(radius, candidates)
        pivots = (
            local_minima(pipeline)
            if candidates == "minima"
            else np.arange(1, len(pipeline.profile))
        )
        devices = device_of_pivot(pipeline)[pivots]
        distance = np.abs(devices - centre_cuts(pipeline, stages)[:, None])
        variables = pipeline.variable_sum
        first = variables[pivots] > 0
        # Between two distances that occur, a wider radius admits nothing new.
        for width in [radius, *np.unique(distance[distance > radius]).tolist()]:
            allowed = (distance <= width) & (variables[-1] > variables[pivots])
            for k in range(stages - 3, -1, -1):
                allowed[k] &= _has_successor(
                    devices, variables[pivots], np.flatnonzero(allowed[k + 1])
                )
            if (allowed[0] & first).any():
                break
        else:
            raise InfeasibleError(
                f"{pipeline.profile.name} on {pipeline.cluster}: the candidates allow no {stages} "
                "stages with a variable and a device each; try candidates='all' or fewer stages"
            )
        keep = allowed.any(axis=0)
        return cls(
            pipeline,
            width,
            pivots[keep],
            devices[keep],
            allowed[:, keep],
            variables[pivots[keep]],
        )

    @property
    def stages(self) -> int:
        """S; a plan has S-1 cuts."""
        return self.pipeline.stages

    def legal(self, chosen: np.ndarray | list[int]) -> np.ndarray:
        """(c,) bool, the candidates that may come after the ``chosen`` candidate indices."""
        step = len(chosen)
        if step >= self.stages - 1:
            return np.zeros(len(self.pivots), dtype=bool)
        last = chosen[-1] if step else None
        device, variable = (0, 0) if last is None else (self.devices[last], self._variables[last])
        return self.allowed[step] & (self.devices > device) & (self._variables > variable)

    def windows(self) -> list[tuple[int, int]]:
        """Of each cut, the candidates ``[first, end)`` that it may be: ``allowed`` in short.

        They are neighbours: every rule behind ``allowed`` bounds the device cut or the variables
        before a candidate, and both grow along the chain.
        """
        found = [np.flatnonzero(row) for row in self.allowed]
        return [(int(row[0]), int(row[-1]) + 1) for row in found]

    def followers(self) -> np.ndarray:
        """(c+1,) int64, the first candidate with more devices and more variables before it.

        Entry c is for no cut yet. ``legal`` is what lies from here on in the window of the step.
        """
        more = [
            np.searchsorted(values, np.append(values, 0), side="right")
            for values in (self.devices, self._variables)
        ]
        return np.maximum(*more).astype(np.int64)

    def plan(self, chosen: np.ndarray | list[int]) -> tuple[np.ndarray, np.ndarray]:
        """``(cuts, device_cuts)`` of candidate indices of shape (..., k)."""
        index = np.asarray(chosen, dtype=np.int64)
        return self.pivots[index], self.devices[index]


def check_candidates(radius: int, candidates: str) -> None:
    """Refuse a radius and a pruning that do not exist.

    Raises:
        InfeasibleError: a negative radius, or a word that is none of ``PRUNINGS``.
    """
    if candidates not in PRUNINGS:
        raise InfeasibleError(
            f"candidates must be one of {', '.join(PRUNINGS)}, not {candidates!r}"
        )
    if radius < 0:
        raise InfeasibleError(f"radius must be >= 0, not {radius}")


def _has_successor(devices: np.ndarray, variables: np.ndarray, later: np.ndarray) -> np.ndarray:
    """(c,) bool: some candidate of ``later`` has more devices and more variables before it.

    Both grow along the chain, so the last of ``later`` decides, and it is also a later pivot.
    """
    if not later.size:
        return np.zeros(len(devices), dtype=bool)
    return (devices[later[-1]] > devices) & (variables[later[-1]] > variables)
