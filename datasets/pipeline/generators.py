"""Draws problems of pipeline planning: a chain on a cluster, stages and micro-batches.

    python -m parenvs.datasets.pipeline.generators                    # ratios of shipped graphs
    python -m parenvs.datasets.pipeline.generators mine.csv --cluster C   # ratios of a profile

Which plan is best depends on ratios only: of transfer, all-reduce and compute seconds, and of
weights, activations and device memory. They are drawn from the ranges that real models have, with a
factor of ``MARGIN`` on each side; sources and measurements are in ``docs/instances.md``.
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
from parenvs.datasets.pipeline.families import FAMILIES, MIN_PIVOTS, ChainArrays
from parenvs.errors import InfeasibleError, ParenvsError, did_you_mean, printable
from parenvs.shipped import PAPER
from parenvs.tasks.pipeline.problem import COPIES, Pipeline
from parenvs.tasks.pipeline.profile import StageProfile, load_profile
from parenvs.tasks.pipeline.spaces import PointSpace, fitting

__all__ = ["FAMILIES", "INSIDE", "OUTSIDE", "DrawnProblem", "Ranges", "Ratios", "draw", "ratios"]

BITS = 13
"""Significant bits of every number drawn: four decimal digits, exact in float32 and float64."""
MARGIN = 3.0
"""Factor by which the ranges of ratios are wider than those measured, on each side."""
TIGHT = 0.5
"""Smallest ratio of parameters of the problems that shall be tight in memory."""
TRIES = 1000
"""Draws after which ``draw`` gives up, if none of them fits the memory."""


@dataclass(frozen=True)
class DrawnProblem:
    """A problem of pipeline planning that was drawn: a chain, its cluster, and a number of stages.

    Attributes:
        family: family of the chain, a key of ``FAMILIES``.
        pipeline: the problem.
    """

    family: str
    pipeline: Pipeline

    @property
    def stages(self) -> int:
        """S."""
        return self.pipeline.stages

    @property
    def name(self) -> str:
        """Name of the chain, for example ``"plan-test/transformer-017"``."""
        return self.pipeline.profile.name

    @cached_property
    def space(self) -> PointSpace:
        """The search space over points and units, cached: it takes as long to make as to draw.

        Raises:
            InfeasibleError: no plan fits the memory.
        """
        return PointSpace.build(self.pipeline)


class Ratios(NamedTuple):
    """The ratios that decide which plans of a pipeline problem are good, all without unit.

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
    """Return the ratios of a problem; cuts that no bytes cross do not count for the median."""
    profile, cluster, limit = pipeline.profile, pipeline.cluster, pipeline.memory_limit
    seconds_per_device = float(pipeline.seconds_sum[-1]) / cluster.devices
    weight_bytes, cut_bytes = float(pipeline.parameter_sum[-1]), _median_cut(profile.cut_bytes)
    step_seconds = pipeline.micro_batches * seconds_per_device
    return Ratios(
        transfer=cut_bytes / cluster.inter_bw / seconds_per_device,
        all_reduce=2.0 * weight_bytes / cluster.inter_bw / step_seconds,
        parameters=pipeline.copies * weight_bytes / limit,
        activations=cut_bytes / limit,
    )


MEASURED = (
    Ratios(transfer=0.0087, all_reduce=0.147, parameters=0.007, activations=0.00014),
    Ratios(transfer=4.75, all_reduce=9.5, parameters=3.15, activations=0.00715),
)
"""Smallest and largest ratios of real chains on clusters A, B, C: ``docs/instances.md``."""
_MIN_RATIOS = Ratios(*(x / MARGIN for x in MEASURED[0]))
_MAX_RATIOS = Ratios(*(x * MARGIN for x in MEASURED[1]))


@dataclass(frozen=True)
class Ranges:
    """Ranges that problems are drawn from; pairs are (smallest, largest), both included.

    Attributes:
        pivots: n, log-uniform.
        devices: D, log-uniform over the numbers of servers; always whole servers.
        devices_per_server: one of these, uniform.
        stages: S, uniform, never above D.
        micro_batches: M, log-uniform.
        intra_bw: bytes/s inside a server, log-uniform.
        inter_bw: bytes/s between servers, log-uniform, never above ``intra_bw``.
        memory_bytes: memory of a device, one of these, uniform.
        min_ratios, max_ratios: bounds of the ratios. Transfer, all-reduce and parameters are drawn
            log-uniform; activations follow from them (``transfer * parameters / (M *
            all_reduce)``), and all are drawn again if they lie outside.
        tight: share of problems with a ratio of parameters of at least ``TIGHT``.
        without: ranges to stay out of: devices and stages that both lie in them are drawn again.
        graded: whether a plan of graded stages has to fit the memory (``fitting``); else one of
            the points and units of ``PointSpace``, of which there are too few for many stages.
    """

    pivots: tuple[int, int] = (MIN_PIVOTS, 256)
    devices: tuple[int, int] = (4, 64)
    devices_per_server: tuple[int, ...] = (1, 2, 4, 8)
    stages: tuple[int, int] = (2, 6)
    micro_batches: tuple[int, int] = (4, 64)
    intra_bw: tuple[float, float] = (12e9, 450e9)
    inter_bw: tuple[float, float] = (1.25e9, 400e9)
    memory_bytes: tuple[float, ...] = (16e9, 32e9, 40e9, 80e9)
    min_ratios: Ratios = _MIN_RATIOS
    max_ratios: Ratios = _MAX_RATIOS
    tight: float = 0.25
    without: Ranges | None = None
    graded: bool = False

    def __post_init__(self) -> None:
        """Raise ``ParenvsError`` for chains too short, or plans of too many stages."""
        if self.pivots[0] < MIN_PIVOTS or self.stages[1] > self.pivots[0]:
            raise ParenvsError(
                f"ranges: at least {MIN_PIVOTS} pivots and at most as many stages, not "
                f"{self.pivots[0]} and {self.stages[1]}"
            )

    def contain(self, devices: int, stages: int) -> bool:
        """Return whether problems may have ``devices`` devices and ``stages`` stages."""
        inside = self.devices[0] <= devices <= self.devices[1]
        inside = inside and self.stages[0] <= stages <= self.stages[1]
        return inside and not (self.without is not None and self.without.contain(devices, stages))


INSIDE = Ranges()
"""Ranges of the problems that policies are trained on."""
OUTSIDE = Ranges(pivots=(MIN_PIVOTS, 1024), devices=(4, 512), stages=(2, 8), without=INSIDE)
"""Ranges beyond ``INSIDE``: 65 to 512 devices, or 7 or 8 stages; chains of up to 1,024 pivots."""
TIERS = {
    "s8": Ranges(pivots=(32, 256), devices=(8, 512), stages=(8, 8), graded=True),
    "s16": Ranges(pivots=(64, 512), devices=(64, 1024), stages=(16, 16), graded=True),
    "s32": Ranges(pivots=(128, 1000), devices=(128, 4096), stages=(32, 32), graded=True),
    "s64": Ranges(pivots=(256, 1000), devices=(256, 4096), stages=(64, 64), graded=True),
}
"""Ranges of the problems that ``PipelinePlan-v1`` plays, by the number of stages."""


def draw(
    rng: np.random.Generator,
    family: str | None = None,
    ranges: Ranges = INSIDE,
    name: str | None = None,
) -> DrawnProblem:
    """Draw a problem for which some plan fits the memory.

    The same state of ``rng`` gives the same problem.

    Args:
        rng: random generator; it is the only source of chance.
        family: a key of ``FAMILIES``, or None: then the family is drawn too, uniform.
        ranges: ranges to draw from.
        name: name of the chain (default: ``generated/`` and its family).

    Raises:
        ParenvsError: the family is unknown, or (almost) no problem in the ranges fits the memory.
    """
    if family is None:
        family = list(FAMILIES)[int(rng.integers(len(FAMILIES)))]
    elif family not in FAMILIES:
        raise ParenvsError(
            f"unknown family {family!r}{did_you_mean(family, FAMILIES)}; "
            f"known: {', '.join(FAMILIES)}"
        )
    for _ in range(TRIES):
        problem = _attempt(rng, family, ranges, name or f"generated/{family}")
        try:
            if ranges.graded:
                fitting(problem.pipeline)
            else:
                problem.space  # noqa: B018
        except InfeasibleError:
            continue
        return problem
    raise ParenvsError(
        f"family {family}: none of {TRIES} problems drawn fits the memory; "
        "widen the ranges of stages or of the ratios"
    )


def significant(values: np.ndarray | float, bits: int = BITS) -> np.ndarray:
    """Round values to ``bits`` significant bits, without a detour over decimal fractions."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)


def generated(
    family: str,
    name: str,
    arrays: ChainArrays,
    cluster: Cluster,
    micro_batches: int,
    stages: int,
) -> DrawnProblem:
    """Make a problem of numbers that were drawn.

    Args:
        family: family of the chain.
        name: name of the chain.
        arrays: the chain in seconds and bytes.
        cluster: its cluster.
        micro_batches: M.
        stages: S.
    """
    pivots = np.array([f"pivot_{i}" for i in range(len(arrays[0]))], dtype=object)
    profile = StageProfile(name, pivots, *arrays)
    return DrawnProblem(family, Pipeline(profile, cluster, stages, micro_batches))


def generated_cluster(
    servers: int, devices_per_server: int, intra_bw: float, inter_bw: float, memory_bytes: float
) -> Cluster:
    """Make a cluster of a generic device; generated chains hold seconds, so its speed is not read.

    Args:
        servers: number of servers.
        devices_per_server: devices of each.
        intra_bw: bytes/s inside a server.
        inter_bw: bytes/s between servers.
        memory_bytes: memory of a device.
    """
    device = Device("generated", peak_flops=1e14, memory_bw=1e12, memory_bytes=memory_bytes)
    return Cluster(servers, devices_per_server, device, intra_bw, inter_bw)


def _attempt(rng: np.random.Generator, family: str, ranges: Ranges, name: str) -> DrawnProblem:
    """Draw a problem, whether it fits the memory or not."""
    cluster, stages = _cluster_and_stages(rng, ranges)
    micro_batches = _log_integer(rng, *ranges.micro_batches)
    n = _log_integer(rng, *ranges.pivots)
    relative = FAMILIES[family](rng, n)
    wanted = _ratios(rng, ranges, micro_batches, stages)
    # The memory gives the weights; weights and network give the seconds; seconds the activations.
    weight_bytes = wanted.parameters * cluster.memory_limit / COPIES
    device_seconds = 2.0 * weight_bytes / cluster.inter_bw / (micro_batches * wanted.all_reduce)
    time_unit = (
        device_seconds * cluster.devices / (relative.forward.sum() + relative.backward.sum())
    )
    median_cut_bytes = wanted.transfer * device_seconds * cluster.inter_bw
    arrays = ChainArrays(
        forward=significant(relative.forward * time_unit),
        backward=significant(relative.backward * time_unit),
        cut=significant(relative.cut * (median_cut_bytes / _median_cut(relative.cut))),
        parameters=significant(relative.parameters * (weight_bytes / relative.parameters.sum())),
    )
    return generated(family, name, arrays, cluster, micro_batches, stages)


def _cluster_and_stages(rng: np.random.Generator, ranges: Ranges) -> tuple[Cluster, int]:
    """Draw a cluster and a number of stages.

    Raises:
        ParenvsError: ``TRIES`` draws gave none within the ranges.
    """
    fewest_devices, most_devices = ranges.devices
    for _ in range(TRIES):
        devices_per_server = int(rng.choice(ranges.devices_per_server))
        servers = _log_integer(
            rng, -(-fewest_devices // devices_per_server), most_devices // devices_per_server
        )
        stages = int(rng.integers(ranges.stages[0], ranges.stages[1] + 1))
        intra = float(significant(_log_uniform(rng, *ranges.intra_bw)))
        inter = float(significant(_log_uniform(rng, *ranges.inter_bw)))
        memory = float(rng.choice(ranges.memory_bytes))
        if (
            ranges.contain(servers * devices_per_server, stages)
            and stages <= servers * devices_per_server
            and inter <= intra
        ):
            return generated_cluster(servers, devices_per_server, intra, inter, memory), stages
    raise ParenvsError("ranges: no cluster lies within; widen devices, stages or the bandwidths")


def _ratios(rng: np.random.Generator, ranges: Ranges, micro_batches: int, stages: int) -> Ratios:
    """Draw the ratios of a problem.

    Raises:
        ParenvsError: ``TRIES`` draws gave none within the ranges.
    """
    low, high = ranges.min_ratios, ranges.max_ratios
    low_parameters = TIGHT if rng.random() < ranges.tight else low.parameters
    for _ in range(TRIES):
        transfer = _log_uniform(rng, low.transfer, high.transfer)
        all_reduce = _log_uniform(rng, low.all_reduce, high.all_reduce)
        # No plan fits weights of more than the memory of one device per stage.
        high_parameters = max(min(high.parameters, float(stages)), low_parameters)
        parameters = _log_uniform(rng, low_parameters, high_parameters)
        activations = transfer * parameters / (micro_batches * all_reduce)
        if low.activations <= activations <= high.activations:
            return Ratios(transfer, all_reduce, parameters, activations)
    raise ParenvsError("ranges: the ratios exclude each other; widen those of activations")


def _median_cut(cut_bytes: np.ndarray) -> float:
    """Return the median of the cuts inside the chain that any bytes cross."""
    inner = cut_bytes[:-1]
    return float(np.median(inner[inner > 0]))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    """Draw a number from ``low`` to ``high`` whose logarithm is uniform."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def _log_integer(rng: np.random.Generator, low: int, high: int) -> int:
    """Draw a whole number from ``low`` to ``high``, both included, about log-uniform."""
    return min(int(_log_uniform(rng, low, high + 1)), high)


def main(arguments: Iterable[str] | None = None) -> int:
    """Print a table of ratios (the command line of this module), and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m parenvs.datasets.pipeline.generators",
        description="Print the ratios of chains.",
    )
    parser.add_argument("instances", nargs="*", metavar="NAME", help="names, graphs or .csv files")
    parser.add_argument("--cluster", nargs="+", default=["A", "B", "C"], help="default: A B C")
    options = parser.parse_args(None if arguments is None else list(arguments))
    print("| chain | cluster | n | transfer | all-reduce | parameters | activations |")
    print("|:--|:--|--:|--:|--:|--:|--:|")
    try:
        for instance in options.instances or PAPER:
            for text in options.cluster:
                cluster = Cluster.parse(text)
                profile = load_profile(instance, cluster)
                cells = " | ".join(f"{x:.3g}" for x in ratios(Pipeline(profile, cluster)))
                print(f"| {Path(instance).name} | {text} | {len(profile):,} | {cells} |")
    except ParenvsError as error:
        print(printable(str(error)), file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
