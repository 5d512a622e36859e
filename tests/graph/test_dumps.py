"""XLA's dumps, before and after optimization; sharding annotations; code for one device of many."""

import os
import subprocess
import sys
import warnings

import pytest
from cases import each

from parenvs import from_hlo
from parenvs.errors import HloError
from parenvs.graph.proto import Module
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse

PROGRAM = """
import jax, jax.numpy as jnp
def step(params, x):
    def loss(params):
        body = lambda h, p: (jnp.tanh(h @ p["w"] + p["b"]), None)
        h, _ = jax.lax.scan(body, x, params)
        return jnp.mean(jax.lax.top_k(h, 2)[0])
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params))
shape = lambda *sizes: jax.ShapeDtypeStruct(sizes, jnp.float32)
params = {"w": shape(3, 8, 8), "b": shape(3, 8)}
jax.jit(step, keep_unused=True, donate_argnums=0).lower(params, shape(4, 8)).compile()
"""


@pytest.fixture(scope="module")
def dumps(tmp_path_factory):
    """Ending of the name -> file that XLA has dumped."""
    pytest.importorskip("jax")
    folder = tmp_path_factory.mktemp("dumps")
    flags = f"--xla_dump_to={folder} --xla_dump_hlo_as_proto --xla_dump_hlo_as_text"
    environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True, timeout=120)
    ends = [f"{when}_optimizations.{form}" for when in ("before", "after") for form in FORMS]
    return {end: next(folder.glob(f"*jit_step*{end}")) for end in ends}


FORMS = ("hlo.pb", "txt")


@pytest.mark.thorough
@pytest.mark.parametrize("form", FORMS)
def test_dumps__both_sides_of_optimization(dumps, form):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*XLA")
        before = from_hlo(dumps[f"before_optimizations.{form}"])
    with pytest.warns(UserWarning, match=r"XLA has optimized this module.*before_optim"):
        after = from_hlo(dumps[f"after_optimizations.{form}"])
    assert sorted(before.paths) == sorted(after.paths) == ["b", "w", "x"]
    assert before.parameter_bytes == after.parameter_bytes == 4 * 3 * 72
    dots = [g.flops[[g.opcodes[c] == "dot" for c in g.opcode]].sum() for g in (before, after)]
    assert dots[0] == dots[1]
    assert "fusion" not in after.opcodes
    assert [f for f in before.strings if "trip_count" in f] == ['{"trip_count":3}']
    for graph in (before, after):
        assert '{"trip_count":3}' in graph.strings  # older XLA adds loops of its own
        assert graph.complaint() == ""


def chain(ids, order):
    """A module of a parameter and two negations with these ids, in this order in the file."""
    module = Module(name="chain", entry_computation_id=1, entry_computation_name="main")
    computation = module.computations.add(name="main", id=1, root_id=ids[2])
    for place in order:
        node = computation.instructions.add(
            name=f"n{place}", opcode="negate" if place else "parameter", id=ids[place]
        )
        node.operand_ids.extend([ids[place - 1]] if place else [])
        node.shape.element_type = 11
        node.shape.dimensions.append(4)
    return module


@each("ids", [(1, 2, 3), (3, 2, 1), (2 << 32, 7, 8)])
@each("order", [(0, 1, 2), (2, 0, 1), (2, 1, 0)])
def test_dumps__any_order_of_ids_and_file(ids, order):
    graph = read_module(chain(ids, order), batch_size=1)
    assert [graph.opcodes[c] for c in graph.opcode] == ["parameter", "negate", "negate"]
    assert graph.operands.tolist() == [0, 1]
    assert graph.outputs.tolist() == [2]


def test_dumps__a_circle_is_named():
    module = chain((1, 2, 3), (0, 1, 2))
    module.computations[0].instructions[1].operand_ids[0] = 3
    with pytest.raises(HloError, match="dangling reference 3"):
        read_module(module)


TEXT = """
HloModule m
inner {{
  p = f32[4] parameter(0)
  ROOT n = f32[4] negate(p)
}}
ENTRY main {{
  x = f32[4] parameter(0){sharding}
  {lines}
}}
"""


def read(lines, sharding=""):
    return read_module(parse(TEXT.format(lines=lines, sharding=sharding)), "m", batch_size=1)


def opcodes(graph):
    return [graph.opcodes[c] for c in graph.opcode]


def test_dumps__asynchronous_calls_and_copies():
    graph = read(
        """a = ((f32[4]), f32[4], u32[]) async-start(x), calls=inner
  u = ((f32[4]), f32[4], u32[]) async-update(a)
  d = f32[4] async-done(u)
  s = (f32[4], f32[4], u32[]) copy-start(d)
  c = f32[4] copy-done(s)
  ROOT n = f32[4] abs(c)"""
    )
    assert opcodes(graph) == ["parameter", "negate", "abs"]
    assert graph.operands.tolist() == [0, 1]
    assert graph.total_flops == 8


def test_dumps__calls_into_libraries_are_named():
    line = 'ROOT c = f32[4] custom-call(x), custom_call_target="__onednn$matmul"'
    with pytest.warns(UserWarning, match=r"cost no FLOPs here: 1 __onednn\$matmul"):
        assert read(line).total_flops == 0


ANNOTATED = """a = f32[4] custom-call(x), custom_call_target="Sharding", sharding={devices=[2]<=[2]}
  ROOT n = f32[4] negate(a)"""


@pytest.mark.parametrize(
    ("lines", "sharding"),
    [(ANNOTATED, ""), ("ROOT n = f32[4] negate(x)", ", sharding={devices=[2]<=[2]}")],
)
def test_dumps__shardings_are_ignored_with_one_warning(lines, sharding):
    with pytest.warns(UserWarning, match="sharding constraints are ignored") as caught:
        graph = read(lines, sharding)
    assert sum("sharding" in str(warning.message) for warning in caught) == 1
    assert opcodes(graph) == ["parameter", "negate"]
    assert graph.operands.tolist() == [0]


@pytest.mark.parametrize("target", ["SPMDFullToShardShape", "xla.sdy.GlobalToLocalShape"])
def test_dumps__shard_map_is_refused(target):
    line = f'ROOT c = f32[2] custom-call(x), custom_call_target="{target}"'
    with pytest.raises(HloError, match=r"^m: 'c' begins or ends code for one device.*shard_map"):
        read(line)
