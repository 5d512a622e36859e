"""Names of parameters and glob patterns."""

import pytest
from cases import each

from parenvs import from_jax
from parenvs.graph.graph import Role
from parenvs.graph.roles import find_twins, match_paths, parse_names


def test_roles__parameter_names():
    arguments, paths = parse_names(
        [
            "params['a']['b/c']",
            "params['a'][0]",
            "state.mu['x']",
            "state[1].nu",
            "batch",
            'k["q\'"]',
        ]
    )
    assert arguments == [0, 0, 1, 1, 2, 3]
    assert paths == ["a/b/c", "a/0", "mu/x", "1/nu", "batch", "q'"]


def test_roles__paths_that_arguments_have_in_common_begin_with_the_argument():
    """Those of weights and data; moments of a weight's path leave it as it is."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def step(params, target, batch):
        def loss(params):
            return jnp.square(batch["x"] @ params["w"] - batch["x"] @ target["w"]).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

    def with_momentum(params, momentum, batch):
        gradients = jax.grad(lambda p: jnp.square(batch["x"] @ p["w"]).mean())(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradients)
        return jax.tree.map(lambda p, m: p - 0.1 * m, params, momentum), momentum

    weights = {"w": jax.ShapeDtypeStruct((16, 4), jnp.float32)}
    args = weights, weights, {"x": jax.ShapeDtypeStruct((32, 16), jnp.float32)}
    graph = from_jax(step, *args, frozen="target/*")
    assert graph.paths == ["params/w", "target/w", "x"]
    assert from_jax(with_momentum, *args).paths == ["w", "w", "x"]


def test_roles__match_paths():
    paths = ["encoder/layer_0/q", "encoder/layer_1/q", "embedding"]
    assert match_paths(paths, ["encoder/*", "x"]) == [True, True, False]
    assert match_paths(paths, ["*_1/?", "embed*"]) == [False, True, True]
    assert match_paths(paths, ["ENCODER/*"]) == [False] * 3


def roles_of(function, *args):
    graph = from_jax(function, *args)
    return {p: Role(r).name for p, r in zip(graph.paths, graph.parameter_role, strict=True)}, graph


def test_roles__a_path_tells_weights_that_are_not_updated_one_for_one():
    """Weights that are made orthogonal after each step, and a projection that is not trained."""
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def step(fixed, params, x):
        def loss(params):
            return jnp.square(jnp.tanh(x @ fixed["p"]) @ params["w"]).mean()

        value, gradients = jax.value_and_grad(loss)(params)
        return value, {"w": jnp.linalg.qr(params["w"] - 0.1 * gradients["w"])[0]}

    weights = jax.ShapeDtypeStruct((16, 16), jnp.float32)
    args = {"p": weights}, {"w": weights}, jax.ShapeDtypeStruct((32, 16), jnp.float32)
    assert roles_of(step, *args)[0] == {"p": "FROZEN", "w": "VARIABLE", "x": "BATCH"}


def test_roles__a_mask_of_positions_is_warned_of_and_may_be_called_frozen():
    jax = pytest.importorskip("jax")
    jnp = jax.numpy

    def step(weights, x, mask):
        def loss(weights):
            scores = jnp.where(mask, (x @ weights) @ x.mT, -1e9)
            return jnp.mean((jax.nn.softmax(scores) @ x) ** 2)

        value, gradient = jax.value_and_grad(loss)(weights)
        return weights - gradient, value

    shapes = jnp.zeros((8, 8)), jnp.zeros((24, 12, 8)), jnp.zeros((12, 12), bool)
    with pytest.warns(UserWarning, match="mask is taken as data, though none of its dimensions"):
        graph = from_jax(step, *shapes)
    assert [Role(role).name for role in graph.parameter_role] == ["VARIABLE", "BATCH", "BATCH"]
    graph = from_jax(step, *shapes, frozen="mask")
    assert [Role(role).name for role in graph.parameter_role] == ["VARIABLE", "BATCH", "FROZEN"]
    assert not graph.notes


STATE = ["state['step']", "state['params']['w']", "state['m']['w']", "batch['x']"]
TWINS = {
    "a train state": (STATE, ["[0]['step']", "[0]['params']['w']", "[0]['m']['w']", "[1]"],
                      [(0, 0), (1, 1), (2, 2)]),
    "a dictionary by the names of arguments": (
        ["params['w']", "moments['w']", "x"],
        ["['moments']['w']", "['params']['w']", "['loss']"],
        [(0, 1), (1, 0)],
    ),
    "moments below a field": (
        ["params['w']", "opt_state[0].mu['w']", "opt_state[0].nu['w']"],
        ["[0]['w']", "[1][0].mu['w']", "[1][0].nu['w']"],
        [(0, 0), (1, 1), (2, 2)],
    ),
    "two trees alike, which say nothing": (
        ["online['w']", "target['w']"], ["[0]['w']", "[1]['w']"], [],
    ),
    "positions alone, which say nothing": (["w", "b"], ["[0]", "[1]"], []),
}  # fmt: skip


@each("case", TWINS)
def test_twins__pairs(case):
    inputs, outputs, pairs = TWINS[case]
    alike = [0] * len(inputs), [0] * len(outputs)
    assert find_twins(inputs, outputs, alike) == pairs


def test_twins__arrays_of_a_pair_are_alike():
    assert find_twins(["p['w']"], ["[0]['w']"], (["f32[3]"], ["f32[4]"])) == []
    assert find_twins(["p['w']"], ["[0]['w']"], (["f32[3]"], ["f32[3]"])) == [(0, 0)]
