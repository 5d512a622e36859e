"""Generated problems of pipeline planning: a chain on a cluster, stages and micro-batches.

    python -m parenvs.datasets.generators                         # ratios of the shipped graphs
    python -m parenvs.datasets.generators mine.csv --cluster C    # of a profile

What a plan costs depends on ratios only: of transfer, all-reduce and compute seconds, of weights,
activations and device memory. They are drawn from the ranges that real models show, with a margin
of ``MARGIN`` on each side; sources and measurements are in ``docs/instances.md``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np

from parenvs.cluster import Cluster, Device
from parenvs.datasets.families import FAMILIES, LEAST_PIVOTS, LEAST_VARIABLES
from parenvs.errors import InfeasibleError, ParenvsError, did_you_mean
from parenvs.instances import load_profile, names
from parenvs.pipeline.points import PointSpace
from parenvs.pipeline.problem import COPIES, Pipeline
from parenvs.pipeline.profile import StageProfile

__all__ = ["FAMILIES", "INSIDE", "OUTSIDE", "PlanProblem", "Ranges", "Ratios", "draw", "ratios"]

BITS = 13
"""Significant bits of every number drawn: four decimal digits, exact in float32 and float64."""
MARGIN = 3.0
"""Factor by which the ratios drawn go beyond those measured, on each side."""
TIGHT = 0.5
"""Least ratio of parameters of the problems that are to press against the memory."""
TRIES = 1000
"""Draws of which one must fit the memory."""


@dataclass(frozen=True)
class PlanProblem:
    """A chain on a cluster and the number of stages to cut it into.

    Attributes:
        family: what the chain is like, a key of ``FAMILIES``.
        pipeline: profile, cluster and micro-batches.
        stages: S.
    """

    family: str
    pipeline: Pipeline
    stages: int

    @property
    def name(self) -> str:
        """Name of the chain, for example ``"plan-test/transformer-017"``."""
        return self.pipeline.profile.name

    @cached_property
    def space(self) -> PointSpace:
        """What ``PipelinePlan-v0`` chooses from; kept, as making it takes as long as drawing does.

        Raises:
            InfeasibleError: no plan fits the memory.
        """
        return PointSpace.build(self.pipeline, self.stages)


class Ratios(NamedTuple):
    """What decides plans of a pipeline problem, all without unit.

    Attributes:
        transfer: seconds that the median cut takes between servers, over ``sum(F + B) / D``.
        all_reduce: seconds of ``2 W`` bytes between servers, over ``M sum(F + B) / D``.
        parameters: copies of all parameters over the memory that a device may fill.
        activations: bytes of the median cut over the memory that a device may fill.
    """

    transfer: float
    all_reduce: float
    parameters: float
    activations: float


def ratios(pipeline: Pipeline) -> Ratios:
    """The ratios of a problem; the median is that of the cuts that hold anything."""
    profile, cluster, limit = pipeline.profile, pipeline.cluster, pipeline.memory_limit
    share = float(pipeline.seconds_sum[-1]) / cluster.devices
    weights, cut = float(pipeline.parameter_sum[-1]), _median_cut(profile.cut_bytes)
    return Ratios(
        transfer=cut / cluster.inter_bw / share,
        all_reduce=2.0 * weights / cluster.inter_bw / (pipeline.micro_batches * share),
        parameters=pipeline.copies * weights / limit,
        activations=cut / limit,
    )


MEASURED = (
    Ratios(transfer=0.0087, all_reduce=0.147, parameters=0.007, activations=0.00014),
    Ratios(transfer=4.75, all_reduce=9.5, parameters=3.15, activations=0.00715),
)
"""Least and greatest ratio of real chains on clusters A, B, C: ``docs/instances.md``."""
_LEAST = Ratios(*(x / MARGIN for x in MEASURED[0]))
_GREATEST = Ratios(*(x * MARGIN for x in MEASURED[1]))


@dataclass(frozen=True)
class Ranges:
    """What problems are drawn from; pairs are (least, greatest), both included.

    Attributes:
        pivots: n, log-uniform.
        devices: D, log-uniform over the numbers of servers; always whole servers.
        devices_per_server: one of these, uniform.
        stages: S, uniform, never above D.
        micro_batches: M, log-uniform.
        intra_bw: bytes/s inside a server, log-uniform.
        inter_bw: bytes/s between servers, log-uniform, never above ``intra_bw``.
        memory_bytes: of a device, one of these, uniform.
        least, greatest: bounds of the ratios. The first three are drawn log-uniform, the fourth
            follows from them (``transfer * parameters / (M * all_reduce)``): drawn again outside.
        tight: share of problems with a ratio of parameters of at least ``TIGHT``.
        without: drawn again while devices and stages are both within these ranges.
    """

    pivots: tuple[int, int] = (LEAST_PIVOTS, 256)
    devices: tuple[int, int] = (4, 64)
    devices_per_server: tuple[int, ...] = (1, 2, 4, 8)
    stages: tuple[int, int] = (2, 6)
    micro_batches: tuple[int, int] = (4, 64)
    intra_bw: tuple[float, float] = (12e9, 450e9)
    inter_bw: tuple[float, float] = (1.25e9, 400e9)
    memory_bytes: tuple[float, ...] = (16e9, 32e9, 40e9, 80e9)
    least: Ratios = _LEAST
    greatest: Ratios = _GREATEST
    tight: float = 0.25
    without: Ranges | None = None

    def __post_init__(self) -> None:
        """Refuse what no family and no plan space can serve."""
        if self.pivots[0] < LEAST_PIVOTS or self.stages[1] > LEAST_VARIABLES:
            raise ParenvsError(
                f"ranges: at least {LEAST_PIVOTS} pivots and at most {LEAST_VARIABLES} stages, not "
                f"{self.pivots[0]} and {self.stages[1]}"
            )

    def hold(self, devices: int, stages: int) -> bool:
        """Whether a problem of so many devices and stages lies within."""
        inside = self.devices[0] <= devices <= self.devices[1]
        inside = inside and self.stages[0] <= stages <= self.stages[1]
        return inside and not (self.without is not None and self.without.hold(devices, stages))


INSIDE = Ranges()
"""What policies are trained on."""
OUTSIDE = Ranges(pivots=(LEAST_PIVOTS, 1024), devices=(4, 512), stages=(2, 8), without=INSIDE)
"""Beyond it: 65 to 512 devices, or 7 or 8 stages, with chains of up to 1,024 pivots."""


def draw(
    rng: np.random.Generator, family: str | None = None, ranges: Ranges = INSIDE
) -> PlanProblem:
    """A problem for which some plan fits the memory (``space`` finds one).

    The same state of ``rng`` gives the same problem.

    Args:
        rng: where all chance comes from.
        family: a key of ``FAMILIES``, or None for any of them, uniform.
        ranges: what to draw from.

    Raises:
        ParenvsError: an unknown family, or ranges in which next to nothing fits the memory.
    """
    if family is None:
        family = list(FAMILIES)[int(rng.integers(len(FAMILIES)))]
    elif family not in FAMILIES:
        raise ParenvsError(
            f"unknown family {family!r}{did_you_mean(family, FAMILIES)}; "
            f"known: {', '.join(FAMILIES)}"
        )
    for _ in range(TRIES):
        problem = _attempt(rng, family, ranges)
        try:
            problem.space  # noqa: B018
        except InfeasibleError:
            continue
        return problem
    raise ParenvsError(
        f"family {family}: none of {TRIES} problems drawn fits the memory; "
        "widen the ranges of stages or of the ratios"
    )


def significant(values: np.ndarray | float, bits: int = BITS) -> np.ndarray:
    """Values rounded to so many significant bits, exactly (no decimal fraction is involved)."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)


def generated(
    family: str,
    name: str,
    arrays: tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray],
    cluster: Cluster,
    micro_batches: int,
    stages: int,
) -> PlanProblem:
    """A problem from its numbers: forward, backward, cut bytes and parameter bytes, (n,) each."""
    pivots = np.array([f"pivot_{i}" for i in range(len(arrays[0]))], dtype=object)
    profile = StageProfile(name, pivots, *arrays)
    return PlanProblem(family, Pipeline(profile, cluster, micro_batches), stages)


def generated_cluster(
    servers: int, devices_per_server: int, intra_bw: float, inter_bw: float, memory_bytes: float
) -> Cluster:
    """A cluster of nameless devices: chains bring their seconds, no peak rate is ever read."""
    device = Device("generated", peak_flops=1e14, memory_bw=1e12, memory_bytes=memory_bytes)
    return Cluster(servers, devices_per_server, device, intra_bw, inter_bw)


def _attempt(rng: np.random.Generator, family: str, ranges: Ranges) -> PlanProblem:
    """A problem, whether it fits the memory or not."""
    cluster, stages = _cluster_and_stages(rng, ranges)
    micro_batches = _log_integer(rng, *ranges.micro_batches)
    n = _log_integer(rng, *ranges.pivots)
    forward, backward, cut, weights = FAMILIES[family](rng, n)
    wanted = _ratios(rng, ranges, micro_batches, stages)
    # The memory fixes the weights, they and the network the seconds, and these the activations.
    total = wanted.parameters * cluster.memory_limit / COPIES
    share = 2.0 * total / cluster.inter_bw / (micro_batches * wanted.all_reduce)
    seconds = share * cluster.devices / (forward.sum() + backward.sum())
    typical = wanted.transfer * share * cluster.inter_bw
    arrays = (
        significant(forward * seconds),
        significant(backward * seconds),
        significant(cut * (typical / _median_cut(cut))),
        significant(weights * (total / weights.sum())),
    )
    return generated(family, f"generated/{family}", arrays, cluster, micro_batches, stages)


def _cluster_and_stages(rng: np.random.Generator, ranges: Ranges) -> tuple[Cluster, int]:
    least, most = ranges.devices
    for _ in range(TRIES):
        each = int(rng.choice(ranges.devices_per_server))
        servers = _log_integer(rng, -(-least // each), most // each)
        stages = int(rng.integers(ranges.stages[0], ranges.stages[1] + 1))
        intra = float(significant(_log_uniform(rng, *ranges.intra_bw)))
        inter = float(significant(_log_uniform(rng, *ranges.inter_bw)))
        memory = float(rng.choice(ranges.memory_bytes))
        if ranges.hold(servers * each, stages) and stages <= servers * each and inter <= intra:
            return generated_cluster(servers, each, intra, inter, memory), stages
    raise ParenvsError("ranges: no cluster lies within; widen devices, stages or the bandwidths")


def _ratios(rng: np.random.Generator, ranges: Ranges, micro_batches: int, stages: int) -> Ratios:
    least, greatest = ranges.least, ranges.greatest
    low = TIGHT if rng.random() < ranges.tight else least.parameters
    for _ in range(TRIES):
        transfer = _log_uniform(rng, least.transfer, greatest.transfer)
        all_reduce = _log_uniform(rng, least.all_reduce, greatest.all_reduce)
        # More than one memory's worth of weights a stage fits no plan.
        most = max(min(greatest.parameters, float(stages)), low)
        parameters = _log_uniform(rng, low, most)
        activations = transfer * parameters / (micro_batches * all_reduce)
        if least.activations <= activations <= greatest.activations:
            return Ratios(transfer, all_reduce, parameters, activations)
    raise ParenvsError("ranges: the ratios exclude each other; widen those of activations")


def _median_cut(cut_bytes: np.ndarray) -> float:
    inner = cut_bytes[:-1]
    return float(np.median(inner[inner > 0]))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _log_integer(rng: np.random.Generator, low: int, high: int) -> int:
    return min(int(_log_uniform(rng, low, high + 1)), high)


def main(arguments: Iterable[str] | None = None) -> int:
    """The command line of this module: a table of ratios; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m parenvs.datasets.generators", description="Print the ratios of chains."
    )
    parser.add_argument("instances", nargs="*", metavar="NAME", help="names, graphs or .csv files")
    parser.add_argument("--cluster", nargs="+", default=["A", "B", "C"], help="default: A B C")
    options = parser.parse_args(None if arguments is None else list(arguments))
    print("| chain | cluster | n | transfer | all-reduce | parameters | activations |")
    print("|:--|:--|--:|--:|--:|--:|--:|")
    try:
        for instance in options.instances or names():
            for text in options.cluster:
                cluster = Cluster.parse(text)
                profile = load_profile(instance, cluster)
                cells = " | ".join(f"{x:.3g}" for x in ratios(Pipeline(profile, cluster)))
                print(f"| {Path(instance).name} | {text} | {len(profile):,} | {cells} |")
    except ParenvsError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
