"""Verifies partition plans with XLA's own partitioner, Shardy, in process (extra ``jax``).

Shardy gets one variable per dimension class that the plan partitions, the first by path, and has
to find the others by itself. Then every dimension of every input of the module (variables,
optimizer state, batch) is compared, and no value may be resharded.

All-reduces: the judge counts one for each partial result, as Shardy does; a reduction of several
arrays, as in argmax, leaves several.

Shardy does not propagate to dimensions that are no multiple of the mesh axis, and whether a plan is
legal does not depend on the axis's size. So the axis gets the size with which most classes can be
compared: the largest such divisor of the plan's devices, or else a prime. The verification reports
the classes that are left out as not compared.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache, partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from parenvs.core.plan import Plan
from parenvs.core.registry import task_with
from parenvs.core.task import Task
from parenvs.errors import ParenvsError, UnknownInstanceError, listed, need_extra, one_line, shown
from parenvs.graph import proto as messages
from parenvs.graph.graph import Graph
from parenvs.graph.reader import hlo_of, is_stablehlo, proto_of, read_proto
from parenvs.graph.sources import Lowered
from parenvs.instances import load_graph, manifest
from parenvs.view.words import plural

_PARSERS = ("jaxlib._hlo", "jaxlib._jax")
"""Modules in which versions of jaxlib keep their parser of HLO text."""
_DIALECTS = ("stablehlo", "func", "sdy", "builtin")
"""Dialects whose operations Shardy knows."""
MODULE_SUFFIXES = (".pb", ".txt", ".hlo")
"""Endings of files that hold a module."""
_RULE = "xla.sdy.sharding_rule"
"""Attribute in which JAX gives the sharding rule of a custom call."""
_IDENTITY = "stablehlo.optimization_barrier"
"""Returns its operand, of whatever type; Shardy ties every dimension to the result's."""


@dataclass(frozen=True)
class Module:
    """An HLO module and the graph that the reader makes of it.

    ``where`` (file or function) and ``remedy`` (what to do if it does not fit) are for errors.
    """

    proto: bytes
    graph: Graph
    where: str
    remedy: str = "give the one that it was read from"


def module_of(source: Any) -> Module:
    """Load the module that ``source`` names.

    Args:
        source: what ``jax.jit(f, keep_unused=True).lower(...)`` returns, the path of a ``.pb``,
            ``.txt`` or ``.mlir``, what ``parenvs.graph.sources.lower_module`` returns, or a
            shipped name, whose training step is lowered again. A ``.npz`` holds no module; the
            ``.pb`` or ``.txt`` of its name beside it is taken.

    Raises:
        ParenvsError: ``source`` is none of these, or a ``.npz`` with no module beside it.
    """
    if isinstance(source, Lowered):
        return Module(source.proto, source.graph(), f"the training step of {source.name}")
    if hasattr(source, "compiler_ir"):
        proto = proto_of(source)
        return Module(proto, read_proto(proto, "the lowered function"), "the lowered function")
    if not isinstance(source, str | os.PathLike):
        raise ParenvsError(
            "source: give what jax.jit(f, keep_unused=True).lower(...) returns, or a path, not "
            f"{shown(source)}"
        )
    text = os.fspath(source)
    if text in manifest()["instances"]:
        return _shipped_module(text)
    path = Path(text)
    if path.suffix == ".npz":
        module_file = _sibling(path)
        if module_file is not None:
            return module_of(module_file)
        load_graph(text)  # a file that is damaged or missing has an error of its own
        raise ParenvsError(
            f"{text}: holds arrays only, and Shardy needs the module: give the .pb or .txt that it "
            "was made from, or the lowered function, as the source"
        )
    graph, data = load_graph(text), path.read_bytes()
    if is_stablehlo(data):
        return Module(hlo_of(data, text), graph, text)
    if path.suffix == ".pb":
        # The reader took it as a module, or else as one in a wrapper.
        with suppress(DecodeError):
            if messages.Module.FromString(data).computations:  # type: ignore[attr-defined]
                return Module(data, graph, text)
        wrapper = messages.Wrapper.FromString(data)  # type: ignore[attr-defined]
        return Module(wrapper.module.SerializeToString(), graph, text)
    return Module(proto_of_text(data.decode(), text), graph, text)


def has_module(instance: str) -> bool:
    """Return whether ``module_of`` finds a module by the instance of a plan alone."""
    if instance in manifest()["instances"]:
        return True
    path = Path(instance)
    return path.suffix in MODULE_SUFFIXES or (path.suffix == ".npz" and _sibling(path) is not None)


def _sibling(path: Path) -> Path | None:
    files = (path.with_suffix(suffix) for suffix in MODULE_SUFFIXES)
    return next((file for file in files if file.is_file()), None)


@lru_cache(maxsize=2)
def _shipped_module(name: str) -> Module:
    import jax

    from parenvs.datasets.models import MODELS, train_step

    if name not in MODELS:
        raise ParenvsError(
            f"{name}: the package has its graph and not its JAX code; give the lowered function "
            f"or a .pb of it as the source, or verify a plan of {', '.join(MODELS)}"
        )
    function, args = train_step(MODELS[name])
    proto = proto_of(jax.jit(function, keep_unused=True).lower(*args))
    made_with = manifest()["jax"]
    where = f"{name}, lowered again with JAX {jax.__version__}"
    remedy = f"JAX {made_with} made the shipped graph: pip install jax=={made_with}"
    return Module(proto, read_proto(proto, name), where, remedy)


def proto_of_text(text: str, where: str) -> bytes:
    """Parse HLO text with jaxlib, and serialize the module.

    Raises:
        ParenvsError: jaxlib cannot parse the text.
    """
    parser = next(name for name in _PARSERS if find_spec(name))
    try:
        return import_module(parser).hlo_module_from_text(text).as_serialized_hlo_module_proto()
    except (RuntimeError, ValueError) as error:
        raise ParenvsError(f"{where}: jaxlib cannot parse it: {one_line(error)}") from None


def need_jax() -> None:
    """Raise a ``ParenvsError`` with the command that installs JAX, if JAX is missing."""
    with need_extra("jax", "verifying"):
        import jax  # noqa: F401


def stablehlo(proto: bytes) -> tuple[Any, str]:
    """Convert a serialized HloModuleProto to StableHLO that Shardy knows.

    Returns:
        An MLIR context, and the module as text; tuples among its inputs are flattened.

    Raises:
        ParenvsError: JAX is missing or too old, or cannot convert the module.
    """
    with need_extra("jax", "verifying"):
        from jax.extend.mlir import hlo_to_stablehlo
        from jax.interpreters.mlir import make_ir_context
        from jaxlib.mlir import ir
    context = make_ir_context()
    with context, ir.Location.unknown():
        try:
            module = ir.Module.parse(hlo_to_stablehlo(proto))
        except (ir.MLIRError, RuntimeError, ValueError) as error:
            raise ParenvsError(
                f"jaxlib cannot turn the HLO into StableHLO: {one_line(error)}"
            ) from None
        # Lists, as replacing an operation changes what is walked over.
        for operation in [x for x in walk(module) if x.name.split(".")[0] not in _DIALECTS]:
            _replace(operation)
        for operation in [x for x in walk(module) if x.name == "stablehlo.custom_call"]:
            _import_custom_call(operation)
        return context, str(module.operation.get_asm(enable_debug_info=False))


def _import_custom_call(operation: Any) -> None:
    """Give a custom call the sharding rule that JAX wrote, and several results for a tuple."""
    from jaxlib.mlir import ir

    frontend = "mhlo.frontend_attributes"
    if frontend in operation.attributes:
        frontend_attributes = ir.DictAttr(operation.attributes[frontend])
        if _RULE in frontend_attributes:
            rule = ir.Attribute.parse(ir.StringAttr(frontend_attributes[_RULE]).value)
            operation.attributes["sdy.sharding_rule"] = rule
    kind = operation.results[0].type if len(operation.results) == 1 else None
    if isinstance(kind, ir.TupleType):
        types = [kind.get_type(k) for k in range(kind.num_types)]
        attributes = {name: operation.attributes[name] for name in operation.attributes}
        new = _insert(operation, operation.name, types, attributes)
        for use in list(operation.results[0].uses):
            part = use.owner.operation
            index = ir.IntegerAttr(part.attributes["index"]).value
            part.results[0].replace_all_uses_with(new.results[index])
            part.erase()
        operation.erase()


def _replace(operation: Any) -> None:
    """Put an operation that Shardy knows, with the same dimensions, in the place of another."""
    from jaxlib.mlir import ir

    results = [x.type for x in operation.results]
    name, attributes = _IDENTITY, {}
    if operation.name == "mhlo.topk":
        name = "stablehlo.custom_call"
        attributes = {"call_target_name": ir.StringAttr.get("mhlo.topk")}
    elif [x.type for x in operation.operands] != results:
        raise ParenvsError(
            f"the module holds {operation.name}, of which Shardy knows nothing; give the HLO as it "
            "is before XLA's optimization"
        )
    new = _insert(operation, name, results, attributes)
    for old_value, new_value in zip(operation.results, new.results, strict=True):
        old_value.replace_all_uses_with(new_value)
    operation.erase()


def _insert(operation: Any, name: str, results: list[Any], attributes: dict[str, Any]) -> Any:
    """Insert a new operation with the operands of ``operation`` before it, and return it."""
    from jaxlib.mlir import ir

    before, operands = ir.InsertionPoint(operation), list(operation.operands)
    return ir.Operation.create(name, results, operands, attributes, ip=before)


def walk(module: Any) -> Iterator[Any]:
    """Yield all operations inside ``module``, or inside an operation, in order."""
    for region in module.operation.regions:
        for block in region.blocks:
            for view in block.operations:
                yield view.operation
                yield from walk(view)


_PROPAGATE = "builtin.module(sdy-propagation-pipeline)"
_RESHARD = "builtin.module(func.func(sdy-insert-explicit-reshards{enable-full-version=true}))"
"""Without the full version the pass shows no reshards."""
_AXIS = '{"x"}'
_AXES = re.compile(r"\{([^}]*)\}")
_COLLECTIVES = (
    "all_gather", "all_reduce", "all_slice", "all_to_all", "collective_permute", "reduce_scatter",
)  # fmt: skip


@dataclass(frozen=True)
class Propagation:
    """Result of propagating some decisions.

    Attributes:
        partitioned: (input, dimension) pairs that end up partitioned, sorted.
        reshards: types of the values that Shardy has to reshard, in program order.
        collectives: name (``all_reduce``, ...) -> number of the collectives, sorted by name. One
            in a function counts once for each call, one in a loop once.
    """

    partitioned: tuple[tuple[int, int], ...]
    reshards: tuple[str, ...]
    collectives: Mapping[str, int]


class ShardyOracle:
    """Propagates partitionings of a module's inputs over one mesh axis.

    Args:
        module: a serialized HloModuleProto, or a lowered JAX function.
        devices: size of the mesh axis; a dimension that is no multiple of it is not partitioned.

    Raises:
        ParenvsError: JAX is missing or too old, or cannot convert the module.
    """

    def __init__(self, module: Any, devices: int = 2) -> None:
        if devices < 2:
            raise ParenvsError(f"a mesh axis needs at least 2 devices, not {devices}")
        data = module if isinstance(module, bytes) else proto_of(module)
        self._context, text = stablehlo(data)
        # The mesh has to be declared in front of the first function that uses it.
        start = text.index("{\n") + 2
        self._text = f'{text[:start]}  sdy.mesh @mesh = <["x"={devices}]>\n{text[start:]}'

    def propagate(self, decisions: Iterable[tuple[int, int]]) -> Propagation:
        """Partition the inputs as decided, and let Shardy propagate.

        Args:
            decisions: (input, dimension) pairs to partition. Inputs are numbered as the flat
                arguments of the function, which is also the order of a graph's parameters.

        Raises:
            ParenvsError: the module holds something that Shardy does not support.
        """
        from jaxlib.mlir import ir
        from jaxlib.mlir.passmanager import PassManager

        chosen = set(decisions)
        with self._context, ir.Location.unknown():
            module = ir.Module.parse(self._text)
            main = functions(module)["main"]
            kinds = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value).inputs
            attributes: list[dict[str, Any]] = [{} for _ in kinds]
            for number in {number for number, _ in chosen}:
                rank = ir.RankedTensorType(kinds[number]).rank
                axes = ", ".join(_AXIS if (number, d) in chosen else "{?}" for d in range(rank))
                sharding = ir.Attribute.parse(f"#sdy.sharding<@mesh, [{axes}]>")
                attributes[number]["sdy.sharding"] = sharding
            main.attributes["arg_attrs"] = ir.ArrayAttr.get(list(map(ir.DictAttr.get, attributes)))
            try:
                PassManager.parse(_PROPAGATE).run(module.operation)
                partitioned = _partitioned(functions(module)["main"])
                PassManager.parse(_RESHARD).run(module.operation)
            except (ir.MLIRError, ValueError) as error:
                raise ParenvsError(f"Shardy cannot take the module: {one_line(error)}") from None
            return Propagation(partitioned, *_communication(module))


def functions(module: Any) -> dict[str, Any]:
    """Return the functions of an MLIR module by name."""
    operations = [view.operation for view in module.body.operations]
    called = (x for x in operations if x.name == "func.func")
    return {str(x.attributes["sym_name"]).strip('"'): x for x in called}


def _partitioned(main: Any) -> tuple[tuple[int, int], ...]:
    from jaxlib.mlir import ir

    if "arg_attrs" not in main.attributes:
        return ()
    inputs: Any = map(ir.DictAttr, ir.ArrayAttr(main.attributes["arg_attrs"]))
    # A sharding is written as <@mesh, [{"x"}, {?}]>, in braces the axes of each dimension.
    return tuple(
        (number, dimension)
        for number, items in enumerate(inputs)
        for item in items
        if item.name == "sdy.sharding"
        for dimension, axes in enumerate(_AXES.findall(str(item.attr).partition("]")[0]))
        if '"x"' in axes
    )


def _communication(module: Any) -> tuple[tuple[str, ...], dict[str, int]]:
    """Return the types of the reshards, and the number of each collective."""
    reshards: list[str] = []
    kinds: dict[str, list[str]] = {}  # collectives of each function itself
    callees: dict[str, list[str]] = {}
    for name, function in functions(module).items():
        kinds[name], callees[name] = [], []
        for operation in walk(function):
            kind = operation.name.removeprefix("sdy.")
            if kind == "reshard":
                reshards.append(str(operation.results[0].type))
            elif kind in _COLLECTIVES:
                kinds[name].append(kind)
            elif kind == "func.call":
                callees[name].append(str(operation.attributes["callee"]).removeprefix("@"))

    # A collective in a function runs once per call, so counts add up along the call graph.
    @cache
    def total(name: str) -> Counter[str]:
        return sum(map(total, callees[name]), Counter(kinds[name]))

    return tuple(reshards), dict(sorted(total("main").items()))


_listed = partial(listed, separator="; ", last="; and ")


@dataclass(frozen=True)
class Disagreement:
    """An input that Shardy partitions differently, and the dimensions that either partitions."""

    path: str
    ours: tuple[int, ...]
    shardy: tuple[int, ...]


@dataclass(frozen=True)
class Verification:
    """Result of comparing a partition plan with Shardy's propagation.

    Attributes:
        instance: instance of the plan.
        task: task of the plan.
        legal: whether the judge finds the plan legal.
        mesh: size of the mesh axis.
        decided: number of dimensions that Shardy was given, one per class compared.
        compared: number of inputs compared, of those with a dimension larger than 1.
        disagreements: compared inputs that Shardy partitions differently.
        not_compared: a dimension that the plan partitions -> why its class was not compared.
        reshards: types of the values that Shardy has to reshard.
        collectives: name -> number of the collectives that Shardy inserts.
        predicted_all_reduces: number of all-reduces by the judge, in the classes compared.
    """

    instance: str
    task: str
    legal: bool
    mesh: int
    decided: int
    compared: int
    disagreements: tuple[Disagreement, ...]
    not_compared: Mapping[str, str]
    reshards: tuple[str, ...]
    collectives: Mapping[str, int]
    predicted_all_reduces: int

    @property
    def agrees(self) -> bool:
        """Whether all compared inputs agree and no value is resharded.

        False as well if no class that the plan partitions could be compared.
        """
        vacuous = bool(self.not_compared) and not self.decided
        return not (self.disagreements or self.reshards or vacuous)

    @property
    def all_reduces(self) -> int:
        """Number of all-reduces that Shardy inserts."""
        return self.collectives.get("all_reduce", 0)

    def to_json(self) -> dict[str, Any]:
        """Return the verification as an object of JSON types."""
        return {"agrees": self.agrees, **asdict(self), "all_reduces": self.all_reduces}

    def text(self) -> str:
        """Return the verification in a few sentences."""
        verdict = "Shardy agrees" if self.agrees else "Shardy disagrees"
        judged = "legal" if self.legal else "illegal"
        agreed = self.compared - len(self.disagreements)
        sentences = [
            f"{verdict} with this {self.task} plan of {self.instance}, {judged} by the judge.",
            f"Told {plural(self.decided, 'dimension')} on a mesh axis of {self.mesh}, it "
            f"partitions {agreed:,} of {plural(self.compared, 'input')} as the plan does and "
            f"reshards {plural(len(self.reshards), 'value')}.",
        ]
        if self.disagreements:
            differences = []
            for x in self.disagreements:
                ours, theirs = (", ".join(map(str, dims)) or "none" for dims in (x.ours, x.shardy))
                differences.append(f"{x.path} (plan: {ours}; Shardy: {theirs})")
            sentences.append(f"Dimensions that differ: {_listed(differences)}.")
        if self.reshards:
            sentences.append(f"Resharded: {_listed(self.reshards)}.")
        same = self.all_reduces == self.predicted_all_reduces
        expected = "as predicted" if same else f"{self.predicted_all_reduces:,} were predicted"
        sentences.append(f"It inserts {plural(self.all_reduces, 'all-reduce')}, {expected}.")
        if self.not_compared:
            left_out = [f"{name} ({reason})" for name, reason in self.not_compared.items()]
            sentences.append(f"Not compared: {_listed(left_out)}.")
        return " ".join(sentences)


def verify_plan(plan: Plan, source: Any = None) -> Verification:
    """Verify a plan on the graph of its instance, or else on that of ``source``; see ``verify``."""
    need_jax()
    try:
        graph = load_graph(plan.instance)
    except UnknownInstanceError:
        if source is None:
            raise
        graph = module_of(source).graph
    return verify(graph, plan, source)


def verify(graph: Graph, plan: Plan, source: Any = None) -> Verification:
    """Let Shardy propagate a plan's decisions, and compare every input of the module.

    Args:
        graph: the graph that the plan is for.
        plan: a plan of a task with decisions for a partitioner.
        source: the module that the graph was read from (a graph holds arrays only): what
            ``jax.jit(f, keep_unused=True).lower(...)`` returns, the path of a ``.pb`` or ``.txt``,
            or a shipped name (default: the plan's instance; beside a ``.npz``, the module of its
            name).

    Raises:
        ParenvsError: JAX is missing, the plan is not for the graph, or ``source`` is not its
            module.
    """
    need_jax()
    task = task_with(plan, Task.decisions)
    proto = module_for(graph, plan, source).proto
    decisions: Any = task.decisions(plan, graph)
    # The graph that is split has the plan's micro-batch, which `graph` may not have.
    dims, label = decisions.graph.dims, decisions.label
    sizes = {class_: dims[(label == class_) & (dims > 1)] for class_ in decisions.decided}
    mesh = mesh_size(plan.cluster.devices, [int(np.gcd.reduce(x)) for x in sizes.values()])
    # Shardy does not partition a dimension that the axis does not divide.
    left_out = {  # class -> its smallest size that the mesh axis does not divide
        class_: int(size[size % mesh != 0].min())
        for class_, size in sizes.items()
        if (size % mesh).any()
    }
    expected, all_reduces = decisions.without(left_out)
    decided = [decision for class_, decision in decisions.decided.items() if class_ not in left_out]
    propagation = ShardyOracle(proto, mesh).propagate(decided)
    theirs: list[list[int]] = [[] for _ in graph.paths]
    for k, dimension in propagation.partitioned:
        theirs[k].append(dimension)
    count, disagreements = 0, []
    for k, ours in enumerate(expected):
        classes = decisions.classes_of(k)
        if not classes or any(class_ in left_out for class_ in classes):
            continue
        count += 1
        if ours != theirs[k]:
            disagreements.append(Disagreement(graph.paths[k], tuple(ours), tuple(theirs[k])))
    return Verification(
        instance=plan.instance,
        task=plan.task,
        legal=decisions.legal,
        mesh=mesh,
        decided=len(decided),
        compared=count,
        disagreements=tuple(disagreements),
        not_compared={
            decisions.words(class_): f"size {size} in its class is no multiple of {mesh}"
            for class_, size in left_out.items()
        },
        reshards=propagation.reshards,
        collectives=propagation.collectives,
        predicted_all_reduces=all_reduces,
    )


def module_for(graph: Graph, plan: Plan, source: Any = None) -> Module:
    """Return the module that a plan's graph was read from; ``source`` is that of ``verify``.

    Raises:
        ParenvsError: the plan is not for the graph, or ``source`` is not its module.
    """
    if plan.fingerprint != graph.fingerprint:
        raise ParenvsError(
            f"fingerprint: the plan is for {plan.fingerprint[:19]}..., but {graph.name} is "
            f"{graph.fingerprint[:19]}...; make the plan anew, or verify it on the graph that it "
            "was made for"
        )
    module = module_of(plan.instance if source is None else source)
    # Whoever reads a graph names its variables and batch size; they are no part of the module.
    by_reader = ("batch_size", "parameter_role", "phase", "free")
    expected = replace(module.graph, **{name: getattr(graph, name) for name in by_reader})
    if expected.fingerprint != graph.fingerprint:
        raise ParenvsError(
            f"{module.where}: not the module that the plan's graph was read from; {module.remedy}"
        )
    return module


def mesh_size(devices: int, sizes: Sequence[int]) -> int:
    """Return the size of the mesh axis with which most classes can be compared.

    Args:
        devices: devices of the plan; ties go to its largest divisor.
        sizes: greatest common divisor of the sizes in each class.
    """
    # Legality does not depend on the axis's size: a prime that does not divide the devices may do.
    divisors = [n for n in range(devices, 1, -1) if devices % n == 0]
    primes = {next(n for n in range(2, size + 1) if size % n == 0) for size in sizes if size > 1}
    return max([*divisors, *sorted(primes)], key=lambda n: sum(size % n == 0 for size in sizes))
