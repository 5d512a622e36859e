"""Software stacks: which share of a machine's peaks training software reaches, and what it hides.

Two constants of a stack are fitted, the shares of matrix products and of links; every other figure
is fixed. Sources stand beside the figures; "fitted" names the published rows it was fitted on
(``python benchmarks/hybrid.py`` prints the errors on all others).
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

import msgspec
import numpy as np

from parenvs.cluster import (
    DEVICES,
    EFFICIENCY,
    EXCHANGE,
    GATHER,
    LINKS,
    OTHER,
    Cluster,
    Device,
    Links,
    Measured,
)
from parenvs.compiled import shared
from parenvs.errors import PlanError, did_you_mean, shown
from parenvs.fields import number, one_of, read, words
from parenvs.tasks.hybrid.plan import SCHEDULES

MULTIPROCESSORS = {
    "v100": 80, "a100": 108, "h100": 132, "b200": 148, "b300": 148, "gb200": 152, "gb300": 152,
    "mi300x": 304, "mi325x": 304, "mi355x": 256,
}  # fmt: skip
"""Streaming multiprocessors, or AMD's compute units, of a device, by name (data sheets)."""
TILE = 128
"""Rows and columns of a product that one multiprocessor makes at a time (CUTLASS's usual tile)."""
LEAST_SHARE = 1e-6
"""The smallest share of a peak or a bandwidth that a stack can have."""
FP8_SHARE = 0.727
"""Share of the peak that products in FP8 reach, over that in 16 bits, where none was measured.

It is 0.436 / 0.60 of nemo-2024; 0.65 to 0.85 are plausible. Power, casts and bandwidth keep FP8
from twice the speed.
"""
SELECTIVE = ("attention", "operations")
"""What selective recomputation makes anew: the attention core, or all that is neither attention
nor every second product (PyTorch's selective checkpoints by operation)."""
RECIPES = {"fp8-row": 0.80, "fp8-block": 0.85, "mxfp8": 0.94, "nvfp4": 1.3}
"""FLOP/s that products reach in recipes of their own, over those of FP8 with a scale a tensor.

They hold where a stack has no share of a recipe: by row, from torchao's table of Llama 3 8B on 8
H100 (25 % over bf16 by tensor, 10 % by row); MXFP8, from Megatron-Bridge on GB200; blocks, whose
sums leave the tensor cores every 128 numbers, and NVFP4 are guesses.
"""
LOW = ("fp8", *RECIPES)
"""Precisions of 8 bits and fewer, in which attention and elementwise kernels stay in 16."""
HALF = ("fp16", "bf16", *LOW)
"""Precisions in which weights and activations take 2 bytes, beside fp32 master weights."""

_Share = Annotated[float, words("a positive number", ge=LEAST_SHARE, lt=1e30)]
_ByDevice = Annotated[dict[str, _Share], words("an object of them by device", min_length=1)]
_Part = Annotated[float, number(0, 1)]
_Number = Annotated[float, number(0, 1e30)]
_NumberByDevice = Annotated[dict[str, _Number], words("an object of them by device", min_length=1)]
_BY_DEVICE = ("matmul_share", "attention_share", "permute_passes")
"""Constants that can be one number for each device."""


@dataclass(frozen=True)
class Stack:
    """The constants of one training software.

    Attributes:
        name: its name, in plan files too.
        matmul_share: share of the peak that matrix products reach, by ``"DEVICE PRECISION"`` or
            ``"DEVICE"``; ``"other PRECISION"`` and ``"other"`` for what is not listed.
        link_share: share of a link's bandwidth that collectives reach.
        memory_share: share of the memory bandwidth that elementwise kernels reach.
        send_share: share of a network card that a send between two stages reaches.
        duplex: whether a stage sends to a neighbor and receives from it at the same time; if not,
            it waits for all four transfers of a micro-batch one after the other.
        send_wait: seconds that the host waits for each send that is not overlapped.
        hop_in: seconds of latency of each step of a collective inside a server, where it was not
            measured on the device.
        hop_out: seconds of latency of each step between servers.
        launch: seconds to start a kernel.
        tiles: whether a product with fewer tiles than the device has multiprocessors takes as long
            as if it had as many.
        waves: whether, besides, tiles at the edges and the last wave of tiles take as long as full
            ones, as with the libraries of V100.
        fused_norms: whether a norm is one kernel.
        attention_share: share of ``matmul_share`` that a fused attention kernel reaches, one or by
            device as there; None if attention is not fused: scores are written to memory.
        sink_share: share of the speed of fused attention that attention with sinks reaches.
        gather_share: share of ``link_share`` that the gathers of single layers reach (ZeRO 3).
        tensor_overlap: share of tensor-parallel collectives hidden in the forward pass.
        backward_overlap: whether those of input gradients run beside the products of weight
            gradients in the backward pass.
        regather: whether ranks that share the tokens (sequence parallelism) keep their share of a
            product's input and gather it anew in the backward pass (arXiv 2205.05198, section
            4.2.2); ``backward_overlap`` hides that.
        hidden: share of the time of a collective that computation beside it really hides: both
            take streaming multiprocessors and memory bandwidth from each other.
        gather_hidden: the same of the gathers of ZeRO 3 alone; None: ``hidden``.
        gather_bytes: by precision, bytes of a weight that ZeRO gathers, where they are not those of
            the weights in memory, but of those in products.
        permute_passes: times that every copy of a token is read or written to bring tokens to their
            experts' order and back: router, padding, permutation, probabilities; about 4 at least.
            One number, or one by device as shares are.
        bias_passes: the same of copies of tokens to which experts' biases are added, in each pass;
            0 where the product adds them.
        grouped: whether the products of a device's experts are one kernel.
        two_levels: whether the copies of tokens that stay in a server pass its links only; if not,
            all pass the network card as soon as a group of experts spans servers.
        once_a_server: whether a token passes to another server, and to another device, once at
            most, whichever number of its experts is there.
        expert_overlap: share of the dispatch of tokens that runs beside products of the layer.
        bucket: bytes of gradients, or of ZeRO 1's weights, that one collective passes; each has the
            latency of the whole ring. 0: one collective passes all.
        accumulate_bytes: bytes that adding a micro-batch's gradients moves, per parameter on the
            device; 0 where the products of weight gradients add by themselves, in fp32.
        logit_bytes: bytes that a logit takes beside its 2 or 4 and its 4 in fp32: exponentials in
            fp32, which become its gradient, and that in 16 bits; 0 where one kernel makes the loss.
        selective: what selective recomputation leaves out of memory and runs again, one of
            ``SELECTIVE``.
        gradient_least: bytes of a gradient in memory, at least: FSDP adds up in fp32.
        offloads: whether it moves activations to the memory of the server and back.
        host_share: share of the link to it that these copies reach.
        copied_layers: layers whose gradients are copied for their collective at a time, as FSDP
            copies what it scatters.
        early_stop: whether full recomputation leaves out a layer's last product, whose result no
            backward pass needs, as PyTorch's checkpoints that are not reentrant do.
        scatter_gather: whether a stage sends each rank's share of its output, gathered behind.
        optimizer_bytes: bytes that an optimizer step moves, per parameter at half precision.
        optimizer_bytes_full: the same at full precision, which has no copies.
        moment_bytes: bytes of master weight and moments per parameter at half precision: 12 in
            fp32; 4 are two moments in 16 bits and no master weight.
        state_bytes: bytes of weights, gradients and states per byte of weights; None: counted by
            precision, ``gradient_bytes`` and ZeRO.
        schedules: orders of passes that the software has, of ``plan.SCHEDULES``.
        link_rule: one of ``LINKS``.
        step_seconds: seconds of the host that every step takes besides, whatever the plan.
        layer_seconds: seconds of the host to start a layer's kernels in each pass; a pass of a
            layer takes as long at least.
        dummy_gradients: whether a gradient of each shape of weights in a layer is held besides, as
            Transformer Engine does from 2.3 on (May 2025) where gradients are accumulated in place.
        source: what the figures are from.
        date: year and month of the software.
    """

    name: str
    matmul_share: _Share | _ByDevice = field(hash=False)
    link_share: _Share = 0.70
    memory_share: _Share = 0.65
    send_share: _Share = 0.5
    duplex: bool = True
    send_wait: _Number = 1.2e-3
    hop_in: _Number = 2e-6
    hop_out: _Number = 12e-6
    launch: _Number = 4e-6
    tiles: bool = True
    waves: bool = False
    fused_norms: bool = True
    attention_share: _Share | _ByDevice | None = field(default=None, hash=False)
    sink_share: _Share = 1.0
    gather_share: _Share = 1.0
    tensor_overlap: _Part = 0.0
    backward_overlap: bool = True
    regather: bool = False
    hidden: _Part = 1.0
    gather_hidden: _Part | None = None
    gather_bytes: Annotated[
        dict[Annotated[str, one_of(*LOW)], _Number], words("an object of bytes by precision")
    ] = field(default_factory=dict, hash=False)
    permute_passes: _Number | _NumberByDevice = field(default=8.0, hash=False)
    bias_passes: _Number = 0.0
    grouped: bool = True
    two_levels: bool = True
    once_a_server: bool = False
    expert_overlap: _Part = 0.0
    bucket: _Number = 0.0
    accumulate_bytes: _Number = 0.0
    logit_bytes: _Number = 0.0
    selective: Annotated[str, one_of(*SELECTIVE)] = SELECTIVE[0]
    gradient_least: _Number = 0.0
    offloads: bool = False
    host_share: _Share = 0.8
    copied_layers: _Number = 0.0
    early_stop: bool = False
    scatter_gather: bool = True
    optimizer_bytes: _Number = 62.0
    optimizer_bytes_full: _Number = 44.0
    moment_bytes: _Number = 12.0
    state_bytes: Annotated[float, number(1, 1e30)] | None = None
    schedules: Annotated[
        tuple[Annotated[str, one_of(*SCHEDULES)], ...], words("a list of schedules", min_length=1)
    ] = SCHEDULES[:3]
    link_rule: Annotated[str, one_of(*LINKS)] = LINKS[0]
    step_seconds: _Number = 0.0
    layer_seconds: _Number = 0.0
    dummy_gradients: bool = False
    source: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        """Make one number for all devices that of ``"other"``."""
        for name in _BY_DEVICE:
            value = getattr(self, name)
            if isinstance(value, (int, float)):
                object.__setattr__(self, name, {"other": value})

    def share_of(self, device: Device, precision: str) -> float:
        """Return the share of the peak that matrix products reach on a device.

        FP8 whose share was measured nowhere reaches ``FP8_SHARE`` of that in 16 bits, its recipes
        ``RECIPES`` of its FLOP/s. A device without a share of its own that is ``like`` another
        reaches as many FLOP/s a watt as that: power bounds large products.
        """
        known = {f"{name} {precision}" for name in (device.name, device.like, "other")}
        if precision in LOW and not known & set(self._by_device("matmul_share")):
            if precision == "fp8":
                return FP8_SHARE * self.share_of(device, "bf16")
            peaks = dict(device.peaks)
            twice = peaks.get("fp8", 2 * peaks.get("bf16", device.peak_flops / 2))
            reached = RECIPES[precision] * self.share_of(device, "fp8") * twice
            return min(reached / device.peak(precision), 1.0)
        if not self.is_guess(device.name, precision) or device.like not in DEVICES:
            return self._of_device("matmul_share", device, precision)
        like = DEVICES[device.like]
        # FLOP/s per watt as on the other device, as a share of this device's own peak.
        power, peak = device.watts / like.watts, like.peak(precision) / device.peak(precision)
        return min(self.share_of(like, precision) * power * peak, 1.0)

    def _by_device(self, name: str) -> dict[str, float]:
        """Return one of the constants ``_BY_DEVICE``, which ``__post_init__`` made an object."""
        return getattr(self, name)

    def _of_device(self, name: str, device: Device, precision: str) -> float:
        """Return a constant on a device: its own, that of the one it is like, or of all others."""
        by_key = self._by_device(name)
        for which in (device.name, device.like, "other"):
            for key in (f"{which} {precision}", which):
                if key in by_key:
                    return by_key[key]
        raise PlanError(
            f"stack {self.name} has no {name} of a {device.name} at {precision}; "
            f"it has {', '.join(by_key)}"
        )

    def is_guess(self, device: str, precision: str) -> bool:
        """Return whether the share on this device was never compared with a measurement."""
        return not {f"{device} {precision}", device} & set(self._by_device("matmul_share"))

    def machine(self, cluster: Cluster, precision: str) -> Machine:
        """Return what the stack makes of a cluster's devices and links.

        Raises:
            ClusterError: the device has no such precision.
            PlanError: the stack knows no share for it.
        """
        device, known = cluster.device, cluster.measured
        share = self.share_of(device, precision)
        if known is not None and self.is_guess(device.name, precision):
            share = known.rate(precision) or share
        flops = share * device.peak(precision)
        width = 2.0 if precision in HALF else 4.0
        # None: attention is not one kernel, its products are counted apart.
        fused = None
        if self.attention_share is not None:
            half = "bf16" if precision in LOW else precision  # attention stays in 16 bits
            # The share is of what products reach, which is a share of the peak.
            part = self._of_device("attention_share", device, half)
            fused = part * self.share_of(device, half) * device.peak(half)
        count = MULTIPROCESSORS.get(device.name) or MULTIPROCESSORS.get(device.like, 0)
        links = Links(
            cluster.devices_per_server,
            cluster.intra_bw,
            cluster.device_nic_bw,
            share=self.link_share,
            rule=self.link_rule,
            near=device.near,
            far_bw=device.far_bw,
            once=device.once,
            send_share=self.send_share,
            hop_in=device.hop or self.hop_in,
            hop_out=self.hop_out,
        )
        memory_share, launch, inside = self.memory_share, self.launch, {}
        if known is not None:
            memory_share, launch = known.traffic.get(OTHER, (memory_share, launch))
            inside = {
                name: replace(links, intra_bw=cluster.intra_bw * part / self.link_share,
                              hop_in=hop, once=once)
                for name, (part, hop, once) in known.collectives.items()
            }  # fmt: skip
        links = inside.get(GATHER, links)
        return Machine(
            stack=self,
            precision=precision,
            flops=flops,
            attention_flops=fused,
            memory_bw=memory_share * device.memory_bw,
            launch=launch,
            width=width,
            gathered=self.gather_bytes.get(precision, width),
            multiprocessors=count if self.tiles else 0,
            permute_passes=self._of_device("permute_passes", device, ""),
            host_bw=self.host_share * device.host_bw,
            links=links,
            exchanges=inside.get(EXCHANGE, links),
            device=device,
            measured=known,
        )

    def to_json(self) -> str | dict[str, Any]:
        """Return the preset's name, or an object with the name and every other constant."""
        # What equals a preset is stored by name, so that files stay short.
        preset = STACKS.get(self.name)
        if preset == self or preset is None:
            return self.name
        changed = {name: x for name, x in vars(self).items() if x != getattr(preset, name)}
        changed = {name: x for name, x in changed.items() if name not in ("source", "date")}
        if "schedules" in changed:
            changed["schedules"] = list(changed["schedules"])
        return {"name": self.name, **changed}

    def exposed(self, collective: Any, beside: Any) -> Any:
        """Return the seconds that a collective adds to those of the computation beside it."""
        return exposed(collective, beside, self.hidden)

    @classmethod
    def parse(cls, value: str | dict[str, Any] | Stack, stored: bool = False) -> Stack:
        """Return a stack by name, or a preset with other constants: ``{"name": ..., ...}``.

        Args:
            value: the stack; an object may be JSON.
            stored: whether it stands in a file; elsewhere the name of a software alone (``nemo``,
                ``torchtitan``) is that of its newest stack.

        Raises:
            PlanError: the name or a constant is unknown.
        """
        if isinstance(value, Stack):
            return value
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                value = msgspec.json.decode(value)
            except msgspec.DecodeError as error:
                raise PlanError(f"stack {shown(value)} is no JSON object: {error}") from None
        if not isinstance(value, str | Mapping):
            raise PlanError(f"stack must be a name or an object, not {shown(value)}")
        content: dict[str, Any] = {"name": value} if isinstance(value, str) else dict(value)
        name = content.pop("name", None)
        known = STACKS if stored else {**newest_of_software(), **STACKS}
        if not isinstance(name, str) or name not in known:
            hint = did_you_mean(name, known) if isinstance(name, str) else ""
            raise PlanError(f"unknown stack {shown(name)}{hint}; known: {', '.join(STACKS)}")
        preset = known[name]
        if not content:
            return preset
        for key in ("name", "date", "source"):
            if key in content:
                raise PlanError(f"stack: {key} is no constant; leave it out")
        every = {**vars(preset), **content}.items()
        can_lack = ("attention_share", "state_bytes", "gather_hidden")  # where None is the default
        given_or_preset = {key: x for key, x in every if x is not None or key not in can_lack}
        return read(cls, given_or_preset, "stack", PlanError)


@shared
def exposed(collective: Any, beside: Any, hidden: Any) -> Any:
    """See ``Stack.exposed``; ``hidden`` is the share of it that can be hidden."""
    # Of the time that both run side by side, the share costs nothing.
    return collective - hidden * np.minimum(collective, beside)


Rates = namedtuple("Rates", (
    "devices_per_server", "by_node", "near", "intra_bw", "nic_bw", "far_bw", "share",
    "send_share", "hop_in", "hop_out", "once", "width", "gathered", "memory_bw",
    "layer_seconds", "step_seconds", "hidden", "gather_hidden", "gather_share", "bucket",
    "accumulate_bytes", "duplex", "send_wait", "scatter_gather", "early_stop", "gradient_least",
    "copied_layers", "dummy_gradients", "traffic", "moments", "states",
))  # fmt: skip
"""The numbers of a machine that formulas of stages read, in fields of ``Links``, ``Machine`` and
``Stack``; flags are 0 or 1.

``traffic`` are the bytes that an optimizer step moves, per parameter, ``moments`` those of master
weight and moments, and ``states`` is ``Stack.state_bytes``; 0: they are counted apart.
"""


class Machine(NamedTuple):
    """A stack on the devices of a cluster, at one precision.

    Attributes:
        flops: FLOP/s that matrix products reach.
        attention_flops: FLOP/s that fused attention reaches; None if attention is not fused.
        memory_bw: bytes/s that elementwise kernels reach.
        launch: seconds to start a kernel.
        width: bytes of an element of weights and activations.
        gathered: bytes of a weight that ZeRO gathers.
        host_bw: bytes/s to the memory of the server that copies reach; 0 if it is not known.
        exchanges: links as all-to-alls find them.
        device: the device.
        measured: what was measured of the servers.
        multiprocessors: of a device; 0 if they are not known, or products of any size fill it.
    """

    stack: Stack
    precision: str
    flops: float
    attention_flops: float | None
    memory_bw: float
    launch: float
    width: float
    links: Links
    exchanges: Links
    device: Device
    multiprocessors: int = 0
    permute_passes: float = 0.0
    gathered: float = 2.0
    host_bw: float = 0.0
    measured: Measured | None = None

    @property
    def layer_seconds(self) -> float:
        """Seconds of the host to start a layer's kernels, see ``Stack``."""
        measured = 0.0 if self.measured is None else self.measured.layer_seconds
        return measured or self.stack.layer_seconds

    @property
    def step_seconds(self) -> float:
        """See ``Stack.step_seconds``."""
        return self.stack.step_seconds

    @property
    def rates(self) -> Rates:
        """The numbers that formulas of stages read."""
        stack, is_half = self.stack, self.precision in HALF
        known = {
            "gather_hidden": stack.hidden if stack.gather_hidden is None else stack.gather_hidden,
            "traffic": stack.optimizer_bytes if is_half else stack.optimizer_bytes_full,
            # Full precision has two moments in fp32, and needs no master copy.
            "moments": stack.moment_bytes if is_half else 8.0,
            "states": stack.state_bytes or 0.0,
            "by_node": self.links.by_node,
            "layer_seconds": self.layer_seconds,
        }
        fields = {**vars(stack), **self._asdict(), **vars(self.links), **known}
        return Rates._make(fields[name] for name in Rates._fields)


_FUSED: dict[str, Any] = {"attention_share": 0.75, "gather_hidden": 0.8, "send_wait": 0.0}
"""Fused attention, gathers that hide nearly as other collectives, sends beside computation."""


def _nemo(name: str, date: str, passes: Any, biases: float, of: str) -> Stack:
    """Megatron-Bridge of a date; ``passes`` over the copies of tokens, and for ``biases``."""
    return Stack(
        name,
        {"h100 bf16": 0.60, "h100 fp8": 0.45, "gb200 fp8": 0.455, "gb200 mxfp8": 0.43,
         "a100": 0.72, "other": 0.60},
        date=date,
        **_FUSED,
        sink_share=0.2,
        tensor_overlap=1.0,
        gather_bytes={"fp8": 1.0, "fp8-block": 1.0, "mxfp8": 1.03125},
        permute_passes=passes,
        bias_passes=biases,
        once_a_server=True,
        offloads=True,
        dummy_gradients=True,
        # Biases: a product with the probability, a sum and a concatenation in fp32, and a cast.
        source=f"Megatron-Core with Transformer Engine, {of}; bf16 as nemo-2024",
    )  # fmt: skip


def _titan(name: str, overlap: float, of: str) -> Stack:
    """Compiled PyTorch; ``overlap`` is the share of tensor-parallel collectives that is hidden."""
    return Stack(
        name,
        {"a100": 0.78, "h100-96gb fp8": 0.45, "other fp8": 0.45, "other": 0.60},
        date="2025-01",
        memory_share=0.5,
        attention_share={"a100": 0.5, "other": 0.32},
        tensor_overlap=overlap,
        backward_overlap=False,
        hidden=0.8,
        early_stop=True,
        logit_bytes=6.0,
        selective=SELECTIVE[1],
        gradient_least=4.0,
        gather_bytes={"fp8": 1.0},
        copied_layers=1.0,
        send_wait=0.0,
        schedules=(*SCHEDULES[:3], "zb-v"),
        source=f"FSDP 2 of PyTorch with torch.compile and FlashAttention 2; {of}",
    )


STACKS: dict[str, Stack] = {
    stack.name: stack
    for stack in (
        Stack(
            "megatron-2021",
            {"a100": 0.72, "v100": 0.85, "other": 0.72},
            date="2021-04",
            backward_overlap=False,
            gather_share=0.129,
            hidden=0.62,
            logit_bytes=6.0,
            source="Megatron-LM of arXiv 2104.04473; sends as arXiv 2205.05198 has them",
        ),
        Stack(
            "megatron-2019",
            {"v100": 0.70, "other": 0.70},
            date="2019-09",
            backward_overlap=False,
            logit_bytes=6.0,
            source="Megatron-LM's first release",
        ),
        Stack(
            "megatron-2022",
            {"a100": 0.78, "other": 0.78},
            date="2022-05",
            hidden=0.21,
            logit_bytes=6.0,
            source="Megatron-LM of arXiv 2205.05198: collectives of input gradients run beside "
            "weight gradients",
        ),
        Stack(
            "megatron-deepspeed-2022",
            {"a100": 0.66, "other": 0.66},
            date="2022-02",
            backward_overlap=False,
            accumulate_bytes=20.0,
            logit_bytes=6.0,
            # Gradients are cast to fp32 (2 + 4), added (4 + 4 + 4) and cleared (2).
            source="Megatron-DeepSpeed with its BF16 optimizer, as BigScience ran it",
        ),
        Stack(
            "internevo-2023",
            {"a100": 0.62, "other": 0.62},
            date="2023-11",
            memory_share=0.5,
            attention_share=0.5,
            bucket=35e6,
            source="InternEvo with FlashAttention; memory and attention set",
        ),
        Stack(
            "nemo-2024",
            {"h100 bf16": 0.60, "h100 fp8": 0.436, "a100": 0.72, "other": 0.60},
            date="2024-07",
            **_FUSED,
            tensor_overlap=1.0,
            logit_bytes=6.0,
            source="Megatron-Core with Transformer Engine; bf16 not fitted",
        ),
        _nemo(
            "nemo-2025",
            "2025-09",
            {"h100": 32.0, "other": 26.0},
            16.0,
            "its releases 25.09 to 26.04",
        ),
        _nemo(
            "nemo-2026",
            "2026-06",
            {"h100": 32.0, "other": 4.0},
            0.0,
            "from 26.06 on, with CUDA graphs and fused experts on Blackwell",
        ),
        Stack(
            "llama-2024",
            {"h100 bf16": 0.60, "other": 0.60},
            date="2024-07",
            **_FUSED,
            backward_overlap=False,
            regather=True,
            logit_bytes=6.0,
            source="Llama 3's of arXiv 2407.21783",
        ),
        Stack(
            "megatron-2025",
            {"h100 bf16": 0.60, "other": 0.60},
            date="2025-05",
            **_FUSED,
            backward_overlap=False,
            regather=True,
            logit_bytes=0.0,
            dummy_gradients=True,
            source="Megatron-Core with Transformer Engine 2.3, as llama-2024",
        ),
        Stack(
            "deepspeed-2022",
            {"v100 fp16": 0.477, "other": 0.477},
            date="2022-08",
            link_share=0.91,
            send_share=0.91,
            waves=True,
            duplex=False,
            send_wait=0.0,
            hop_out=140e-6,
            backward_overlap=False,
            source="DeepSpeed's pipelines over 10 Gbit/s Ethernet, as Parcae measured (NSDI 2024)",
        ),
        Stack(
            "megascale-2024",
            {"a100": 0.72, "other": 0.72},
            date="2024-02",
            **_FUSED,
            tensor_overlap=1.0,
            logit_bytes=6.0,
            source="MegaScale of arXiv 2402.15627; nothing fitted",
        ),
        Stack(
            "torch-2024",
            {"h100 bf16": 0.64, "a100": 0.78, "other": 0.64},
            date="2023-11",
            memory_share=0.30,
            attention_share={"h100": 0.29, "a100": 0.42, "other": 0.35},
            hidden=0.31,
            early_stop=True,
            source="PyTorch FSDP with Triton's attention, not fused",
        ),
        _titan("titan-2025", 0.0, "nothing else"),
        _titan("titan-async", 0.5, "asynchronous tensor parallelism hides half of it, a guess"),
        Stack(
            "maxtext-2025",
            {"h100": 0.60, "a100": 0.72, "other": 0.60},
            date="2025-06",
            **_FUSED,
            backward_overlap=False,
            offloads=True,
            source="MaxText by XLA: shares of nemo-2024; nothing fitted",
        ),
        Stack(
            "deepseek-2024",
            {"h100 bf16": 0.60, "h100 fp8": 0.45, "other": 0.60},
            date="2024-12",
            **_FUSED,
            once_a_server=True,
            expert_overlap=1.0,
            schedules=(*SCHEDULES[:3], "zb-h1", "dualpipe", "dualpipe-v"),
            source="DeepSeek-V3's of arXiv 2412.19437: shares of nemo-2025, DeepEP, DualPipe hides "
            "the dispatch; nothing fitted",
        ),
        Stack(
            "roofline",
            {"other": EFFICIENCY, **{f"other {name}": EFFICIENCY for name in LOW}},
            date="2020-07",
            link_share=1.0,
            memory_share=1.0,
            send_share=1.0,
            send_wait=0.0,
            hop_in=0.0,
            hop_out=0.0,
            launch=0.0,
            permute_passes=0.0,
            optimizer_bytes=0.0,
            optimizer_bytes_full=0.0,
            grouped=False,
            two_levels=False,
            tiles=False,
            state_bytes=2.0,
            link_rule="node",
            source="the cost model of the pure tasks (docs/pipeline.md)",
        ),
    )
}
"""Stacks by name."""
ALSO = {
    "titan": ("torchtitan",), "nemo": ("megatron-bridge",), "megatron": ("megatron-lm",),
    "torch": ("fsdp", "pytorch"),
}  # fmt: skip
"""Other names of software, by what stacks call it in front of the year."""


def newest_of_software() -> dict[str, Stack]:
    """Return software -> its newest stack: those whose names are the software and a year."""
    newest: dict[str, Stack] = {}
    for stack in sorted(STACKS.values(), key=lambda stack: stack.date):
        software, _, year = stack.name.rpartition("-")
        if year.isdecimal():
            newest |= dict.fromkeys((software, *ALSO.get(software, ())), stack)
    return newest
