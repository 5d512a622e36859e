"""The pruned search space of pipeline cutting: which pivots may be cut, and which next.

A cut at pivot p (the first pivot of the next stage) comes with the device cut
``d(p) = clip(round(D C_p / C_n), 1, D-1)``, C the prefix sum of forward plus backward seconds.
The k-th device cut must lie within ``radius`` of the centre solution, and only pivots at which few
bytes cross (local minima: layer boundaries) are candidates (arXiv 2007.04069, section 3.5).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.problem import Pipeline, check_stages

RADIUS = 3
"""Default distance of a device cut from the centre solution."""
PRUNINGS = ("minima", "all")
"""Candidate pivots: those at which fewest bytes cross, or all."""
Cuts = tuple[np.ndarray, np.ndarray]
"""(S-1,) cuts and (S-1,) device cuts of a plan."""


def device_of_pivot(pipeline: Pipeline) -> np.ndarray:
    """Return the device cut d(p) that belongs to a cut at each pivot, (n+1,) int64."""
    devices = pipeline.cluster.devices
    proportional_cut = devices * pipeline.seconds_sum / pipeline.seconds_sum[-1]
    return np.clip(np.rint(proportional_cut), 1, devices - 1).astype(np.int64)


def centre_cuts(pipeline: Pipeline, stages: int) -> np.ndarray:
    """Return the device cuts of the centre solution, (S-1,) int64.

    They divide the devices evenly, at boundaries of servers if there is a server for each stage.
    """
    cluster = pipeline.cluster
    even_cuts = np.arange(1, stages) * cluster.devices / stages
    unit_devices = cluster.devices_per_server if cluster.servers >= stages else 1
    return (np.rint(even_cuts / unit_devices) * unit_devices).astype(np.int64)


def local_minima(pipeline: Pipeline) -> np.ndarray:
    """Return the pivots before which fewer bytes cross than before their neighbours, (c,) int64.

    They are ascending. Of a plateau of equal cuts that is lower than both neighbours, the last
    pivot counts. Pivots with different device cuts are not neighbours, so that every device cut
    keeps at least one pivot.
    """
    crossing, device = pipeline.cut_before[1:-1], device_of_pivot(pipeline)[1:-1]
    new_device = device[1:] != device[:-1]
    plateau_end = np.flatnonzero(np.append((crossing[1:] != crossing[:-1]) | new_device, True))
    plateau_bytes, plateau_device = crossing[plateau_end], device[plateau_end]
    other_device = plateau_device[1:] != plateau_device[:-1]
    rises = np.append(other_device | (plateau_bytes[1:] > plateau_bytes[:-1]), True)
    falls = np.append(True, other_device | (plateau_bytes[1:] < plateau_bytes[:-1]))
    return plateau_end[rises & falls] + 1


@dataclass(frozen=True)
class CutSpace:
    """Candidates of one pipeline problem, and which of them may follow which.

    Attributes:
        pipeline: the problem.
        radius: the radius in force; it is larger than the argument of ``build`` if that radius
            admitted no plan.
        pivots: (c,) int64, candidate pivots, ascending.
        devices: (c,) int64, their device cuts.
        allowed: (S-1, c) bool, whether a candidate may be cut k so that the remaining cuts can
            still follow.
    """

    task: ClassVar[str] = "pipeline"
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
        """Find the candidates of a problem.

        Args:
            pipeline: the problem.
            radius: largest distance of a device cut from the centre solution; it is widened until
                a plan exists.
            candidates: ``"minima"``, pivots at which fewest bytes cross, or ``"all"``.

        Raises:
            InfeasibleError: ``radius`` or ``candidates`` is invalid, or no plan exists even with
                every device cut allowed.
        """
        check_stages(pipeline, fewest=2)
        stages = pipeline.stages
        check_candidates(radius, candidates)
        if candidates == "minima":
            pivots = local_minima(pipeline)
        else:
            pivots = np.arange(1, len(pipeline.profile))
        devices = device_of_pivot(pipeline)[pivots]
        distance = np.abs(devices - centre_cuts(pipeline, stages)[:, None])
        variables_before = pipeline.variable_sum[pivots]
        last_stage_has_variable = pipeline.variable_sum[-1] > variables_before
        # A wider radius admits new candidates only at a distance that occurs.
        for width in [radius, *np.unique(distance[distance > radius]).tolist()]:
            allowed = (distance <= width) & last_stage_has_variable
            for k in range(stages - 3, -1, -1):
                later = np.flatnonzero(allowed[k + 1])
                allowed[k] &= _has_successor(devices, variables_before, later)
            if (allowed[0] & (variables_before > 0)).any():
                break
        else:
            raise InfeasibleError(
                f"{pipeline.profile.name} on {pipeline.cluster}: the candidates allow no {stages} "
                "stages with a variable and a device each; try candidates='all' or fewer stages"
            )
        useful = allowed.any(axis=0)
        return cls(
            pipeline,
            width,
            pivots[useful],
            devices[useful],
            allowed[:, useful],
            variables_before[useful],
        )

    @property
    def stages(self) -> int:
        """S; a plan has S-1 cuts."""
        return self.pipeline.stages

    def legal(self, chosen: np.ndarray | list[int]) -> np.ndarray:
        """Return which candidates may come after the ``chosen`` candidate indices, (c,) bool."""
        step = len(chosen)
        if step >= self.stages - 1:
            return np.zeros(len(self.pivots), dtype=bool)
        last = chosen[-1] if step else None
        device, variable = (0, 0) if last is None else (self.devices[last], self._variables[last])
        return self.allowed[step] & (self.devices > device) & (self._variables > variable)

    def windows(self) -> list[tuple[int, int]]:
        """Return for each cut the range ``[first, end)`` of candidates that it may be.

        The candidates of a row of ``allowed`` are a range, as every rule behind it bounds the
        device cut or the variables before a candidate, and both grow along the chain.
        """
        indices_by_cut = [np.flatnonzero(row) for row in self.allowed]
        return [(int(indices[0]), int(indices[-1]) + 1) for indices in indices_by_cut]

    def followers(self) -> np.ndarray:
        """Return the first candidate that may follow each candidate, (c+1,) int64.

        It is the first with more devices and more variables before it; entry c is the first that
        may be the first cut. The legal candidates of a step are those of its window from there on.
        """
        first_with_more = [
            np.searchsorted(values, np.append(values, 0), side="right")
            for values in (self.devices, self._variables)
        ]
        return np.maximum(*first_with_more).astype(np.int64)

    def plan(self, chosen: np.ndarray | list[int]) -> tuple[np.ndarray, np.ndarray]:
        """Return ``(cuts, device_cuts)`` of candidate indices of shape (..., k)."""
        index = np.asarray(chosen, dtype=np.int64)
        return self.pivots[index], self.devices[index]


def check_candidates(radius: int, candidates: str) -> None:
    """Raise an error for an invalid radius or pruning.

    Raises:
        InfeasibleError: ``radius`` is negative, or ``candidates`` is not one of ``PRUNINGS``.
    """
    if candidates not in PRUNINGS:
        raise InfeasibleError(
            f"candidates must be one of {', '.join(PRUNINGS)}, not {candidates!r}"
        )
    if radius < 0:
        raise InfeasibleError(f"radius must be >= 0, not {radius}")


def _has_successor(devices: np.ndarray, variables: np.ndarray, later: np.ndarray) -> np.ndarray:
    """Return which candidates a candidate of ``later`` may follow, (c,) bool.

    A follower has more devices and more variables before it. Both grow along the chain, so the last
    of ``later`` decides.

    Args:
        devices: (c,) int64, device cuts of the candidates.
        variables: (c,) int64, variables before each candidate.
        later: (k,) int64, indices of the candidates of the next cut, ascending.
    """
    if not later.size:
        return np.zeros(len(devices), dtype=bool)
    return (devices[later[-1]] > devices) & (variables[later[-1]] > variables)
