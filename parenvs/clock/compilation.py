"""Compiles a sharded step ahead of time, on virtual devices, and reports what XLA made of it.

The number of a process's devices is fixed when JAX starts, so the compiler runs in a process of its
own. It is given the module that the plan's graph was read from, so that no code of the user runs;
nothing is allocated.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import export
from jax.extend.mlir import hlo_to_stablehlo
from jax.interpreters.mlir import make_ir_context
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

from parenvs.clock.members import run_members
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError, listed
from parenvs.exports.jax import partition_spec
from parenvs.exports.stages import layout_of
from parenvs.graph.graph import Graph
from parenvs.graph.layout import Prediction
from parenvs.instances import load_graph
from parenvs.shardy.verify import functions, module_for
from parenvs.view.words import plural, size

_KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|ragged-all-to-all"
_COLLECTIVE = re.compile(rf"= (?P<types>.*?) (?P<kind>{_KINDS})(?P<half>-start|-done)?\(")
_TYPE = re.compile(r"(?:pred|[a-z]+(?P<bits>\d+)\w*)\[(?P<sizes>[\d,]*)\]")
_DEVICES = "--xla_force_host_platform_device_count"
# The program never runs, so its machine code may be slow; tensors and memory are the same.
_QUICK = "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"


@dataclass(frozen=True)
class Collectives:
    """Collectives of one kind in a compiled module; one in a loop counts once.

    Attributes:
        operations: of them; XLA merges many into one.
        bytes: their bytes on each device.
    """

    operations: int
    arrays: int
    bytes: float


@dataclass(frozen=True)
class Compilation:
    """What XLA made of a sharded step, beside what the judge predicts; bytes of a device.

    Attributes:
        mesh: axis -> number of devices.
        asked: inputs and outputs whose shardings were asked for.
        changed: those of them that XLA shards otherwise.
        collectives: kind -> what there is of it.
        peak_bytes: inputs, outputs that take no input's place, and temporary tensors.
        shares_states: whether replicas share states (ZeRO), which XLA gathers.
        notes: what the plan says and shardings cannot, in sentences.
    """

    instance: str
    task: str
    mesh: Mapping[str, int]
    asked: int
    changed: tuple[str, ...]
    collectives: Mapping[str, Collectives]
    argument_bytes: float
    peak_bytes: float
    seconds: float
    predicted: Prediction
    shares_states: bool = False
    notes: tuple[str, ...] = ()

    @property
    def all_reduces(self) -> Collectives:
        """The all-reduces."""
        return self.collectives.get("all-reduce", Collectives(0, 0, 0.0))

    @property
    def others(self) -> dict[str, Collectives]:
        """Collectives of other kinds, which the judge expects none of but for ZeRO."""
        return {kind: counted for kind, counted in self.collectives.items() if kind != "all-reduce"}

    @property
    def agrees(self) -> bool:
        """Whether all shardings are kept and the collectives are as predicted.

        Where replicas share states, only shardings are compared.
        """
        same = self.all_reduces.arrays == self.predicted.arrays and not self.others
        return not self.changed and (same or self.shares_states)

    def to_json(self) -> dict[str, Any]:
        """Return the compilation as an object of JSON types."""
        return {"agrees": self.agrees, **asdict(self)}

    def text(self) -> str:
        """Return the compilation in a few sentences."""
        mesh = " x ".join(f"{axis} {count}" for axis, count in self.mesh.items())
        counted, expected = self.all_reduces, self.predicted
        unchanged = self.asked - len(self.changed)
        sentences = [
            f"XLA compiled this {self.task} plan of {self.instance} for {mesh} virtual devices in "
            f"{self.seconds:.1f} s and keeps {unchanged:,} of {self.asked:,} shardings.",
            f"It all-reduces {plural(counted.arrays, 'array')} of {size(counted.bytes)} in "
            f"{plural(counted.operations, 'operation')}; the judge predicted "
            f"{expected.arrays:,} of {size(expected.bytes)}"
            f"{_on_cpus(expected.bytes, expected.cpu_bytes)}.",
        ]
        if self.changed:
            sentences.append(f"Sharded otherwise: {listed(self.changed)}.")
        for kind, others in sorted(self.others.items()):
            why = " (ZeRO)" if self.shares_states else ", which the judge does not price"
            arrays = plural(others.arrays, "array")
            sentences.append(f"{kind}: {arrays} of {size(others.bytes)}{why}.")
        memory = self.peak_bytes
        sentences.append(
            f"Memory of a device: {size(memory)}, predicted {size(expected.peak_bytes)} "
            f"({expected.peak_bytes / memory:.2f})"
            f"{_on_cpus(expected.peak_bytes, expected.cpu_peak_bytes, memory)}; "
            f"inputs {size(self.argument_bytes)}, predicted {size(expected.argument_bytes)}."
        )
        return " ".join([*sentences, *(f"Note: {note}." for note in self.notes)])


def _on_cpus(predicted: float, on_cpus: float, actual: float | None = None) -> str:
    if on_cpus == predicted:
        return ""
    return f", for CPUs {size(on_cpus)}" + (f" ({on_cpus / actual:.2f})" if actual else "")


def compile_plan(
    plan: Plan,
    source: Any = None,
    graph: Graph | None = None,
    timeout_seconds: float = 3600.0,
) -> Compilation:
    """Compile the step of a plan with its shardings, on virtual devices.

    Args:
        plan: a plan of a task with a layout.
        source: the module that the graph was read from, see ``parenvs.shardy.verify.verify``.
        graph: the step's graph (default: the plan's instance).
        timeout_seconds: after which the compiler is stopped.

    Raises:
        ParenvsError: the plan cannot be exported, ``source`` is not its module, or the compiler
            fails; the line gives its reason.
    """
    graph = graph or load_graph(plan.instance)
    layout = layout_of(plan, graph)
    layout.check_even()
    request = (layout.to_json(), module_for(graph, plan, source).proto)
    try:
        (answer,) = run_members(
            _answer, [request], (), virtual_devices(layout.devices, _QUICK), timeout_seconds
        )
    except ParenvsError as error:
        raise ParenvsError(f"XLA cannot compile the plan: {error}") from None
    names = [*layout.graph.paths, *(f"output {k}" for k in range(len(layout.outputs)))]
    return Compilation(
        instance=plan.instance,
        task=plan.task,
        mesh=layout.sizes,
        asked=len(layout.inputs) + len(layout.outputs),
        changed=tuple(names[number] for number in answer.pop("changed")),
        collectives=dict(sorted(answer.pop("collectives").items())),
        predicted=layout.expected(),
        shares_states=layout.zero > 0,
        notes=layout.notes,
        **answer,
    )


def virtual_devices(count: int, *flags: str) -> dict[str, str]:
    """Return the variables of a process in which JAX has ``count`` virtual devices."""
    # XLA takes the last of equal flags, so the user's come behind ours, but for the number.
    words = [x for x in os.environ.get("XLA_FLAGS", "").split() if not x.startswith(_DEVICES)]
    all_flags = " ".join([*flags, f"{_DEVICES}={count}", *words])
    return {"XLA_FLAGS": all_flags, "JAX_PLATFORMS": "cpu"}


def _answer(request: Mapping[str, Any], proto: bytes) -> dict[str, Any]:
    mesh = jax.make_mesh(*zip(*[(count, name) for name, count in request["mesh"]], strict=True))
    # Shapes alone are lowered: no array is allocated on any virtual device.
    call, arguments = callable_of(proto)
    jitted, inputs, outputs = sharded_step(call, request, mesh)
    begin = time.perf_counter()
    compiled = jitted.lower(*arguments).compile()
    seconds = time.perf_counter() - begin
    ranks = [len(spec) for key in ("inputs", "outputs") for spec in request[key]]
    compiled_to = [*compiled.input_shardings[0], *compiled.output_shardings]
    pairs = zip([*inputs, *outputs], compiled_to, ranks, strict=True)
    memory: Any = compiled.memory_analysis()
    return {
        "seconds": seconds,
        "changed": [
            number
            for number, (planned, actual, rank) in enumerate(pairs)
            if not planned.is_equivalent_to(actual, rank)
        ],
        "collectives": collectives_of(compiled.as_text() or ""),
        "argument_bytes": memory.argument_size_in_bytes,
        "peak_bytes": peak_bytes(memory),
    }


def sharded_step(
    call: Callable[..., Any], request: Mapping[str, Any], mesh: Any
) -> tuple[Any, list[Any], list[Any]]:
    """Return a jitted step with the shardings of a request, and those of its inputs and outputs."""
    inputs, outputs = (
        [jax.NamedSharding(mesh, partition_spec(tuple(spec))) for spec in request[key]]
        for key in ("inputs", "outputs")
    )
    # Donated inputs share memory with the outputs that replace them, as in a training loop.
    jitted = jax.jit(
        call,
        in_shardings=tuple(inputs),
        out_shardings=outputs,
        donate_argnums=tuple(request["donated"]),
        keep_unused=True,
    )
    return jitted, inputs, outputs


def peak_bytes(memory: Any) -> int:
    """Return the bytes that XLA's analysis of a compiled step counts on each device."""
    arguments, temporary = memory.argument_size_in_bytes, memory.temp_size_in_bytes
    return int(arguments + memory.output_size_in_bytes - memory.alias_size_in_bytes + temporary)


def callable_of(proto: bytes) -> tuple[Any, list[Any]]:
    """Return a module as a function that JAX can trace, of flat arguments, and their shapes."""
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(hlo_to_stablehlo(proto))
        attributes = functions(module)["main"].attributes
        kind = ir.FunctionType(ir.TypeAttr(attributes["function_type"]).value)
        inputs, results = ([_shape(item) for item in x] for x in (kind.inputs, kind.results))
        version = stablehlo.get_current_version()
        serialized = stablehlo.serialize_portable_artifact(module, version)
    # An exported function of the same signature, into which the module is put.
    stand_in = jax.jit(
        lambda *arguments: [jax.numpy.zeros(x.shape, x.dtype) for x in results], keep_unused=True
    )
    exported = export.export(stand_in)(*inputs)
    return replace(exported, mlir_module_serialized=serialized).call, inputs


def _shape(mlir_type: Any) -> Any:
    tensor = ir.RankedTensorType(mlir_type)
    name = str(tensor.element_type)
    names = {"i1": "bool", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
    dtype_name = names.get(name) or re.sub(r"^(u?)i(\d+)$", r"\1int\2", name)
    return jax.ShapeDtypeStruct(tuple(tensor.shape), jnp.dtype(dtype_name))


def collectives_of(text: str) -> dict[str, Collectives]:
    """Count the collectives in the text of a compiled module, by kind."""
    collectives: dict[str, Collectives] = {}
    for line in text.splitlines():
        match = _COLLECTIVE.search(line)
        # An asynchronous collective has two lines; the one that starts it counts.
        if match is None or match["half"] == "-done":
            continue
        sizes = [
            math.prod(map(int, filter(None, x["sizes"].split(",")))) * int(x["bits"] or 8) / 8
            for x in _TYPE.finditer(match["types"])
        ]
        if match["half"] == "-start" and match["kind"] != "all-reduce":
            sizes = sizes[len(sizes) // 2 :]  # operands come first
        counted = collectives.get(match["kind"], Collectives(0, 0, 0.0))
        collectives[match["kind"]] = Collectives(
            counted.operations + 1, counted.arrays + len(sizes), counted.bytes + sum(sizes)
        )
    return collectives
