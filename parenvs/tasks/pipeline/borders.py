"""Where the layers of a graph begin and end, on its chain of pivots.

Layers are told by numbered scopes (``encoder/layer_3``), else by numbered paths of the variables
that are read (``layers/3/q``), else by the data flow alone: a border is a place between two
variables that a single tensor crosses, such as the residual stream.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from parenvs.cluster import SYNC_METHODS
from parenvs.compiled import Array
from parenvs.core.plan import Price, Strategy, judge
from parenvs.core.stages import Stage, Stages, Step
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.graph.flow import ChainBytes, chain_bytes
from parenvs.graph.graph import Graph, Phase, Role
from parenvs.graph.unroll import unrolled
from parenvs.instances import load_graph
from parenvs.tasks.pipeline.plan import RECOMPUTE, PipelinePlan
from parenvs.tasks.pipeline.problem import Report
from parenvs.tasks.pipeline.profile import StageProfile, load_profile

Path = tuple[str, ...]
"""Scopes or keys, from the outermost to the innermost."""
_FUNCTION = re.compile(r"\bp?jit\([^()]*\)")
_TRANSFORM = re.compile(
    r"\b(?:jvp|transpose|vmap|pmap|linearize|checkpoint|remat|shard_map)\(([^()]*)\)"
)
_NO_SCOPE = {
    "", "~", "while", "body", "cond", "scan", "pjit", "closed_call", "core_call", "named_call",
    "remat", "checkpoint", "rematted_computation", "custom_jvp_call", "custom_vjp_call",
    "custom_vjp_call_jaxpr",
}  # fmt: skip
"""Parts of an ``op_name`` that JAX and Haiku put in, and the model's author did not."""
_ITERATION = re.compile(r"(.*)(\[\d+\])")
NUMBERED = re.compile(r"(?<![A-Z\d])\d")  # layer_3, h0_attn, 3; not GPT2LMHeadModule
"""What tells a scope or key that is one of several alike."""


def scopes_of(name: str, of_graph: bool) -> tuple[Path, str]:
    """Return the scopes that a pivot's author wrote, and the name of its instruction.

    Args:
        name: ``op_name`` of an instruction, or a name of a measured chain.
        of_graph: whether the last part is the instruction's own name, which is no scope.
    """
    before = ""
    # Transformations wrap each other, as in jvp(vmap(f)): each round takes off the innermost.
    while before != name:
        before = name
        name = _TRANSFORM.sub(r"\1", _FUNCTION.sub("", name))
    parts = name.split("/")
    operation = parts.pop().partition("_general")[0] if of_graph else ""  # dot, conv
    scopes = []
    for outer, part in zip(["", *parts], parts, strict=False):
        iteration = _ITERATION.fullmatch(part)
        # Authors have modules of that name, too.
        is_authors = part == "body" and not outer.startswith("while")
        if iteration and iteration[1] in _NO_SCOPE:
            scopes.append(iteration[2])
        # An arrow: the formula of an einsum.
        elif (part not in _NO_SCOPE or is_authors) and "->" not in part:
            scopes.append(part)
    return tuple(scopes), operation


FEW = 8
"""Layers within layers are looked for where there are fewer than this."""
WIDER = 1.2
"""Layers within layers are taken if no border among them is wider than this, over theirs."""
FAR = 0.2
"""Share of the chain's weight reads over which a tensor is one that crosses everything."""
PRODUCTS = ("dot", "convolution")
"""Opcodes of matrix products."""


@dataclass(frozen=True)
class Borders:
    """Layers as ranges of pivots.

    Attributes:
        bounds: (n+1,) first pivot of each layer, and one past the last; what is in front of the
            first is the embedding, what is behind the last the head.
        names: (n,) what the layers are called.
        keys: scope -> layer, where scopes told the layers.
        level: which numbered part of a scope did.
        source: ``"scopes"``, ``"variables"`` or ``"flow"``.
    """

    bounds: Array
    names: tuple[str, ...]
    keys: dict[Path, int]
    level: int
    source: str

    def cut_at(self, cuts: Iterable[int]) -> Borders:
        """Return the borders with others added: a layer that one lies in is two, of no scope.

        Args:
            cuts: first pivots of pieces, also in front of the first layer or behind the last.
        """
        old = self.bounds.tolist()
        bounds = sorted({*old, *cuts})
        names, number_of = [], {}
        for number, (first, end) in enumerate(itertools.pairwise(bounds)):
            layer = int(np.searchsorted(old, first, side="right")) - 1
            ends = ("embedding", *self.names, "head")
            name = ends[layer + 1]
            if 0 <= layer < len(self.names) and (first, end) == tuple(old[layer : layer + 2]):
                number_of[layer] = number
            elif first not in old:
                name = f"{name} from pivot {first}"
            names.append(name)
        keys = {key: number_of[x] for key, x in self.keys.items() if x in number_of}
        return replace(self, bounds=np.array(bounds), names=tuple(names), keys=keys)


Contacts = tuple[Array, Array]
"""Pivots at which data meet weights: in any way, and in products."""


def forward_part(graph: Graph) -> Graph:
    """Return the graph with its forward instructions and entry parameters alone."""
    entry = np.array([name == "parameter" for name in graph.opcodes])[graph.opcode]
    keep = np.flatnonzero((graph.phase == Phase.FORWARD) | (entry & (graph.parent < 0)))
    new = np.full(len(graph.opcode) + 1, -1, np.int32)  # parent -1 stays -1
    new[keep] = np.arange(len(keep))
    _, operands = graph.uses(keep)
    _, results = graph.makes(keep)
    operand_offset, result_offset = (
        np.append(0, np.cumsum(np.diff(offset)[keep])).astype(np.int32)
        for offset in (graph.operand_offset, graph.result_offset)
    )
    per_instruction = ("opcode", "flops", "bytes_accessed", "phase", "free", "op_name", "attribute")
    return replace(
        graph,
        operands=operands,
        operand_offset=operand_offset,
        results=results,
        result_offset=result_offset,
        parent=new[graph.parent[keep]],
        outputs=graph.outputs[np.isin(graph.outputs, results)],
        **{name: getattr(graph, name)[keep] for name in per_instruction},
    )


def borders_of(graph: Graph, pivots: Array, counted: ChainBytes) -> Borders:
    """Find the layers of a chain.

    Args:
        graph: the graph, loops over layers written out.
        pivots: (N,) its pivots.
        counted: their bytes.
    """
    working = _depend_on_batch(graph, pivots)
    names = graph.op_names(pivots).tolist()
    parsed = {name: scopes_of(name, True)[0] for name in dict.fromkeys(names)}
    # Of weights, or of what is made of weights alone.
    weights = graph.parameter_tensor[graph.weights]
    meeting = working & _transitive_readers(graph, pivots, weights, ~working)
    codes = [code for code, name in enumerate(graph.opcodes) if name in PRODUCTS]
    multiplies = np.isin(graph.opcode[pivots], codes)
    contacts = np.flatnonzero(meeting), np.flatnonzero(meeting & multiplies)
    scoped = [parsed[name] if works else () for name, works in zip(names, working, strict=True)]
    read = [tuple(path.split("/")) if path else () for path in counted.reads.tolist()]
    return (
        _numbered_borders(scoped, counted, contacts, "scopes")
        or _numbered_borders(read, counted, contacts, "variables")
        or _flow_borders(graph, pivots, counted)
    )


def key_of(path: Path, level: int) -> Path | None:
    """The part of a path up to its ``level``-th numbered part, or to the last; None without any."""
    numbered = [index for index, part in enumerate(path) if NUMBERED.search(part)]
    if not numbered:
        return None
    index = numbered[min(level, len(numbered)) - 1]
    # A part of a stack: layers/q[3] is of layer layers/[3].
    part = _ITERATION.fullmatch(path[index])
    return (*path[:index], part[2]) if part else path[: index + 1]


def _numbered_borders(
    named: list[Path], counted: ChainBytes, contacts: Contacts, source: str
) -> Borders | None:
    """The layers that numbered names tell, or None if there are not at least two."""
    outer = _level_borders(named, counted, contacts, source, 1)
    inner = _level_borders(named, counted, contacts, source, 2)
    if outer is None or inner is None:
        return outer or inner
    # Few outer layers may be stages of a network (ResNet), whose blocks are the layers.
    if len(outer.names) >= FEW or len(inner.names) <= len(outer.names):
        return outer
    cut = counted.cut
    for first, end in itertools.pairwise(outer.bounds.tolist()):
        within = inner.bounds[(inner.bounds > first) & (inner.bounds < end)]
        ends = [cut[pivot - 1] for pivot in (first, end) if 0 < pivot < len(cut)]
        if len(within) and cut[within - 1].max() > WIDER * max(ends, default=0.0):
            return outer
    return inner


def _level_borders(
    named: list[Path], counted: ChainBytes, contacts: Contacts, source: str, level: int
) -> Borders | None:
    """The layers that the ``level``-th numbered parts of names tell, or None if fewer than two."""
    reads, products = contacts
    spans: dict[Path, list[int]] = {}
    for pivot, path in enumerate(named):
        key = key_of(path, level)
        if key is not None:
            spans.setdefault(key, [pivot, pivot])[1] = pivot
    groups: list[tuple[int, int, list[Path]]] = []
    for key, (first, last) in sorted(spans.items(), key=lambda item: item[1]):
        if groups and first <= groups[-1][1]:  # they overlap: one layer
            start, end, keys = groups.pop()
            groups.append((start, max(end, last), [*keys, key]))
        else:
            groups.append((first, last, [key]))
    merged: list[tuple[int, int, list[Path]]] = []
    following = [*(first for first, *_ in groups[1:]), 0][: len(groups)]
    for (first, last, keys), next_first in zip(groups, following, strict=True):
        if merged and not _any_between(reads, first, max(next_first - 1, last)):
            # It has no weights: part of the layer in front.
            start, _, before = merged.pop()
            first, keys = start, before + keys
        merged.append((first, last, keys))
    while merged and not _any_between(products, *merged[0][:2]):
        # A table of words, in front of the first layer.
        merged.pop(0)
    if len(merged) < 2:
        return None
    bounds = _bounds([(first, last) for first, last, _ in merged], counted.cut, reads)
    names = tuple("/".join(keys[0]) for _, _, keys in merged)
    layer_of = {key: layer for layer, (_, _, keys) in enumerate(merged) for key in keys}
    return Borders(bounds, names, layer_of, level, source)


def _any_between(pivots: Array, first: int, last: int) -> bool:
    return bool(((pivots >= first) & (pivots <= last)).any())


def _bounds(spans: list[tuple[int, int]], cut: Array, reads: Array) -> Array:
    """(n+1,) bounds of layers, of the first and the last named pivot of each.

    What lies between two layers goes with the one behind, from the narrowest ``cut``, (N,) bytes,
    on; at pivots ``reads``, data meet weights.
    """
    (first, _), *_, (_, last) = spans
    before, after = reads[reads < first], reads[reads > last]
    bounds = [_narrowest_cut(cut, int(before[-1]), first) if len(before) else 0]
    bounds += [
        _narrowest_cut(cut, end, following)
        for (_, end), (following, _) in itertools.pairwise(spans)
    ]
    bounds.append(_narrowest_cut(cut, last, int(after[0])) if len(after) else last + 1)
    return np.array(bounds)


def _narrowest_cut(cut: Array, last: int, following: int) -> int:
    """The place from which on pivots go with the layer behind: the first narrowest between."""
    return last + 1 + int(cut[last:following].argmin())


def _flow_borders(graph: Graph, pivots: Array, counted: ChainBytes) -> Borders:
    """The layers by the data flow alone: between two products with weights, one tensor crosses.

    Tensors that cross a large part of the chain (masks, an encoder's output) are not counted. What
    is behind the last such place is the head.
    """
    count = len(pivots)
    position, tensor = graph.uses(pivots)
    producer, produced = graph.makes(pivots)
    on_data = _depend_on_batch(graph, pivots)
    names = np.array([graph.opcodes[code] for code in graph.opcode[pivots]])
    from_data = np.isin(tensor, produced[on_data[producer]])
    reads_weights = np.bincount(position[~from_data], minlength=count) > 0
    products = np.flatnonzero(np.isin(names, PRODUCTS) & on_data & reads_weights)
    last = np.full(len(graph.element_type), -1)
    np.maximum.at(last, tensor, position)
    products_before = np.searchsorted(products, np.arange(count + 1))
    # Products over which a tensor lives: masks and encoder outputs live over many.
    span = products_before[np.maximum(last[produced], 0)] - products_before[producer]
    crossing = (last[produced] > producer) & on_data[producer]
    crossing &= span <= max(FEW, FAR * len(products))
    change = np.zeros(count + 1)
    np.add.at(change, producer[crossing], 1)
    np.subtract.at(change, last[produced[crossing]], 1)
    # Tensors that cross each place: one more behind the producer, one less at the last reader.
    number = np.cumsum(change)[:count]
    narrow = [
        int(earlier + 1 + number[earlier:later].argmin())
        for earlier, later in itertools.pairwise(products.tolist())
        if number[earlier:later].min() == 1
    ]
    if len(narrow) < 2:
        return Borders(np.array([0, count]), ("part 0",), {}, 0, "flow")
    tables = np.flatnonzero((names == "gather") & reads_weights & (np.arange(count) < products[0]))
    first = _narrowest_cut(counted.cut, int(tables[-1]), int(products[0])) if len(tables) else 0
    bounds = np.array(sorted({first, *narrow}))
    parts = tuple(f"part {layer}" for layer in range(len(bounds) - 1))
    return Borders(bounds, parts, {}, 0, "flow")


def _depend_on_batch(graph: Graph, pivots: Array) -> Array:
    """(N,) bool: pivots that depend on the batch, not on weights alone."""
    batch = graph.parameter_tensor[graph.parameter_role == Role.BATCH]
    return _transitive_readers(graph, pivots, batch, np.ones(len(pivots), bool))


def _transitive_readers(graph: Graph, pivots: Array, tensors: Array, passes_on: Array) -> Array:
    """Return which pivots read one of the tensors, (N,) bool.

    Results of readers that ``passes_on``, (N,) bool, count as such tensors from there on.
    """
    read = set(tensors.tolist())
    operands, results = graph.operands.tolist(), graph.results.tolist()
    operand_start, result_start = graph.operand_offset.tolist(), graph.result_offset.tolist()
    reads = []
    for pivot, passes in zip(pivots.tolist(), passes_on.tolist(), strict=True):
        is_reader = not read.isdisjoint(operands[operand_start[pivot] : operand_start[pivot + 1]])
        if is_reader and passes:
            read.update(results[result_start[pivot] : result_start[pivot + 1]])
        reads.append(is_reader)
    return np.array(reads, bool)


ADAM_COPIES = 4
"""Copies of the parameters from which on Adam's two moments are among them."""


def stages(
    plan: PipelinePlan, graph: Graph | StageProfile | None = None, measured: bool = False
) -> Stages:
    """Return the stages of a plan, its cuts at borders between layers; a hook of the task.

    Args:
        plan: the plan.
        graph: the graph or measured chain that it was made for (default: the plan's instance).
        measured: whether an instance may be a measured chain.

    Raises:
        InfeasibleError: the judge finds the plan illegal, there are fewer layers than stages, or
            replicas cannot share a micro-batch.
        ParenvsError: the plan is for a chain and ``measured`` is false, or a stage of a chain
            begins with a layer's second run.
    """
    target: Any = graph
    if graph is None and plan.instance.endswith(".csv"):
        if not measured:
            raise ParenvsError(
                f"instance: {plan.instance} is a profile, which has no layers by name"
            )
        target = load_profile(plan.instance, plan.cluster, plan.micro_batch)
    elif graph is None:
        target = load_graph(plan.instance, "forward")
    report = judge(plan, target)
    if not report.legal:
        raise InfeasibleError(f"the plan is illegal: {report.reasons[0]}")
    make = _chain_layers if isinstance(target, StageProfile) else _graph_layers
    names, bounds, run, notes = make(plan, target)
    source = report.pipeline.profile.graph
    if report.remarks:
        raise InfeasibleError(f"micro_batch: {report.remarks[0]}; plan anew without --fractions")
    ends = [0, *(int(np.searchsorted(bounds, cut)) for cut in run.cuts), len(names)]
    devices = [0, *plan.device_cuts, plan.cluster.devices]
    layers, groups = itertools.pairwise(ends), np.diff(devices).tolist()
    cut_stages = tuple(
        Stage(((first, end),), group, modes=(plan.recompute,) * (end - first))
        for (first, end), group in zip(layers, groups, strict=True)
    )

    def replan(stages: Sequence[Stage]) -> PipelinePlan:
        cuts = tuple(bounds[stage.layers[0][0]] for stage in stages[1:])
        return replace(run, cuts=cuts, cut_after=())

    return Stages(
        plan=plan,
        run=run,
        replan=replan,
        names=names,
        stages=cut_stages,
        batch=plan.micro_batch * plan.micro_batches,
        micro_batch=plan.micro_batch // groups[0],
        target=target,
        frozen=() if source is None else source.frozen,
        notes=tuple(notes),
    )


def step(plan: PipelinePlan, target: Any, element_bytes: int) -> Step:
    """Return what a step holds and sends, nothing recomputed where that is known; a hook.

    Args:
        plan: the plan that is run.
        target: what it is judged on.
        element_bytes: bytes of an element of what runs; chains have their own.
    """
    chain = target if isinstance(target, StageProfile) else None
    knows_kept = chain is None or chain.resident_bytes is not None
    report = judge(replace(plan, recompute="none") if knows_kept else plan, target)
    crossing = report.pipeline.profile.cut_bytes[np.array(plan.cuts, int) - 1]
    measured: dict[str, float] = {}
    if chain is not None:
        measured = dict(zip(map(str, chain.names), chain.parameter_bytes.tolist(), strict=True))
    return Step(
        tuple(stage.memory_bytes for stage in report.stages),
        sent=2.0 * plan.micro_batches * float(np.sum(crossing)),
        trained=sum(stage.parameter_bytes for stage in report.stages),
        adam=plan.copies >= ADAM_COPIES,
        updates=False,
        measured=measured,
    )


def strategy(report: Report) -> Strategy | Price:
    """Return what a judged plan does, for its price; a hook of the task."""
    plan, profile = report.plan, report.pipeline.profile
    if not report.stages:
        return Price(own=report.cost_words, notes=("the plan is malformed",))
    if profile.graph is None:
        reason = "the chain was measured or drawn, and says nothing of kernels"
        return Price(own=report.cost_words, notes=(reason,))
    summed = SYNC_METHODS[0]
    notes = (f"sync: gradients are summed by {summed}, not by {plan.sync}",)
    return Strategy(
        graph=profile.graph,
        cluster=report.pipeline.cluster,
        devices=tuple(stage.device_end - stage.device_first for stage in report.stages),
        micro_batch=plan.micro_batch,
        micro_batches=plan.micro_batches,
        cuts=plan.cuts,
        recompute=plan.recompute != RECOMPUTE[-1],
        notes=() if plan.sync == summed else notes,
    )


NamedLayers = tuple[tuple[str, ...], Sequence[int], PipelinePlan, list[str]]
"""Names and bounds of layers, the plan that is run, and notes."""


def _chain_layers(plan: PipelinePlan, chain: StageProfile) -> NamedLayers:
    """The layers of a measured chain."""
    for cut in plan.cuts:
        if "#" in chain.names[cut]:
            raise ParenvsError(
                f"cuts: {chain.names[cut]} is a layer's second run, and stages are of modules"
            )
    again = plan.recompute != "none"
    notes = ["recompute: what a module does not recompute itself is kept"] if again else []
    return tuple(map(str, chain.names)), range(len(chain) + 1), plan, notes


def _graph_layers(plan: PipelinePlan, graph: Graph) -> NamedLayers:
    """The same of a graph, whose cuts move to the nearest borders between layers."""
    written = forward_part(unrolled(graph))
    pivots = written.pivots()
    borders = borders_of(written, pivots, chain_bytes(written, pivots))
    names, bounds = borders.names, borders.bounds.tolist()
    if len(names) < len(plan.cuts) + 1:
        raise InfeasibleError(
            f"cuts: {len(plan.cuts) + 1} stages of {len(names)} layers; no border is left"
        )
    chosen = nearest_borders(plan.cuts, borders.bounds[1:-1])
    run = replace(plan, cuts=tuple(bounds[1 + k] for k in chosen), cut_after=())
    notes = [
        f"cut {number} moved by {new - old:+d} of {len(pivots):,} pivots, in front of "
        f"{names[k + 1]}"
        for number, (old, new, k) in enumerate(zip(plan.cuts, run.cuts, chosen, strict=True), 1)
        if old != new
    ]
    return names, bounds, run, notes


def nearest_borders(cuts: Sequence[int], borders: Array) -> list[int]:
    """Return the increasing borders, by number, nearest to cuts in the sum of their distances.

    Args:
        cuts: (S-1) increasing places.
        borders: (B,) increasing places, at least as many.
    """
    count = len(borders)
    # A dynamic program over cuts: the last one lies on a border in front of the next.
    distance = np.abs(np.subtract.outer(np.asarray(cuts), np.asarray(borders))).astype(float)
    # Least sum of the cuts so far, on borders below each one.
    best = np.zeros(count + 1)
    choices: list[Array] = []
    for distances in distance:
        total = best[:-1] + distances
        choices.append(np.array([int(np.argmin(total[: k + 1])) for k in range(count)]))
        best = np.append(np.inf, np.minimum.accumulate(total))
    chosen: list[int] = []
    last = count - 1
    for row_choice in reversed(choices):
        chosen.append(int(row_choice[last]))
        last = chosen[-1] - 1
    return chosen[::-1]
