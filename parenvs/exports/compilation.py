"""Compiles a sharded step ahead of time, on virtual devices, and reports what XLA made of it.

The number of a process's devices is fixed when JAX starts, so the compiler runs in a process of its
own (``python -m parenvs.exports.compilation FOLDER``). It is given the module that the plan's graph
was read from, so that no code of the user runs; nothing is allocated.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError, one_line
from parenvs.exports.stages import layout_of
from parenvs.graph.graph import Graph
from parenvs.graph.layout import Layout, Prediction
from parenvs.instances import load_graph
from parenvs.shardy.verify import module_for, need_jax
from parenvs.view.words import plural, size

BROADCAST, COPY, EARLY, OTHER = "broadcast", "copy", "early", "other"
_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([\w.\-]+) = (\(.*?\)|\S+) ([\w\-]+)\((.*)$")
_BUFFER = re.compile(r"([a-z]+)(\d*)\w*\[([\d,]*)\]")
_NAME = re.compile(r"%([\w.\-]+)")
_CALLED = re.compile(r"(?:body|to_apply|branch_computations)=\{?((?:%?[\w.\-]+(?:, )?)+)")
# Opcodes whose results lie where their operands do, or where a called computation puts them.
_VIEWS = {"bitcast", "get-tuple-element", "tuple", "opt-barrier", "while", "conditional", "call"}
_NO_TEMPORARY = {"parameter", "constant"}
_FILLERS = {"wrapped", "fusion", "bitcast", "reshape", ""}
_WORDS = re.compile(r"[a-z]+(?:-[a-z]+)*")


class Instruction(NamedTuple):
    """An instruction of a computation.

    Attributes:
        name: of it; fusions are named after what they fuse.
        called: names of the computations that it runs.
    """

    name: str
    bytes: int
    opcode: str
    operands: tuple[str, ...]
    called: tuple[str, ...]


def alive_at_peak(text: str) -> dict[str, int]:
    """Return the bytes of temporary tensors at their peak, by kind; empty if there is no order.

    Returns:
        ``"broadcast"``, ``"copy"`` (transposed ones among them), ``"early"`` (others, which nothing
        has read yet) and ``"other"`` -> bytes.
    """
    if "is_scheduled=true" not in text[: text.find("\n")]:
        return {}
    computations, entry = _computations(text)
    return dict(_peak(computations, entry, {}))


def _computations(text: str) -> tuple[dict[str, list[Instruction]], str]:
    computations: dict[str, list[Instruction]] = {}
    rows: list[Instruction] = []
    entry = ""
    for line in text.splitlines():
        head = _COMPUTATION.match(line)
        if head:
            rows = computations.setdefault(head[1], [])
            entry = head[1] if line.startswith("ENTRY") else entry
        match = _INSTRUCTION.match(line)
        if match:
            _, name, kind, opcode, arguments = match.groups()
            operands, attributes = _split(arguments)
            called = tuple(
                x.strip(" %")
                for names in _CALLED.findall(attributes)
                for x in names.split(",")
                if opcode in ("while", "conditional", "call")
            )
            operands_named = tuple(_NAME.findall(operands))
            rows.append(Instruction(name, _bytes(kind), opcode, operands_named, called))
    return computations, entry


def _split(arguments: str) -> tuple[str, str]:
    depth = 0
    for index, sign in enumerate(arguments):
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return arguments[:index], arguments[index:]
    return arguments, ""


def _bytes(kind: str) -> int:
    total = 0
    for name, bits, sizes in _BUFFER.findall(kind):
        elements = 1
        for dimension in filter(None, sizes.split(",")):
            elements *= int(dimension)
        # Types narrower than a byte are packed; a pred takes a whole one.
        total += -(-elements * (8 if name == "pred" else int(bits or 0)) // 8)
    return total


def kind_of(instruction: Instruction) -> str:
    """What an instruction's result is: a broadcast, a copy, or anything else."""
    stem = re.sub(r"\.(clone|remat)?\d*", "", instruction.name)
    words = set(_WORDS.findall(stem.replace("_", " "))) - _FILLERS
    if words and words <= {"broadcast", "copy", "transpose"}:
        return BROADCAST if "broadcast" in words else COPY
    return OTHER


def _peak(
    computations: Mapping[str, Sequence[Instruction]],
    name: str,
    known: dict[str, Counter[str]],
) -> Counter[str]:
    """Bytes at the peak of a computation by kind, those of what it calls among them."""
    if name in known:
        return known[name]
    rows = computations.get(name, ())
    first, last = _reads(rows)
    inner = [
        max(
            (_peak(computations, x, known) for x in row.called),
            key=Counter.total,
            default=Counter(),
        )
        for row in rows
    ]
    owned = [k for k, x in enumerate(rows) if x.opcode not in _VIEWS | _NO_TEMPORARY]
    change = [0] * (len(rows) + 1)
    for k in owned:
        change[k] += rows[k].bytes
        change[last[rows[k].name] + 1] -= rows[k].bytes
    totals = [
        now + members.total() for now, members in zip(accumulate(change), inner, strict=False)
    ]
    peak = max(range(len(rows)), key=totals.__getitem__, default=-1)
    reasons: Counter[str] = Counter(inner[peak]) if rows else Counter()
    for k in owned:
        x = rows[k]
        if k <= peak <= last[x.name]:
            early = kind_of(x) == OTHER and k < peak < first[x.name]
            reasons[EARLY if early else kind_of(x)] += x.bytes
    known[name] = reasons
    return reasons


def _reads(rows: Sequence[Instruction]) -> tuple[dict[str, int], dict[str, int]]:
    """Where each result is read first and last, through views too; never: where it is made."""
    first: dict[str, int] = {}
    last = {x.name: k for k, x in enumerate(rows)}  # what nobody reads lives for a moment
    for k, x in enumerate(rows):
        for operand in x.operands:
            last[operand] = k
    for k in reversed(range(len(rows))):
        x = rows[k]
        view = x.opcode in _VIEWS and not x.called
        for operand in x.operands:
            index = first.get(x.name, len(rows)) if view else k
            first[operand] = min(first.get(operand, len(rows)), index)
            if x.opcode in _VIEWS:
                last[operand] = max(last.get(operand, k), last[x.name])
    return {x.name: first.get(x.name, k) for k, x in enumerate(rows)}, last


TIMEOUT_SECONDS = 3600.0
"""After which a compiler is stopped."""
_KINDS = "all-reduce|all-gather|all-to-all|collective-permute|reduce-scatter|ragged-all-to-all"
_COLLECTIVE = re.compile(rf"= (?P<types>.*?) (?P<kind>{_KINDS})(?P<half>-start|-done)?\(")
_TYPE = re.compile(r"(?P<kind>pred|bf16|[a-z]+(?P<bits>\d+)\w*)\[(?P<sizes>[\d,]*)\]")
_DEVICES = "--xla_force_host_platform_device_count"
# The program never runs, so its machine code may be slow; tensors and memory are the same.
_QUICK = {
    "--xla_backend_optimization_level": "0",
    "--xla_llvm_disable_expensive_passes": "true",
}
_NAMED = 3


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
        alive: temporary tensors at their peak by kind, see ``liveness``; empty if unknown.
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
    alive: Mapping[str, float] = field(default_factory=dict)

    @property
    def all_reduces(self) -> Collectives:
        """What is all-reduced."""
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

    @property
    def memory_ratio(self) -> float:
        """Bytes predicted over those that XLA takes."""
        return self.predicted.peak_bytes / self.peak_bytes

    @property
    def cpu_memory_ratio(self) -> float:
        """Bytes predicted of XLA's compiler for CPUs over those that it takes."""
        return self.predicted.cpu_peak_bytes / self.peak_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the compilation as an object of JSON types."""
        return {
            "agrees": self.agrees,
            **asdict(self),
            "changed": list(self.changed),
            "notes": list(self.notes),
        }

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
            more = len(self.changed) - _NAMED
            ends = f" and {more:,} more" if more > 0 else ""
            sentences.append(f"Sharded otherwise: {', '.join(self.changed[:_NAMED])}{ends}.")
        for kind, others in sorted(self.others.items()):
            why = " (ZeRO)" if self.shares_states else ", which the judge does not price"
            arrays = plural(others.arrays, "array")
            sentences.append(f"{kind}: {arrays} of {size(others.bytes)}{why}.")
        sentences.append(
            f"Memory of a device: {size(self.peak_bytes)}, predicted {size(expected.peak_bytes)} "
            f"({self.memory_ratio:.2f})"
            f"{_on_cpus(expected.peak_bytes, expected.cpu_peak_bytes, self.cpu_memory_ratio)}; "
            f"inputs {size(self.argument_bytes)}, predicted "
            f"{size(expected.argument_bytes)}."
        )
        words = {BROADCAST: "broadcasts", COPY: "copies"}
        written = [f"{words[x]} of {size(self.alive[x])}" for x in words if self.alive.get(x)]
        if written:
            sentences.append(f"At its peak are {' and '.join(written)} that XLA writes out.")
        if early := self.alive.get(EARLY):
            sentences.append(f"Of {size(early)} alive there nothing has been read yet.")
        return " ".join([*sentences, *(f"Note: {note}." for note in self.notes)])


def _on_cpus(own: float, cpu: float, ratio: float | None = None) -> str:
    if cpu == own:
        return ""
    return f", for CPUs {size(cpu)}" + (f" ({ratio:.2f})" if ratio is not None else "")


def compile_plan(
    plan: Plan,
    source: Any = None,
    graph: Graph | None = None,
    timeout_seconds: float = TIMEOUT_SECONDS,
) -> Compilation:
    """Compile the step of a plan with its shardings, on virtual devices.

    Args:
        plan: a plan of a task with a layout.
        source: the module that the graph was read from, see ``parenvs.shardy.verify.verify``.
        graph: the step's graph (default: the plan's instance).
        timeout_seconds: after which the compiler is stopped.

    Raises:
        ParenvsError: JAX is missing or too old, the plan cannot be exported, ``source`` is not its
            module, or the compiler fails; the line gives its reason.
    """
    need_jax()
    if graph is None:
        graph = load_graph(plan.instance)
    layout = layout_of(plan, graph)
    layout.check_even()
    module = module_for(graph, plan, source)
    answer = _compiled(layout, module.proto, timeout_seconds)
    return Compilation(
        instance=plan.instance,
        task=plan.task,
        mesh={axis.name: axis.size for axis in layout.axes},
        asked=len(layout.inputs) + len(layout.outputs),
        changed=tuple(_name(layout, number) for number in answer["changed"]),
        collectives={
            kind: Collectives(**counts) for kind, counts in sorted(answer["collectives"].items())
        },
        argument_bytes=answer["argument_bytes"],
        peak_bytes=answer["peak_bytes"],
        seconds=answer["seconds"],
        predicted=layout.expected(),
        shares_states=layout.zero > 0,
        notes=layout.notes,
        alive=answer["alive"],
    )


def _name(layout: Layout, number: int) -> str:
    inputs = len(layout.inputs)
    return layout.graph.paths[number] if number < inputs else f"output {number - inputs}"


def _compiled(layout: Layout, proto: bytes, timeout_seconds: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="parenvs-") as scratch:
        folder = Path(scratch)
        (folder / "module.pb").write_bytes(proto)
        (folder / "request.json").write_text(json.dumps(layout.to_json()), encoding="utf-8")
        words = [x for x in os.environ.get("XLA_FLAGS", "").split() if not x.startswith(_DEVICES)]
        own = {**_QUICK, _DEVICES: str(layout.devices)}
        environment = {
            **os.environ,
            "XLA_FLAGS": " ".join([*(f"{name}={own[name]}" for name in own), *words]),
            "JAX_PLATFORMS": "cpu",
            "PYTHONPATH": os.pathsep.join(path or str(Path.cwd()) for path in sys.path),
        }
        command = [sys.executable, "-m", "parenvs.exports.compilation", scratch]
        try:
            ended = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=timeout_seconds
            )
        except subprocess.TimeoutExpired:
            raise ParenvsError(
                f"XLA's compiler was stopped after {timeout_seconds:,.0f} s; give it longer, or "
                "plan fewer layers"
            ) from None
        answer = folder / "answer.json"
        if not answer.exists():
            reason = (ended.stderr.strip().splitlines() or [f"status {ended.returncode}"])[-1]
            raise ParenvsError(f"XLA's compiler ended without an answer: {reason[:300]}")
        content = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in content:
        raise ParenvsError(f"XLA cannot compile the plan: {content['error']}")
    return content


def main(folder: Path) -> None:
    """Compile the request of a folder, and write the answer beside it."""
    request = json.loads((folder / "request.json").read_text(encoding="utf-8"))
    try:
        answer = _answer(request, (folder / "module.pb").read_bytes())
    except Exception as error:  # of any kind, from within the compiler: one line of it is told
        answer = {"error": f"{type(error).__name__}: {one_line(error)}"}
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


def _answer(request: Mapping[str, Any], proto: bytes) -> dict[str, Any]:
    import time

    import jax

    from parenvs.exports.jax import partition_spec

    mesh = jax.make_mesh(*zip(*[(count, name) for name, count in request["mesh"]], strict=True))
    wanted = [
        [jax.NamedSharding(mesh, partition_spec(tuple(spec))) for spec in request[key]]
        for key in ("inputs", "outputs")
    ]
    call, arguments = callable_of(proto)
    jitted = jax.jit(
        call,
        in_shardings=tuple(wanted[0]),
        out_shardings=wanted[1],
        donate_argnums=tuple(request["donated"]),
        keep_unused=True,
    )
    begin = time.perf_counter()
    compiled = jitted.lower(*arguments).compile()
    seconds = time.perf_counter() - begin
    ranks = [len(spec) for key in ("inputs", "outputs") for spec in request[key]]
    compiled_to = [*compiled.input_shardings[0], *compiled.output_shardings]
    memory: Any = compiled.memory_analysis()
    text = compiled.as_text() or ""
    inside = memory.argument_size_in_bytes
    return {
        "seconds": seconds,
        "changed": [
            number
            for number, (own, other, rank) in enumerate(
                zip([*wanted[0], *wanted[1]], compiled_to, ranks, strict=True)
            )
            if not own.is_equivalent_to(other, rank)
        ],
        "collectives": {kind: asdict(counted) for kind, counted in collectives_of(text).items()},
        "alive": alive_at_peak(text),
        "argument_bytes": inside,
        "peak_bytes": inside
        + memory.output_size_in_bytes
        - memory.alias_size_in_bytes
        + memory.temp_size_in_bytes,
    }


def callable_of(proto: bytes) -> tuple[Any, list[Any]]:
    """Return a module as a function that JAX can trace, of flat arguments, and their shapes.

    Raises:
        ParenvsError: the installed JAX cannot call a module.
    """
    import jax

    try:
        from jax import export
        from jax.extend.mlir import hlo_to_stablehlo
        from jax.interpreters.mlir import make_ir_context
        from jaxlib.mlir import ir
        from jaxlib.mlir.dialects import stablehlo
    except ImportError as error:
        raise ParenvsError(
            f"JAX {jax.__version__} cannot call a module ({error}); pip install --upgrade jax"
        ) from None
    with make_ir_context(), ir.Location.unknown():
        module = ir.Module.parse(hlo_to_stablehlo(proto))
        main_function = next(
            operation
            for operation in module.body.operations
            if ir.StringAttr(operation.attributes["sym_name"]).value == "main"
        )
        kind = ir.FunctionType(ir.TypeAttr(main_function.attributes["function_type"]).value)
        inputs, results = ([_shape(ir, item) for item in x] for x in (kind.inputs, kind.results))
        version = stablehlo.get_current_version()
        serialized = stablehlo.serialize_portable_artifact(module, version)
    # An exported function of the same signature, into which the module is put.
    exported = export.export(jax.jit(lambda *given: _zeros(results), keep_unused=True))(*inputs)
    return replace(exported, mlir_module_serialized=serialized).call, inputs


def _shape(ir: Any, kind: Any) -> Any:
    import jax
    import jax.numpy as jnp

    tensor = ir.RankedTensorType(kind)
    name = str(tensor.element_type)
    names = {"i1": "bool", "f16": "float16", "bf16": "bfloat16", "f32": "float32", "f64": "float64"}
    known = names.get(name) or re.sub(r"^(u?)i(\d+)$", r"\1int\2", name)
    return jax.ShapeDtypeStruct(tuple(tensor.shape), jnp.dtype(known))


def _zeros(shapes: list[Any]) -> list[Any]:
    import jax.numpy as jnp

    return [jnp.zeros(shape.shape, shape.dtype) for shape in shapes]


def collectives_of(text: str) -> dict[str, Collectives]:
    """Count the collectives in the text of a compiled module, by kind."""
    collectives: dict[str, Collectives] = {}
    for kind, sizes in _collectives(text):
        known = collectives.get(kind, Collectives(0, 0, 0.0))
        collectives[kind] = Collectives(
            known.operations + 1, known.arrays + len(sizes), known.bytes + sum(sizes)
        )
    return collectives


def _collectives(text: str) -> Iterator[tuple[str, list[float]]]:
    for line in text.splitlines():
        match = _COLLECTIVE.search(line)
        if match is None or match["half"] == "-done":
            continue
        sizes = []
        for array in _TYPE.finditer(match["types"]):
            elements = 1
            for length in filter(None, array["sizes"].split(",")):
                elements *= int(length)
            bits = (
                8
                if array["kind"] == "pred"
                else 16
                if array["kind"] == "bf16"
                else int(array["bits"])
            )
            sizes.append(elements * bits / 8)
        if match["half"] == "-start" and match["kind"] != "all-reduce":
            sizes = sizes[len(sizes) // 2 :]  # operands come first
        yield match["kind"], sizes


if __name__ == "__main__":
    main(Path(sys.argv[1]))
