"""Programs whose inputs are hard to tell apart: right, or a note says what was assumed."""

from __future__ import annotations

from functools import cache

import pytest
from cases import each

from parenvs import from_jax
from parenvs.graph.graph import Role
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse

pytest.importorskip("jax")
from hard_programs import HARD_PROGRAMS
from programs import SAMPLES, phase_flops, roles_of

pytestmark = pytest.mark.thorough

programs = each("name", HARD_PROGRAMS)
NOT_COUNTED = {
    "gradient_penalty",
    "physics",
    "equilibrium",
    "sharpness",
    "critic_of_transport",
    "delayed_policy",
}
"""Programs of which the jaxprs hold work that lowering leaves out, or text no line between phases.

Values that a gradient alone is wanted of, and what a loop would compute again in each iteration.
"""
INFERRED = {"delayed_policy", "secants"}
"""Programs of which text without scopes does not tell all roles; a note says what they rest on."""
BEHIND = {
    "ensemble_with_own_batches": "5 in front alike, taken as models side by side",
    "micro_batches_in_front": "taken as micro-batches: the batch is taken as 4 x 6",
    "time_in_front": "a loop goes through the 7 leading positions of batch inputs, taken as time",
    "tokens_with_time_in_front": "the 7 leading positions of batch inputs, taken as time",
    "next_words": "the 8 leading positions of batch inputs, taken as time",
    "actor_and_critic": "the 9 leading positions of batch inputs, taken as time",
}
"""What is said where the batch is not the leading dimension."""


@cache
def program(name):
    return HARD_PROGRAMS[name]()


@cache
def graph(name, kind):
    made = program(name)
    if kind == "proto":
        return from_jax(made.function, *made.args)
    return read_module(parse(made.lowered.as_text("hlo"), name), where=name)


def roles(name, kind):
    return [Role(role).name for role in graph(name, kind).parameter_role]


@programs
def test_hard_programs__roles(name):
    truth = list(zip(program(name).paths, program(name).roles, strict=True))
    assert roles_of(graph(name, "proto")) == truth


@programs
def test_hard_programs__roles_from_text(name):
    assert any("roles rest on that" in note for note in graph(name, "text").notes)
    assert (roles(name, "text") == program(name).roles) == (name not in INFERRED)


@programs
def test_hard_programs__batch_size(name):
    assert graph(name, "proto").batch_size == graph(name, "text").batch_size == SAMPLES
    said = " ".join(graph(name, "proto").notes)
    assert BEHIND[name] in said if name in BEHIND else "taken as" not in said
    assert "taken as data" not in said


@programs
def test_hard_programs__flops_of_phases(name):
    counted = phase_flops(graph(name, "proto"))
    if name in NOT_COUNTED - {"sharpness"}:
        assert sum(counted) <= sum(program(name).flops)
        assert counted[1] >= program(name).flops[1] and not counted[2]
    else:
        assert counted == program(name).flops
    if name not in NOT_COUNTED:
        assert phase_flops(graph(name, "text")) == program(name).flops
