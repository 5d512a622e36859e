"""Outputs and inputs of one path."""

from cases import each

from parenvs.graph.roles import find_twins

STATE = ["state['step']", "state['params']['w']", "state['m']['w']", "batch['x']"]
CASES = {
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


@each("case", CASES)
def test_twins__pairs(case):
    inputs, outputs, pairs = CASES[case]
    alike = [0] * len(inputs), [0] * len(outputs)
    assert find_twins(inputs, outputs, alike) == pairs


def test_twins__arrays_of_a_pair_are_alike():
    assert find_twins(["p['w']"], ["[0]['w']"], (["f32[3]"], ["f32[4]"])) == []
    assert find_twins(["p['w']"], ["[0]['w']"], (["f32[3]"], ["f32[3]"])) == [(0, 0)]
