"""Which devices and servers a row's words mean."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from parenvs.cluster import DEVICES, RUNS_ON, Cluster, Device
from parenvs.errors import ParenvsError, shown


@dataclass(frozen=True)
class Server:
    """A kind of server that rows were measured on.

    Attributes:
        device: what it has in it.
        devices: how many.
        nic_bw: bytes/s of one device's share of its network.
        guess: what was assumed, or an empty string.
    """

    device: Device
    devices: int
    nic_bw: float
    guess: str = ""

    def cluster(self, count: int) -> Cluster:
        """Return the cluster of ``count`` such devices, whole servers where there are several."""
        inside = min(count, self.devices)
        return Cluster(
            servers=-(-count // inside),
            devices_per_server=inside,
            device=self.device,
            intra_bw=self.device.intra_bw,
            inter_bw=self.nic_bw * inside,
            nic_bw=self.nic_bw,
        )


def _like(base: str, name: str, source: str, peaks: dict[str, float] | None = None, **figures):
    """A device that differs from a shipped one in some figures."""
    device = DEVICES[base]
    merged = {**dict(device.peaks), **(peaks or {})}
    merged = {key: value for key, value in merged.items() if value}
    flops = merged.get("bf16", merged.get("fp16", device.peak_flops))
    return replace(
        device, name=name, source=source, peaks=tuple(merged.items()), peak_flops=flops, **figures
    )


SERVERS: dict[str, Server] = {
    "v100": Server(DEVICES["v100"], 8, 25e9 / 8 / 8),
    "v100-16gb": Server(
        _like("v100", "v100", "NVIDIA Tesla V100 datasheet, 16 GB", memory_bytes=16e9), 8, 25e9 / 64
    ),
    "dgx-2": Server(DEVICES["v100"], 16, 8 * 100e9 / 8 / 16),
    "a100": Server(DEVICES["a100"], 8, 25e9),
    "a100-40gb": Server(
        _like("a100", "a100", "NVIDIA A100 datasheet, 40 GB: 1,555 GB/s", memory_bw=1555e9,
              memory_bytes=40e9), 8, 25e9
    ),
    "a800": Server(
        _like("a100", "a100", "NVIDIA A800: NVLink 400 GB/s, both directions", intra_bw=200e9),
        8, 25e9
    ),
    "h100": Server(DEVICES["h100"], 8, 50e9),
    "h100-96gb": Server(
        _like("h100", "h100-96gb", "torchtitan's H100 of 96 GB: HBM2e, 500 W", memory_bw=2400e9,
              memory_bytes=96e9), 8, 50e9
    ),
    "h800": Server(
        _like("h100", "h100", "NVIDIA H800: NVLink 400 GB/s, both directions", intra_bw=200e9),
        8, 50e9
    ),
    "h200": Server(
        _like("h100", "h100", "NVIDIA H200 datasheet: 141 GB, 4.8 TB/s", memory_bw=4800e9,
              memory_bytes=141e9), 8, 50e9
    ),
    **{
        name: Server(DEVICES[name], DEVICES[name].inside, DEVICES[name].inter_bw / inside)
        for name in ("b200", "gb200", "b300", "gb300")
        for inside in [DEVICES[name].inside]
    },
    "mi300x": Server(
        _like("h100", "mi300x", "AMD Instinct MI300X datasheet: 1,307 TFLOP/s BF16 dense, 5.3 TB/s",
              {"fp16": 1307e12, "bf16": 1307e12, "fp8": 2615e12, "tf32": 654e12, "fp32": 163e12},
              memory_bw=5300e9, memory_bytes=192e9, intra_bw=448e9), 8, 50e9
    ),
}  # fmt: skip
"""Servers by the words of rows; the network of a server of V100 is that of cluster C's."""
ALIASES = {
    "dgx-2h": "dgx-2", "dgx2": "dgx-2", "ampere": "a100", "hopper": "h100", "volta": "v100",
    "blackwell": "b200",
}  # fmt: skip
"""Other words for them; ``GUESSES`` says which of them are one."""
GUESSES = {
    "ampere": "device 'ampere' is an A100",
    "hopper": "device 'hopper' is an H100",
    "blackwell": "device 'blackwell' is a B200",
}


UNKNOWN = re.compile(
    r"\btpu|\bv[3-7][ep]?\b|trillium|ironwood|trainium|\btrn|gaudi|ascend|cerebras|\bipu\b"
)
"""Accelerators that are no GPUs, which no other is taken for."""


def server_of(text: str | None, precision: str | None = None) -> Server:
    """Return the server that a row's ``device`` means; what is unknown is taken for another.

    Args:
        text: the words of the row, or None.
        precision: the row's; FP8 without a device means an H100, MXFP8 and NVFP4 a GB200.

    Raises:
        ParenvsError: it is no GPU.
    """
    words = (text or "").lower().replace("_", "-").replace("nvidia", "").strip()
    if UNKNOWN.search(words):
        raise ParenvsError(
            f"device {shown(text)}: only GPUs of servers with a switch inside are known, no meshes "
            f"of other links; known: {', '.join(SERVERS)}"
        )
    known = sorted([*SERVERS, *ALIASES], key=len, reverse=True)
    for word in known:
        parts = word.split("-")
        if all(part in words for part in parts):
            key = ALIASES.get(word, word)
            return replace(SERVERS[key], guess=GUESSES.get(word, ""))
    peaks = {"a100": dict(DEVICES["a100"].peaks), "h100": dict(DEVICES["h100"].peaks)}
    base = RUNS_ON.get(precision or "bf16", precision or "bf16")
    key = next((name for name, known in peaks.items() if base in known), "gb200")
    reason = f"device {shown(text)} is unknown" if text else "no device is given"
    return replace(
        SERVERS[key], guess=f"{reason}: taken for {'a' if key == 'gb200' else 'an'} {key.upper()}"
    )
