"""Programs as people write them: roles, phases and batch size without a hint."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from cases import each, slow

from parenvs import from_jax
from parenvs.graph.graph import Phase, Role
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse

pytest.importorskip("jax")
from programs import PROGRAMS, SAMPLES, phase_flops, roles_of

pytestmark = pytest.mark.thorough

programs = each("name", PROGRAMS)


@cache
def program(name):
    return PROGRAMS[name]()


@cache
def graph(name, kind):
    """The graph from the proto, or from text without trace order: without scopes, or with few.

    JAX before 0.7 named ``jit(main)`` within the function, and scopes of differentiation only where
    they stand around a named function.
    """
    made = program(name)
    if kind == "proto":
        return from_jax(made.function, *made.args)
    if kind == "few scopes":
        text = made.lowered.as_text("hlo", debug_info=True)
        text = re.sub(r'op_name="jit\((\w+)\)/', r'op_name="jit(\1)/jit(main)/', text)
        text = text.replace("/transpose(jvp())/", "/").replace("/jvp()/", "/")
        return read_module(parse(text, name), where=name)
    return read_module(parse(made.lowered.as_text("hlo"), name), where=name)


def roles(name, kind):
    return [Role(role).name for role in graph(name, kind).parameter_role]


def in_update_scope(graph):
    """(I,) bool: the program wrote the instruction under ``named_scope("update")``."""
    names = [graph.strings[i] for i in graph.op_name]
    return np.array([re.search(r"(^|/)update(/|$)", name) is not None for name in names])


@programs
def test_programs__roles(name):
    truth = list(zip(program(name).paths, program(name).roles, strict=True))
    assert roles_of(graph(name, "proto")) == truth


@programs
def test_programs__roles_from_text(name):
    assert roles(name, "text") == program(name).roles


@programs
def test_programs__batch_size(name):
    assert graph(name, "proto").batch_size == graph(name, "text").batch_size == SAMPLES


@programs
def test_programs__flops_of_phases(name):
    assert phase_flops(graph(name, "proto")) == program(name).flops


@pytest.mark.parametrize("kind", ["text", *slow("few scopes")])
@programs
def test_programs__flops_of_phases_from_text(name, kind):
    assert phase_flops(graph(name, kind)) == program(name).flops


@programs
def test_programs__update(name):
    """All that stands in the scope of the update is update; nothing else that costs is."""
    made = graph(name, "proto")
    inside, costs = in_update_scope(made), (made.flops > 0) & ~made.free
    found = costs & (made.phase == Phase.UPDATE)
    assert sorted(set(made.op_names(np.flatnonzero(found != (inside & costs))))) == []


@programs
def test_programs__update_from_text(name):
    """Text without scopes has as many FLOPs in the update as the proto in its scope.

    Up to a scaling of a gradient that the backward pass wrote and the update could have written.
    """
    made, proto = graph(name, "text"), graph(name, "proto")
    expected = proto.flops[in_update_scope(proto) & (proto.parent < 0) & ~proto.free].sum()
    found = made.flops[(made.phase == Phase.UPDATE) & (made.parent < 0) & ~made.free].sum()
    assert found == pytest.approx(expected, rel=0.005)
