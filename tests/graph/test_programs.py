"""Programs as people write them: roles, phases and batch size without a hint."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest

from parenvs.graph.graph import Graph, Phase, Role
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse

pytest.importorskip("jax")
from programs import PROGRAMS, SAMPLES, phase_flops

TRAINING = set(PROGRAMS) - {"forward", "separate_forward"}
ROLES = {
    "train_state", "lora", "lora_in_state", "separate_arguments", "separate_forward", "batch_first",
    "batch_norm", "dropout",
}  # fmt: skip
NOT_YET: dict[str, set[str]] = {
    "roles": ROLES,
    "roles_from_text": ROLES | {"adversaries"},
    "batch_size": {"lora", "batch_first", "adversaries", "separate_forward"},
    "flops_of_phases": {"accumulation"},
    "flops_of_phases_from_text": TRAINING,
    "update": {"accumulation"},
    "update_from_text": TRAINING - {"gradients_only"},
}
"""Test -> programs in which it fails; strict, so that a program that works has to go."""


def programs(test):
    """Parametrizes a test over all programs."""
    failing = NOT_YET.get(test.__name__.removeprefix("test_programs__"), set())
    mark = pytest.mark.xfail(strict=True, reason="not told from the data flow yet")
    return pytest.mark.parametrize(
        "name", [pytest.param(x, marks=mark if x in failing else ()) for x in PROGRAMS]
    )(test)


@cache
def program(name):
    return PROGRAMS[name]()


@cache
def graph(name, kind):
    """The graph from the proto, or from text that has neither scopes nor the trace order."""
    made = program(name)
    if kind == "proto":
        return Graph.from_jax(made.function, *made.args)
    return read_module(parse(made.lowered.as_text("hlo"), name), where=name)


def roles(name, kind):
    return [Role(role).name for role in graph(name, kind).parameter_role]


def in_update_scope(graph):
    """(I,) bool: the program wrote the instruction under ``named_scope("update")``."""
    names = [graph.strings[i] for i in graph.op_name]
    return np.array([re.search(r"(^|/)update(/|$)", name) is not None for name in names])


@programs
def test_programs__roles(name):
    assert dict(zip(graph(name, "proto").paths, roles(name, "proto"), strict=True)) == dict(
        zip(program(name).paths, program(name).roles, strict=True)
    )


@programs
def test_programs__roles_from_text(name):
    assert roles(name, "text") == program(name).roles


@programs
def test_programs__batch_size(name):
    assert graph(name, "proto").batch_size == graph(name, "text").batch_size == SAMPLES


@programs
def test_programs__flops_of_phases(name):
    assert phase_flops(graph(name, "proto")) == program(name).flops


@programs
def test_programs__flops_of_phases_from_text(name):
    assert phase_flops(graph(name, "text")) == program(name).flops


@programs
def test_programs__update(name):
    """All that stands in the scope of the update is update; nothing else that costs is."""
    made = graph(name, "proto")
    inside, costs = in_update_scope(made), (made.flops > 0) & ~made.free
    found = costs & (made.phase == Phase.UPDATE)
    assert sorted(set(made.op_names(np.flatnonzero(found != (inside & costs))))) == []


@programs
def test_programs__update_from_text(name):
    """Text without scopes has as many FLOPs in each phase as the proto in each scope."""
    made, proto = graph(name, "text"), graph(name, "proto")
    expected = proto.flops[in_update_scope(proto) & (proto.parent < 0) & ~proto.free].sum()
    found = made.flops[(made.phase == Phase.UPDATE) & (made.parent < 0) & ~made.free].sum()
    assert found == expected
