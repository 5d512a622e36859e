"""Accelerators: what a device computes, moves and holds.

Units are SI throughout: seconds, bytes, bytes per second, FLOP per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from parenvs.errors import ClusterError, did_you_mean, shown

MEMORY_FRACTION = 0.9
"""Share of a device's memory that a plan may fill; a choice of this suite, not of the paper."""
EFFICIENCY = 0.5
"""Share of the peak that an instruction reaches; a constant of the cost model (not measured)."""
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
"""Number formats of matrix products, by the names that ``Device.peaks`` and plans use."""


@dataclass(frozen=True)
class Device:
    """One accelerator.

    Attributes:
        name: lower-case short name.
        peak_flops: peak dense throughput at the precision used for training, FLOP/s.
        memory_bw: memory bandwidth, bytes/s.
        memory_bytes: memory size, bytes.
        peaks: precision (one of ``PRECISIONS``) and peak dense FLOP/s of matrix products in it, in
            pairs; empty where only ``peak_flops`` is known.
        intra_bw: default bandwidth between two devices of one server, one direction, bytes/s.
        inter_bw: default bandwidth between two servers, one direction, bytes/s.
        source: data sheet or paper that the figures are from.
    """

    name: str
    peak_flops: float
    memory_bw: float
    memory_bytes: float
    peaks: tuple[tuple[str, float], ...] = ()
    intra_bw: float = field(default=0.0, compare=False)
    inter_bw: float = field(default=0.0, compare=False)
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        """Put the peaks in order, so that equal devices are equal."""
        object.__setattr__(self, "peaks", tuple(sorted(self.peaks)))

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
        if precision not in peaks:
            raise ClusterError(
                f"a {self.name} has no {precision}; it has {', '.join(sorted(peaks))}"
            )
        return peaks[precision]


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
            source="NVIDIA Tesla V100 datasheet, SXM2 32 GB: 15.7 TFLOP/s FP32, 125 FP16, 900 GB/s "
            "HBM2, "
            "NVLink 300 GB/s (both directions together); network: arXiv 2007.04069, Table 2",
        ),
        Device(
            "a100",
            peak_flops=312e12,
            memory_bw=2039e9,
            memory_bytes=80e9,
            peaks=(("fp32", 19.5e12), ("tf32", 156e12), ("fp16", 312e12), ("bf16", 312e12)),
            intra_bw=300e9,
            inter_bw=8 * 200e9 / 8,
            source="NVIDIA A100 datasheet, SXM4 80 GB: 312 TFLOP/s BF16 dense, 2,039 GB/s, "
            "NVLink 600 GB/s (both directions); DGX A100 datasheet: 8 x 200 Gbit/s InfiniBand",
        ),
        Device(
            "h100",
            peak_flops=989.4e12,
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
            source="NVIDIA H100 datasheet, SXM5 80 GB: 989.4 TFLOP/s BF16 dense, 3.35 TB/s, "
            "NVLink 900 GB/s (both directions); DGX H100 datasheet: 8 x 400 Gbit/s InfiniBand",
        ),
    )
}
