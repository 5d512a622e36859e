"""Clusters: servers of equal devices, fast links inside a server, slower ones between servers.

Units are SI throughout: seconds, bytes, bytes per second, FLOP per second. Devices are numbered
server by server, and a group of devices is always a range of consecutive numbers.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from parenvs.compiled import Array, Figure, choose, shared
from parenvs.errors import ClusterError, ParenvsError, among, refuse_unknown, shown
from parenvs.fields import Count, Text, checked, number, one_of, read, settle, whole, words
from parenvs.files import StrPath, read_json

MEMORY_FRACTION = 0.9
"""Share of a device's memory that a plan may fill; a choice of this suite, not of the paper."""
GIB = 2**30
"""Bytes. Capacities are what CUDA or HIP reports, less than the "80 GB" of a data sheet."""
EFFICIENCY = 0.5
"""Share of the peak that an instruction reaches; a constant of the cost model (not measured)."""
MOST_RATE = 1e30
"""The largest FLOP/s, bytes/s, bytes or speed that can be counted with."""
PRECISIONS = (
    "fp32", "tf32", "fp16", "bf16", "fp8", "fp8-row", "fp8-block", "mxfp8", "nvfp4",
)  # fmt: skip
"""Number formats of matrix products, by the names that ``Device.peaks`` and plans use.

FP8 has a scale for each tensor; ``fp8-row`` has one for each row, ``fp8-block`` for each 128 x 128
of weights and 1 x 128 of activations (arXiv 2412.19437, section 3.3), ``mxfp8`` for each 32 numbers
and ``nvfp4`` for each 16, where the device multiplies by scales itself.
"""
RUNS_ON = {"fp8-row": "fp8", "fp8-block": "fp8"}
"""Precision -> the one whose instructions make its products."""
_RUNS_AS = {"f32": ("tf32",), "f16": ("fp16",), "bf16": ("bf16",), "f8": ("fp8", "bf16")}
"""Type of elements -> the precisions that run its products, the fastest first."""


def rate(value: float) -> float:
    """Return a whole number beyond those of arrays as the nearest float, all others as they are."""
    return float(value) if isinstance(value, int) and 2**53 < value < MOST_RATE else value


@dataclass(frozen=True)
class Device:
    """One accelerator.

    Attributes:
        peak_flops: peak dense FLOP/s of the products of fp32 graphs: in TF32 where the device has
            it, as frameworks run them, else in FP32.
        peaks: precision (one of ``PRECISIONS``) and peak dense FLOP/s of matrix products in it, in
            pairs; empty where only ``peak_flops`` is known.
        intra_bw: default bandwidth between two devices of one server, one direction, bytes/s.
        inter_bw: default bandwidth between two servers, one direction, bytes/s.
        host_bw: bandwidth between the device and the memory of its server, one direction, bytes/s;
            0 if it is not known.
        near: devices that share a switch inside a server; 0 if all do.
        far_bw: bandwidth of groups of more than ``near`` devices of one server, bytes/s.
        hop: seconds of latency of each step of a collective inside a server; 0: the stack's.
        once: seconds of latency of each collective beside its steps.
        source: data sheet or paper that the figures are from.
        watts: of thermal design; 0 if they are not known.
        like: device of the same generation, by name, as whose products its own reach FLOP/s a watt;
            empty if none.
    """

    name: str
    peak_flops: float
    memory_bw: float
    memory_bytes: float
    peaks: tuple[tuple[str, float], ...] = ()
    intra_bw: float = field(default=0.0, compare=False)
    inter_bw: float = field(default=0.0, compare=False)
    host_bw: float = field(default=0.0, compare=False)
    near: int = field(default=0, compare=False)
    far_bw: float = field(default=0.0, compare=False)
    hop: float = field(default=0.0, compare=False)
    once: float = field(default=0.0, compare=False)
    source: str = field(default="", compare=False)
    inside: int = field(default=8, compare=False)
    watts: float = field(default=0.0, compare=False)
    like: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Put the peaks in order, so that equal devices are equal."""
        settle(self, "peaks")
        pairs = [(precision, rate(flops)) for precision, flops in sorted(self.peaks)]
        object.__setattr__(self, "peaks", tuple(pairs))
        for key in ("peak_flops", "memory_bw", "memory_bytes", "intra_bw", "inter_bw"):
            object.__setattr__(self, key, rate(getattr(self, key)))

    def peak(self, precision: str) -> float:
        """Return the peak FLOP/s of matrix products in a precision.

        A device whose peaks by precision are not known has one peak for all.

        Raises:
            ClusterError: the precision is unknown, or the device has none such.
        """
        refuse_unknown("unknown precision", precision, PRECISIONS, ClusterError)
        if not self.peaks:
            return self.peak_flops
        peaks = dict(self.peaks)
        peaks |= {name: peaks[base] for name, base in RUNS_ON.items() if base in peaks}
        if precision not in peaks:
            raise ClusterError(
                f"a {self.name} has no {precision}; it has {', '.join(sorted(peaks))}"
            )
        return peaks[precision]

    def peak_of(self, element_type: str) -> float:
        """Return the peak FLOP/s of products of a type of elements, by XLA's name (``"bf16"``)."""
        kind = element_type[:2] if element_type.startswith("f8") else element_type
        peaks = dict(self.peaks)
        return next(
            (peaks[name] for name in _RUNS_AS.get(kind, ()) if name in peaks), self.peak_flops
        )

    def at(self, precision: str) -> Device:
        """Return the device with all products in one precision, named like ``a100-fp32``.

        Raises:
            ClusterError: the precision is unknown, or the device has none such.
        """
        name = f"{self.name}-{precision}"
        return replace(self, name=name, peak_flops=self.peak(precision), peaks=())

    @classmethod
    def find(cls, name: str) -> Device | None:
        """Return a device by its preset's name, also at one precision (``a100-fp32``), or None."""
        if name in DEVICES:
            return DEVICES[name]
        base, _, precision = name.partition("-")
        peaks = dict(DEVICES[base].peaks) if base in DEVICES else {}
        return DEVICES[base].at(precision) if RUNS_ON.get(precision, precision) in peaks else None


def _blackwell(
    name: str, bf16: float, fp8: float, fp4: float, memory: float, nic: float, watts: float,
    inside: int, sheet: str,
) -> Device:  # fmt: skip
    peaks = {"fp32": bf16 / 30, "tf32": bf16 / 2, "fp16": bf16, "bf16": bf16, "fp8": fp8}
    # Tensor cores apply block scales themselves, at the speed of plain FP8 and FP4.
    peaks |= {"mxfp8": fp8, "nvfp4": fp4}
    return Device(
        name,
        peak_flops=bf16 / 2,
        memory_bw=8000e9,
        memory_bytes=memory,
        peaks=tuple(peaks.items()),
        intra_bw=900e9,
        inter_bw=inside * nic,
        host_bw=225e9 if name.startswith("g") else 64e9,  # NVLink-C2C of two devices, PCIe 5.0 x16
        source=f"NVIDIA {sheet} datasheet, dense products; memory by driver",
        inside=inside,
        watts=watts,
        like="" if name == "gb200" else "gb200",
        # Means of all-gathers and reduce-scatters that SimuMax measured on a server of 8 B200.
        hop=8.6e-6 if name == "b200" else 0.0,
        once=24.3e-6 if name == "b200" else 0.0,
    )


DEVICES: dict[str, Device] = {
    device.name: device
    for device in (
        Device(
            "v100",
            peak_flops=15.7e12,
            memory_bw=900e9,
            memory_bytes=32e9,
            peaks=(("fp32", 15.7e12), ("fp16", 125e12)),
            intra_bw=150e9,
            inter_bw=25e9 / 8,
            host_bw=16e9,
            watts=300.0,
            source="NVIDIA Tesla V100 datasheet, SXM2 32 GB; network: arXiv 2007.04069, Table 2",
        ),
        Device(
            "a100",
            peak_flops=156e12,
            memory_bw=2039e9,
            memory_bytes=79.15 * GIB,
            peaks=(("fp32", 19.5e12), ("tf32", 156e12), ("fp16", 312e12), ("bf16", 312e12)),
            intra_bw=300e9,
            inter_bw=8 * 200e9 / 8,
            host_bw=32e9,
            watts=400.0,
            source="NVIDIA A100 (SXM4 80 GB) and DGX A100 datasheets; memory by out-of-memory "
            "messages of PyTorch",
        ),
        Device(
            "h100",
            peak_flops=494.7e12,
            memory_bw=3350e9,
            memory_bytes=79.11 * GIB,
            peaks=(
                ("fp32", 66.9e12),
                ("tf32", 494.7e12),
                ("fp16", 989.4e12),
                ("bf16", 989.4e12),
                ("fp8", 1978.9e12),
            ),
            intra_bw=450e9,
            inter_bw=8 * 400e9 / 8,
            host_bw=64e9,
            watts=700.0,
            source="NVIDIA H100 (SXM5 80 GB) and DGX H100 datasheets; memory by out-of-memory "
            "messages of PyTorch",
        ),
        _blackwell("gb200", 2500e12, 5e15, 10e15, 184.3 * GIB, 50e9, 1200.0, 72, "GB200 NVL72"),
        _blackwell("gb300", 2500e12, 5000e12, 15000e12, 279e9, 100e9, 1400.0, 72, "GB300 NVL72"),
        _blackwell("b200", 2250e12, 4500e12, 9000e12, 178.35 * GIB, 50e9, 1000.0, 8, "DGX B200"),
        _blackwell("b300", 2250e12, 4500e12, 13500e12, 268e9, 100e9, 1100.0, 8, "DGX B300"),
    )
}


def _like(base: str, name: str, source: str, **figures: Any) -> Device:
    """A device of the generation of another, which differs in some figures."""
    return replace(DEVICES[base], name=name, like=base, source=source, **figures)


def _instinct(name: str, tflops: float, memory_bw: float, gib: float, link: float, watts: float,
              **peaks: float) -> Device:  # fmt: skip
    """An AMD Instinct of so many dense TFLOP/s at 16 bits, in servers of eight, all linked."""
    teraflops = {"fp32": tflops / 8, "fp16": tflops, "bf16": tflops, "fp8": 2 * tflops, **peaks}
    return Device(
        name,
        peak_flops=teraflops["fp32"] * 1e12,
        memory_bw=memory_bw,
        memory_bytes=gib * GIB,
        peaks=tuple((precision, rate * 1e12) for precision, rate in teraflops.items()),
        intra_bw=7 * link,
        inter_bw=8 * 50e9,
        host_bw=64e9,
        watts=watts,
        like="h100",
        source=f"AMD Instinct {name.upper()} datasheet, dense products; seven links inside",
    )


DEVICES |= {
    device.name: device
    for device in (
        _like("a100", "a100-40gb", "NVIDIA A100 datasheet, SXM4 40 GB", memory_bw=1555e9,
              memory_bytes=39.50 * GIB),
        # Ranks share PCIe, and as was measured two thirds of it between the halves of a server.
        _like("a100", "a100-pcie", "NVIDIA A100 datasheet, PCIe 80 GB", memory_bw=1935e9,
              intra_bw=32e9, near=4, far_bw=21e9, watts=300.0),
        _like("a100", "a800", "NVIDIA A800: NVLink of 400 GB/s, both ways", intra_bw=200e9),
        _like("h100", "h800", "NVIDIA H800: NVLink of 400 GB/s, both ways", intra_bw=200e9),
        _like("h100", "h200", "NVIDIA H200 datasheet; nvidia-smi: 143,771 MiB", memory_bw=4800e9,
              memory_bytes=139.8 * GIB),
        _instinct("mi300x", 1307.4, 5300e9, 191.5, 64e9, 750.0),
        _instinct("mi325x", 1307.4, 6000e9, 255.5, 64e9, 1000.0),
        _instinct("mi355x", 2516.6, 8000e9, 287.5, 76.8e9, 1400.0, mxfp8=5033.2),
    )
}  # fmt: skip

SYNC_METHODS = ("allreduce", "parameter-server", "sharded-parameter-server")
"""Ways to synchronize gradients, see ``Cluster.sync_seconds``."""
LINKS = ("rank", "node")
"""Rules for the bandwidth of a group between servers: by its ranks in each, or the whole server."""


def server_of(device: Figure, devices_per_server: Figure) -> Figure:
    """Return the number of the server that holds a device."""
    return device // devices_per_server


def same_server(first: Figure, end: Figure, devices_per_server: Figure) -> Figure:
    """Return whether the devices ``[first, end)`` lie in one server."""
    return server_of(first, devices_per_server) == server_of(end - 1, devices_per_server)


def group_bandwidth(same: Figure, intra_bw: Figure, inter_bw: Figure) -> Figure:
    """Return the bandwidth of groups of devices, bytes/s."""
    return np.where(same, intra_bw, inter_bw)


def sync_bytes(size: Figure, group: Figure, method: str = "allreduce") -> Figure:
    """Return the bytes that pass the narrowest link while gradients are synchronized.

    * ``"allreduce"``: a ring, ``2 W (R-1) / R``;
    * ``"parameter-server"``: every worker pushes and pulls all gradients over the link of one
      central server, ``2 W R``;
    * ``"sharded-parameter-server"``: every worker owns 1/R of the gradients; on full-duplex links
      this moves as many bytes as the ring.

    One device needs no synchronization: 0 bytes.

    Args:
        size: W, bytes of the gradients.
        group: R, devices that hold a copy.
        method: one of ``SYNC_METHODS``.

    Raises:
        ClusterError: the method is unknown.
    """
    refuse_unknown("sync: unknown method", method, SYNC_METHODS, ClusterError)
    if method == "parameter-server":
        return central_bytes(2.0 * size, group)
    # An all-reduce is a reduce-scatter and an all-gather: 2 W (R-1) / R.
    return ring_bytes(2.0 * size, group)


def sync_seconds(
    size: Figure, group: Figure, bandwidth: Figure, method: str = "allreduce"
) -> Figure:
    """Return the seconds to synchronize ``size`` bytes of gradients over ``group`` devices.

    Args:
        size: bytes of the gradients.
        group: number of devices.
        bandwidth: bytes/s between them.
        method: see ``sync_bytes``.
    """
    return sync_bytes(size, group, method) / bandwidth


def central_bytes(size: Figure, group: Figure) -> Figure:
    """Return the bytes of all devices of a group over the link of one server, if there are more."""
    return size * group * (group > 1)


def ring_bytes(size: Figure, group: Figure) -> Figure:
    """Return the bytes per link of an all-gather or a reduce-scatter: ``S (R-1) / R``."""
    return size * (group - 1) / group


@shared
def ring_seconds(
    size: Figure, group: Figure, bandwidth: Figure, lap: Figure, bucket: float = 0.0
) -> Figure:
    """Return the seconds in which every rank of a ring receives an array of ``size`` bytes in all.

    ``lap`` are the seconds of latency of one time around, ``bucket`` bytes that one collective
    passes at most; 0 if one passes all.
    """
    if bucket > 0:
        lap = lap * np.maximum(1.0, size / bucket)
    return size * (group - 1) / group / bandwidth + lap


@shared
def inside_bandwidth(links: Any, group: Figure, stride: Figure) -> Figure:
    """Return the bandwidth of groups of ranks inside a server, bytes/s."""
    if not links.near:
        return links.intra_bw
    return choose(group * stride > links.near, links.far_bw, links.intra_bw)


@shared
def spanned(links: Any, group: Figure, stride: Figure) -> tuple[Figure, Figure]:
    """Return the ranks of a group in each server, and the servers that it spans."""
    if links.by_node:
        inside = links.devices_per_server
        return np.minimum(group, inside), choose(group * stride <= inside, 1, 2)
    # Ranks that lie a server or more apart have a server each.
    ranks = np.maximum(1, np.minimum(group, links.devices_per_server // stride))
    return ranks, -(-group // ranks)


@shared
def ring_of(links: Any, group: Figure, stride: Figure) -> tuple[Figure, Figure]:
    """Return the bandwidth of collectives of groups of ranks, and their latency.

    ``links`` has the fields of ``Links``.
    """
    ranks, servers = spanned(links, group, stride)
    one_server = servers == 1
    # All ranks of a server send through their cards at once, at most as fast as inside.
    between = np.minimum(links.intra_bw, ranks * links.nic_bw)
    if links.by_node:
        between = links.devices_per_server * links.nic_bw
    inside = inside_bandwidth(links, group, stride)
    bandwidth = links.share * choose(one_server, inside, between)
    crossings = choose(one_server, 0.0, servers * links.hop_out)
    # A ring over several servers crosses between them once per server.
    steps = (group - servers) * links.hop_in + crossings
    return bandwidth, choose(group > 1, steps + links.once, 0.0)


@shared
def send_seconds(links: Any, size: Figure, same_server: Figure, ranks: Figure) -> Figure:
    """Return the seconds in which each of ``ranks`` pairs of devices passes ``size`` bytes.

    Each pair has a network card of its own; by the rule of the whole server all pass one link
    together. ``links`` has the fields of ``Links``.
    """
    bandwidth = choose(same_server, links.intra_bw, links.nic_bw)
    if links.by_node:
        shared_link = links.devices_per_server * links.nic_bw
        bandwidth = choose(same_server, links.intra_bw, shared_link) / ranks
    return size / (links.send_share * bandwidth) + choose(same_server, links.hop_in, links.hop_out)


@dataclass(frozen=True)
class Links:
    """The network as the ranks of a group see it, with what a software stack makes of it.

    A group has R ranks, ``stride`` devices apart. k = max(1, min(R, devices_per_server / stride))
    of them share a server, so it spans R / k servers, rounded up. Between servers its bandwidth is
    that of k network cards, at most the inner one. nccl-tests of 1 to 32 H100 servers agree within
    16 % (root mean square over 69 cells) where the rule of the whole server is 361 % off.

    Attributes:
        devices_per_server: devices in each server.
        nic_bw: bytes/s of one device's share of the network.
        send_share: share that sends between neighboring stages reach.
        hop_in: seconds of latency of each step inside a server.
        hop_out: seconds of latency of each step between servers.
        near: devices of a server that share a switch; 0 if all do.
        far_bw: bytes/s of groups of more than these in one server.
        once: seconds of latency of a collective beside its steps.
    """

    devices_per_server: int
    intra_bw: float
    nic_bw: float
    share: float = 1.0
    send_share: float = 1.0
    hop_in: float = 0.0
    hop_out: float = 0.0
    rule: str = LINKS[0]
    near: int = 0
    far_bw: float = 0.0
    once: float = 0.0

    @property
    def by_node(self) -> bool:
        """Whether the rule is that of the whole server."""
        return self.rule == "node"

    def all_gather(self, size: Figure, group: Figure, stride: Figure) -> Figure:
        """Return the seconds in which every rank receives an array of ``size`` bytes in all.

        A reduce-scatter takes as long. One rank takes none.
        """
        return ring_seconds(size, group, *ring_of(self, group, stride))

    def all_reduce(self, size: Figure, group: Figure, stride: Figure) -> Figure:
        """Return the seconds to sum arrays of ``size`` bytes: twice those of an all-gather."""
        return 2.0 * self.all_gather(size, group, stride)

    def all_to_all(self, size: Figure, group: Figure, stride: Figure) -> Figure:
        """Return the seconds in which every rank sends ``size`` bytes in all to the others."""
        inside = inside_bandwidth(self, group, stride)
        bandwidth = np.where(spanned(self, group, stride)[1] == 1, inside, self.nic_bw)
        lap = ring_of(self, group, stride)[1]
        return ring_seconds(size, group, self.share * bandwidth, lap)

    def dispatch(
        self, size: Figure, copies: Figure, group: Figure, stride: Figure, once: bool = False
    ) -> Figure:
        """Return the seconds in which every rank sends copies of its tokens to drawn ranks.

        What leaves a server passes the network card, all else the links inside, both at a time.
        Tokens choose their ``copies`` receivers alike.

        Args:
            size: bytes of a rank's tokens, each once.
            copies: K, receivers of each token.
            group: R, ranks.
            stride: distance of the ranks.
            once: whether a token passes to another server, and to another device, once at most.
        """
        servers = spanned(self, group, stride)[1]
        if once:
            # Expected servers (devices) hit by K draws: each is missed with (1 - 1/n)^K.
            outside = (servers - 1) * (1 - (1 - 1 / servers) ** copies)
            inside = (group - 1) * (1 - (1 - 1 / group) ** copies)
        else:
            outside = copies * (servers - 1) / servers
            # A receiver in the own server, the sender itself excluded.
            inside = copies * (1 / servers - 1 / group)
        # Card and inner links work at the same time, so the slower one counts.
        slowest = np.maximum(outside / self.nic_bw, inside / inside_bandwidth(self, group, stride))
        return size * slowest / self.share + ring_of(self, group, stride)[1]


COLLECTIVES = ("send", "all-reduce", "all-gather", "reduce-scatter", "all-to-all")
"""What processes do together; sizes are those that the methods of ``Links`` take."""
_Figure = words("a number")
Provenance = (
    Annotated[str, words("a text")]
    | Annotated[int, _Figure]
    | Annotated[float, _Figure]
    | Annotated[bool, _Figure]
    | Annotated[list[str], words("a list of texts")]
)
"""What a file can say of how it was measured: texts, numbers, and lists of texts."""
FORWARD, INPUT, WEIGHT = ROLES = ("forward", "input", "weight")
"""What a product makes: outputs, or gradients of inputs or of weights."""
PASSES = ("forward", "backward")
"""Passes of attention."""
OTHER, PERMUTE, LOSS, FUSED_LOSS = TRAFFIC = ("other", "permute", "loss", "fused-loss")
"""Kernels that memory bounds: those that bring tokens to their experts and back, the loss as
several kernels or as one, and all others."""
GATHER, EXCHANGE = _MEASURED = ("all-gather", "all-to-all")
"""Collectives; a reduce-scatter takes as long as an all-gather."""
NEAREST = 4
"""Measured shapes of which the share of one between them is a mean."""
FURTHEST = 4.0
"""Factor in one of its numbers from which on a shape is not like the nearest measured one."""

_Precision = Annotated[str, words("a precision")]
_Share = Annotated[float, words("a share over 0", ge=1e-6, le=100)]
_Seconds = Annotated[float, number(0, 60, "seconds from 0")]
_Product = tuple[_Precision, Annotated[str, one_of(*ROLES)], Count, Count, Count, Count, _Share]
_Attention = tuple[
    _Precision, Annotated[str, one_of(*PASSES)], Count, Count, Count, Count, Count, Count, _Share
]


@dataclass(frozen=True)
class Measured:
    """Figures of one server; shares are of the figures of its cluster's file.

    Attributes:
        source: who measured it, with what.
        products: precision, one of ``ROLES``, g, m, k, n, and the share of the peak that g products
            of (m, k) by (k, n) in one kernel reach. Where weights are (k, n), their gradients are
            products of (k, m) by (m, n).
        attention: precision, pass, samples, sequence, heads, heads of keys, widths of keys and of
            values, and the share of the peak that causal attention reaches whose scores all count;
            a backward pass counts as 2.5 forward ones.
        traffic: one of ``TRAFFIC`` -> share of the memory's bandwidth, and seconds of each kernel
            besides.
        collectives: ``"all-gather"`` or ``"all-to-all"`` -> share of the bandwidth inside a
            server, seconds of each step, and seconds once.
        layer_seconds: see ``parenvs.tasks.hybrid.stack.Stack``; 0: the stack's.
    """

    source: Text
    products: tuple[_Product, ...] = field(default=(), hash=False)
    attention: tuple[_Attention, ...] = field(default=(), hash=False)
    traffic: dict[Annotated[str, one_of(*TRAFFIC)], tuple[_Share, _Seconds]] = field(
        default_factory=dict, hash=False
    )
    collectives: dict[Annotated[str, one_of(*_MEASURED)], tuple[_Share, _Seconds, _Seconds]] = (
        field(default_factory=dict, hash=False)
    )
    layer_seconds: _Seconds = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return the fields that say anything."""
        return {field.name: x for field in fields(self) if (x := getattr(self, field.name))}

    @cached_property
    def _tables(self) -> dict[tuple[Any, ...], tuple[Array, Array]]:
        """Logarithms of the shapes of each kind of kernel, a row each, and their shares."""
        found: dict[tuple[Any, ...], dict[tuple[int, ...], list[float]]] = {}
        for precision, role, groups, m, k, n, share in self.products:
            for key in ((precision, role, groups > 1), (precision, "", groups > 1)):
                found.setdefault(key, {}).setdefault((groups, m, k, n), []).append(share)
        for precision, which, samples, sequence, heads, keys, *widths, share in self.attention:
            kernels = found.setdefault((precision, which), {})
            shape = (sequence, samples * heads, samples * keys, *widths)
            kernels.setdefault(shape, []).append(share)
        return {
            key: (np.log(np.array([*kernels])), np.array([np.mean(x) for x in kernels.values()]))
            for key, kernels in found.items()
        }

    def product_share(
        self, precision: str, role: str, groups: Figure, m: Figure, k: Figure, n: Figure
    ) -> Figure:
        """Return the share of the peak that products reach, elementwise; NaN where none is known.

        ``role`` is empty where it is not known.
        """
        grouped = bool(np.any(np.greater(groups, 1)))
        return self._share((precision, role, grouped), groups, m, k, n)

    def attention_share(
        self, precision: str, which: str, samples: Figure, sequence: Figure, *heads: Figure
    ) -> Figure:
        """Return the share that attention reaches in a pass, as ``product_share`` does.

        ``heads`` are those of queries and of keys, and both widths.
        """
        queries, keys, *widths = heads
        # Heads of all samples run beside each other.
        counts = np.multiply(samples, queries), np.multiply(samples, keys)
        return self._share((precision, which), sequence, *counts, *widths)

    def _share(self, key: tuple[Any, ...], *shape: Figure) -> Figure:
        arrays = np.broadcast_arrays(*(np.asarray(x, np.float64) for x in shape))
        if key not in self._tables:
            return np.full(arrays[0].shape, np.nan)
        points, shares = self._tables[key]
        rows = np.log(np.stack([x.ravel() for x in arrays], axis=1))
        rows, place = np.unique(rows, axis=0, return_inverse=True)
        apart = np.abs(rows[:, None] - points)
        distance = np.sqrt((apart**2).sum(axis=2))
        near = np.argsort(distance, axis=1, kind="stable")[:, :NEAREST]
        # A shape that was measured has its own share: its weight is 1e24 and more.
        weights = 1 / np.maximum(np.take_along_axis(distance, near, axis=1), 1e-12) ** 2
        result = (weights * shares[near]).sum(axis=1) / weights.sum(axis=1)
        furthest = apart[np.arange(len(rows)), near[:, 0]].max(axis=1)
        result[furthest > np.log(FURTHEST)] = np.nan
        return result[place.ravel()].reshape(arrays[0].shape)

    def rate(self, precision: str) -> float | None:
        """Return the share of the peak of all measured products together; None if there are none.

        Every kernel runs once, so large products count most.
        """
        known = [(g * m * k * n, share) for p, _, g, m, k, n, share in self.products
                 if p == precision]  # fmt: skip
        whole = sum(size for size, _ in known)
        return whole / sum(size / share for size, share in known) if known else None


DEFAULT_DEVICES = 8
"""Devices of the one server on which partitions are planned unless a cluster is given."""
_Many = Annotated[int, whole(1, 100_000)]
"""Number of servers, and of devices in each."""
_LEAST_RATE = 1e-30
"""The least bandwidth, throughput or memory; from there to ``MOST_RATE`` costs stay finite."""
_CLUSTER_KEYS = ("servers", "devices_per_server", "intra_bw", "inter_bw")
_DEVICE_KEYS = ("name", "peak_flops", "memory_bw", "memory_bytes")
_UNITS = {"bps": 1 / 8, "bit/s": 1 / 8, "B/s": 1.0, "Bps": 1.0}
"""Unit of a bandwidth -> bytes/s."""
_SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True)
class Cluster:
    """``servers`` equal servers of ``devices_per_server`` devices each.

    Attributes:
        intra_bw: bandwidth of a group of devices inside one server, bytes/s.
        inter_bw: bandwidth of a group that spans servers, bytes/s.
        nic_bw: bandwidth of one device's share of the server's network, bytes/s (None:
            ``inter_bw / devices_per_server``).
        speeds: speed of every server's devices, 1 for the device's own figures; empty where all
            servers are equal.
        measured: what was measured of one of the servers.
    """

    servers: _Many
    devices_per_server: _Many
    device: Device
    intra_bw: float
    inter_bw: float
    name: str = field(default="", compare=False)
    nic_bw: float | None = None
    speeds: tuple[float, ...] = ()
    measured: Measured | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        """Raise errors for counts below one and rates that are not positive and finite."""
        names = ("servers", "devices_per_server", "device", "name", "speeds")
        settle(self, *names, where="cluster: ", error=ClusterError)
        rates = {"intra_bw": self.intra_bw, "inter_bw": self.inter_bw}
        rates |= {} if self.nic_bw is None else {"nic_bw": self.nic_bw}
        rates |= {f"device.{key}": getattr(self.device, key) for key in _DEVICE_KEYS[1:]}
        rates |= {f"device.peaks.{key}": flops for key, flops in self.device.peaks}
        rates |= {f"speeds[{number}]": speed for number, speed in enumerate(self.speeds)}
        for key, value in rates.items():
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not (is_number and _LEAST_RATE <= value <= MOST_RATE):
                raise ClusterError(
                    f"cluster: {key} must be a positive number, not {shown(value)}; "
                    f"{_LEAST_RATE:g} to {MOST_RATE:g} can be counted with"
                )
        for key in ("intra_bw", "inter_bw", "nic_bw"):
            object.__setattr__(self, key, rate(getattr(self, key)))
        object.__setattr__(self, "speeds", tuple(map(rate, self.speeds)))
        if self.speeds and len(self.speeds) != self.servers:
            raise ClusterError(
                f"cluster: speeds has {len(self.speeds)} numbers, one for each of {self.servers} "
                "servers is needed"
            )

    @property
    def device_nic_bw(self) -> float:
        """Bytes/s of one device's share of its server's network."""
        return self.inter_bw / self.devices_per_server if self.nic_bw is None else self.nic_bw

    @property
    def devices(self) -> int:
        """Number of devices in the cluster."""
        return self.servers * self.devices_per_server

    @property
    def memory_limit(self) -> float:
        """Bytes that a plan may use on each device."""
        return MEMORY_FRACTION * self.device.memory_bytes

    def part(self, devices: int) -> Cluster:
        """Return the part of the cluster that has ``devices`` devices: whole servers, or one.

        Raises:
            ClusterError: there are fewer devices, or the number is more than a server has and no
                multiple of it.
        """
        per_server = self.devices_per_server
        (devices,) = checked(Cluster.part, {"devices": devices}).values()
        # Whole servers or a part of one, so that groups are ranges of equal servers.
        servers, remainder = divmod(devices, per_server)
        if not 1 <= devices <= self.devices or (servers and remainder):
            raise ClusterError(
                f"{devices} devices are no part of cluster {self}: give 1 to {per_server}, or a "
                f"multiple of {per_server} up to {self.devices}"
            )
        if devices == self.devices:
            return self
        return replace(
            self,
            servers=max(servers, 1),
            devices_per_server=remainder or per_server,
            name="",
            nic_bw=self.nic_bw,
            speeds=self.speeds[: max(servers, 1)],
        )

    def at(self, precision: str) -> Cluster:
        """Return the cluster with all products in one precision, see ``Device.at``."""
        return replace(self, device=self.device.at(precision), name="")

    def parts(self) -> list[Cluster]:
        """Return the parts of at least two devices that plans may use, the most devices first.

        They are whole servers, and within one server the divisors of its number of devices.
        """
        per_server = self.devices_per_server
        counts = [per_server * servers for servers in range(self.servers, 0, -1)]
        counts += [count for count in range(per_server - 1, 1, -1) if per_server % count == 0]
        return [self.part(count) for count in counts if count >= 2]

    def same_server(self, first: Array, end: Array) -> Array:
        """Return whether groups of devices ``[first, end)`` lie in one server, elementwise."""
        return same_server(first, end, self.devices_per_server)

    def bandwidth(self, first: Array, end: Array) -> Array:
        """Return the bandwidth of groups of devices ``[first, end)``, bytes/s, elementwise."""
        return group_bandwidth(self.same_server(first, end), self.intra_bw, self.inter_bw)

    def sync_seconds(
        self, size: Array, first: Array, end: Array, method: str = "allreduce"
    ) -> Array:
        """Return the seconds to synchronize ``size`` bytes of gradients over ``[first, end)``.

        Elementwise; ``method`` is one of ``SYNC_METHODS``, see the function ``sync_bytes``.

        Raises:
            ClusterError: the method is unknown.
        """
        return sync_seconds(size, end - first, self.bandwidth(first, end), method)

    def to_json(self) -> str | dict[str, Any]:
        """Return the preset's name, or an object with every figure."""
        # A changed cluster may still carry a preset's name.
        if self.name in PRESETS and PRESETS[self.name] == self:
            return self.name
        if Device.find(self.device.name) == self.device:
            device: str | dict[str, Any] = self.device.name
        else:
            device = {key: getattr(self.device, key) for key in _DEVICE_KEYS}
            device |= {"peaks": dict(self.device.peaks)} if self.device.peaks else {}
        optional: dict[str, Any] = {} if self.nic_bw is None else {"nic_bw": self.nic_bw}
        optional |= {"speeds": list(self.speeds)} if self.speeds else {}
        optional |= {} if self.measured is None else {"measured": self.measured.to_json()}
        figures = {key: getattr(self, key) for key in _CLUSTER_KEYS}
        return {**figures, "device": device, **optional}

    def __str__(self) -> str:
        """Return the preset's name and the shape: ``C (4x8 v100)``."""
        shape = f"{self.servers}x{self.devices_per_server} {self.device.name}"
        return f"{self.name} ({shape})" if self.name else shape

    @classmethod
    def here(cls) -> Cluster | None:
        """Return the GPUs of this machine as one server; None if it has none.

        Raises:
            ClusterError: they are of several kinds, or of one that is not known.
        """
        from parenvs.machine import gpus

        installed = gpus()
        if not installed:
            return None
        names = sorted({name for name, _ in installed})
        words = [set(re.split(r"[\s-]+", name.lower())) for name in names]
        # 'NVIDIA H100 80GB HBM3' has the preset's name as a word.
        # 'NVIDIA A100-PCIE-40GB' has the words of several; the longest name says most.
        matching = [x for x in DEVICES if all(set(x.split("-")) <= parts for parts in words)]
        matching = [x for x in matching if not any(x in other and x != other for other in matching)]
        least_memory = min(size for _, size in installed)
        if len(matching) != 1 or least_memory < _LEAST_SHARE * DEVICES[matching[0]].memory_bytes:
            raise ClusterError(
                f"cluster: the GPUs of this machine ({', '.join(names)}) are no known device; "
                "parenvs calibrate measures them, and its file is a --cluster"
            )
        return cls.parse(f"1x{len(installed)}:{matching[0]}")

    @classmethod
    def parse(cls, text: StrPath | Cluster | dict[str, Any]) -> Cluster:
        """Make a cluster from a preset's name, a short form, a JSON file's path or an object.

        The short form is ``SERVERSxDEVICES:DEVICE[,INTER[,INTRA]]``; a bandwidth is a number with
        a unit, bits (``Gbps``) or bytes (``GB/s``). ``100Gbps`` means 100e9 bit/s. In place of a
        device the file of a cluster can stand, whose servers these are like.

        >>> Cluster.parse("4x8:v100,25Gbps") == Cluster.parse("C")
        True
        """
        if isinstance(text, Cluster):
            return text
        if isinstance(text, dict):
            return _form(text, "cluster").cluster("cluster")
        if isinstance(text, os.PathLike):
            path = os.fspath(text)
            return _read(path).cluster(path)
        if not isinstance(text, str):
            raise ClusterError(
                f"cluster: expected a name, a short form or an object, not {shown(text)}"
            )
        if text in PRESETS:
            return PRESETS[text]
        form = r"(\d{1,9})x(\d{1,9}):([^,]+)((?:,[^,]+){0,2})"
        match = re.fullmatch(form, text.replace(" ", ""))
        if text.endswith(".json") and (match is None or Path(text).exists()):
            return Cluster.parse(Path(text))
        if match is None:
            raise ClusterError(
                f"cluster {shown(text)} does not parse: give a preset ({', '.join(PRESETS)}), "
                "a form like '4x8:v100,25Gbps' or the path of a .json file"
            )
        servers, devices, name, bandwidths = match.groups()
        where, size = f"cluster {shown(text)}", (int(servers), int(devices))
        given = [_bandwidth(part, text) for part in bandwidths.split(",")[1:]]
        if name.endswith(".json"):
            like = Cluster.parse(Path(name))
            device, rates, measured = like.device, [like.inter_bw, like.intra_bw], like.measured
        else:
            device, measured = _known_device(name, where), None
            rates = [device.inter_bw, device.intra_bw]
        inter, intra = given + rates[len(given) :]
        return _new_cluster(where, *size, device, intra, inter, measured=measured)


def _bandwidth(text: str, cluster: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([KMGT]?)(bps|bit/s|B/s|Bps)", text)
    if match is None:
        raise ClusterError(
            f"cluster {shown(cluster)}: bandwidth {shown(text)} does not parse; write it like "
            "25Gbps or 150GB/s"
        )
    value, scale, unit = match.groups()
    return float(value) * _SCALES[scale] * _UNITS[unit]


def _known_device(name: str, where: str) -> Device:
    device = Device.find(name.lower())
    if device is None:
        options = f"{among(name, DEVICES)}, also at one precision, like a100-fp32"
        raise ClusterError(f"{where}: unknown device {shown(name)}{options}")
    return device


@dataclass(frozen=True)
class _DeviceForm:
    name: str
    peak_flops: Any
    memory_bw: Any
    memory_bytes: Any
    peaks: dict[Annotated[str, one_of(*PRECISIONS)], Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Form:
    """A cluster's file, or the object of one; ``Cluster`` checks the numbers."""

    servers: Any
    devices_per_server: Any
    intra_bw: Any
    inter_bw: Any
    device: Annotated[str, words("a name")] | Annotated[_DeviceForm, words("an object")]
    name: str = ""
    nic_bw: Annotated[Any, words("a positive number")] = None
    speeds: Annotated[tuple[Any, ...], words("a list of numbers, one for each server")] = ()
    measured: Annotated[Measured, words("an object")] | None = None
    provenance: dict[str, Provenance] = field(default_factory=dict)

    def cluster(self, where: str) -> Cluster:
        """Return the cluster; errors name ``where`` it stands."""
        if isinstance(self.device, str):
            device = _known_device(self.device, where)
        else:
            peaks = tuple(self.device.peaks.items())
            device = Device(**{**vars(self.device), "peaks": peaks})
        return _new_cluster(
            where, self.servers, self.devices_per_server, device, self.intra_bw, self.inter_bw,
            self.name, self.nic_bw, self.speeds, self.measured,
        )  # fmt: skip


def read_cluster(path: str) -> tuple[Cluster, dict[str, Any]]:
    """Read a cluster's file: the cluster, and how it was measured.

    Raises:
        ClusterError: it is no file of a cluster.
    """
    form = _read(path)
    return form.cluster(path), form.provenance


def _read(path: str) -> _Form:
    place = path
    if not os.path.exists(path):  # noqa: PTH110  # Path.exists raises errors for long names
        shipped = resources.files("parenvs.datasets") / "data" / "measured" / path
        if path != Path(path).name or not shipped.is_file():
            raise ClusterError(f"cluster: no file {shown(path)}")
        place = str(shipped)
    return _form(read_json(place, ClusterError), path)


def _form(content: Any, where: str) -> _Form:
    if isinstance(content, dict) and isinstance(content.get("measured"), list):
        raise ClusterError(f"{where}: an older parenvs calibrate wrote it; run that again")
    return read(_Form, content, where, ClusterError)


def _new_cluster(where: str, *args: Any, **figures: Any) -> Cluster:
    try:
        return Cluster(*args, **figures)
    except ClusterError as error:
        raise ClusterError(f"{where}: {str(error).removeprefix('cluster: ')}") from None


def _preset(name: str, servers: int, device: str) -> Cluster:
    chip = DEVICES[device]
    return Cluster(servers, 8, chip, intra_bw=chip.intra_bw, inter_bw=chip.inter_bw, name=name)


_LEAST_SHARE = 0.9
"""Of a device's memory that a GPU of its name must have."""
PRESETS: dict[str, Cluster] = {
    "A": _preset("A", 2, "v100"),
    "B": _preset("B", 3, "v100"),
    "C": _preset("C", 4, "v100"),
    "a100-2": _preset("a100-2", 2, "a100"),
    "a100-4": _preset("a100-4", 4, "a100"),
    "h100-2": _preset("h100-2", 2, "h100"),
    "h100-4": _preset("h100-4", 4, "h100"),
}
"""Clusters by name.

A, B and C are 2, 3 and 4 servers of 8 V100 (arXiv 2007.04069, Table 2); the others are DGX nodes.
"""


def choose_cluster(
    cluster: str | dict[str, Any] | Cluster | None = None, devices: int | None = None
) -> Cluster:
    """Return ``cluster``, or if it is None one server of ``devices`` V100 (default 8).

    Raises:
        ParenvsError: ``devices`` is less than 2, or not the number of devices of ``cluster``.
    """
    if cluster is None:
        count = DEFAULT_DEVICES if devices is None else devices
        (count,) = checked(Cluster.part, {"devices": count}).values()
        if count < 2:
            raise ParenvsError(f"devices: partitioning needs at least 2, not {count}")
        return Cluster.parse(f"1x{count}:v100")
    chosen = Cluster.parse(cluster)
    if devices not in (None, chosen.devices):
        raise ParenvsError(
            f"devices: {devices} asked for, but the cluster has {chosen.devices}; give one of both"
        )
    return chosen
