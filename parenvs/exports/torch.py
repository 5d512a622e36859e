"""Plans as PyTorch's placements and pipelines, by names of modules.

What is written here is data; ``parenvs.exports.parallel`` runs it (extra ``torch``).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from parenvs.core.plan import Plan
from parenvs.core.registry import task_with
from parenvs.core.stages import Stages
from parenvs.core.task import Task
from parenvs.errors import InfeasibleError
from parenvs.exports.stages import layout_of, refuse, stages_of
from parenvs.graph.graph import Graph, Role
from parenvs.graph.layout import DATA, MODEL, Layout, against, against_stages

WRITTEN_FOR = {"torch": "2.13"}
"""Versions with which what is exported was run."""
SCHEDULES = {"1f1b": "1F1B", "interleaved": "Interleaved1F1B"}
"""Schedule of a plan -> PyTorch's; ``"GPipe"`` is a choice of the user's."""
Split = tuple[int | None, int | None]
"""Dimension of a tensor that the data's axis splits, and the model's."""


@dataclass(frozen=True)
class TorchPlan:
    """A plan in PyTorch's words.

    Attributes:
        pipe: stages; the mesh is pipe x data x model, the model's ranks neighbors.
        shapes: name of each parameter -> its shape; empty if the plan says nothing of parameters.
        placements: name of each parameter that is split -> its dimensions.
        inputs: name of each batch input that is split -> its dimensions.
        zero: 0 to 3: ``fully_shard`` over the replicas from 1 on.
        cuts: name of the module that begins each part of the model but the first.
        schedule: ``"1F1B"``, ``"Interleaved1F1B"`` or ``"GPipe"``.
        loss: how samples are added up: ``"mean"``, ``"sum"`` or ``"labels"``, see ``Exported``.
        unused: parameters that the loss does not need.
        apart: whether replicas run the module's own code on samples of their own, and sum gradients
            at the end: where no weight is split, or the batch cannot be split by dimensions.
        notes: what the plan says and this cannot, and what was moved, in sentences.
    """

    instance: str
    task: str
    pipe: int
    data: int
    model: int
    shapes: dict[str, tuple[int, ...]]
    placements: dict[str, Split]
    inputs: dict[str, Split]
    batch: int
    zero: int = 0
    cuts: tuple[str, ...] = ()
    chunks: int = 1
    schedule: str = "1F1B"
    micro_batches: int = 1
    apart: bool = False
    loss: str = "mean"
    unused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """Degrees in a line: ``pipe 2 x data 2, cut before layers.1, 1F1B``."""
        sizes = {"pipe": self.pipe, "data": self.data, "model": self.model}
        words = " x ".join(f"{name} {size}" for name, size in sizes.items() if size > 1)
        if self.cuts:
            words += f", cut before {', '.join(self.cuts)}, {self.schedule}"
        split = sum(model is not None for _, model in self.placements.values())
        return words + (f", {split} parameters split" if split else "")

    def to_json(self) -> dict[str, Any]:
        """Return the plan as an object of JSON types."""
        content = {"schema": 1, "to": "torch", "written_for": WRITTEN_FOR, **asdict(self)}
        del content["shapes"]
        for key in ("placements", "inputs"):
            content[key] = {
                name: {DATA: words(split[0]), MODEL: words(split[1])}
                for name, split in getattr(self, key).items()
            }
        return {**content, "cuts": list(self.cuts), "notes": list(self.notes)}


def words(dimension: int | None) -> str:
    """A placement as PyTorch writes it."""
    return "Replicate()" if dimension is None else f"Shard(dim={dimension})"


class Exported(NamedTuple):
    """A plan in PyTorch's words, and what they were taken from, where its task has that."""

    words: TorchPlan
    layout: Layout | None
    stages: Stages | None


def torch_plan(plan: Plan, graph: Graph | None = None) -> TorchPlan:
    """Write a plan in PyTorch's words.

    Args:
        plan: a plan of a task with a layout or with stages.
        graph: the graph that it was made for (default: the plan's instance).

    Raises:
        InfeasibleError: the plan is illegal, or stages differ in tp, replicas or ZeRO level.
        ParenvsError: a field of the plan that PyTorch cannot express.
    """
    return export(plan, graph).words


def export(plan: Plan, graph: Graph | None = None, measured: bool = False) -> Exported:
    """Write a plan in PyTorch's words; see ``torch_plan``.

    Args:
        plan: the plan.
        graph: the graph that it was made for (default: the plan's instance).
        measured: whether the layers of a measured chain will do, which modules have by name.
    """
    task = task_with(plan, Task.layout, Task.stages)
    layout: Layout | None = None
    splits = _Splits({}, {}, {})
    notes: tuple[str, ...] = ()
    if task.supports(Task.layout):
        layout = layout_of(plan, graph, eager=True)
        graph = layout.graph
    planned = None
    if task.supports(Task.stages):
        planned = stages_of(plan, graph, measured)
        _check_stages(planned)
        notes = planned.notes
    if layout is not None:
        layout.check_even("PyTorch")
        splits, notes = _splits(layout), (*notes, *layout.notes)
    source = planned.target if layout is None and planned is not None else graph
    traits = source.traits if isinstance(source, Graph) else {}
    known: dict[str, Any] = {"loss": traits.get("loss", "mean"), "notes": notes}
    known["unused"] = tuple(traits.get("unused", "").split())
    causes = dict(layout.causes) if layout is not None else {}
    if planned is None:
        assert layout is not None
        data, model = layout.sizes.get(DATA, 1), layout.sizes.get(MODEL, 1)
        refuse(*against(causes, model, 1, data, 0, 1))
        words = TorchPlan(
            plan.instance, plan.task, 1, data, model, *splits, batch=layout.graph.batch_size,
            apart=data > 1 == model and not splits.placements and "samples" not in causes, **known,
        )  # fmt: skip
        return Exported(words, layout, None)
    tp, dp, zero = (planned.same(field, "PyTorch") for field in ("tp", "dp", "zero"))
    names = [planned.names[first] for first, _ in planned.parts[1:]]
    if isinstance(source, Graph) and (reason := against_stages(source, names, planned.shared)):
        causes["pp"] = reason
    refuse(*against(causes, tp, len(planned.stages), dp, zero, planned.micro_batches))
    if zero == 1:
        known["notes"] = (
            *notes,
            "zero: fully_shard shares gradients with the states; ZeRO 1 runs as 2",
        )
    words = TorchPlan(
        plan.instance, plan.task, len(planned.stages), dp, tp, *splits,
        batch=planned.batch, zero=zero,
        cuts=tuple(name.replace("/", ".") for name in names),
        chunks=planned.chunks, schedule=SCHEDULES[planned.schedule],
        micro_batches=planned.micro_batches,
        apart=layout is not None and dp > 1 and not zero
        and (not splits.inputs or (tp == 1 and "samples" not in causes)),
        **known,
    )  # fmt: skip
    return Exported(words, layout, planned)


def _check_stages(planned: Stages) -> None:
    refuse(
        (
            planned.schedule not in SCHEDULES,
            f"schedule: {planned.schedule} is none of {', '.join(SCHEDULES)}, which run in PyTorch",
        ),
        (
            planned.micro_batches < len(planned.stages),
            f"micro_batch: it makes {planned.micro_batches} of a step, and PyTorch's pipelines of "
            f"{len(planned.stages)} stages need as many micro-batches at least; plan smaller ones",
        ),
    )


class _Splits(NamedTuple):
    shapes: dict[str, tuple[int, ...]]
    placements: dict[str, Split]
    inputs: dict[str, Split]


def _splits(layout: Layout) -> _Splits:
    """Return the dimensions of weights and batch inputs that the axes split."""
    graph, weights = layout.graph, (Role.VARIABLE, Role.FROZEN)
    names = [path.replace("/", ".") for path in graph.paths]
    roles, tensors = graph.parameter_role.tolist(), graph.parameter_tensor.tolist()
    rows = list(zip(names, roles, tensors, strict=True))
    shapes = {name: graph.shape(tensor) for name, role, tensor in rows if role in weights}
    codes = [k for k, name in enumerate(graph.opcodes) if name == "convolution"]
    convolutions = np.flatnonzero(np.isin(graph.opcode, codes))
    kernels = set(graph.operands[graph.operand_offset[convolutions] + 1].tolist())
    splits: dict[bool, dict[str, Split]] = {True: {}, False: {}}
    for name, role, tensor in rows:
        spec = layout.unshared_spec(tensor)
        split = tuple(spec.index(axis) if axis in spec else None for axis in (DATA, MODEL))
        if role in (*weights, Role.BATCH) and split != (None, None):
            if role != Role.BATCH and tensor in kernels:
                raise InfeasibleError(
                    f"tp: {name} is of a convolution, which PyTorch's DTensors "
                    "cannot split; plan replicas alone"
                )
            splits[role != Role.BATCH][name] = (split[0], split[1])
    return _Splits(shapes, splits[True], splits[False])
