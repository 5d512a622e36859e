"""Programs of further architectures, algorithms and optimisers: right, or a note says it."""

from __future__ import annotations

from functools import cache

import pytest
from cases import slow

from parenvs import from_jax
from parenvs.graph.graph import Role
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse

pytest.importorskip("jax")
from architectures import ARCHITECTURES
from programs import SAMPLES, phase_flops, roles_of

pytestmark = pytest.mark.thorough

FIRST = ("memory_bank", "truncated_backpropagation", "segment_memory", "schedule_free")
INFERRED = {
    "codebook_by_averages",
    "soft_actor_critic",
    "epochs_of_mini_batches",
    "spectral_normalisation",
}
"""Programs of which text without scopes does not tell all roles; a note says what they rest on."""
NOT_COUNTED = {"fixed_point"}
"""Programs with loops of unknown length, of which one iteration counts."""
INFERRED_PHASES = {"epochs_of_mini_batches", "preconditioners", "evolution"}
"""Programs of which text without scopes does not tell all phases."""
ALIKE = {"long_convolution": "batch is taken as data, though none of its dimensions has the 24 sam"}
"""What is said of inputs that are read as data are, and are none."""

programs = pytest.mark.parametrize(
    "name", [*FIRST, *slow(*(x for x in ARCHITECTURES if x not in FIRST))]
)


@cache
def program(name):
    return ARCHITECTURES[name]()


@cache
def graph(name, kind):
    made = program(name)
    if kind == "proto":
        return from_jax(made.function, *made.args)
    return read_module(parse(made.lowered.as_text("hlo"), name), where=name)


def of_text(name):
    return [Role(role).name for role in graph(name, "text").parameter_role]


@programs
@pytest.mark.filterwarnings("ignore")
def test_architectures__roles_and_batch(name):
    truth = list(zip(program(name).paths, program(name).roles, strict=True))
    found = roles_of(graph(name, "proto"))
    if name in ALIKE:
        assert found != truth and ALIKE[name] in " ".join(graph(name, "proto").notes)
    else:
        assert found == truth
        assert "taken as" not in " ".join(graph(name, "proto").notes)
    assert graph(name, "proto").batch_size == SAMPLES


@programs
@pytest.mark.filterwarnings("ignore")
def test_architectures__phases(name):
    counted = phase_flops(graph(name, "proto"))
    assert (counted == program(name).flops) == (name not in NOT_COUNTED)


@programs
@pytest.mark.filterwarnings("ignore")
def test_architectures__text_without_scopes(name):
    assert any("roles rest on that" in note for note in graph(name, "text").notes)
    assert graph(name, "text").batch_size == SAMPLES
    assert (of_text(name) == program(name).roles) == (name not in INFERRED | set(ALIKE))
    if name not in INFERRED_PHASES | NOT_COUNTED:
        assert phase_flops(graph(name, "text")) == program(name).flops
