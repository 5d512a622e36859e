"""Where a plan lets the arrays of a training step lie: which axis of a mesh splits which dimension.

An axis over neighbors is the last one of the mesh: ``model`` behind ``data``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from parenvs.errors import InfeasibleError, listed, shown
from parenvs.graph.checks import ELEMENT_TYPES
from parenvs.graph.flow import Flow
from parenvs.graph.graph import Graph, Role
from parenvs.graph.training import find_updates

DATA, MODEL = "data", "model"
"""Names of the axes: over replicas, which split the batch, and over ranks that split weights."""
STATES = (Role.OPTIMIZER,)
"""Roles of inputs that replicas share from ZeRO 1 on."""
WEIGHTS = (*STATES, Role.VARIABLE, Role.FROZEN)
"""The same at ZeRO 3."""
UPDATED = (Role.VARIABLE, Role.OPTIMIZER, Role.STATISTICS)
"""Roles of inputs that a step writes anew, in their place."""
Spec = tuple[str | None, ...]
"""The axis that splits each dimension of a tensor."""


def shape_text(graph: Graph, tensor: int) -> str:
    """Return type and shape of a tensor as text, ``f32[64,512,768]``."""
    kind = ELEMENT_TYPES[int(graph.element_type[tensor])][0]
    return f"{kind}[{','.join(map(str, graph.shape(tensor)))}]"


def against_stages(graph: Graph, names: Sequence[str], shared: Sequence[str]) -> str:
    """Return why PyTorch does not cut a module in front of layers, "" if it does."""
    if shared:
        return (
            f"cuts: {shared[0].replace('/', '.')} is one weight on several stages, whose gradients "
            "PyTorch does not sum; untie it, or plan one stage"
        )
    modules = {path[:k] for path in graph.paths for k, x in enumerate(path) if x == "/"}
    odd = [shown(name) for name in names if name not in modules]
    if not odd or graph.buffers is None:
        return ""
    return f"cuts: no module of its own begins at {listed(odd)}; plan one stage"


def against(
    causes: Mapping[str, str], tp: Any, pp: Any, dp: Any, zero: Any, micro_batches: Any
) -> list[tuple[Any, str]]:
    """Return the causes, and whether each stands against a plan, or (N,) bool against plans."""
    shares = (zero > 0) & (dp > 1)
    own = (pp > 1) | (micro_batches > 1) | shares
    holds = {"tp": tp > 1, "pp": pp > 1, "dp": dp > 1, "zero": shares, "samples": own}
    return [(holds[name], words) for name, words in causes.items() if name in holds]


@dataclass(frozen=True)
class MeshAxis:
    """An axis of a mesh: ``"data"`` or ``"model"``; ``split`` is (N,) bool over ``graph.dims``."""

    name: str
    size: int
    split: np.ndarray


@dataclass(frozen=True)
class Prediction:
    """Expected all-reduces and memory per device, by the cost model and by XLA's compiler for CPUs.

    Attributes:
        arrays: results that are all-reduced; one in a loop counts once.
        bytes: their bytes on a device.
        argument_bytes: of the inputs.
        peak_bytes: when most is in use.
        cpu_bytes: of the results that are all-reduced, as XLA makes them for CPUs.
        cpu_peak_bytes: when most is in use, as XLA makes it for CPUs.
    """

    arrays: int
    bytes: float
    argument_bytes: float
    peak_bytes: float
    cpu_bytes: float
    cpu_peak_bytes: float


@dataclass(frozen=True, eq=False)
class Layout:
    """How the arrays of a training step lie on a mesh. P inputs, O outputs.

    A task whose plans say so has a hook ``layout``, which returns one of a class of its own.

    Attributes:
        plan: the plan.
        graph: the step.
        axes: the axes of the mesh, the last one over neighbors.
        zero: 0 to 3, which states the first axis shares besides.
        notes: what the plan says and a layout cannot, in sentences.
    """

    plan: Any
    graph: Graph
    axes: tuple[MeshAxis, ...]
    zero: int = 0
    notes: tuple[str, ...] = ()

    @property
    def causes(self) -> Mapping[str, str]:
        """What PyTorch does not do of the module, as ``against`` takes it."""
        return {}

    def expected(self) -> Prediction:
        """Return what is all-reduced in a step, and memory."""
        raise NotImplementedError

    def rank_bytes(self, axis: int) -> dict[str, float]:
        """Return the bytes that a device sends along an axis, by collective, as DTensors do it."""
        raise NotImplementedError

    @cached_property
    def sizes(self) -> dict[str, int]:
        """Axis -> number of its devices."""
        return {axis.name: axis.size for axis in self.axes}

    @property
    def devices(self) -> int:
        """Number of devices of the mesh."""
        return int(np.prod([axis.size for axis in self.axes]))

    @cached_property
    def updated_inputs(self) -> dict[int, int]:
        """Output tensor -> the input tensor that it updates."""
        return {update.output: update.source for update in find_updates(Flow(self.graph))}

    @cached_property
    def _zero_dimension(self) -> dict[int, int]:
        """Input tensor -> the dimension that ZeRO shards: the largest that the replicas divide."""
        # ZeRO 1 and 2 differ in gradients alone, which are no inputs of the step.
        roles = WEIGHTS if self.zero == 3 else STATES if self.zero else ()
        dimension_of: dict[int, int] = {}
        graph, replicas = self.graph, self.axes[0].size
        inputs = zip(graph.parameter_tensor.tolist(), graph.parameter_role.tolist(), strict=True)
        for tensor, role in inputs:
            spec = enumerate(zip(graph.shape(tensor), self.unshared_spec(tensor), strict=True))
            divisible = [(n, -d) for d, (n, axis) in spec if axis is None and n % replicas == 0]
            if role in roles and divisible and replicas > 1:
                dimension_of[tensor] = -max(divisible)[1]
        return dimension_of

    def unshared_spec(self, tensor: int) -> Spec:
        """Return the axis that splits each dimension of a tensor, without ZeRO."""
        start, end = self.graph.dim_offset[tensor : tensor + 2].tolist()
        spec: list[str | None] = [None] * (end - start)
        for axis in self.axes:
            for dimension in np.flatnonzero(axis.split[start:end]).tolist():
                spec[dimension] = axis.name
        return tuple(spec)

    def spec(self, tensor: int) -> Spec:
        """Return the axis that splits each dimension of a tensor, None where none does."""
        spec = list(self.unshared_spec(tensor))
        # A new value lies as the input whose place it takes, so the next step can start there.
        source = self.updated_inputs.get(tensor, tensor)
        if source in self._zero_dimension and self.graph.shape(tensor) == self.graph.shape(source):
            spec[self._zero_dimension[source]] = self.axes[0].name
        return tuple(spec)

    @cached_property
    def inputs(self) -> tuple[Spec, ...]:
        """(P,) specs of the step's inputs, in the order of the flat arguments."""
        return tuple(self.spec(t) for t in self.graph.parameter_tensor.tolist())

    @cached_property
    def outputs(self) -> tuple[Spec, ...]:
        """(O,) specs of the step's results."""
        return tuple(self.spec(t) for t in self.graph.outputs.tolist())

    @property
    def donated(self) -> tuple[int, ...]:
        """Inputs that the step writes anew, by number."""
        return tuple(np.flatnonzero(np.isin(self.graph.parameter_role, UPDATED)).tolist())

    def to_json(self) -> dict[str, Any]:
        """Return mesh, specs and donated inputs as an object of JSON types."""
        return {
            "mesh": [[axis.name, axis.size] for axis in self.axes],
            "inputs": [list(spec) for spec in self.inputs],
            "outputs": [list(spec) for spec in self.outputs],
            "donated": list(self.donated),
        }

    def share(self, spec: Spec) -> float:
        """Return the share of a tensor that a device holds."""
        return float(1 / np.prod([self.sizes[name] for name in spec if name is not None]))

    def check_even(self, framework: str = "JAX") -> None:
        """Check that each axis divides the inputs and outputs that it splits.

        Raises:
            InfeasibleError: an axis does not; the line names the framework and the first arrays.
        """
        names = dict(zip(self.graph.parameter_tensor.tolist(), self.graph.paths, strict=True))
        tensors = [*names, *self.graph.outputs.tolist()]
        odd = [
            f"dimension {dimension} of {names.get(tensor, 'an output')}, "
            f"{shape_text(self.graph, tensor)}, by {self.sizes[axis]}"
            for tensor, spec in zip(tensors, (*self.inputs, *self.outputs), strict=True)
            for dimension, axis in enumerate(spec)
            if axis is not None and self.graph.shape(tensor)[dimension] % self.sizes[axis]
        ]
        if odd:
            raise InfeasibleError(
                f"{framework} splits evenly only, and the plan splits "
                f"{listed(odd, separator='; ')}; make the plan with --uneven forbid"
            )
