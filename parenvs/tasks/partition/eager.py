"""What eager PyTorch does not do of a module as it is, with its cause: one gate for all plans."""

from __future__ import annotations

import numpy as np

from parenvs.errors import InfeasibleError, shown
from parenvs.graph.flow import Flow
from parenvs.graph.graph import Graph, Phase, Role
from parenvs.graph.training import find_updates
from parenvs.tasks.partition.classes import DimensionClasses, owner_of
from parenvs.tasks.partition.words import Explainer

_NORMS = ("running_mean", "running_var", "num_batches_tracked")
# Ways of adding samples up of which parts of a batch make the whole, see ``Exported.traits``.
_ADDED = ("mean", "sum", "labels")


def causes_of(graph: Graph, classes: DimensionClasses) -> dict[str, str]:
    """Return what PyTorch does not do of a graph's module, as ``against`` takes it, and why.

    ``"batch"`` is there if no dimensions of the batch can be split.
    """
    causes, samples, buffer = dict[str, str](), "", _updated_buffer(graph)
    if types := graph.traits.get("types"):
        causes["zero"] = f"zero: fully_shard takes weights of one type, and these have {types}"
    for path, tensor in _inputs(graph, Role.BATCH):
        shape, dimension = graph.shape(tensor), samples_at(graph, tensor)
        if dimension is None and shape[:1] not in ((), (1,)):
            samples = f"input {shown(path)} of shape {shape} has no {graph.batch_size} samples"
        elif dimension:
            causes["pp"] = (
                f"stages: PyTorch's pipelines cut dimension 0 of inputs, and {shown(path)} has its "
                f"samples in dimension {dimension}; plan one stage"
            )
    way = graph.traits.get("loss", _ADDED[0])
    if way not in _ADDED:
        samples = f"the loss ends with {way}, which parts of a batch do not add up to"
    try:
        batch = batch_classes(classes, graph)
        samples = samples or _mixture(classes, batch)
    except InfeasibleError as error:
        causes["batch"] = str(error)
        # A product of samples with samples; gathers by number of the sample split as well.
        samples = str(error) if ", dot " in str(error) else samples
    samples = buffer or samples
    if samples:
        causes["samples"] = (
            f"micro_batch: {samples}; plan one micro-batch, one stage, and replicas with --zero 0"
        )
        if buffer or "batch" in causes:
            causes["dp"] = f"dp: {samples}"
    return causes | ({"tp": f"tp: {buffer}"} if buffer else {})


def batch_classes(classes: DimensionClasses, graph: Graph) -> np.ndarray:
    """(C,) bool, the classes of the batch inputs' dimensions of samples.

    Raises:
        InfeasibleError: there are none, or they cannot be split.
    """
    chosen = np.zeros(len(classes), bool)
    for _, tensor in _inputs(graph, Role.BATCH):
        dimension = samples_at(graph, tensor)
        if dimension is not None:
            chosen[classes.label[graph.dim_offset[tensor] + dimension]] = True
    check_classes(classes, chosen, "the batch cannot be split")
    if not chosen.any():
        raise InfeasibleError(
            f"{graph.name}: no batch input has a dimension of the batch of {graph.batch_size}; "
            "name the inputs with --batch"
        )
    return chosen


def samples_at(graph: Graph, tensor: int) -> int | None:
    """Return the dimension of an input that has the samples, None if none has."""
    shape, size = graph.shape(tensor), graph.batch_size
    return shape.index(size) if size > 1 and size in shape else None


def check_classes(classes: DimensionClasses, chosen: np.ndarray, refusal: str) -> None:
    """Raise an InfeasibleError if some of the chosen classes cannot be split, or not together."""
    words = Explainer(classes)
    for label in np.flatnonzero(chosen & classes.blocked).tolist():
        raise InfeasibleError(f"{refusal}: {words.blocked(label)}")
    for first, second in classes.conflicts[chosen[classes.conflicts].all(axis=1)].tolist():
        raise InfeasibleError(f"{refusal}: {words.conflict(first, second)}")


def _inputs(graph: Graph, role: Role) -> list[tuple[str, int]]:
    rows = zip(graph.paths, graph.parameter_tensor.tolist(), graph.parameter_role, strict=True)
    return [(path, tensor) for path, tensor, its_role in rows if its_role == role]


def _updated_buffer(graph: Graph) -> str:
    # Statistics of norms are taken over all replicas.
    kept = {t: path for path, t in _inputs(graph, Role.STATISTICS) if not path.endswith(_NORMS)}
    flow = Flow(graph)
    data = flow.descendants([tensor for _, tensor in _inputs(graph, Role.BATCH)])
    for update in find_updates(flow) if kept else ():
        if update.source in kept and data[update.output]:
            return f"buffer {shown(kept[update.source])} is made of all samples of the batch"
    return ""


def _mixture(classes: DimensionClasses, batch: np.ndarray) -> str:
    # Samples that are made of a sum over samples, norms of batches aside.
    graph, flow, factors = classes.graph, Flow(classes.graph), classes.factors
    of_batch = batch[classes.factor_class] & factors.partial
    sums = set(factors.instruction[of_batch & ("norms" not in graph.traits)].tolist())
    has_samples = np.zeros(len(graph.element_type), bool)
    has_samples[owner_of(graph)[batch[classes.label] & (graph.dims > 1)]] = True
    summed = np.zeros(len(has_samples), bool)
    for index in np.flatnonzero((graph.phase == Phase.FORWARD) & ~graph.free).tolist():
        results = flow.results[index]
        if index not in sums and summed[flow.operands[index]].any() and has_samples[results].any():
            return f"samples are mixed by {Explainer(classes).instruction(index)}"
        summed[results] |= index in sums or summed[flow.operands[index]].any()
    return ""
