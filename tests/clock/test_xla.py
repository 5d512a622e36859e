"""JAX by the clock: layers by named scope, plans on virtual devices, calibrations."""

import json
import multiprocessing

import pytest
from commands import caller

from parenvs import load_profile
from parenvs.clock.calibrate import calibrated
from parenvs.clock.calibration import Calibration
from parenvs.cluster import COLLECTIVES
from parenvs.errors import ProfileError

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

from parenvs.clock.xla import measured_scopes  # noqa: E402

pytestmark = pytest.mark.thorough

BATCH = 4
STEP = """
import jax
import jax.numpy as jnp
import numpy as np
def loss(params, x):
    for k, weight in enumerate(params):
        with jax.named_scope(f"layer_{k}"):
            x = jnp.tanh(x @ weight)
    return jnp.mean(x ** 2)
def step(params, x):
    value, gradients = jax.value_and_grad(loss)(params, x)
    return [p - 0.1 * g for p, g in zip(params, gradients)], value
def arguments():
    return [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 2, np.ones((4, 8), np.float32)
def wide():
    return [jax.ShapeDtypeStruct((8, 9), jnp.float32)] * 2, np.ones((4, 8), np.float32)
def longer():
    return [jax.ShapeDtypeStruct((8, 8), jnp.float32)] * 3, np.ones((4, 8), np.float32)
def plain(x):
    return jnp.sum(x)
"""


def skipping(weights, x):
    """Layers of 5 and 6 features; the first one's output is read by the last, too."""
    with jax.named_scope("net"):
        with jax.named_scope("one"):
            a = jax.jit(lambda w, x: jnp.sin(x @ w))(weights["one"], x)
        with jax.named_scope("two"):
            b = jnp.sin(a @ weights["two"])
        scale = 2 * b  # in no scope of its own
        with jax.named_scope("one"):
            return jnp.sum(a) + jnp.sum(scale) + jnp.sum(weights["one"])


def test_measured_scopes__bytes_by_hand():
    weights = {"one": jnp.ones((3, 5)), "two": jnp.ones((5, 6))}
    found = measured_scopes(skipping, (weights, jnp.ones((BATCH, 3))), repeats=2, warm_up=0)
    chain = found.profile
    assert list(chain.names) == ["one", "two", "one#2"]
    a, b = 4 * BATCH * 5, 4 * BATCH * 6
    assert chain.cut_bytes.tolist() == [a, a + b, 4]
    assert chain.parameter_bytes.tolist() == [4 * 15, 4 * 30, 0]
    # inputs of the products, and what sin's gradient needs; the weights are none of it
    assert chain.resident_bytes.tolist() == [4 * BATCH * 3 + a, a + b, 0]
    assert found.samples == BATCH and found.forward[0].repeats == 2
    assert (chain.forward > 0).all() and all(x.seconds > 0 for x in found.whole)


def test_measured_scopes__refuses():
    with pytest.raises(ProfileError, match="0 named scopes, and a chain needs at least two"):
        measured_scopes(lambda w: jnp.sum(w), (jnp.ones(3),))
    with pytest.raises(ProfileError, match="it fails on its arguments"):
        measured_scopes(lambda w, x: w @ x, (jnp.ones(3), jnp.ones(4)))


@pytest.mark.slow
def test_profile__command_writes_a_chain(monkeypatch, capfd, tmp_path):
    (tmp_path / "own_step.py").write_text(STEP)
    run = caller(monkeypatch, capfd, tmp_path, "profile")
    few = ("--repeats", 1, "--warm-up", 0, "--out", "own.csv")
    status, out, err = run("own_step.py:loss", "--args", "arguments", *few)
    assert status == 0, err
    assert "plan it with --micro-batch 4" in out
    chain = load_profile(str(tmp_path / "own.csv"), "A")
    assert list(chain.names) == ["layer_0", "layer_1"]
    assert chain.parameter_bytes.tolist() == [256, 256]
    for arguments, words in (
        (("own_step.py:loss",), "takes arguments: give --args"),
        (("own_step.py:loss", "--args", "wide"), "it fails on its arguments"),
        (("own_step.py:loss", "--args", "arguments", "--device", "cuda"), "--device cuda: 1 asked"),
    ):
        status, out, err = run(*arguments, *few)
        assert (status, out) == (2, "") and words in err and len(err.splitlines()) == 1, err


@pytest.mark.slow
def test_run__on_virtual_devices(monkeypatch, capfd, tmp_path):
    (tmp_path / "own_step.py").write_text(STEP)
    run = caller(monkeypatch, capfd, tmp_path)
    common = ("own_step.py:step", "--args", "arguments")
    task = ("--task", "partition", "--scope", "inputs", "--devices", 2, "--uneven", "forbid")
    status, _, err = run("plan", *common, *task, "--reward", "step_time", "--out", "p.json")
    assert status == 0, err
    status, out, err = run("run", "p.json", *common, "--repeats", 2, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found["agrees"] and found["losses"][0] > found["losses"][-1]
    reduced = found["traffic"]["all-reduce"]
    assert list(found["traffic"]) == ["all-reduce"] and reduced["agrees"]
    assert reduced["bytes"] >= 2 * 2 * 256  # of both devices, both gradients
    assert len(found["memory"]) == len(found["predicted_memory"]) == 2
    assert found["seconds"] is None and found["step"]["repeats"] == 2
    assert "2 arguments are shapes, and were given values" in found["notes"]
    for arguments, words in (
        (("own_step.py:step", "--args", "longer"), "of another model than the plan"),
        ((*common, "--processes", 4), "--processes 4: the plan is for 2"),
        ((*common, "--device", "cuda"), "--device cuda: 2 asked for, and JAX"),
    ):
        status, out, err = run("run", "p.json", *arguments)
        assert (status, out) == (2, "") and words in err and len(err.splitlines()) == 1, err


@pytest.mark.slow
def test_calibrated__virtual_devices_at_the_smallest_size(tmp_path):
    made = calibrated("cpu", 2, 2, [4096, 2**22], [("forward", 1, 8, 8, 8)], framework="jax")
    made.save(tmp_path / "m.json")
    assert Calibration.load(tmp_path / "m.json") == made
    assert made.cluster.devices == 2 and made.cluster.intra_bw > 0
    for kind in COLLECTIVES:
        assert [x.size for x in made.rows if x.kind == kind] == [(4096,), (2**22,)]
        assert all(x.group == 2 and x.timing.repeats == 2 for x in made.rows if x.kind == kind)
    assert {product[0] for product in made.cluster.measured.products} >= {"fp32", "bf16"}
    assert multiprocessing.active_children() == []
