"""The candidate plans of a job whose nodes are processes of this machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from parenvs.cluster import Cluster, Device
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.exports.torch import TorchPlan, torch_plan
from parenvs.graph.graph import Graph
from parenvs.tasks.elastic.library import Library, chosen, degrees_of
from parenvs.tasks.elastic.movement import Costs, Degrees, Movement, State
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.uniform import even_bounds

PER_PARAMETER = 12.0
"""Bytes of a parameter in full precision with Adam's two moments."""


@dataclass(frozen=True)
class LocalCosts(Costs):
    """What changes take among processes that share cores.

    What takes most is that every process of a pipeline traces the module, all of them at once.

    Attributes:
        trace: seconds of a core to trace and cut the module.
        cores: that processes share.
    """

    trace: float = 0.0
    cores: int = 1

    def planned(self, movement: Movement, new: Degrees, joins: bool) -> float:
        """See ``Costs``."""
        return super().planned(movement, new, joins) + self._traced(new)

    def unplanned(self, movement: Movement | None, new: Degrees, devices: int) -> float:
        """See ``Costs``."""
        return super().unplanned(movement, new, devices) + self._traced(new)

    def _traced(self, new: Degrees) -> float:
        return self.trace * max(1.0, new.ranks / self.cores) if new.pipeline > 1 else 0.0


LOCAL = LocalCosts(
    fixed=1.0, restart=((1, 1.0),), egress=4e8, sliced=1e9, save=0.5, load=0.5,
    source="processes of one machine, benchmarks/elastic_run.py",
)  # fmt: skip
"""What changes take among local processes, roughly, besides tracing, which is measured."""

CORE = Device(
    "core", peak_flops=2e10, memory_bw=5e9, memory_bytes=4e9, intra_bw=1e9, inter_bw=1e9,
    source="a guess: a core of a server and the loopback device; only proportions count",
)  # fmt: skip
"""What a process stands for if nothing else is said."""


def cores(nodes: int, devices: int = 1) -> Cluster:
    """Return the cluster of nodes with some processes each."""
    return Cluster(nodes, devices, CORE, CORE.intra_bw, CORE.inter_bw)


@dataclass(frozen=True)
class Plans:
    """The plans that a job can run, and what is predicted of them.

    Attributes:
        library: the candidates, with samples a second.
        plans: of degrees.
        seconds: of a step.
        graph: of the training step.
        exported: plans in PyTorch's words, as far as they were asked for.
    """

    library: Library
    plans: dict[Degrees, HybridPlan]
    seconds: dict[Degrees, float]
    graph: Graph
    exported: dict[Degrees, TorchPlan]

    def words(self, degrees: Degrees) -> TorchPlan:
        """Return a plan in PyTorch's words."""
        if degrees not in self.exported:
            self.exported[degrees] = torch_plan(self.plans[degrees], self.graph)
        return self.exported[degrees]


def plans_of(
    graph: Graph, path: str, cluster: Cluster, batch: int, one: float, costs: Costs = LOCAL
) -> Plans:
    """Return the plans of degrees that fill whole nodes, divide the batch and run in PyTorch.

    Layers are dealt out evenly; pipelines have the fewest micro-batches that are as many as their
    stages. Steps last in proportion to what the judge says of them on the cluster.

    Args:
        graph: of the training step.
        path: of its file, which plans name.
        cluster: what the nodes stand for.
        batch: samples of a step.
        one: seconds of a step of the plan with the fewest devices.
        costs: of changes.

    Raises:
        ParenvsError: no plan runs.
    """
    model = HybridModel.of_graph(graph, path)
    problem = Hybrid(model, cluster, batch, Stack.parse("roofline"), "fp32")
    plans: dict[Degrees, HybridPlan] = {}
    exported: dict[Degrees, TorchPlan] = {}
    judged: dict[Degrees, float] = {}
    reasons: list[str] = []
    known: dict[tuple[int, int], bool] = {}
    for degrees in sorted(degrees_of(problem), key=lambda x: x.ranks):
        tensor, stages, replicas = degrees
        counts = [n for n in range(stages, batch // replicas + 1) if batch % (n * replicas) == 0]
        if not counts:
            continue
        bounds = even_bounds(len(model), stages).tolist()
        nodes = degrees.hosts(cluster.devices_per_server)
        plan = HybridPlan(
            path, graph.fingerprint, replace(cluster, servers=nodes), "roofline", "fp32",
            batch=batch, micro_batch=batch // (counts[0] * replicas),
            stages=tuple(
                HybridStage(((first, end),), tensor * replicas, tp=tensor)
                for first, end in pairwise(bounds)
            ),
        )  # fmt: skip
        if (tensor, stages) not in known:  # replicas make no difference
            try:
                exported[degrees] = torch_plan(plan, graph)
            except InfeasibleError as error:  # such as fewer layers than stages
                reasons.append(str(error))
            known[tensor, stages] = degrees in exported
        if not known[tensor, stages]:
            continue
        report = replace(problem, cluster=plan.cluster).report(plan)
        plans[degrees], judged[degrees] = plan, report.step_seconds
    if not plans:
        raise ParenvsError(
            f"{path}: no plan of a batch of {batch} runs on nodes of "
            f"{cluster.devices_per_server} devices{f' ({reasons[0]})' if reasons else ''}"
        )
    smallest = min(plans, key=lambda x: (x.ranks, judged[x]))
    seconds = {x: one * judged[x] / judged[smallest] for x in plans}
    rates = [(x, batch / seconds[x]) for x in plans]
    state = State.of(model, PER_PARAMETER)
    inside = cluster.devices_per_server
    library = Library(path, state, costs, inside, chosen(rates, inside))
    return Plans(library, plans, seconds, graph, exported)
