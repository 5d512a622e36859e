"""Programs as people write them, and hard ones: roles, phases and batch size, or a note says it."""

import re
from functools import cache

import numpy as np
import pytest
from cases import slow

pytest.importorskip("jax")
from architectures import ARCHITECTURES
from hard_programs import HARD_PROGRAMS
from programs import PROGRAMS, SAMPLES, phase_flops, roles_of

from parenvs import from_jax
from parenvs.graph.graph import Phase, Role
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse

pytestmark = [pytest.mark.thorough, pytest.mark.filterwarnings("ignore")]

ALL = {**PROGRAMS, **HARD_PROGRAMS, **ARCHITECTURES}
FIRST = (*PROGRAMS, *HARD_PROGRAMS, "memory_bank", "segment_memory", "schedule_free")
programs = pytest.mark.parametrize("name", [*FIRST, *slow(*(x for x in ALL if x not in FIRST))])

INFERRED = {
    *("delayed_policy", "secants", "codebook_by_averages", "soft_actor_critic"),
    *("epochs_of_mini_batches", "spectral_normalization"),
}
"""Programs of which text without scopes does not tell all roles; a note says what they rest on."""
UNCOUNTED = {"gradient_penalty", "delayed_policy", "fixed_point"}
"""Programs of which the jaxprs hold work that lowering leaves out, or loops of unknown length."""
INFERRED_PHASES = UNCOUNTED | {"epochs_of_mini_batches", "preconditioners", "evolution"}
"""Programs of which text without scopes does not tell all phases."""
ALIKE = {"long_convolution": "batch is taken as data, though none of its dimensions has the 24 sam"}
"""What is said of inputs that are read as data, and are none."""
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
    return ALL[name]()


@cache
def graph(name, kind):
    """The graph from the proto, or from text without trace order: without scopes, or with few.

    JAX before 0.7 named ``jit(main)`` within the function, and scopes of differentiation only where
    they stand around a named function.
    """
    made = program(name)
    if kind == "proto":
        return from_jax(made.function, *made.args)
    text = made.lowered.as_text("hlo", debug_info=kind == "few scopes")
    text = re.sub(r'op_name="jit\((\w+)\)/', r'op_name="jit(\1)/jit(main)/', text)
    text = text.replace("/transpose(jvp())/", "/").replace("/jvp()/", "/")
    return read_module(parse(text, name), where=name)


def roles(name, kind):
    return [Role(role).name for role in graph(name, kind).parameter_role]


@programs
def test_programs__roles_and_batch_size(name):
    truth = list(zip(program(name).paths, program(name).roles, strict=True))
    said = " ".join(graph(name, "proto").notes)
    assert (roles_of(graph(name, "proto")) == truth) == (name not in ALIKE)
    assert {**BEHIND, **ALIKE}[name] in said if name in BEHIND | ALIKE else "taken as" not in said
    assert graph(name, "proto").batch_size == graph(name, "text").batch_size == SAMPLES


@programs
def test_programs__roles_from_text(name):
    assert (roles(name, "text") == program(name).roles) == (name not in INFERRED | ALIKE.keys())
    assert name in PROGRAMS or "roles rest on that" in " ".join(graph(name, "text").notes)


@programs
def test_programs__flops_of_phases(name):
    counted = phase_flops(graph(name, "proto"))
    assert (counted == program(name).flops) == (name not in UNCOUNTED)
    if name not in INFERRED_PHASES:
        assert phase_flops(graph(name, "text")) == program(name).flops


@pytest.mark.parametrize("name", slow(*PROGRAMS))
def test_programs__flops_of_phases_from_text_with_few_scopes(name):
    assert phase_flops(graph(name, "few scopes")) == program(name).flops


def in_update_scope(graph):
    """(I,) bool: the program wrote the instruction under ``named_scope("update")``."""
    names = [graph.strings[i] for i in graph.op_name]
    return np.array([re.search(r"(^|/)update(/|$)", name) is not None for name in names])


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs__update(name):
    """All that stands in the scope of the update is update; nothing else that costs is.

    Text without scopes has as many FLOPs in the update, up to a scaling of a gradient that the
    backward pass wrote and the update could have written.
    """
    made, text = graph(name, "proto"), graph(name, "text")
    inside, costs = in_update_scope(made), (made.flops > 0) & ~made.free
    found = costs & (made.phase == Phase.UPDATE)
    assert sorted(set(made.op_names(np.flatnonzero(found != (inside & costs))))) == []
    expected = made.flops[inside & (made.parent < 0) & ~made.free].sum()
    of_text = (text.phase == Phase.UPDATE) & (text.parent < 0) & ~text.free
    assert text.flops[of_text].sum() == pytest.approx(expected, rel=0.005)
