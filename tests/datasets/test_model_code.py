"""The code of the models: small variants run, learn, and are read the same in both forms."""

import numpy as np
import pytest
from cases import slow

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from multimodal_models import MULTIMODAL  # noqa: E402
from small_models import SCANNED, SMALL, drawn, small  # noqa: E402

from parenvs import from_jax  # noqa: E402
from parenvs.cluster import DEVICES  # noqa: E402
from parenvs.datasets.models import MODELS, bert, forward, t5, train_step, vgg  # noqa: E402
from parenvs.datasets.models.language import mixture, two_experts  # noqa: E402
from parenvs.graph.graph import Role  # noqa: E402
from parenvs.tasks.partition.problem import Partitioning  # noqa: E402
from parenvs.tasks.pipeline.profile import StageProfile  # noqa: E402

pytestmark = pytest.mark.thorough


def test_models__every_family_has_a_small_variant():
    shipped = {**MODELS, **MULTIMODAL}
    assert {model.family for model in shipped.values()} - {"vgg", "t5", "bert"} == set(SMALL)
    assert {model.family for model in (vgg(), t5(), bert())} == {"vgg", "t5", "bert"}
    assert {model.family for name, model in MODELS.items() if "scanned" in name} <= set(SCANNED)


RUN = {"lstm": {"layers": 1}, "resnet": {"stages": ((8, 1),)}, "dlrm": {}}
"""Families of which a step is run, and sizes."""
FAST = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


@pytest.mark.slow
@pytest.mark.parametrize("family", RUN)
def test_models__a_step_updates_every_weight(family):
    """The loss is finite, each variable has a gradient, and weights stay float32."""
    model = small(family, **RUN[family])
    function, _ = train_step(model)
    args = drawn(model)
    *state, loss = jax.jit(function).lower(*args).compile(compiler_options=FAST)(*args)
    assert np.isfinite(loss)
    for path, old in jax.tree_util.tree_leaves_with_path(args[0]):
        new = state[0]
        for key in path:
            new = new[key.key]
        assert new.dtype == old.dtype == jnp.float32
        assert np.isfinite(new).all(), path
        assert (new != old).any(), path


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mixtral"])
def test_models__scanned_and_unrolled_give_one_loss(family):
    """With the same weights."""
    one, other = small(family, layers=2), small(family, layers=2, scanned=True)
    params, _, batch = drawn(one)
    layers = list(params["decoder"].values())
    stacked = {**params, "decoder": jax.tree.map(lambda *x: jnp.stack(x), *layers)}
    losses = [
        jax.jit(forward(model)[0]).lower(*args).compile(compiler_options=FAST)(*args)
        for model, args in ((one, (params, batch)), (other, (stacked, batch)))
    ]
    assert float(losses[0]) == pytest.approx(float(losses[1]), rel=1e-2)


@pytest.mark.parametrize(
    "family", ["gpt", "mixer", *slow(*(x for x in SCANNED if x not in ("gpt", "mixer")))]
)
def test_models__scanned_and_unrolled_have_one_chain(family):
    profiles = []
    for scanned in (False, True):
        function, args = forward(small(family, scanned=scanned))
        graph = from_jax(function, *args)
        profiles.append(StageProfile.from_graph(graph, DEVICES["a100"], 4))
    unrolled, scanned = profiles
    assert len(unrolled) == len(scanned)
    np.testing.assert_allclose(np.sort(unrolled.forward), np.sort(scanned.forward))
    np.testing.assert_array_equal(
        unrolled.parameter_bytes[unrolled.parameter_bytes > 0],
        scanned.parameter_bytes[scanned.parameter_bytes > 0],
    )


@pytest.mark.slow
def test_models__chunks_attend_as_all_queries_at_once():
    from parenvs.datasets.models.blocks import attend, attend_in_chunks

    rng = np.random.default_rng(0)
    q = jnp.asarray(rng.normal(size=(2, 8, 2, 3, 4)), jnp.float32)
    k, v = (jnp.asarray(rng.normal(size=(2, 8, 2, 4)), jnp.float32) for _ in "kv")
    whole = attend(q, k, v, True)
    np.testing.assert_allclose(attend_in_chunks(q, k, v, 2), whole, rtol=1e-5)
    # The first token sees itself alone.
    first = jnp.broadcast_to(v[:, 0, :, None], whole[:, 0].shape)
    np.testing.assert_allclose(whole[:, 0], first, rtol=1e-5)


@pytest.mark.slow
def test_mixtral__two_experts():
    """A token goes to its two likeliest experts while there is room, first choices first."""
    gates = np.array([[[0.6, 0.3, 0.1], [0.5, 0.1, 0.4], [0.7, 0.2, 0.1]]], np.float32)
    dispatch, combine = (np.asarray(x)[0] for x in two_experts(jnp.asarray(gates), 2))
    expert_of = dispatch.sum(-1)  # (tokens, experts)
    # Expert 0 is the first choice of all three and takes two; each second choice has room.
    np.testing.assert_array_equal(expert_of, [[1, 1, 0], [1, 0, 1], [0, 1, 0]])
    assert dispatch.sum(0).max() == 1  # no place is taken twice
    np.testing.assert_allclose(combine.sum((1, 2)), [1, 1, 0.2 / 0.9], rtol=1e-5)


@pytest.mark.slow
def test_mixtral__a_mixture_is_the_sum_of_its_experts():
    """With room for all, each token gets its two experts' results by their weights."""
    rng = np.random.default_rng(1)
    sizes = {"router": (6, 4), "gate": (4, 6, 5), "up": (4, 6, 5), "down": (4, 5, 6)}
    weights = {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in sizes.items()}
    x = jnp.asarray(rng.normal(size=(2, 8, 6)), jnp.float32)
    gates = np.asarray(jax.nn.softmax(x @ weights["router"]))
    expected = np.zeros_like(gates[..., :1] * x)
    for e in range(4):
        rank = (gates > gates[..., e : e + 1]).sum(-1)
        best = np.sort(gates, -1)[..., -2:].sum(-1)
        share = np.where(rank < 2, gates[..., e] / best, 0.0)
        hidden = jax.nn.silu(x @ weights["gate"][e]) * (x @ weights["up"][e])
        expected += share[..., None] * np.asarray(hidden @ weights["down"][e])
    np.testing.assert_allclose(mixture(weights, x, 4, 5, 8, 8), expected, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_mixtral__experts_can_be_split():
    """The experts are a dimension of all three kernels and of the router, in one class."""
    function, args = train_step(small("mixtral", experts=8, scanned=True))
    graph = from_jax(function, *args)
    problem = Partitioning.build(graph, "1x8:a100")
    chosen = problem.chosen({"decoder/experts/gate": 1})
    assert problem.legal(chosen)
    split = problem.plan(chosen).partition
    experts = {"gate": 1, "up": 1, "down": 1, "router": 2}
    for key, dimension in experts.items():
        assert split[f"decoder/experts/{key}"] == dimension
    assert not any("attention" in path for path in split)


@pytest.mark.parametrize(
    "family",
    ["lstm", "dlrm", *(pytest.param(x, marks=pytest.mark.slow) for x in ("mixtral", "resnet"))],
)
def test_models__roles_of_both_variants(family):
    """The reader takes each input for what it is, also at sizes that coincide."""
    model = small(family)
    for make, first in ((forward, 1), (train_step, 2)):
        function, args = make(model)
        graph = from_jax(function, *args, parts=False)  # as the shipped graphs
        count = len(jax.tree.leaves(model.params))
        assert (graph.parameter_role[:count] == Role.VARIABLE).all()
        assert Role.VARIABLE not in graph.parameter_role[count:].tolist()
        batch = len(model.batch)
        assert (graph.parameter_role[-batch:] == Role.BATCH).all()
        assert graph.batch_size == 4
        assert len(args) >= first + 1
