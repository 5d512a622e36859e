"""The commands ``parenvs export`` and ``parenvs verify --compile``."""

import json
from dataclasses import replace

import pytest
from commands import caller

from parenvs import HybridPlan, HybridStage, TransformerShape
from parenvs.cluster import Cluster
from parenvs.exports import compilation
from parenvs.exports.compilation import Collectives, Compilation
from parenvs.exports.prediction import Prediction


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
    status, told, err = run("export", "plan.json", "--to", "deepspeed", "--out", "ds.json")
    assert status == 0 and told == "written to ds.json\n"
    assert "note: stages: DeepSpeed divides layers evenly; cuts moved by -1 layers" in err
    assert json.loads((tmp_path / "ds.json").read_text())["parts"] == [0, 5, 10]


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("jax", "stages: JAX's shardings have no pipeline"),
        ("torch", "small.json is a shape, which has no modules"),
        ("megatorn", "--to 'megatorn' is unknown (did you mean 'megatron'?)"),
    ],
)
def test_export__refuses_in_a_line(run, to, words):
    status, out, err = run("export", "plan.json", "--to", to)
    assert (status, out) == (2, "") and err.count("\n") == 1 and words in err


def test_verify__compile_tells_what_differs(run, monkeypatch):
    found = Compilation(
        "small", "hybrid", {"data": 2, "model": 4}, 10, (), {"all-reduce": Collectives(1, 3, 4e9)},
        1e9, 2e9, 1.0, Prediction(3, 4e9, 1e9, 1e9),
    )  # fmt: skip
    monkeypatch.setattr(compilation, "compile_plan", lambda plan, module: found)
    status, out, _ = run("verify", "plan.json", "--compile")
    assert status == 0 and "keeps 10 of 10 shardings" in out and "predicted 1.00 GB (0.50)" in out
    gathers = {**found.collectives, "all-gather": Collectives(2, 2, 1e9)}
    other = replace(found, changed=("q",), collectives=gathers)
    monkeypatch.setattr(compilation, "compile_plan", lambda plan, module: other)
    status, out, err = run("verify", "plan.json", "--compile")
    assert status == 2 and "Sharded otherwise: q." in out and "XLA shards it otherwise" in err
    assert "all-gather: 2 arrays of 1.00 GB, which the judge does not price." in out
    assert replace(other, changed=(), shares_states=True).agrees
    status, out, _ = run("verify", "plan.json", "--compile", "--json")
    assert status == 2 and json.loads(out)["changed"] == ["q"]
