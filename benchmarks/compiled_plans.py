"""What ``exports.py`` compiles: plans of shipped graphs, whole or cut to a few layers.

A training step of n equal layers is compiled with ``SHALLOW`` of them, at full width, batch and
length, and what comes out is extrapolated by layer. That the plan is linear in the layers is seen
in the prediction, which is made of the whole graph, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from parenvs import Graph, HybridPlan, HybridStage
from parenvs import problem as problem_from
from parenvs.agents.partition.exact import exact_partition
from parenvs.cluster import choose_cluster
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError
from parenvs.exports.compilation import compile_plan
from parenvs.exports.layout import layout_of
from parenvs.graph.reader import read_proto
from parenvs.graph.sources import proto_of
from parenvs.instances import load_graph
from parenvs.tasks.hybrid.model import HybridModel

DEVICES, TP = 8, 4
TIMEOUT = 3600.0
"""Seconds after which a compiler is stopped."""
SHALLOW = (1, 2)
"""Layers with which deep models are compiled."""


@dataclass(frozen=True)
class Depth:
    """How a deep model is made with fewer layers.

    Attributes:
        make: layers -> the model, at its other sizes.
        layers: that the shipped model has.
        shallow: layers with which it is compiled.
    """

    make: Callable[[int], Any]
    layers: int
    shallow: tuple[int, int] = SHALLOW


@cache
def depths() -> dict[str, Depth]:
    """Shipped graph -> how to make it shallower; others are compiled whole."""
    from parenvs.datasets import models

    widths = (192, 384, 768, 1536)
    return {
        "t5-3b": Depth(lambda n: models.t5(n, 1024, 16384, 32, 128), 24),
        "t5-11b": Depth(lambda n: models.t5(n, 1024, 65536, 128, 128), 24),
        "bert-48": Depth(lambda n: models.bert(n), 48),
        "llama3-8b": Depth(lambda n: models.llama(n), 32),
        "llama3-70b": Depth(lambda n: models.llama(n, 8192, 28672, 64, batch_size=64), 80),
        "gpt3-175b": Depth(lambda n: models.gpt(n), 96),
        # A plan of one layer splits it otherwise than those of more.
        "mixtral-8x7b": Depth(lambda n: models.mixtral(n), 32, (2, 3)),
        "convnext-l": Depth(
            lambda n: models.convnext(tuple(zip(widths, (3, 3, n, 3), strict=True))), 27
        ),
        "vit-h14": Depth(lambda n: models.vit(n), 32),
        "mixer-l16": Depth(lambda n: models.mixer(n), 24),
        "dit-xl2": Depth(lambda n: models.dit(n), 28),
        "clip-l14": Depth(lambda n: models.clip(2 * n, text_layers=n), 12),
        "whisper-large": Depth(lambda n: models.whisper(n), 32),
    }


@cache
def step_of(name: str, layers: int | None = None) -> tuple[Graph, Any]:
    """Return a shipped graph, or that of its model with fewer layers, and the module's source."""
    if layers is None:
        return load_graph(name), None
    import jax

    from parenvs.datasets.models import train_step

    model = depths()[name].make(layers)
    function, shapes = train_step(model)
    lowered = jax.jit(function, keep_unused=True).lower(*shapes)
    proto = proto_of(lowered)
    return read_proto(proto, name, name=name, batch_size=model.batch_size), lowered


def partition(graph: Graph, scope: str, reward: str) -> Plan:
    """The exact plan of a step that splits evenly."""
    cluster = choose_cluster(devices=DEVICES)
    problem = problem_from(graph, cluster, "partition", scope=scope, reward=reward, uneven="forbid")
    return exact_partition(problem).plan


def hybrid(graph: Graph) -> Plan:
    """Two replicas of four tp ranks, the whole batch at once."""
    stage = HybridStage(((0, len(HybridModel.of_graph(graph))),), DEVICES, tp=TP)
    cluster = choose_cluster(devices=DEVICES)
    roomy = replace(cluster.device, memory_bytes=1e15)  # a virtual device has any memory
    return HybridPlan(
        graph.name, graph.fingerprint, replace(cluster, device=roomy), "roofline", "fp32",
        batch=graph.batch_size, micro_batch=graph.batch_size * TP // DEVICES, stages=(stage,),
    )  # fmt: skip


KINDS: dict[str, Callable[[Graph], Plan]] = {
    "operators": lambda graph: partition(graph, "variables", "paper"),
    "batch": lambda graph: partition(graph, "inputs", "step_time"),
    f"{DEVICES // TP} x {TP}": hybrid,
}
"""Kind of a plan -> the plan of a step."""


def compiled(name: str, kind: str, layers: int | None = None) -> dict[str, Any]:
    """Compile a plan of a step; what cannot be exported gives its reason."""
    begin = time.perf_counter()
    try:
        graph, source = step_of(name, layers)
        found = compile_plan(KINDS[kind](graph), source, graph, timeout_seconds=TIMEOUT)
    except ParenvsError as error:
        return {"refused": str(error)}
    return {**found.to_json(), "wall": time.perf_counter() - begin}


def predicted(name: str, kind: str) -> dict[str, Any]:
    """What is predicted of a plan of a whole shipped graph, without a compiler."""
    graph, _ = step_of(name)
    try:
        return asdict(layout_of(KINDS[kind](graph), graph).expected())
    except ParenvsError as error:
        return {"refused": str(error)}
