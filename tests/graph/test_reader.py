"""Reading modules: structure, phases and roles, and files that are no modules."""

from __future__ import annotations

import struct
import sys

import numpy as np
import pytest
from cases import each
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs import from_hlo, from_jax
from parenvs.errors import HloError, ParenvsError
from parenvs.graph.graph import Role
from parenvs.graph.proto import Module
from parenvs.graph.reader import read_module, read_proto

F32 = 11


def small_module(**changes):
    """A module in which a call adds its two parameters."""
    module = Module(name="small", entry_computation_id=2, entry_computation_name="main")
    for number, name in enumerate(("callee", "main"), 1):
        computation = module.computations.add(name=name, id=number, root_id=3)
        for i in (1, 2):
            node = computation.instructions.add(
                name=f"p{i}", opcode="parameter", id=i, parameter_number=i - 1
            )
            node.shape.element_type = F32
            node.shape.dimensions.extend([4, 2])
        opcode = changes.get("opcode", "add") if number == 1 else "call"
        last = computation.instructions.add(
            name=f"{name}.3", opcode=opcode, id=3, operand_ids=[1, 2]
        )
        last.shape.element_type = F32
        last.shape.dimensions.extend([4, 2])
        last.metadata.op_name = name
        if number == 2:
            last.called_ids.append(1)
    return module


def read(module, **options):
    return read_module(module, where="file.pb", **options)


def names(graph):
    return [graph.opcodes[code] for code in graph.opcode]


def op_names(graph):
    return [graph.strings[i] for i in graph.op_name]


def test_reader__call_is_inlined_with_its_prefix():
    graph = read(small_module())
    assert names(graph) == ["parameter", "parameter", "add"]
    assert op_names(graph)[2] == "main/callee"
    assert graph.operands.tolist() == [0, 1]
    assert graph.outputs.tolist() == [2]
    assert graph.total_flops == 8
    assert graph.name == "small"


def entry(module):
    return module.computations[1]


def change(path, value):
    """A function that sets a field of the small module."""

    def apply(module):
        *parents, last = path.split(".")
        target = module
        for part in parents:
            target = target[int(part)] if part.isdigit() else getattr(target, part)
        if last.isdigit():
            target[int(last)] = value
        else:
            setattr(target, last, value)

    return apply


ENTRY = "computations.1.instructions"
BROKEN = [
    (change("entry_computation_id", 7), "no entry computation"),
    (change("entry_computation_id", 0), "no entry computation"),
    (lambda m: m.computations[1].ClearField("instructions"), "'main' is empty or repeats an id"),
    (lambda m: m.computations[0].ClearField("instructions"), "'callee' is empty or repeats an id"),
    (change("computations.1.root_id", 9), "dangling reference 9"),
    (change("computations.1.root_id", 0), "dangling reference 0"),
    (change(f"{ENTRY}.2.operand_ids.0", 9), "dangling reference 9"),
    (change(f"{ENTRY}.2.operand_ids.0", 3), "dangling reference 3"),
    (change(f"{ENTRY}.2.called_ids.0", 9), "dangling reference 9"),
    (change(f"{ENTRY}.2.called_ids.0", 2), "a computation calls itself"),
    (lambda m: entry(m).instructions[2].ClearField("called_ids"), "broken or truncated module"),
    (lambda m: entry(m).instructions[2].ClearField("operand_ids"), "takes 2 operands, given 0"),
    (change(f"{ENTRY}.1.id", 1), "'main' is empty or repeats an id"),
    (change("computations.0.instructions.0.parameter_number", 5), "a parameter of number 1; its 2"),
    (change(f"{ENTRY}.0.shape.element_type", 0), "unknown element type 0"),
    (change(f"{ENTRY}.0.shape.element_type", 99), "unknown element type 99"),
    (change(f"{ENTRY}.0.shape.dimensions.0", -(2**63)), "dynamic dimensions"),
    (change("computations.0.instructions.2.opcode", "while"), "a while has 0 computations"),
    (
        change("computations.0.instructions.2.opcode", "conditional"),
        "a conditional has no computation",
    ),
]


@each(("apply", "message"), BROKEN)
def test_reader__broken_module(apply, message):
    module = small_module()
    apply(module)
    with pytest.raises(HloError, match=message) as caught:
        read(module)
    assert str(caught.value).startswith("file.pb: ")
    assert str(caught.value).count("file.pb") == 1
    assert "\n" not in str(caught.value)


def test_reader__parameters_by_number_whatever_their_ids():
    module = small_module()
    first, second = entry(module).instructions[:2]
    first.parameter_number, second.parameter_number = 1, 0
    first.metadata.op_name, second.metadata.op_name = "batch", "params['w']"
    second.shape.dimensions[:] = [8]
    entry(module).instructions[2].opcode = "custom-call"
    graph = read(module)
    assert graph.paths == ["w", "batch"]
    assert [graph.shape(t) for t in graph.parameter_tensor] == [(8,), (4, 2)]
    assert [Role(r).name for r in graph.parameter_role] == ["VARIABLE", "BATCH"]


@each(
    "content",
    [
        b"",
        b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR",
        b"\x7fELF" + bytes(60),
        b"HloModule text in the wrong file",
        b"{}",
        bytes(100),
        b"\n\x03abc",  # a module that has nothing but a name
    ],
)
@each("suffix", ["pb", "png", "bin"])
def test_reader__not_a_module(content, suffix, tmp_path):
    path = tmp_path / f"mine.{suffix}"
    path.write_bytes(content)
    with pytest.raises(
        HloError, match=rf"mine\.{suffix}: (empty|not a serialized).* give "
    ) as caught:
        from_hlo(path)
    assert "\n" not in str(caught.value)


@settings(max_examples=300)
@given(st.data())
def test_reader__truncated(data):
    """Every truncation is an error, as the entry's id stands behind all computations."""
    content = small_module().SerializeToString()
    with pytest.raises(HloError):
        read_proto(content[: data.draw(st.integers(0, len(content) - 1))])


@pytest.mark.thorough
@settings(max_examples=500)
@given(st.data())
def test_reader__one_byte_changed(data):
    """A changed byte gives an error or a graph (of another number), never another exception."""
    content = bytearray(small_module().SerializeToString())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        assert len(read_proto(bytes(content)).opcode)
    except HloError as error:
        assert "\n" not in str(error)


# The modules of the tests below are made by JAX.


def jax_graph(function, *args, **options):
    pytest.importorskip("jax")
    return from_jax(function, *args, **options)


def f32(*sizes):
    return pytest.importorskip("jax").ShapeDtypeStruct(sizes, np.float32)


def test_reader__loop_has_a_body_with_a_parent():
    jax = pytest.importorskip("jax")

    def function(params, x):
        def step(carry, w):
            return jax.numpy.tanh(carry @ w), None

        return jax.lax.scan(step, x, params)[0].sum()

    graph = jax_graph(function, f32(6, 4, 4), f32(2, 4))
    index = names(graph).index("while")
    assert '"trip_count":6' in graph.strings[graph.attribute[index]]
    inside = graph.parent == index
    dots = [i for i, name in enumerate(names(graph)) if name == "dot"]
    assert [bool(inside[i]) for i in dots] == [True]
    assert (graph.parent[inside] < np.flatnonzero(inside)).all()
    assert graph.flops[index] == 6 * graph.flops[inside].sum()
    assert graph.flops[dots[0]] == 2 * 2 * 4 * 4
    assert graph.total_flops == graph.flops[index] + 7  # and the final sum of eight numbers
    assert not set(np.flatnonzero(inside)) & set(graph.pivots())
    assert index in graph.pivots()


def roles(*args, **options):
    def function(batch, tables, extra):
        return (batch["x"] @ tables["a"]["w"] + tables["b"]["w"]).sum() * extra

    tables = {"a": {"w": f32(8, 4)}, "b": {"w": f32(4)}}
    graph = jax_graph(function, {"x": f32(32, 8)}, tables, f32(), **options)
    return {p: Role(r).name for p, r in zip(graph.paths, graph.parameter_role, strict=True)}


def test_reader__variables_by_argument_and_by_glob():
    others = {"x": "BATCH", "extra": "SCALAR"}
    both = {"a/w": "VARIABLE", "b/w": "VARIABLE"}
    assert roles(variables=1) == {**both, **others}
    assert roles(variables="*/w") == {**both, **others}
    assert roles(variables=["a/*", "b/*"]) == {**both, **others}
    assert roles(variables="a/*") == {**both, **others, "b/w": "FROZEN"}
    assert roles(frozen="b/*") == {**both, **others, "b/w": "FROZEN"}
    assert roles(batch="b/*") == {**both, **others, "b/w": "BATCH"}
    assert roles() == {**both, **others}  # x was a variable when argument 0 was the default
    with pytest.raises(HloError, match=r"variables='c/\*' matches no parameter path \(like x, a/w"):
        roles(variables="c/*")
    with pytest.raises(HloError, match="variables=3: the function has 3 arguments"):
        roles(variables=3)


def test_reader__batch_size():
    def function(params, batch):
        return (batch["x"] @ params).sum() + batch["y"].sum() + batch["table"].sum()

    batch = {"x": f32(32, 8), "y": f32(32), "table": f32(100)}
    assert jax_graph(function, f32(8, 4), batch).batch_size == 32
    assert jax_graph(function, f32(8, 4), batch, batch_size=5).batch_size == 5
    assert jax_graph(lambda p: p + 1, f32(8)).batch_size == 1


def test_reader__from_jax_takes_jitted_functions():
    jax = pytest.importorskip("jax")

    def function(params, unused):
        return params * 2

    plain = jax_graph(function, f32(3), f32(4))
    assert len(plain.parameter_tensor) == 2  # kept although it is not used
    assert (
        jax_graph(jax.jit(function, keep_unused=True), f32(3), f32(4)).fingerprint
        == plain.fingerprint
    )
    assert len(jax_graph(jax.jit(function), f32(3), f32(4)).parameter_tensor) == 1
    arrays = np.ones(3, np.float32), np.ones(4, np.float32)
    assert jax_graph(function, *arrays, name="mine").fingerprint == plain.fingerprint


def test_reader__from_jax_without_jax(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ParenvsError, match=r"needs the extra 'jax'.*pip install 'parenvs\[jax"):
        from_jax(len)
