"""Weights of JAX functions that are several in one, taken apart."""

import warnings

import numpy as np
import pytest

jax = pytest.importorskip("jax", reason="extra jax")
import jax.numpy as jnp  # noqa: E402
from cases import each  # noqa: E402
from fused_programs import (  # noqa: E402
    FORMS,
    HIDDEN,
    dynamic,
    grouped,
    reshaped,
    split,
    step_of,
    unstacked,
)
from hard_programs import HARD_PROGRAMS  # noqa: E402
from programs import PROGRAMS, phase_flops  # noqa: E402

import parenvs  # noqa: E402
from parenvs import from_jax, in_parts, problem  # noqa: E402
from parenvs.errors import InfeasibleError  # noqa: E402
from parenvs.graph.graph import Role  # noqa: E402

pytestmark = pytest.mark.thorough


def drawn(args, seed=0):
    """Values for abstract arguments; positive, as second moments are."""
    rng = np.random.default_rng(seed)

    def value(leaf):
        if jnp.issubdtype(leaf.dtype, jnp.floating):
            return jnp.asarray(np.abs(rng.normal(size=leaf.shape)) * 0.1, leaf.dtype)
        return jnp.asarray(rng.integers(0, 5, leaf.shape), leaf.dtype)

    return jax.tree.map(value, args)


def cut(whole, like):
    """The parts of an array that a dictionary of parts asks for."""
    if not isinstance(like, dict):
        return whole
    shapes = [part.shape for part in like.values()]
    axis = next(d for d in range(whole.ndim) if sum(s[d] for s in shapes) == whole.shape[d])
    places = {name: slice(*map(int, name.split(":"))) for name in like}
    return {name: whole[(slice(None),) * axis + (place,)] for name, place in places.items()}


def same_values(function, args, rtol=1e-5):
    """Whether a function and the one in parts give the same, and the paths in parts."""
    parted, abstract = in_parts(function, *args)
    given, tree = drawn(args), jax.tree.structure(args)
    pieces = map(cut, tree.flatten_up_to(given), tree.flatten_up_to(abstract))
    expected, found = jax.jit(function)(*given), jax.jit(parted)(*tree.unflatten(pieces))
    results = jax.tree.structure(expected)
    for whole, part in zip(
        results.flatten_up_to(expected), results.flatten_up_to(found), strict=True
    ):
        for one, other in zip(
            jax.tree.leaves(cut(whole, part)), jax.tree.leaves(part), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * float(abs(one).mean()))
    return [path for path in from_jax(parted, *abstract).paths if ":" in path]


def test_in_parts__attention_and_network_of_a_parallel_block_are_split():
    """The expert's plan splits queries by heads, the gated network, and what reads them."""
    program = HARD_PROGRAMS["parallel_block"]()
    with pytest.warns(UserWarning, match="layers/0/fused and 3 more hold several weights in one"):
        graph = from_jax(program.function, *program.args)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        whole = from_jax(program.function, *program.args, parts=False)
        function, args = in_parts(program.function, *program.args)
        assert from_jax(function, *args).fingerprint == graph.fingerprint
    assert phase_flops(graph) == program.flops
    roles = {p: Role(r).name for p, r in zip(graph.paths, graph.parameter_role, strict=True)}
    assert roles["layers/1/fused/048:112"] == "VARIABLE"
    assert roles["mu/layers/1/fused/048:112"] == "OPTIMIZER"
    options = {"task": "partition", "devices": 4, "rules": "shardy"}
    plan = parenvs.plan(problem(graph, **options), "expert").plan.partition
    for layer in ("layers/0", "layers/1"):
        split = {path: plan[path] for path in plan if path.startswith(f"{layer}/")}
        assert split == {
            f"{layer}/attention": 0,
            f"{layer}/bias/000:032": 0,
            f"{layer}/bias/048:112": 0,
            f"{layer}/bias/112:176": 0,
            f"{layer}/down": 0,
            f"{layer}/fused/000:032": 1,
            f"{layer}/fused/048:112": 1,
            f"{layer}/fused/112:176": 1,
        }
    with pytest.raises(InfeasibleError, match="2 attention classes stay whole"):
        parenvs.plan(problem(whole, **options), "expert")


@pytest.mark.slow
def test_in_parts__weights_on_either_side_clipping_and_casts():
    """The weight comes first, and is cast; a bias is repeated; the gradient's norm is clipped."""

    def step(params, x):
        def loss(p):
            made = jnp.einsum("hd,bd->hb", p["w"].astype(jnp.bfloat16).astype(jnp.float32), x)
            one, two, three = jnp.split(made + p["b"][:, None], [4, 6], axis=0)
            return jnp.square(jnp.tanh(one).sum(0) * two.sum(0) - three.sum(0)).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        norm = jnp.sqrt(sum(jnp.sum(g * g) for g in jax.tree.leaves(gradients)))
        return jax.tree.map(
            lambda p, g: p - 0.1 * g / jnp.maximum(norm, 1), params, gradients
        ), value

    floats = jax.ShapeDtypeStruct
    params = {"w": floats((12, 5), jnp.float32), "b": floats((12,), jnp.float32)}
    paths = same_values(step, (params, floats((7, 5), jnp.float32)), rtol=1e-4)
    assert paths == [f"{name}/{part}" for name in "bw" for part in ("00:04", "04:06", "06:12")]


def test_in_parts__leaves_alone_what_is_not_several_in_one():
    """No split; one of the batch; one of positions; slices of a gradient, of what was joined."""
    plain = PROGRAMS["plain_sgd"]()
    assert in_parts(plain.function, *plain.args) == (plain.function, plain.args)
    for name in ("graph_network", "diffusion"):
        program = HARD_PROGRAMS[name]()
        assert in_parts(program.function, *program.args) == (program.function, program.args)

    def halves(params, x):
        left, right = jnp.split(x, 2, axis=-1)
        return jnp.square((left + right) @ params["w"]).mean()

    args = (
        {"w": jax.ShapeDtypeStruct((4, 8), jnp.float32)},
        jax.ShapeDtypeStruct((3, 8), jnp.float32),
    )
    assert in_parts(halves, *args)[1][0]["w"].shape == (4, 8)


def split_by_heads(form, loop=""):
    """The expert's plan for two devices, and what Megatron's is."""
    step, args = step_of(form, loop)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = from_jax(step, *args)
    plan = parenvs.plan(problem(graph, task="partition", devices=2, rules="shardy"), "expert").plan
    _, axis, sizes = FORMS[form]
    ahead = bool(loop)

    def named(path, axis, sizes):
        ends = [sum(sizes[: k + 1]) for k in range(len(sizes))]
        width = len(str(sum(sizes)))
        names = [
            f"{path}/{end - size:0{width}}:{end:0{width}}"
            for size, end in zip(sizes, ends, strict=True)
        ]
        return dict.fromkeys(names or [path], axis + ahead)

    megatron = {
        **named("fused", axis, sizes),
        **named("up", 1, (HIDDEN, HIDDEN)),
        "out": 0 + ahead,
        "down": 0 + ahead,
    }
    return {path: plan.partition.get(path) for path in megatron}, megatron


@pytest.mark.slow
@each("form", FORMS)
def test_from_jax__all_forms_have_a_plan_by_heads(form):
    for loop in ("", "scan"):
        found, megatron = split_by_heads(form, loop)
        assert found == megatron, loop


@pytest.mark.slow
@each(
    ("form", "loop"),
    [(split, "scan"), (grouped, "fori"), (reshaped, "scan"), (dynamic, ""), (unstacked, "")],
)
def test_in_parts__forms_give_the_same_step(form, loop):
    count = 2 * (len(FORMS[form][2]) + 2)
    assert len(same_values(*step_of(form, loop), rtol=5e-3)) == count


def test_from_jax__what_fails_in_parts_is_read_whole_and_says_so(monkeypatch):
    def fails(*_):
        raise ValueError("no parts")

    step, args = step_of(split)
    monkeypatch.setattr("parenvs.graph.parts.split_sizes", fails)
    with pytest.warns(UserWarning, match="several in one stay whole: no parts"):
        assert "fused" in from_jax(step, *args).paths


def test_from_jax__names_of_fused_weights_name_their_parts():
    step, args = step_of(split)
    with pytest.warns(UserWarning, match="fused and 1 more hold several weights"):
        graph = from_jax(step, *args, frozen="fused")
    roles = {p: Role(r).name for p, r in zip(graph.paths, graph.parameter_role, strict=True)}
    assert {roles[p] for p in roles if p.startswith("fused/")} == {"FROZEN"}
