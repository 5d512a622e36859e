"""Roles and phases: names of parameters, glob patterns, scopes of instructions."""

from parenvs.graph.roles import match_paths, parse_names, phases


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


def test_roles__phases_by_hand():
    """Tensor 0 feeds 1 (forward), 2 is its backward, 3 the update; 4 feeds only 2, 5 only 3."""
    scopes = ["x", "jvp(f)/a", "transpose(jvp(f))/a", "sub", "y", "z", "loop", "jvp(f)/inside"]
    operands = [[], [0], [1, 4], [2, 5], [], [], [2], []]
    results = [[0], [1], [2], [3], [4], [5], [6], [7]]
    order = [0, 4, 5, 1, 2, 3, 6, 7]
    phase = phases(
        [scopes[i] for i in order],
        [operands[i] for i in order],
        [results[i] for i in order],
        [-1] * 7 + [6],
        8,
    )
    expected = dict(zip(order, phase.tolist(), strict=True))
    assert expected == {0: 0, 4: 1, 5: 2, 1: 0, 2: 1, 3: 2, 6: 2, 7: 2}


def test_roles__match_paths():
    paths = ["encoder/layer_0/q", "encoder/layer_1/q", "embedding"]
    assert match_paths(paths, ["encoder/*", "x"]) == [True, True, False]
    assert match_paths(paths, ["*_1/?", "embed*"]) == [False, True, True]
    assert match_paths(paths, ["ENCODER/*"]) == [False] * 3
