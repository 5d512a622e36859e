"""The commands ``parenvs export`` and ``parenvs verify --compile``."""

import json
import re

import pytest
from commands import caller

from parenvs import HybridPlan, HybridStage, TransformerShape
from parenvs.cluster import Cluster


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """``run("export", ...)`` in a folder with a plan of two uneven stages, plan.json."""
    content = {"name": "small", "layers": 10, "hidden": 64, "heads": 8, "sequence": 32}
    content["vocabulary"] = 128
    (tmp_path / "small.json").write_text(json.dumps(content))
    stages = tuple(HybridStage((part,), 4, tp=2) for part in ((0, 6), (6, 10)))
    plan = HybridPlan(
        "small.json", TransformerShape(**content).fingerprint, Cluster.parse("1x8:a100"),
        "megatron-2022", "bf16", batch=32, micro_batch=2, stages=stages,
    )  # fmt: skip
    plan.save(tmp_path / "plan.json")
    return caller(monkeypatch, capfd, tmp_path)


def test_export__prints_or_writes(run, tmp_path):
    status, out, err = run("export", "plan.json", "--to", "megatron")
    assert status == 0 and not err
    assert "--decoder-first-pipeline-num-layers 6" in out and out.startswith("# Megatron-LM")
    given = ("export", "plan.json", "--to", "deepspeed", "--out", "ds.json")
    status, out, err = run(*given)
    assert (status, out) == (2, "") and not (tmp_path / "ds.json").exists()
    assert re.search(r"as deepspeed runs it, a step takes \d+\.\d% longer; plan with --for", err)
    status, told, err = run(*given, "--lossy")
    assert status == 0 and told == "written to ds.json\n"
    assert "note: stages: DeepSpeed divides layers evenly; cuts moved by -1 layers" in err
    assert json.loads((tmp_path / "ds.json").read_text())["parts"] == [0, 5, 10]


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("jax", "stages: JAX's shardings have no pipeline"),
        ("torch", "small.json is a shape, which has no modules"),
        ("megatorn", "--to: no framework 'megatorn' (did you mean 'megatron'?)"),
    ],
)
def test_export__refuses_in_a_line(run, to, words):
    status, out, err = run("export", "plan.json", "--to", to)
    assert (status, out) == (2, "") and err.count("\n") == 1 and words in err


SOURCE = """
import jax
import jax.numpy as jnp
from jax.export import symbolic_shape

def step(params, batch):
    def loss(params):
        scores = jnp.einsum("btw,whd->bthd", batch, params["q"])
        return jnp.mean(jnp.square(jnp.einsum("bthd,hdw->btw", scores, params["out"])))
    value, gradients = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients), value

def shape(*sizes):
    return jax.ShapeDtypeStruct(sizes, jnp.float32)

def heads():
    return {"q": shape(16, 12, 3), "out": shape(12, 3, 16)}, shape(8, 4, 16)

"""
EIGHT = ("--task", "partition", "--devices", "8", "--reward", "paper")


@pytest.fixture
def script(run, tmp_path):
    """A file of functions beside the plan."""
    pytest.importorskip("jax")
    (tmp_path / "steps.py").write_text(SOURCE)
    return run


def test_export__twelve_heads_on_eight_devices(script):
    """A plan that pads is refused by name; the option that the line gives makes one that runs."""
    plan = ("plan", "steps.py:step", "--args", "heads", *EIGHT, "--out", "heads.json")
    assert script(*plan)[0] == 0
    for to, name in (("jax", "JAX"), ("torch", "PyTorch")):
        status, out, err = script("export", "heads.json", "--to", to)
        assert (status, out) == (2, "") and err.count("\n") == 1
        assert err.startswith(f"parenvs: {name} splits evenly only, and the plan splits dimension ")
        assert "of q, f32[16,12,3], by 8" in err
        assert err.endswith("; make the plan with --uneven forbid\n")
    assert script(*plan, "--uneven", "forbid")[0] == 0
    status, out, err = script("export", "heads.json", "--to", "jax")
    specs = {x["path"]: x["spec"] for x in json.loads(out)["inputs"]}
    assert status == 0 and not err and any(specs["q"])
    for path, spec in specs.items():  # none of the twelve heads is split
        assert spec[{"q": 1, "out": 0}.get(path, 1)] is None
