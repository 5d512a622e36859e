"""Which shard of a model's state each rank of a hybrid plan holds, for checkpoints on disk."""

from __future__ import annotations

import numpy as np

from parenvs.errors import InfeasibleError
from parenvs.graph.graph import Graph
from parenvs.tasks.elastic.movement import Degrees, flows, move, slices
from parenvs.tasks.elastic.state import State
from parenvs.tasks.hybrid.model import HybridModel
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.schedules import CHUNKS


class Shards:
    """The shards of a hybrid plan whose stages are alike; the hook ``checkpoint`` of its task.

    Args:
        plan: the plan.

    Attributes:
        degrees: T, P and D of the plan; rank ``t + T (d + D p)`` is of tp rank t, replica d and
            stage p.
        writing: replicas that hold states of their own: those that share them (ZeRO), else 1.

    Raises:
        InfeasibleError: stages differ in tp, devices or ZeRO level.
    """

    flows = staticmethod(flows)
    """Which device sends what to which one when plans change."""

    def __init__(self, plan: HybridPlan) -> None:
        first = plan.stages[0]
        if CHUNKS.get(plan.schedule, 1) > 1:
            raise InfeasibleError(
                f"schedule: a checkpoint's chunks follow 1f1b or interleaved, not {plan.schedule}"
            )
        for number, stage in enumerate(plan.stages):
            for field in ("tp", "devices", "zero"):
                if getattr(stage, field) != getattr(first, field):
                    raise InfeasibleError(
                        f"stages[{number}].{field}: a checkpoint's stages are alike, and the plan "
                        f"has {getattr(stage, field)} there, not {getattr(first, field)}"
                    )
        data = first.devices // (first.tp * plan.context)
        self.degrees = Degrees(first.tp, len(plan.stages), data)
        sharing = max(plan.shard // plan.context, 1) if plan.shard else data
        self.writing = sharing if first.zero else 1
        self._plan = plan

    def stages(self, graph: Graph) -> dict[str, int]:
        """Return the stage of each parameter of a graph by name.

        The first stage has the embedding, the last one the head.
        """
        model = HybridModel.of_graph(graph)
        assert model.chain is not None
        work, written = model.chain.work, model.chain.program.graph
        names = dict(zip(written.parameter_tensor.tolist(), written.paths, strict=True))
        inside = self.within(len(model))
        return {
            names[tensor].replace("/", "."): int(inside[:, label].argmax())
            for label, rows in work.weights.items()
            for tensor, _ in rows
        }

    def within(self, layers: int) -> np.ndarray:
        """Return (P, layers + 2) 1 where a layer is in a stage; embedding and head are layers."""
        result = np.zeros((len(self._plan.stages), layers + 2))
        for number, stage in enumerate(self._plan.stages):
            for first, end in stage.layers:
                result[number, first + 1 : end + 1] = 1
        result[:, 0], result[:, -1] = result[:, 1], result[:, -2]
        return result

    def read_from(self, old: Shards, graph: Graph, per_parameter: float) -> np.ndarray:
        """Return the bytes that each shard takes of each shard of an old plan, (P T, P' T').

        Args:
            old: shards of the old plan.
            graph: that both plans are for.
            per_parameter: bytes of a parameter with the optimiser's state.
        """
        model = HybridModel.of_graph(graph)
        state, layers = State.of(model, per_parameter), len(model)
        inside = (old.within(layers), self.within(layers))
        return slices(state, old.degrees, self.degrees, inside)

    def fetched_from(self, old: Shards, graph: Graph, per_parameter: float) -> float:
        """Return all bytes that Tenplex's way fetches, each replica its own; see ``read_from``."""
        state = State.of(HybridModel.of_graph(graph), per_parameter)
        return move(state, old.degrees, self.degrees, "tenplex").bytes
