"""Problems of pipelines: how they are generated, their names, fixed sets, and references.

Which plan is best depends on ratios only: of transfer, all-reduce and compute seconds, and of
weights, activations and device memory. They are sampled from the ranges that real models have, with
a factor of ``MARGIN`` on each side; sources and measurements are in ``docs/instances.md``.

Generated problems are numbered without end: problem j is sampled from a generator that is seeded
with version, ranges, family and j, so it can be made alone. ``generated-2/inside/any/17`` has up to
eight stages, ``generated-3/s16/17`` the stages of its tier.

A set is one compressed ``.npz`` without pickles: the chains end to end with their offsets, each
number as a whole mantissa and a power of two, and cluster, stages and micro-batches of each
problem. A problem that is read equals the one that was generated, bit for bit.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.random import Generator

from parenvs.cluster import Cluster, Device
from parenvs.compiled import Array
from parenvs.core.sets import BestValue, SetKind, member_of
from parenvs.datasets.pipeline.families import FAMILIES, MIN_PIVOTS, ChainArrays, log_uniform
from parenvs.datasets.references import costs_of
from parenvs.errors import (
    InfeasibleError,
    ParenvsError,
    UnknownInstanceError,
    did_you_mean,
    one_line,
    refuse_unknown,
    shown,
)
from parenvs.files import StrPath
from parenvs.graph.checks import UNREADABLE, read_arrays
from parenvs.instances import data_folder
from parenvs.tasks.pipeline.problem import COPIES, Pipeline
from parenvs.tasks.pipeline.profile import StageProfile
from parenvs.tasks.pipeline.spaces import PointSpace, fitting

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
        (fewest_pivots, _), (_, most_stages) = self.pivots, self.stages
        if fewest_pivots < MIN_PIVOTS or most_stages > fewest_pivots:
            raise ParenvsError(
                f"ranges: at least {MIN_PIVOTS} pivots and at most as many stages, not "
                f"{fewest_pivots} and {most_stages}"
            )

    def contain(self, devices: int, stages: int) -> bool:
        """Return whether problems may have ``devices`` devices and ``stages`` stages."""
        pairs = (devices, self.devices), (stages, self.stages)
        inside = all(low <= count <= high for count, (low, high) in pairs)
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
"""Ranges of the problems of one number of stages, of which many fit no ``PointSpace``."""


def draw(
    rng: Generator,
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
    check_family(family)
    for _ in range(TRIES):
        problem = _draw_once(rng, family, ranges, name or f"generated/{family}")
        try:
            # Many stages do not fit a PointSpace; a plan of graded stages shows that some plan
            # fits.
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


def check_family(family: str, where: str = "") -> None:
    """Raise a ParenvsError, ``where`` in front, if there is no such family of chains."""
    refuse_unknown(f"{where}unknown family", family, FAMILIES)


def significant(values: Array | float, bits: int = BITS) -> Array:
    """Round values to ``bits`` significant bits, without a detour over decimal fractions."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(np.ldexp(mantissa, bits)), exponent - bits)


def generated(
    family: str, name: str, arrays: ChainArrays, cluster: Cluster, micro_batches: int, stages: int
) -> DrawnProblem:
    """Make a problem of a chain that was drawn, ``arrays`` in seconds and bytes."""
    pivots = np.array([f"pivot_{i}" for i in range(len(arrays[0]))], object)
    profile = StageProfile(name, pivots, *arrays)
    return DrawnProblem(family, Pipeline(profile, cluster, stages, micro_batches))


def generated_cluster(
    servers: int, devices_per_server: int, intra_bw: float, inter_bw: float, memory_bytes: float
) -> Cluster:
    """Make a cluster of a generic device, whose speed is not read: generated chains hold seconds.

    Bandwidths are in bytes/s.
    """
    device = Device("generated", peak_flops=1e14, memory_bw=1e12, memory_bytes=memory_bytes)
    return Cluster(servers, devices_per_server, device, intra_bw, inter_bw)


def _draw_once(rng: Generator, family: str, ranges: Ranges, name: str) -> DrawnProblem:
    """Scale a chain of a family so that the problem has the ratios that are drawn."""
    cluster, stages = _cluster_and_stages(rng, ranges)
    micro_batches = _log_integer(rng, *ranges.micro_batches)
    n = _log_integer(rng, *ranges.pivots)
    relative = FAMILIES[family](rng, n)
    target = _ratios(rng, ranges, micro_batches, stages)
    # The memory gives the weights; weights and network give the seconds; seconds the activations.
    weight_bytes = target.parameters * cluster.memory_limit / COPIES
    device_seconds = 2.0 * weight_bytes / cluster.inter_bw / (micro_batches * target.all_reduce)
    work = relative.forward.sum() + relative.backward.sum()
    time_unit = device_seconds * cluster.devices / work
    median_cut_bytes = target.transfer * device_seconds * cluster.inter_bw
    arrays = ChainArrays(
        forward=significant(relative.forward * time_unit),
        backward=significant(relative.backward * time_unit),
        cut=significant(relative.cut * (median_cut_bytes / _median_cut(relative.cut))),
        parameters=significant(relative.parameters * (weight_bytes / relative.parameters.sum())),
    )
    return generated(family, name, arrays, cluster, micro_batches, stages)


def _cluster_and_stages(rng: Generator, ranges: Ranges) -> tuple[Cluster, int]:
    fewest_devices, most_devices = ranges.devices
    for _ in range(TRIES):
        devices_per_server = int(rng.choice(ranges.devices_per_server))
        servers = _log_integer(
            rng, -(-fewest_devices // devices_per_server), most_devices // devices_per_server
        )
        stages = int(rng.integers(ranges.stages[0], ranges.stages[1] + 1))
        intra = float(significant(log_uniform(rng, *ranges.intra_bw)))
        inter = float(significant(log_uniform(rng, *ranges.inter_bw)))
        memory = float(rng.choice(ranges.memory_bytes))
        if (
            ranges.contain(servers * devices_per_server, stages)
            and stages <= servers * devices_per_server
            and inter <= intra
        ):
            return generated_cluster(servers, devices_per_server, intra, inter, memory), stages
    raise ParenvsError("ranges: no cluster lies within; widen devices, stages or the bandwidths")


def _ratios(rng: Generator, ranges: Ranges, micro_batches: int, stages: int) -> Ratios:
    low, high = ranges.min_ratios, ranges.max_ratios
    low_parameters = TIGHT if rng.random() < ranges.tight else low.parameters
    for _ in range(TRIES):
        transfer = log_uniform(rng, low.transfer, high.transfer)
        all_reduce = log_uniform(rng, low.all_reduce, high.all_reduce)
        # No plan fits weights of more than the memory of one device per stage.
        high_parameters = max(min(high.parameters, float(stages)), low_parameters)
        parameters = log_uniform(rng, low_parameters, high_parameters)
        activations = transfer * parameters / (micro_batches * all_reduce)
        if low.activations <= activations <= high.activations:
            return Ratios(transfer, all_reduce, parameters, activations)
    raise ParenvsError("ranges: the ratios exclude each other; widen those of activations")


def _median_cut(cut_bytes: Array) -> float:
    inner = cut_bytes[:-1]
    return float(np.median(inner[inner > 0]))


def _log_integer(rng: Generator, low: int, high: int) -> int:
    return min(int(log_uniform(rng, low, high + 1)), high)


FEW_VERSION = 2
"""Version of the draw: a problem's number, and what it is drawn from, change only with it."""
RANGES = {"inside": INSIDE, "outside": OUTSIDE}
"""Values of the argument ``ranges``."""
ANY = "any"
"""In names, the family of problems whose family is drawn, too."""
FEW_FIRST = f"generated-{FEW_VERSION}"
"""First word of the names of numbered problems."""


def problem_of(number: int, family: str | None, ranges: str) -> DrawnProblem:
    """Draw the problem of a number.

    Args:
        number: j, from 0.
        family: draw problems of this family only; None draws the family, too.
        ranges: a key of ``RANGES``.
    """
    # Stream 0 draws the family as well, so its problems differ from those of any family.
    stream = 0 if family is None else 1 + list(FAMILIES).index(family)
    rng = np.random.default_rng([FEW_VERSION, list(RANGES).index(ranges), stream, number])
    return draw(rng, family, RANGES[ranges], name_of(number, family, ranges))


def name_of(number: int, family: str | None, ranges: str) -> str:
    """Return the name of the problem of a number, like ``"generated-2/inside/any/17"``."""
    return f"{FEW_FIRST}/{ranges}/{family or ANY}/{number}"


TIER_VERSION = 3
"""Version of the draw."""
TIER_FIRST = f"generated-{TIER_VERSION}"
"""First word of the names."""
REFERENCES = "plan-references.json"
"""File of the best plans known of the sets of many stages."""


def numbered(number: int, tier: str) -> DrawnProblem:
    """Return a problem by its number, from 0."""
    rng = np.random.default_rng([TIER_VERSION, list(TIERS).index(tier), number])
    name = f"{TIER_FIRST}/{tier}/{number}"
    return draw(rng, family_of(name), TIERS[tier], name)


def family_of(name: str) -> str:
    """Return the family of the problem of a tier; they take turns."""
    return list(FAMILIES)[int(name.rpartition("/")[2]) % len(FAMILIES)]


def is_member(instance: Any) -> bool:
    """Return whether something is the name of a problem of a set, or of a drawn one."""
    first = instance.partition("/")[0] if isinstance(instance, str) else ""
    return first in (*SETS, *DRAWN)


def asked(
    options: dict[str, Any], instance: Any, settings: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    """Return instance and settings of a reset, whose ``options`` come before those given."""
    instance = options.get("instance", instance)
    if instance in (None, *SETS):
        raise ParenvsError("options: 'instance' must name a problem, a graph or a file")
    # Settings of the environment are for models; problems of sets have their own.
    settings = options if is_member(instance) else {**settings, **options}
    return instance, {key: x for key, x in settings.items() if key != "instance"}


def generated_named(name: str) -> DrawnProblem:
    """Return the generated problem of a name.

    Raises:
        UnknownInstanceError: it is no such name.
    """
    first, *words = name.split("/")
    number = int(words[-1]) if words and re.fullmatch(r"\d{1,15}", words[-1], re.A) else None
    if number is not None and first == FEW_FIRST and len(words) == 3:
        ranges, family, _ = words
        if ranges in RANGES and family in (ANY, *FAMILIES):
            return problem_of(number, None if family == ANY else family, ranges)
    if number is not None and first == TIER_FIRST and len(words) == 2 and words[0] in TIERS:
        return numbered(number, words[0])
    raise UnknownInstanceError(
        f"unknown problem {shown(name)}; generated ones are called like "
        f"{name_of(17, None, 'inside')}: ranges ({', '.join(RANGES)}), family "
        f"({', '.join((ANY, *FAMILIES))}) and number; or of many stages like "
        f"{TIER_FIRST}/s16/17: tier ({', '.join(TIERS)}) and number"
    )


SETS: dict[str, tuple[int, Ranges]] = {
    "plan-validation": (200, INSIDE),
    "plan-test": (1000, INSIDE),
    "plan-outside": (200, OUTSIDE),
    **{f"plan-{tier}-validation": (16, TIERS[tier]) for tier in ("s16", "s32", "s64")},
    **{f"plan-{tier}-test": (40, TIERS[tier]) for tier in ("s16", "s32", "s64")},
}
"""Shipped set -> number of problems, and their ranges; the families take turns."""
DRAWN = (FEW_FIRST, TIER_FIRST)
"""First words of the names of drawn problems."""
LARGE = tuple(name for name, (_, ranges) in SETS.items() if ranges.graded)
"""Sets of problems of 16 stages and more."""
PROVEN = tuple(name for name in SETS if name not in LARGE)
"""The others, whose optima are proven."""
OPTIMA = "plan-optima.json"
"""File of the optima of these over points and units."""


def costs(pipeline: Pipeline) -> BestValue | None:
    """Return the least seconds known of a problem of a set, and their bound; None without them."""
    file = OPTIMA if pipeline.instance.partition("/")[0] in PROVEN else REFERENCES
    return costs_of(file, pipeline.instance, pipeline.profile.fingerprint)


def optimum_of(name: str) -> float | None:
    """Return the proven 1/L of the shortest plan over points and units; None outside the sets.

    L is in units of the bubble-free time; ``name`` is like ``"plan-test/transformer-017"``.
    """
    set_name, slash, _ = name.partition("/")
    if not slash or set_name not in PROVEN:
        return None
    pipeline = pipeline_of(name)
    known = costs(pipeline)
    return None if known is None else pipeline.bubble_free / known.value


SCHEMA = 1
"""Version of the file format."""
CHAIN = ("forward", "backward", "cut_bytes", "parameter_bytes")
CLUSTER = ("servers", "devices_per_server", "intra_bw", "inter_bw", "memory_bytes")
TYPES = {
    "schema": "|u1",
    "families": "|u1",
    "offset": "<i4",
    **{f"{key}_mantissa": "<u2" for key in CHAIN},
    **{f"{key}_exponent": "|i1" for key in CHAIN},
    "family": "|u1",
    **dict(zip(CLUSTER, ("<i4", "<i4", "<f8", "<f8", "<f8"), strict=True)),
    "micro_batches": "<i4",
    "stages": "<i4",
}
"""Array of a file -> its element type; all have one dimension, and ``schema`` one element."""


def load_set(name: StrPath) -> list[DrawnProblem]:
    """Load the problems of a shipped set, or of a ``.npz`` file of one.

    The problems are called ``SET/FAMILY-NUMBER``, numbered within a family; SET is the name of the
    file without its suffix.

    Raises:
        UnknownInstanceError: ``name`` is no shipped set and does not end in ``.npz``.
        ParenvsError: the file is missing or damaged; the message names file, field and remedy.
    """
    text = os.fspath(name)
    if text in SETS:
        return list(_shipped(text))
    if text.endswith(".npz"):
        return _read(Path(text))
    raise UnknownInstanceError(
        f"unknown set {text!r}{did_you_mean(text, SETS)}; shipped: {', '.join(SETS)}; "
        "or give the path of a .npz file"
    )


def find(name: str) -> DrawnProblem:
    """Return the problem of a shipped set (``"plan-test/transformer-017"``), or a drawn one.

    Raises:
        UnknownInstanceError: there is no such set, or no such problem in it.
    """
    set_name = name.partition("/")[0]
    if set_name in DRAWN:
        return generated_named(name)
    return member_of(_by_name(set_name), name)


def pipeline_of(name: str) -> Pipeline:
    """Return the pipeline of a problem of a shipped set, see ``find``."""
    return find(name).pipeline


@lru_cache(maxsize=len(SETS))
def _by_name(set_name: str) -> dict[str, DrawnProblem]:
    return {problem.name.rpartition("/")[2]: problem for problem in load_set(set_name)}


@lru_cache(maxsize=len(SETS))
def _shipped(name: str) -> tuple[DrawnProblem, ...]:
    return tuple(_read(data_folder() / f"{name}.npz"))


def _read(path: Path) -> list[DrawnProblem]:
    """Read a file, or raise a ``ParenvsError`` that tells how to make it again."""
    try:
        arrays = read_arrays(path)
    except UNREADABLE as error:
        reason = f"not a set of problems, or damaged ({one_line(error)})"
        raise ParenvsError(f"{path}: {reason}; {_remedy(path)}") from None
    fault = _fault(arrays)
    if fault:
        raise ParenvsError(f"{path}: {fault}; {_remedy(path)}")
    return _problems_of(arrays, path)


def _remedy(path: Path) -> str:
    if path.stem in SETS:
        return f"make it anew with python benchmarks/make_sets.py {path.stem}.npz"
    return "write it anew"


def _fault(arrays: dict[str, Array]) -> str:
    if set(arrays) != set(TYPES):
        unmatched = sorted(set(arrays) ^ set(TYPES))
        return f"field {unmatched[0]!r} is missing or unknown"
    for key, kind in TYPES.items():
        if arrays[key].dtype.str != kind or arrays[key].ndim != 1:
            return f"field {key!r} is no array of {np.dtype(kind).name} in one dimension"
    if arrays["schema"].tolist() != [SCHEMA]:
        return f"field 'schema' is {arrays['schema'].tolist()}, not [{SCHEMA}]"
    problems, offset = len(arrays["family"]), arrays["offset"]
    if len(offset) != problems + 1 or offset[0] or (np.diff(offset) < 2).any():
        return "field 'offset' does not cut up the chains"
    for key in sorted(set(TYPES) - {"schema", "families", "offset"}):
        of_pivots = key.endswith(("_mantissa", "_exponent"))
        count, noun = (offset[-1], "pivots") if of_pivots else (problems, "problems")
        if len(arrays[key]) != count:
            return f"field {key!r} has {len(arrays[key])} values for {count} {noun}"
    names = arrays["families"].tobytes().decode(errors="replace").split("\n")
    unknown = [name for name in names if name not in FAMILIES]
    if unknown:
        return f"field 'families' holds {unknown[0]!r}, not one of {', '.join(FAMILIES)}"
    if problems and arrays["family"].max() >= len(names):
        return f"field 'family' holds {arrays['family'].max()}, only {len(names)} are named"
    return ""


def _problems_of(arrays: dict[str, Array], path: Path) -> list[DrawnProblem]:
    chains = [
        np.ldexp(arrays[f"{key}_mantissa"].astype(float), arrays[f"{key}_exponent"])
        for key in CHAIN
    ]
    names = arrays["families"].tobytes().decode().split("\n")
    offset, count_by_family, problems = arrays["offset"], Counter[str](), []
    for i, index in enumerate(arrays["family"]):
        family = names[index]
        name = f"{path.stem}/{family}-{count_by_family[family]:03d}"
        count_by_family[family] += 1
        chain = ChainArrays(*(values[offset[i] : offset[i + 1]] for values in chains))
        cluster_fields = [arrays[key][i].item() for key in CLUSTER]
        micro_batches, stages = int(arrays["micro_batches"][i]), int(arrays["stages"][i])
        try:
            cluster = generated_cluster(*cluster_fields)
            most_stages = min(cluster.devices, int(np.count_nonzero(chain.parameters)))
            if not 2 <= stages <= most_stages:
                raise ParenvsError(f"field 'stages' is {stages}, not from 2 to {most_stages}")
            problems.append(generated(family, name, chain, cluster, micro_batches, stages))
        except ParenvsError as error:
            raise ParenvsError(f"{path}: {name}: {error}; {_remedy(path)}") from None
    return problems


def set_kind(name: str) -> SetKind:
    """Return what the leaderboard and evaluations know of a set of pipelines; see ``SetKind``."""

    def names(name: str) -> list[str]:
        return [problem.name for problem in load_set(name)]

    env_id = "PipelineImprove-v0" if name in LARGE else "PipelinePlan-v0"
    return SetKind(env_id, names, pipeline_of, lambda name: costs(pipeline_of(name)))
