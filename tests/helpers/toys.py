"""Small instances: random ones for hypothesis, and two whose optimum is known by hand."""

from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from hypothesis import strategies as st

from parenvs.cluster import DEVICES, SYNC_METHODS, Cluster
from parenvs.tasks.pipeline.problem import Pipeline
from parenvs.tasks.pipeline.profile import StageProfile

DEVICE = {"name": "toy", "peak_flops": 1.0, "memory_bw": 1.0, "memory_bytes": 1e6}


@dataclass(frozen=True)
class Toy:
    """A problem and its optimum; ``cluster`` is an object for ``Cluster.parse``."""

    profile: StageProfile
    cluster: dict
    stages: int
    micro_batches: int
    cuts: tuple[int, ...]
    device_cuts: tuple[int, ...]
    length: Fraction
    value: Fraction

    @property
    def pipeline(self):
        return Pipeline(self.profile, Cluster.parse(self.cluster), self.stages, self.micro_batches)

    def kwargs(self, folder):
        """Arguments of ``PipelineCut-v0``; the chain is written as a CSV file into the folder."""
        path = folder / f"{self.profile.name}.csv"
        self.profile.to_csv(path)
        return {
            "instance": str(path),
            "cluster": self.cluster,
            "stages": self.stages,
            "micro_batches": self.micro_batches,
        }


def chain(forward, backward, cut_bytes, parameter_bytes, resident_bytes=None, name="toy"):
    """A chain of pivots p0, p1, ..."""
    return StageProfile(
        name=name,
        names=np.array([f"p{i}" for i in range(len(forward))], dtype=object),
        forward=np.array(forward, dtype=float),
        backward=np.array(backward, dtype=float),
        cut_bytes=np.array(cut_bytes, dtype=float),
        parameter_bytes=np.array(parameter_bytes, dtype=float),
        resident_bytes=None if resident_bytes is None else np.array(resident_bytes, dtype=float),
    )


def shape(servers, devices_per_server, intra_bw, inter_bw, memory_bytes=1e6):
    """A cluster as an object."""
    return {
        "servers": servers,
        "devices_per_server": devices_per_server,
        "intra_bw": intra_bw,
        "inter_bw": inter_bw,
        "device": {**DEVICE, "memory_bytes": memory_bytes},
    }


def balanced(stages=3, per_stage=4, micro_batches=16):
    """As many devices as stages and equal pivots of 1 + 2 seconds; every other cut is free.

    ``per_stage`` is even.

    With one device a stage there is no all-reduce, and cutting evenly, which costs no transfer,
    gives x = 3 per_stage seconds in every stage: L = S x + (M-1) x, of which M x is bubble-free.
    Any other cut makes some stage longer, so that the value M / (M + S - 1) is the optimum.
    """
    n = stages * per_stage
    one = [1.0] * n
    cut = [8.0 * (p % 2) for p in range(1, n)] + [0.0]
    x = 3 * per_stage
    return Toy(
        chain(one, [2.0] * n, cut, one, name="balanced"),
        shape(1, stages, 8.0, 8.0),
        stages,
        micro_batches,
        tuple(range(per_stage, n, per_stage)),
        tuple(range(1, stages)),
        Fraction((micro_batches + stages - 1) * x),
        Fraction(micro_batches, micro_batches + stages - 1),
    )


def dense():
    """Like VGG: the last pivot holds the parameters and wants a device of its own.

    Six pivots of 1 + 1 seconds, two servers of two devices, intra 4 B/s, inter 1 B/s, M = 2; the
    device cuts that go with the pivots 1..5 are 1, 1, 2, 3, 3.

    * p=5: x = 10/3, 6, 2: core = 10/3 + 2 6 = 46/3. All-reduce of 5 bytes over 3 devices in two
      servers: 2 5 2/3 = 20/3, nothing before it. L = 22.
    * p=4: the transfer of 9 bytes alone takes 2 18 = 36. p=1, p=2: the last stage has 68 or more
      bytes on three devices, 2 68 2/3 = 90.7, less at most 1 + 9 + ... of backward before it.
    * p=3 (even): x = 3, 6, 3, core = 3 + 2 6 = 15. All-reduce of 66 bytes inside a server:
      2 66 1/(2 4) = 16.5, less 1.5 + 3 of backward before it. L = 27.
    """
    return Toy(
        chain([1] * 6, [1] * 6, [9, 9, 3, 9, 3, 0], [1, 1, 1, 1, 1, 64], name="dense"),
        shape(2, 2, 4.0, 1.0),
        2,
        2,
        (5,),
        (3,),
        Fraction(22),
        Fraction(6, 22),
    )


# Random problems. Whole numbers, so that prefix sums are exact and ties are ties.


@st.composite
def clusters(draw, least=2, most=9, slow_inside=True):
    """Clusters of ``least`` to ``most`` devices."""
    shapes = [(s, d) for s in range(1, 6) for d in range(1, 7) if least <= s * d <= most]
    servers, per_server = draw(st.sampled_from(shapes))
    inter = draw(st.sampled_from([0.5, 1.0, 4.0, 32.0]))
    intra = inter * draw(st.sampled_from([0.5, 1.0, 8.0] if slow_inside else [1.0, 8.0]))
    device = replace(DEVICES["v100"], memory_bytes=float(draw(st.integers(1, 400))))
    return Cluster(servers, per_server, device, intra, inter)


@st.composite
def profiles(draw, least=2, most=12):
    """Chains with runs of equal cuts, pivots that cost nothing and pivots without variables."""
    n = draw(st.integers(least, most))

    def numbers(values):
        return draw(st.lists(st.sampled_from(values), min_size=n, max_size=n))

    forward = numbers([0, 0, 1, 1, 2, 5])
    if not any(forward):
        forward[draw(st.integers(0, n - 1))] = 1
    return chain(
        forward,
        [2 * x for x in forward] if draw(st.booleans()) else numbers([0, 1, 3, 4]),
        numbers([0, 1, 1, 2, 3, 7, 20]),
        numbers([0, 0, 1, 2, 9, 50]),
        numbers([0, 1, 5, 8]),
        name="random",
    )


@st.composite
def pipelines(draw, **options):
    """Problems with every setting drawn."""
    return Pipeline(
        draw(profiles(**options)),
        draw(clusters()),
        micro_batches=draw(st.sampled_from([1, 2, 3, 5, 16])),
        copies=draw(st.sampled_from([0.0, 1.0, 2.0, 4.0])),
        recompute=draw(st.sampled_from(["full", "none"])),
        sync=draw(st.sampled_from(SYNC_METHODS)),
    )


@st.composite
def plans(draw, pipeline, stages=None):
    """Cuts and device cuts that increase, whether every stage has a variable or not."""
    n, devices = len(pipeline.profile), pipeline.cluster.devices
    count = draw(st.integers(1, min(n, devices) - 1)) if stages is None else stages - 1
    cuts = draw(st.permutations(range(1, n)))[:count]
    device_cuts = draw(st.permutations(range(1, devices)))[:count]
    return np.array(sorted(cuts)), np.array(sorted(device_cuts))
