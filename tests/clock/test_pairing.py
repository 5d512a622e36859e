"""Which output of a JAX step feeds which input, and which is the loss; what a run finds."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from commands import caller

from parenvs.clock.comparison import Run, States, change_error, nudged, relative_error
from parenvs.clock.members import Timing
from parenvs.errors import ParenvsError

jax = pytest.importorskip("jax", reason="extra jax")

import jax_steps  # noqa: E402

from parenvs import from_jax  # noqa: E402
from parenvs.clock.pairing import Pairing  # noqa: E402
from parenvs.graph.flow import Flow  # noqa: E402
from parenvs.graph.training import find_updates  # noqa: E402


def paired(function, arguments):
    graph = from_jax(function, *arguments)
    taken = {update.output: update.source for update in find_updates(Flow(graph))}
    return graph, Pairing.of(graph, taken, function, arguments, {})


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(jax_steps.STEPS))
def test_pairing__feeds_all_state_and_names_the_loss(name):
    function, arguments, feeds, loss = jax_steps.STEPS[name]
    graph, found = paired(function, arguments)
    assert found.feeds == feeds
    assert found.loss(graph) == loss and found.stale(graph) == []


@pytest.mark.thorough
def test_loss__is_refused_where_it_is_not_to_be_told():
    graph, found = paired(jax_steps.two_losses, jax_steps.STEPS["adam"][1])
    with pytest.raises(ParenvsError, match="2 outputs may be the loss: 2, 3; name it: --loss 2"):
        found.loss(graph)
    assert found.loss(graph, "3") == 11 and found.words(11) == "output 3"
    with pytest.raises(ParenvsError, match="--loss '4': no output that may be the loss"):
        found.loss(graph, "4")
    graph, found = paired(jax_steps.no_loss, jax_steps.STEPS["adam"][1])
    with pytest.raises(ParenvsError, match="returns no loss"):
        found.loss(graph)
    graph, found = paired(jax_steps.train_state, jax_steps.STEPS["train_state"][1])
    assert found.loss(graph, "1/twice") == 12 and found.words(11) == "output 1/loss"


def run(**changes):
    timing = Timing.of([1.0])
    given = Run("p", "w", 2, (2.0, 1.0), (2.0, 1.0), timing, timing, None, {}, (), (), 0.0)
    return replace(given, **changes)


def test_comparison__lets_nothing_pass_that_is_not_finite():
    assert relative_error(1.0, 1.0) == 0 and relative_error(1.1, 1.0) == pytest.approx(0.1)
    for bad in (math.nan, math.inf, -math.inf):
        assert (
            relative_error(bad, 1.0)
            == relative_error(1.0, bad)
            == relative_error(bad, bad)
            == math.inf
        )
        one, start = np.array([1.0, bad]), np.zeros(2)
        assert change_error(one, one, start) == math.inf
        assert not run(losses=(2.0, bad)).agrees and not run(single=(2.0, bad)).agrees
        assert "step 1: nothing can be compared" in run(losses=(2.0, bad)).faults[0]
        both = run(losses=(bad, 1.0), single=(bad, 1.0))
        assert not both.agrees and "on one device" in both.faults[0]
        assert json.loads(json.dumps(both.to_json(), allow_nan=False))["losses"][0] is None
    assert run().agrees and run().faults == ()
    assert not run(losses=(2.0,)).agrees and not run(losses=(), single=()).agrees
    assert "1.0e-02, and 0.001 is allowed" in run(losses=(2.0, 1.01)).faults[0]


def test_states__are_compared_by_their_change():
    start = {"w": np.ones(4), "n": np.zeros((), np.int32), "s": np.ones(3, np.float32)}
    wanted = {"w": np.full(4, 1.1), "n": np.int32(3), "s": np.ones(3, np.float32)}
    again = {"w": np.full(4, 1.1001), "n": np.int32(3), "s": np.ones(3, np.float32)}
    same = States.of(start, wanted, again, wanted)
    assert same.agrees and same.arrays == 3 and same.still == ("s",)
    assert "no step changes s" in same.text()
    for other, worst, difference in (
        ({"w": start["w"]}, "w", 1.0),  # its gradient was dropped
        ({"w": np.full(4, np.nan)}, "w", math.inf),
        ({"n": np.int32(2)}, "n", math.inf),
        ({"s": np.full(3, 2, np.float32)}, "s", 1e6),
    ):
        found = States.of(start, wanted, again, wanted | other)
        assert not found.agrees and found.worst == worst
        assert found.difference == pytest.approx(difference)
    missing = States.of(start, wanted, again, {"w": wanted["w"], "s": wanted["s"]})
    assert not missing.agrees and missing.worst == "n"
    noisy = States.of(start, wanted, again | {"w": start["w"]}, wanted | {"w": start["w"]})
    assert noisy.agrees and noisy.untold == 1  # rounding alone moves it as far
    moved = nudged(np.ones(100, np.float32), 0)
    assert moved.dtype == np.float32 and 0 < abs(moved - 1).max() < 1e-6


MODEL = """
from jax_steps import *
def arguments():
    return PARAMS, STATE, BATCH
"""


@pytest.mark.slow
def test_run__says_which_output_the_loss_is_and_refuses_what_is_not_finite(
    monkeypatch, capfd, tmp_path
):
    (tmp_path / "own_steps.py").write_text(MODEL)
    call = caller(monkeypatch, capfd, tmp_path)
    for name, status, words in (
        ("adam", 0, "losses (output 2) of 3 steps"),
        ("not_finite", 2, "the loss on one device is nan in step 0"),
        ("two_losses", 2, "2 outputs may be the loss: 2, 3; name it: --loss 2"),
    ):
        common = (f"own_steps.py:{name}", "--args", "arguments")
        task = ("--task", "partition", "--scope", "inputs", "--devices", 2)
        assert call("plan", *common, *task, "--out", "p.json")[0] == 0
        found, out, err = call("run", "p.json", *common, "--repeats", 2)
        assert found == status and words in out + err
        if name == "adam":
            assert "state after the last step: 10 arrays" in out and "no step changes" not in out
    status, out, err = call("run", "p.json", *common, "--repeats", 2, "--loss", "3")
    assert status == 0 and "losses (output 3)" in out
