"""Names of parameters and glob patterns."""

from parenvs.graph.roles import match_paths, parse_names


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


def test_roles__match_paths():
    paths = ["encoder/layer_0/q", "encoder/layer_1/q", "embedding"]
    assert match_paths(paths, ["encoder/*", "x"]) == [True, True, False]
    assert match_paths(paths, ["*_1/?", "embed*"]) == [False, True, True]
    assert match_paths(paths, ["ENCODER/*"]) == [False] * 3
