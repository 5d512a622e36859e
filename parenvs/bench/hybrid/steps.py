"""Measured steps of pipelines: seconds by data-parallel and pipeline degree on one cluster.

A file is an object with ``model``, ``global_batch``, ``micro_batch`` and ``measured``, a list of
``[data parallel, pipeline, milliseconds, ...]``; ``shape`` (a transformer's) or ``layers`` (a
profile: forward, backward and optimizer milliseconds, MiB of activations, parameters of each) say
what was trained if the name does not. The machines are one V100 of 16 GB a node on 10 Gbit/s
unless ``cluster`` says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import least_squares

from parenvs.bench.hybrid.errors import rank_correlation
from parenvs.bench.hybrid.hardware import SERVERS
from parenvs.bench.hybrid.measured import MeasuredLayer
from parenvs.bench.hybrid.rows import is_number, read_json, shipped
from parenvs.cluster import Cluster
from parenvs.errors import ParenvsError, shown
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.layers import Head
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import STACKS
from parenvs.tasks.hybrid.uniform import Uniform, uniform_stages

SHIPPED = ("gpt-1.5b.json", "bert-large.json")
"""Files of steps that ship: measured by Parcae (NSDI 2024) on p3.2xlarge nodes."""
STACK = "deepspeed-2022"
"""The stack that ran them."""
PRECISION = "fp16"
"""Of the runs; a V100's peak is then that of its tensor cores, 125 TFLOP/s."""
NIC = 10e9 / 8
"""Bytes/s of a node's network, 10 Gbit/s."""
MASKED = 80 / 512
"""Share of tokens that BERT's head sees: the masked ones (assumed; as NVIDIA's pretraining)."""
MOST = 65_536
"""Most stages, and most replicas, in a row."""
SHORTEST = 1e-6
"""Milliseconds of the shortest step that is taken for a measured one: a nanosecond."""


def _gpt(name: str, layers: int, hidden: int, heads: int) -> TransformerShape:
    return TransformerShape(name, layers, hidden, heads, 1024, 50304, positions=1024)


SHAPES = {
    "gpt-2": _gpt("gpt-2", 24, 1024, 16),
    "gpt-1.5b": _gpt("gpt-1.5b", 48, 1600, 25),
    "gpt-2.7b": _gpt("gpt-2.7b", 32, 2560, 32),
    "gpt-6.7b": _gpt("gpt-6.7b", 32, 4096, 32),
    "bert": TransformerShape("bert", 24, 1024, 16, 512, 30522, positions=512, causal=False),
}
"""Models by the names of such files (JF-D/Parcae, example scripts at efedee7)."""
RECOMPUTED = ("gpt-6.7b",)
"""Models of them that recompute every layer."""


@dataclass(frozen=True)
class Steps:
    """The measured steps of one model.

    Attributes:
        path: the file.
        model: the model's name.
        chain: its layers.
        profiled: its layers with measured seconds, or None.
        batch: samples of a step.
        micro_batch: samples of a micro-batch.
        data: (N,) replicas.
        pipeline: (N,) stages.
        seconds: (N,) measured.
        cluster: the nodes.
        dealt: how layers are dealt to stages.
        assumed: what the file does not say.
    """

    path: str
    model: str
    chain: HybridModel
    profiled: HybridModel | None
    batch: int
    micro_batch: int
    data: np.ndarray
    pipeline: np.ndarray
    seconds: np.ndarray
    cluster: Cluster
    dealt: Callable[[int, int], np.ndarray]
    assumed: tuple[str, ...]

    @property
    def recompute(self) -> str:
        """Whether layers were recomputed."""
        return "full" if self.model in RECOMPUTED else "none"

    def predicted(self, share: float, network: float, profiled: bool = False) -> np.ndarray:
        """(N,) seconds of the steps by the model.

        Args:
            share: of the peak that matrix products reach; of measured layers, the speed relative to
                the profile.
            network: share of the network's bandwidth that sends and collectives reach.
            profiled: whether to take the layers' measured seconds.
        """
        stack = replace(
            STACKS[STACK],
            matmul_share=(("other", 1.0 if profiled else share),),
            link_share=network,
            send_share=network,
        )
        machine = stack.machine(self.cluster, PRECISION)
        chain = self.chain
        if profiled and self.profiled is not None:
            chain = _faster(self.profiled, share)
        micro = np.ceil(self.batch / (self.data * self.micro_batch))
        found = np.empty(len(self.seconds))
        for count in np.unique(self.pipeline):
            which = np.flatnonzero(self.pipeline == count)
            data = self.data[which]
            plans = Uniform(
                tp=1, pp=int(count), dp=data, micro_batch=self.micro_batch,
                batch=micro[which] * data * self.micro_batch, recompute=self.recompute,
            )  # fmt: skip
            stages = uniform_stages(chain, plans, int(count), self.dealt)
            found[which] = formulas.step(chain, self.cluster, machine, stages).length
        return found

    def fitted(self, profiled: bool = False) -> tuple[float, float]:
        """Return the two shares that meet the steps best; those far off count less."""

        def apart(logs: np.ndarray) -> np.ndarray:
            share, network = np.exp(logs)
            return np.log(self.predicted(share, network, profiled) / self.seconds)

        start = np.log([3.0 if profiled else 0.4, 0.8])
        best = least_squares(apart, start, loss="cauchy", f_scale=0.03, diff_step=1e-3, xtol=1e-4)
        share, network = np.exp(best.x)
        return float(share), float(network)


@dataclass(frozen=True)
class Verdict:
    """How well two constants predict a file's steps.

    Attributes:
        model: whose steps.
        fitted_on: where the constants are from.
        share: of matrix products.
        network: of the network.
        mean: mean absolute error.
        worst: the error farthest from 0.
        rank: rank correlation.
        best: (data parallel, pipeline) that is called best.
        place: its place among the measured.
        over_best: how much longer it was measured than the best measured, as a share.
        far: plans whose step is 30 % or more over the predicted one.
        rank_without: rank correlation without them.
    """

    model: str
    fitted_on: str
    share: float
    network: float
    mean: float
    worst: float
    rank: float | None
    best: tuple[int, int]
    place: int
    over_best: float
    far: tuple[tuple[int, int], ...]
    rank_without: float | None


FAR = 0.3
"""A step that takes that much longer than predicted, relative, is called far off."""


def judged(steps: Steps, share: float, network: float, on: str, profiled: bool = False) -> Verdict:
    """Return how well two constants predict the steps."""
    predicted = steps.predicted(share, network, profiled)
    errors = predicted / steps.seconds - 1
    best = int(predicted.argmin())
    far = predicted * (1 + FAR) < steps.seconds
    plans = list(zip(steps.data.tolist(), steps.pipeline.tolist(), strict=True))
    near = ~far
    return Verdict(
        model=steps.model,
        fitted_on=on,
        share=share,
        network=network,
        mean=float(np.abs(errors).mean()),
        worst=float(errors[np.abs(errors).argmax()]),
        rank=rank_correlation(steps.seconds.tolist(), predicted.tolist()),
        best=plans[best],
        place=1 + int((steps.seconds < steps.seconds[best]).sum()),
        over_best=float(steps.seconds[best] / steps.seconds.min() - 1),
        far=tuple(plan for plan, off in zip(plans, far, strict=True) if off),
        rank_without=rank_correlation(steps.seconds[near].tolist(), predicted[near].tolist()),
    )


def compared(files: Sequence[Steps]) -> list[Verdict]:
    """Return every file's steps judged by constants fitted on itself and on every other."""
    shares = {steps.model: steps.fitted() for steps in files}
    found = [judged(steps, *shares[on], on) for on in shares for steps in files]
    for steps in files:
        if steps.profiled is not None:
            own = steps.fitted(profiled=True)
            found.append(judged(steps, *own, f"{steps.model}, its measured layers", True))
    return found


def read_steps(path: str | os.PathLike[str]) -> Steps:
    """Read a file of measured steps; the name of a shipped one is enough.

    Raises:
        ParenvsError: the file cannot be read, or a field is missing or impossible.
    """
    where = os.fspath(path)
    place = shipped(where) if where in SHIPPED and not Path(where).exists() else Path(where)
    content = read_json(place, where)
    if not isinstance(content, dict):
        raise ParenvsError(f"{where}: expected an object with model, global_batch, measured, ...")
    for key in ("model", "global_batch", "micro_batch", "measured"):
        if key not in content:
            raise ParenvsError(f"{where}: field {key!r} is missing")
    if not isinstance(content["model"], str):
        raise ParenvsError(f"{where}: model must be a text, not {shown(content['model'])}")
    for key in ("global_batch", "micro_batch"):
        value = content[key]
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= 2**31:
            raise ParenvsError(f"{where}: {key} must be a whole number from 1, not {shown(value)}")
    rows = _measured(content["measured"], where)
    assumed: list[str] = []
    chain, profiled = _chains(content, where, assumed)
    if int(rows[:, 1].max()) > len(chain):
        raise ParenvsError(
            f"{where}: measured has {int(rows[:, 1].max())} stages, but {content['model']} has "
            f"{len(chain)} layers"
        )
    if "cluster" in content:
        cluster = Cluster.parse(content["cluster"])
    else:
        node = replace(SERVERS["v100-16gb"], devices=1, nic_bw=NIC)
        cluster = node.cluster(int((rows[:, 0] * rows[:, 1]).max()))
        assumed.append("one V100 of 16 GB a node, 10 Gbit/s")
    if "layers" in content:
        dealt: Callable[[int, int], np.ndarray] = parcae_bounds
    else:
        dealt = even_blocks
        assumed.append("blocks dealt evenly, embedding and head beside them")
    return Steps(
        path=where,
        model=content["model"],
        chain=chain,
        profiled=profiled,
        batch=content["global_batch"],
        micro_batch=content["micro_batch"],
        data=rows[:, 0].astype(int),
        pipeline=rows[:, 1].astype(int),
        seconds=rows[:, 2] / 1e3,
        cluster=cluster,
        dealt=dealt,
        assumed=tuple(assumed),
    )


def _measured(rows: Any, where: str) -> np.ndarray:
    """(N, 3) the rows of ``measured``, checked."""
    if not isinstance(rows, list) or len(rows) < 3:
        raise ParenvsError(f"{where}: measured must be a list of at least 3 rows")
    for number, row in enumerate(rows):
        numbers = isinstance(row, list) and len(row) >= 3
        if not numbers or not all(map(is_number, row[:3])):
            raise ParenvsError(
                f"{where}: measured[{number}] must be [data parallel, pipeline, milliseconds, "
                f"...], not {shown(row)}"
            )
        whole = all(x == int(x) and 1 <= x <= MOST for x in row[:2])
        if not whole or not SHORTEST <= row[2] < 1e12:
            raise ParenvsError(
                f"{where}: measured[{number}] needs whole degrees from 1 to {MOST} and "
                f"milliseconds from {SHORTEST:g}, not {shown(row)}"
            )
    return np.array([row[:3] for row in rows], dtype=float)


def _chains(
    content: dict[str, Any], where: str, assumed: list[str]
) -> tuple[HybridModel, HybridModel | None]:
    """Return the model's chain, and the one of its measured layers if there are any."""
    profiled = _profiled(content, where) if "layers" in content else None
    name = content["model"].lower()
    if "shape" in content:
        if not isinstance(content["shape"], dict):
            raise ParenvsError(f"{where}: shape must be an object, not {shown(content['shape'])}")
        shape = TransformerShape.from_json(content["shape"], f"{where}: shape")
    else:
        known = {**SHAPES, "bert-large": SHAPES["bert"]}
        if name not in known:
            if profiled is not None:
                return profiled, profiled
            raise ParenvsError(
                f"{where}: the shape of model {shown(content['model'])} is not known; give 'shape' "
                f"or 'layers' (known: {', '.join(known)})"
            )
        shape = known[name]
    chain = HybridModel.of_shape(shape)
    if name.startswith("bert"):
        assumed.append("BERT's head sees 80 of 512 tokens, the masked ones")
        chain = replace(chain, head=Head(shape, MASKED))
    return chain, profiled


def _profiled(content: dict[str, Any], where: str) -> HybridModel:
    """Make the chain of a profile; its first and last rows are embedding and head."""
    rows, samples = content["layers"], float(content["micro_batch"])
    good = isinstance(rows, list) and len(rows) >= 3 and all(
        isinstance(row, list) and len(row) >= 5
        and all(is_number(x) and 0 <= x < 1e15 for x in row[:5])
        for row in rows
    )  # fmt: skip
    if not good:
        raise ParenvsError(
            f"{where}: layers must be a list of at least 3 rows [forward_ms, backward_ms, "
            "optimizer_ms, activation_MiB, parameters], none negative"
        )
    crossing = content.get("activation_values_between_stages", 0)
    if not is_number(crossing) or not 0 <= crossing < 1e15:
        raise ParenvsError(f"{where}: activation_values_between_stages must be a number from 0")
    made = [
        MeasuredLayer(row[0] / 1e3, row[1] / 1e3, row[4], row[3] * 2.0**20, samples) for row in rows
    ]
    kinds = tuple(dict.fromkeys(made[1:-1]))
    return HybridModel(
        name=content["model"],
        fingerprint="",
        kinds=kinds,
        kind_of=tuple(kinds.index(layer) for layer in made[1:-1]),
        crossing=(crossing / samples,) * (len(made) - 3),
        embedding=made[0],
        head=made[-1],
    )


def _faster(chain: HybridModel, speed: float) -> HybridModel:
    """Return a chain of measured layers that runs so many times as fast."""

    def quick(layer: Any) -> Any:
        return replace(layer, forward=layer.forward / speed, backward=layer.backward / speed)

    return replace(
        chain,
        kinds=tuple(quick(layer) for layer in chain.kinds),
        embedding=quick(chain.embedding),
        head=quick(chain.head),
    )


def parcae_bounds(layers: int, pieces: int) -> np.ndarray:
    """(pieces + 1,) first block of each stage as Parcae deals out a profile's rows.

    Of n rows, embedding and head among them, each stage gets (n - 1) // P, the first one more; the
    rest go to the last but one and backwards, one each.
    """
    size, rest = divmod(layers + 1, pieces)
    chunks = np.full(pieces, size)
    chunks[0] += 1
    for number in range(rest):
        chunks[-number - 2] += 1
    bounds = np.concatenate([[0], chunks.cumsum()]) - 1
    bounds[0], bounds[-1] = 0, layers
    return np.clip(bounds, 0, layers)


def even_blocks(layers: int, pieces: int) -> np.ndarray:
    """(pieces + 1,) first block of each stage if blocks alone are dealt out evenly."""
    return np.round(np.arange(pieces + 1) * layers / pieces).astype(int)
