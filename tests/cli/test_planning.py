"""``parenvs plan`` and its neighbors as a new user meets them: an own function, no options."""

import json
import re
import shlex
import subprocess
import sys
import warnings
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import toys
from cases import slow
from commands import good

from parenvs import Graph, judge, load_graph, load_plan
from parenvs.agents.pipeline.planners import PipelineRequest
from parenvs.cluster import Cluster
from parenvs.core.registry import TASKS
from parenvs.exports import formats
from parenvs.instances import names

ROOT = Path(__file__).parents[2]
SCRIPT = """
import jax
import jax.numpy as jnp

def init(key):
    keys = jax.random.split(key, 6)
    return {f"layer_{i}": {"kernel": jax.random.normal(k, (512, 512))} for i, k in enumerate(keys)}

def loss(params, batch):
    x = batch["x"]
    for layer in params.values():
        x = jnp.tanh(x @ layer["kernel"])
    return ((x - batch["y"]) ** 2).mean()

def train_step(params, batch):
    value, grads = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value

def example_args():
    return init(jax.random.key(0)), {"x": jnp.zeros((8, 512)), "y": jnp.zeros((8, 512))}
"""


@pytest.fixture
def function(run):
    """Arguments that name a function of a script in the current folder."""
    pytest.importorskip("jax")
    Path("my_model.py").write_text(SCRIPT)
    yield ["my_model.py:train_step", "--args", "my_model.py:example_args"]
    sys.modules.pop("my_model", None)


def program(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "parenvs", *map(str, arguments)],
        cwd=folder, env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "Traceback" not in done.stderr
    return done


@pytest.mark.slow
def test_planning__a_function_as_a_program(tmp_path):
    """The first command of a new user, and the next ones that it prints."""
    pytest.importorskip("jax")
    (tmp_path / "my_model.py").write_text(SCRIPT)
    first = ["plan", "my_model.py:train_step", "--args", "my_model.py:example_args"]
    done = program(
        tmp_path, *first, "--cluster", "2x8:a100", "--out", "plan.json", "--plot", "p.png"
    )
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    assert lines[0].startswith("lowering my_model.py:train_step ... ")
    assert lines[1].startswith("reading my_model.py:train_step ... ")
    assert "instructions" in lines[1]
    assert any("the graph's batch is 8; a step is taken as 16 micro-batches" in x for x in lines)
    assert {p.name for p in tmp_path.iterdir()} >= {"plan.json", "plan.npz", "plan.pb", "p.png"}
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content["instance"] == "plan.npz"
    *_, last = done.stdout.splitlines()
    assert last == "next: parenvs judge plan.json"
    (tmp_path / "my_model.py").unlink()  # judging needs the files beside the plan only
    judged = program(tmp_path, *shlex.split(last)[2:])
    assert (judged.returncode, judged.stderr) == (0, "")


def test_planning__what_is_kept_of_a_function(run, function):
    good(run("plan", *function, "--cluster", "A", "--out", "deep/plan.json"))
    plan = load_plan("deep/plan.json")
    assert plan.instance == "deep/plan.npz"
    assert judge(plan).legal
    graph = load_graph("my_model.py:train_step", arguments="example_args")
    assert plan.fingerprint == graph.fingerprint == Graph.load("deep/plan.npz").fingerprint
    good(run("diff", "deep/plan.json", "deep/plan.json"))
    good(
        run(
            "judge", "deep/plan.json", "--instance", "my_model:train_step", "--args", "example_args"
        )
    )


@pytest.mark.thorough
def test_planning__a_partition_of_a_function(run, function):
    out = good(run("plan", *function, "--task", "partition", "-v", "--out", "split.json"))
    assert out.splitlines()[-1] == "next: parenvs explain split.json; parenvs verify split.json"
    assert "return" in out and "step_time" in out
    Path("my_model.py").unlink()
    assert "layer_0" in good(run("explain", "split.json"))
    assert "Shardy agrees" in good(run("verify", "split.json"))
    Path("split.pb").unlink()
    status, _, err = run("verify", "split.json")
    assert status == 2 and "holds arrays only" in err


def test_planning__without_out_the_next_command_writes(run, function):
    out = good(run("plan", *function, "--cluster", "1x4:v100"))
    last = out.splitlines()[-1]
    assert last.endswith("--cluster 1x4:v100 --out plan.json")
    good(run(*shlex.split(last)[2:]))
    assert Path("plan.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["my_model.py:train_step"], "give --args NAME"),
        (["my_model.py:trainstep", "--args", "example_args"], "did you mean 'train_step'?"),
        (["my_model.py:loss", "--args", "init"], "TypeError"),
        (["none.py:loss", "--args", "init"], "no file 'none.py'"),
        (["vgg-19", "--args", "example_args"], "is no function, so it takes no arguments"),
    ],
)
def test_planning__functions_that_fail(run, function, arguments, words):
    status, _, err = run("plan", *arguments, "--out", "plan.json")
    assert status == 2
    assert err.count("\n") == 1 and err.startswith("parenvs: ")
    assert words in err
    assert not Path("plan.json").exists()


# How parameters are read.


@pytest.mark.parametrize("task", ["partition", *slow("pipeline")])
def test_planning__a_shipped_model_read_anew(run, task):
    how = ["--frozen", "block1*", "--frozen", "block2*"]
    good(run("plan", "vgg-19", "--task", task, *how, "--out", "plan.json"))
    plan, graph = load_plan("plan.json"), Graph.load("plan.npz")
    assert plan.instance == "plan.npz"
    kind = "forward" if task == "pipeline" else "train"
    plain = load_graph("vgg-19", kind)
    assert plan.fingerprint == graph.fingerprint != plain.fingerprint
    assert 0 < len(graph.variables) < len(plain.variables)
    assert judge(plan).legal
    good(run("judge", "plan.json"))
    good(run("judge", "plan.json", "--instance", "vgg-19", *how))


def test_planning__the_kept_graph_spares_the_one_it_was_read_from(run):
    load_graph("vgg-19", "forward").save("mine.npz")
    before = Path("mine.npz").read_bytes()
    status, _, err = run("plan", "mine.npz", "--frozen", "block1*", "--out", "mine.json")
    assert status == 2 and "would overwrite mine.npz" in err
    assert Path("mine.npz").read_bytes() == before
    assert not Path("mine.json").exists()


def test_planning__what_was_assumed_is_noted_once(run):
    """Text without scopes: the reader warns, and the graph keeps a note."""
    pytest.importorskip("jax")
    from programs import PROGRAMS

    Path("step.txt").write_text(PROGRAMS["train_state"]().lowered.as_text("hlo"))
    status, _, err = run("show", "step.txt", "--cluster", "1x2:v100")
    assert status == 0 and err.count("its phases follow from its data flow") == 1
    status, out, _ = run("plan", "step.txt", "--cluster", "1x2:v100", "--json")
    assert status == 0 and "its phases follow from its data flow" in json.loads(out)["notes"][0]


# Stages, devices and rewards that are not given.


def test_planning__chooses_stages_and_devices(run, tmp_path):
    profile = toys.chain([1.0] * 6, [1.0] * 6, [50.0] * 6, [100.0] * 6)
    profile.to_csv("mine.csv")
    cluster = Cluster.parse(toys.shape(4, 2, 1000.0, 1.0))
    Path("cluster.json").write_text(json.dumps(cluster.to_json()))
    command = ["plan", "mine.csv", "--cluster", "cluster.json", "-v"]
    with pytest.MonkeyPatch.context() as patch:  # choosing the shape has found the plan
        patch.setattr(PipelineRequest, "run", lambda *_: pytest.fail("planned a second time"))
        out = good(run(*command, "--out", "plan.json"))
    plan = load_plan("plan.json")
    assert plan.cluster == cluster.part(2)
    assert "uses 2 of 8 devices: more are slower (" in out
    rows = [line.split("│")[1:3] for line in out.splitlines() if line.startswith("│")]
    assert [row[0].split()[0] for row in rows[-4:]] == ["8", "6", "4", "2"]
    assert judge(plan).legal
    content = json.loads(good(run(*command, "--json")))
    assert [x["devices"] for x in content["tried"]] == [8, 6, 4, 2]
    # Given stages, all devices are used, as ever; given devices, their stages are chosen.
    good(run(*command, "--stages", 2, "--out", "plan.json"))
    assert load_plan("plan.json").cluster == cluster
    out = good(run(*command, "--devices-used", 4, "--out", "plan.json"))
    assert load_plan("plan.json").cluster == cluster.part(4)
    assert "uses 4 of 8" not in out
    status, _, err = run(*command, "--devices-used", 3)
    assert status == 2 and "3 devices are no part of cluster" in err
    status, _, err = run("plan", "vgg-19", "--task", "partition", "--devices-used", 4)
    assert status == 2 and "--devices-used is not an option of --task partition" in err


# Notes.


def test_planning__warnings_are_notes(run, monkeypatch):
    def from_hlo(path, **options):
        for _ in range(2):
            warnings.warn("the trip count of x\nis not known", stacklevel=2)
        warnings.warn("another", stacklevel=2)
        notes = ("another", "argument 0 holds the variables")
        return replace(load_graph("vgg-19", "forward"), notes=notes)

    Path("m.txt").write_text("x")
    monkeypatch.setattr("parenvs.graph.sources.from_hlo", from_hlo)
    status, _, err = run("plan", "m.txt", "--cluster", "A")
    assert status == 0
    assert [line for line in err.splitlines() if "..." not in line] == [
        "parenvs: note: the trip count of x is not known",
        "parenvs: note: another",
        "parenvs: note: argument 0 holds the variables",
    ]


@pytest.mark.thorough
def test_planning__training_keeps_the_graph_of_a_run(run, function):
    """A refused command writes nothing, and a run goes on with the graph that it began with."""
    pytest.importorskip("sb3_contrib")
    task = ("--task", "partition", "--scope", "inputs")
    train = ["train", *function, *task, "--steps", 64, "--out", "run"]
    good(run(*train))
    graph = Path("run/graph.npz")
    before = graph.read_bytes()
    script = Path("my_model.py")
    script.write_text(SCRIPT.replace("512", "1024"))
    sys.modules.pop("my_model", None)
    status, _, err = run(*train)
    assert status == 2 and "holds a run already" in err
    assert graph.read_bytes() == before
    status, _, err = run(*train, "--resume")
    assert status == 2 and "run: holds a run on another graph than my_model.py:train_step" in err
    assert graph.read_bytes() == before
    script.write_text(SCRIPT)
    sys.modules.pop("my_model", None)
    good(run(*train, "--resume"))


UNUSED = {  # task -> a small instance, and a value of each option that some planner ignores
    "pipeline": ("vgg-19 --cluster B --stages 2", "--seconds 1 --radius 2 --candidates all"),
    "partition": ("vgg-19 --devices 2", "--seconds 1"),
    "hybrid": (
        "bert-large --cluster 1x4:v100 --batch 16",
        "--seconds 1 --stages 2 --pin 0-3 --for megatron --robust --objective money --tp 2 "
        "--zero 1 --context 1 --shard 0 --expert 1 --expert-tp 0 --schedule 1f1b --chunks 1 "
        "--recompute full --dp 2 --idle --micro-batch 1 --most-micro-batch 2 --devices-used 4",
    ),
    "sharding": ("intra-op-validation/mesh-000", "--seconds 1 --rounds 1 --threads 2"),
    "elastic": ("elastic-validation/independent-gpt-1.5b-000", ""),
}


@pytest.mark.thorough
@pytest.mark.parametrize("task", UNUSED)
def test_planning__options_that_do_nothing_are_refused(run, monkeypatch, task):
    """By all planners of all tasks, before anything is planned; others come to the planner."""
    instance, options = UNUSED[task]
    kind = TASKS[task].request_class()
    monkeypatch.setattr(kind, "run", lambda *_: pytest.fail("planned"))
    groups = re.findall(r"--\S+(?: [^-]\S*)?", f"{options} --seed 1 --steps 9")
    assert {group.split()[0][2:] for group in groups} >= set(kind.users) - {
        "uneven", "stage-devices", "sequence-parallel"
    }  # fmt: skip
    for group, agent in product(groups, kind.planners):
        flag = group.split()[0][2:]
        if agent in kind.users.get(flag, [agent]):
            continue
        command = f"plan {instance} --task {task} --agent {agent} {group}"
        status, out, err = run(*command.split())
        assert (status, out) == (2, "") and err.count("\n") <= 2, command
        assert f"--{flag}: {agent} ignores it; " in err, (command, err)


def test_planning__an_exporter_that_fails_is_a_line(run, monkeypatch):
    monkeypatch.setitem(formats.FORMATS, "megatron", lambda *_: [][0])
    case = ("plan", "bert-large", "--task", "hybrid", "--cluster", "1x4:v100", "--batch", 16)
    out = good(run(*case, "--agent", "uniform", "--out", "plan.json"))
    assert "megatron (exporter)" in out and judge("plan.json").legal


@pytest.mark.parametrize("name", [name for name in names() if name.endswith("-scanned")])
def test_planning__greedy_partitions_of_scanned_graphs(run, name):
    command = ("plan", name, "--task", "partition", "--devices", 4, "--agent", "greedy")
    assert "variable dimensions partitioned" in good(run(*command))
