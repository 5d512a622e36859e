"""Uniform plans: every stage has as many layers, devices and ranks as any other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from parenvs.cluster import Cluster
from parenvs.compiled import Array
from parenvs.tasks.hybrid import formulas
from parenvs.tasks.hybrid.formulas import Chunks, Memory, Stages, of_chunks
from parenvs.tasks.hybrid.layers import Chain, Split, figures_of
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.schedules import piece_of
from parenvs.tasks.hybrid.stack import Machine

SECONDS = ("core", "tail", "tied", "optimizer", "length")
"""Parts of a step of uniform plans, and their sum."""


@dataclass(frozen=True)
class Uniform:
    """Uniform plans as columns, (N,) each; one number stands for all plans.

    Fields are those of ``HybridPlan`` and ``HybridStage``, with ``pp`` stages, ``dp`` replicas and
    one mode of recomputation for all layers. An empty ``schedule`` is 1F1B, interleaved with
    chunks.
    """

    tp: Any
    pp: Any
    dp: Any
    micro_batch: Any
    batch: Any
    chunks: Any = 1
    context: Any = 1
    expert: Any = 1
    sequence_parallel: Any = False
    recompute: Any = "none"
    zero: Any = 0
    blocking: Any = True
    gradient_bytes: Any = 2.0
    gradient_overlap: Any = False
    shard: Any = 0
    schedule: Any = ""
    expert_tp: Any = 0
    offload: Any = False

    def __post_init__(self) -> None:
        """Broadcast the columns to one length."""
        columns = np.broadcast_arrays(*(np.atleast_1d(x) for x in vars(self).values()))
        for name, column in zip(vars(self), columns, strict=True):
            object.__setattr__(self, name, column)

    def take(self, which: Array) -> Uniform:
        """Return some of the plans, by index or mask."""
        return Uniform(**{name: column[which] for name, column in vars(self).items()})

    @property
    def size(self) -> int:
        """Number of plans."""
        return len(self.tp)

    @property
    def devices(self) -> Array:
        """(N,) devices that each plan uses."""
        return self.tp * self.pp * self.dp * self.context

    def judged(
        self, model: HybridModel, cluster: Cluster, machine: Machine
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """Return ``seconds`` and ``memory``."""
        return self.seconds(model, cluster, machine), self.memory(model, machine)

    def seconds(self, model: HybridModel, cluster: Cluster, machine: Machine) -> dict[str, Array]:
        """Return (N,) figures of ``Step`` by name, whether plans fit the cluster or not.

        A stage is as fast as its slowest server; servers stand in the order of the cluster.
        """
        figures = {name: np.empty(self.size) for name in SECONDS}
        for which, chain, stages in self._by_stages(model, machine):
            if cluster.speeds:
                # Devices of one stage: all stages have as many.
                group = self.devices[which] // len(stages.device)
                stages = stages._replace(speed=stage_speeds(cluster, stages.device, group))
            step = formulas.step(chain, cluster, machine, stages)
            for name, values in figures.items():
                values[which] = getattr(step, name)
        return figures

    def memory(self, model: HybridModel, machine: Machine) -> dict[str, Array]:
        """Return (N,) figures of ``Memory`` by name, on a device of the fullest stage."""
        figures = {name: np.empty(self.size) for name in Memory._fields}
        for which, chain, stages in self._by_stages(model, machine):
            held = formulas.memory(chain, machine, stages)
            # A plan fits if its fullest stage does.
            fullest = held.total.argmax(axis=0)
            for name, values in figures.items():
                values[which] = np.take_along_axis(getattr(held, name), fullest[None], 0)[0]
        return figures

    def _by_stages(
        self, model: HybridModel, machine: Machine
    ) -> Iterator[tuple[Array, Chain, Stages]]:
        """Yield the plans of as many stages and one schedule: which, their chain, their stages."""
        _, order = np.unique(self.schedule, return_inverse=True)
        groups = order * (self.pp.max(initial=0) + 1) + self.pp
        # Layers are asked once for each different split: thousands of plans have a few hundred.
        names = ("tp", "micro_batch", "context", "sequence_parallel", "expert", "expert_tp")
        columns = [getattr(self, name).astype(np.int64) for name in names]
        # One whole number for all fields of a split.
        code = np.ravel_multi_index(columns, [1 + int(x.max(initial=0)) for x in columns])
        _, first, alike = np.unique(code, return_index=True, return_inverse=True)
        tp, samples, context, shared, expert, expert_tp = (column[first] for column in columns)
        expert_tp = expert_tp if expert_tp.any() else 0
        split = Split(tp, samples * 1.0, context, shared > 0, expert, expert_tp)
        layers = (model.embedding, model.head, *model.kinds)
        tables = [None if x is None else figures_of(x, machine, split, tp.shape) for x in layers]
        for group in np.unique(groups):
            which = np.flatnonzero(groups == group)
            front, back, *kinds = (
                None if table is None else table[:, alike[which]] for table in tables
            )
            chain = Chain(kinds, front, back, model.tied_parameters, model.tied_share)
            yield which, chain, uniform_stages(model, self.take(which), int(self.pp[which[0]]))


def concatenated(parts: Sequence[Uniform]) -> Uniform:
    """Return the plans of several objects as one."""
    names = vars(parts[0])
    return Uniform(**{name: np.concatenate([getattr(x, name) for x in parts]) for name in names})


def uniform_stages(model: HybridModel, plans: Uniform, count: int) -> Stages:
    """Return uniform plans of ``count`` stages and one schedule as arrays.

    Layers are dealt out as evenly as whole numbers allow; embedding and head take the place of a
    layer each where layers do not divide, as in arXiv 2407.21783, section 3.3.2.
    """
    schedule = str(plans.schedule[0]) if plans.size else ""
    full, selective = (np.where(plans.recompute == mode, 1, 0) for mode in ("full", "selective"))
    different, which = np.unique(plans.chunks, return_inverse=True)
    figures, pieces = [], None
    for chunks in different.tolist():
        numbers = piece_of(schedule, count, chunks)
        bounds = even_bounds(len(model), int(numbers.max()) + 1)
        layers = np.diff(model.kinds_before[bounds], axis=0).T[:, numbers]
        crossing = model.crossing_after[bounds]
        ahead, behind = crossing[1:][numbers], crossing[:-1][numbers]
        figures.append(of_chunks(layers, ahead, behind))
        if schedule:  # whose plans have one number of chunks
            passed = ahead[..., None] * np.ones(plans.size)
            layers = layers[..., None] * np.ones(plans.size)
            pieces = Chunks(layers, layers * full, layers * selective, passed)
    dealt = {name: np.stack([x[name] for x in figures], axis=-1)[..., which] for name in figures[0]}
    ones = np.ones((count, 1), np.int64)
    samples = plans.micro_batch * plans.dp
    alike = ("chunks", "context", "sequence_parallel", "expert", "blocking", "gradient_bytes",
             "gradient_overlap")  # fmt: skip
    return Stages(
        **dealt,
        full=dealt["layers"] * full,
        selective=dealt["layers"] * selective,
        **{name: ones * getattr(plans, name) for name in ("tp", "dp", "zero")},
        device=np.arange(count)[:, None] * (plans.tp * plans.dp * plans.context),
        speed=ones * 1.0,
        samples=samples,
        micro_batches=plans.batch / samples,
        **{name: getattr(plans, name) for name in alike},
        # A plain number says that no plan has any, which saves arrays.
        shard=plans.shard if np.any(plans.shard) else 0,
        expert_tp=plans.expert_tp if np.any(plans.expert_tp) else 0,
        offload=plans.offload if np.any(plans.offload) else False,
        schedule=schedule,
        pieces=pieces,
    )


def stage_speeds(
    cluster: Cluster, first: Array, devices: Any, servers: Sequence[int] = ()
) -> Array:
    """Return the speed of the slowest server of each stage, of first devices and their numbers.

    ``servers`` is their order (default: the cluster's). Of a stage beyond the cluster, the servers
    that there are count.
    """
    if not cluster.speeds:
        return np.ones(np.shape(first))
    inside, count = cluster.devices_per_server, cluster.servers
    speeds = np.array(cluster.speeds)[list(servers or range(count))]
    slowest = np.ones((count, count + 1))
    for server in range(count):
        slowest[server, server + 1 :] = np.minimum.accumulate(speeds[server:])
    start = np.minimum(first // inside, count - 1)
    # Rounded up: a stage may end inside a server.
    end = np.clip(-(-(first + devices) // inside), start + 1, count)
    return np.asarray(slowest[start, end])


def even_bounds(layers: int, pieces: int) -> Array:
    """(pieces + 1,) first layer of each piece: embedding and head count as one layer each.

    Where the layers divide, all pieces are equal.
    """
    if layers % pieces == 0:
        return np.arange(pieces + 1) * (layers // pieces)
    whole = np.round(np.arange(pieces + 1) * (layers + 2) / pieces).astype(int) - 1
    whole[0], whole[-1] = 0, layers
    return np.clip(whole, 0, layers)
