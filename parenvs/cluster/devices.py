"""Accelerators: what a device computes, moves and holds.

Units are SI throughout: seconds, bytes, bytes per second, FLOP per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from parenvs.errors import ClusterError, did_you_mean, shown

MEMORY_FRACTION = 0.9
"""Share of a device's memory that a plan may fill; a choice of this suite, not of the paper."""
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
        name: lower-case short name.
        peak_flops: peak dense FLOP/s of the products of fp32 graphs: in TF32 where the device has
            it, as frameworks run them, else in FP32.
        memory_bw: memory bandwidth, bytes/s.
        memory_bytes: memory size, bytes.
        peaks: precision (one of ``PRECISIONS``) and peak dense FLOP/s of matrix products in it, in
            pairs; empty where only ``peak_flops`` is known.
        measured: precision and FLOP/s of the fastest product that a calibration found, in pairs.
        intra_bw: default bandwidth between two devices of one server, one direction, bytes/s.
        inter_bw: default bandwidth between two servers, one direction, bytes/s.
        host_bw: bandwidth between the device and the memory of its server, one direction, bytes/s;
            0 if it is not known.
        source: data sheet or paper that the figures are from.
        inside: devices of a server, as they are sold.
        watts: of thermal design; 0 if they are not known.
        like: device of the same generation, by name, as whose products its own reach FLOP/s a watt;
            empty if none.
    """

    name: str
    peak_flops: float
    memory_bw: float
    memory_bytes: float
    peaks: tuple[tuple[str, float], ...] = ()
    measured: tuple[tuple[str, float], ...] = ()
    intra_bw: float = field(default=0.0, compare=False)
    inter_bw: float = field(default=0.0, compare=False)
    host_bw: float = field(default=0.0, compare=False)
    source: str = field(default="", compare=False)
    inside: int = field(default=8, compare=False)
    watts: float = field(default=0.0, compare=False)
    like: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Put the peaks in order, so that equal devices are equal."""
        for key in ("peaks", "measured"):
            pairs = [(precision, rate(flops)) for precision, flops in sorted(getattr(self, key))]
            object.__setattr__(self, key, tuple(pairs))
        for key in ("peak_flops", "memory_bw", "memory_bytes", "intra_bw", "inter_bw"):
            object.__setattr__(self, key, rate(getattr(self, key)))

    def peak(self, precision: str) -> float:
        """Return the peak FLOP/s of matrix products in a precision.

        A device whose peaks by precision are not known has one peak for all.

        Raises:
            ClusterError: the precision is unknown, or the device has none such.
        """
        if precision not in PRECISIONS:
            raise ClusterError(
                f"precision {shown(precision)} is unknown{did_you_mean(precision, PRECISIONS)}; "
                f"known: {', '.join(PRECISIONS)}"
            )
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
        return replace(self, name=name, peak_flops=self.peak(precision), peaks=(), measured=())

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
    """A device of NVIDIA's Blackwell generation; ``nic`` is bytes/s of its network card."""
    peaks = {"fp32": bf16 / 30, "tf32": bf16 / 2, "fp16": bf16, "bf16": bf16, "fp8": fp8}
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
        source=f"NVIDIA {sheet} datasheet: dense {bf16 / 1e12:,.0f} TFLOP/s BF16, "
        f"{fp8 / 1e12:,.0f} FP8, {fp4 / 1e12:,.0f} FP4, {watts:,.0f} W a device, "
        "8 TB/s, NVLink 1.8 TB/s (both ways), "
        f"{nic * 8 / 1e9:.0f} Gbit/s of network a device",
        inside=inside,
        watts=watts,
        like="" if name == "gb200" else "gb200",
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
            source="NVIDIA Tesla V100 datasheet, SXM2 32 GB: 15.7 TFLOP/s FP32, 125 FP16, 900 GB/s "
            "HBM2, NVLink 300 GB/s (both directions together), PCIe 3.0 x16; network: "
            "arXiv 2007.04069, Table 2",
        ),
        Device(
            "a100",
            peak_flops=156e12,
            memory_bw=2039e9,
            memory_bytes=80e9,
            peaks=(("fp32", 19.5e12), ("tf32", 156e12), ("fp16", 312e12), ("bf16", 312e12)),
            intra_bw=300e9,
            inter_bw=8 * 200e9 / 8,
            host_bw=32e9,
            source="NVIDIA A100 datasheet, SXM4 80 GB: dense 156 TFLOP/s TF32, 312 BF16, "
            "2,039 GB/s, NVLink 600 GB/s (both directions), PCIe 4.0 x16; "
            "DGX A100 datasheet: 8 x 200 Gbit/s InfiniBand",
        ),
        Device(
            "h100",
            peak_flops=494.7e12,
            memory_bw=3350e9,
            memory_bytes=80e9,
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
            source="NVIDIA H100 datasheet, SXM5 80 GB: dense 494.7 TFLOP/s TF32, 989.4 BF16, "
            "3.35 TB/s, NVLink 900 GB/s (both directions), PCIe 5.0 x16; "
            "DGX H100 datasheet: 8 x 400 Gbit/s InfiniBand",
        ),
        _blackwell("gb200", 2500e12, 5000e12, 10000e12, 186e9, 50e9, 1200.0, 72, "GB200 NVL72"),
        _blackwell("gb300", 2500e12, 5000e12, 15000e12, 279e9, 100e9, 1400.0, 72, "GB300 NVL72"),
        _blackwell("b200", 2250e12, 4500e12, 9000e12, 180e9, 50e9, 1000.0, 8, "DGX B200"),
        _blackwell("b300", 2250e12, 4500e12, 13500e12, 268e9, 100e9, 1100.0, 8, "DGX B300"),
    )
}
