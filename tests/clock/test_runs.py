"""Plans that run: what is predicted by hand and counted, refusals, kills."""

import json
from dataclasses import replace

import numpy as np
import pytest
from commands import caller

from parenvs import Cluster, Pipeline, StageProfile
from parenvs.clock.calibration import Calibration
from parenvs.clock.comparison import of_plan, on_machine
from parenvs.cluster import Device, Measured
from parenvs.errors import ParenvsError
from parenvs.exports.torch import torch_plan
from parenvs.machine import cores, processor

OLDER = "plans run on the tested PyTorch"
WIDTH, SAMPLES, MICRO_BATCHES = 6, 2, 3
MODEL = f"""
import torch
from torch import nn
def make():
    layers = [nn.Linear({WIDTH}, {WIDTH}), nn.Tanh(), nn.Linear({WIDTH}, {WIDTH})]
    return nn.Sequential(*layers), loss
def other():
    return nn.Sequential(nn.Linear({WIDTH}, 7), nn.Tanh(), nn.Linear(7, {WIDTH})), loss
def short():
    return nn.Sequential(nn.Linear({WIDTH}, {WIDTH})), loss
def loss(made, wanted):
    return ((made - wanted) ** 2).mean()
def batch():
    return torch.ones({SAMPLES}, {WIDTH}), torch.zeros({SAMPLES}, {WIDTH})
"""
LINEAR = 4 * (WIDTH * WIDTH + WIDTH)
BORDER = 4 * SAMPLES * WIDTH


@pytest.fixture
def chain():
    """The chain of the model, a second forward and two backward for each layer."""
    return StageProfile(
        "net", ["0", "1", "2"], [1.0, 1.0, 1.0], [2.0, 2.0, 2.0], [BORDER] * 3,
        [LINEAR, 0, LINEAR], [BORDER] * 3, micro_batch=SAMPLES,
    )  # fmt: skip


@pytest.fixture
def calibration():
    """Of this machine: 1000 bytes a second."""
    device = Device("cpu", 1.0, 1e9, 1.0)
    told = {"processor": processor(), "cores": cores()}
    cluster = Cluster(1, 2, device, intra_bw=1e3, inter_bw=1e3, measured=Measured("by hand"))
    return Calibration(cluster, told)


@pytest.fixture
def folder(tmp_path, chain, calibration):
    """A folder with the model, its chain, a plan of two stages and a calibration."""
    (tmp_path / "own_net.py").write_text(MODEL)
    chain.to_csv(tmp_path / "net.csv")
    calibration.save(tmp_path / "m.json")
    problem = Pipeline(
        chain, "1x2:v100", 2, micro_batches=MICRO_BATCHES, recompute="none", instance="net.csv"
    )
    problem.plan([2], [1]).save(tmp_path / "p.json")
    problem.plan([1], [1]).save(tmp_path / "q.json")
    return tmp_path


def test_of_plan__by_hand(monkeypatch, folder, calibration):
    from parenvs import load_plan

    monkeypatch.chdir(folder)
    found, expected = of_plan(load_plan("p.json"), None, calibration, "cpu")
    assert (found.pipe, found.data, found.cuts) == (2, 1, ("2",))
    assert (found.batch, found.micro_batches) == (SAMPLES * MICRO_BATCHES, MICRO_BATCHES)
    assert expected.traffic == {"send": 2 * MICRO_BATCHES * BORDER}
    link = BORDER / 1e3
    assert expected.seconds == pytest.approx(6 + (MICRO_BATCHES - 1) * 6)
    later = of_plan(load_plan("q.json"), None, calibration, "cpu")[1]
    assert later.seconds == pytest.approx(3 + 2 * link + 6 + (MICRO_BATCHES - 1) * 6)
    kept = (3 * 2 * BORDER, 1 * BORDER)  # three micro-batches in flight on the first stage
    assert expected.memory == pytest.approx([2 * LINEAR + x for x in kept])


def test_torch_plan__of_a_chain_replicas_and_refusals(chain):
    problem = Pipeline(chain, "1x4:v100", 2, micro_batches=2, recompute="none")
    found = torch_plan(problem.plan([2], [2]), chain)
    assert (found.pipe, found.data) == (2, 2)
    with pytest.raises(
        ParenvsError, match=r"micro_batch: stage \d+: \d+ samples are no whole number"
    ):
        torch_plan(problem.plan([2], [1]), chain)
    six = replace(chain, micro_batch=6)
    plan = Pipeline(six, "1x4:v100", 2, micro_batches=2, recompute="none").plan([2], [1])
    with pytest.raises(ParenvsError, match=r"stages\[1\].dp: PyTorch gives every stage the same"):
        torch_plan(plan, six)
    twice = replace(chain, names=np.array(["0", "1", "1#2"], dtype=object))
    plan = Pipeline(twice, "1x2:v100", 2, micro_batches=2, recompute="none").plan([2], [1])
    with pytest.raises(ParenvsError, match="1#2 is a layer's second run"):
        torch_plan(plan, twice)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({}, "cuda", "a calibration of cpu, and the plan runs on cuda"),
        ({"cores": 1000}, "cpu", "of another machine (cores 1000, here"),
        ({"processor": "Z80"}, "cpu", "of another machine (processor Z80, here"),
    ],
)
def test_on_machine__refuses_other_devices(change, kind, words, calibration, chain):
    plan = Pipeline(chain, "1x2:v100", 2, recompute="none").plan([1], [1])
    assert on_machine(calibration, plan, "cpu", "m.json").cluster == calibration.cluster
    other = replace(calibration, provenance=calibration.provenance | change)
    with pytest.raises(ParenvsError) as raised:
        on_machine(other, plan, kind, "m.json")
    assert words in str(raised.value) and "parenvs calibrate" in str(raised.value)


@pytest.mark.slow
def test_run__command_compares(monkeypatch, capfd, folder):
    pytest.importorskip("torch", "2.13", reason=OLDER)
    run = caller(monkeypatch, capfd, folder, "run")
    common = ("own_net.py:make", "--args", "batch", "--repeats", 2, "--calibration", "m.json")
    status, out, err = run("p.json", *common, "--processes", 2, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found["agrees"] and len(found["losses"]) == 3
    assert found["losses"] == pytest.approx(found["single"], rel=1e-6)
    assert found["losses"][0] > found["losses"][-1]
    size = 2 * MICRO_BATCHES * BORDER
    sends = {"operations": 2 * MICRO_BATCHES, "bytes": size, "predicted": size, "agrees": True}
    assert found["traffic"] == {"send": sends}
    assert found["step"]["repeats"] == 2 and found["seconds"] == 18
    assert all(x > 2 * LINEAR for x in found["memory"]) and len(found["memory"]) == 2


NAMED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(10, 6)
        self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
        self.head, self.dropout = nn.Linear(6, 10), nn.Dropout(0.2)
    def forward(self, words, mask=None, labels=None):
        x = self.words(words) * mask[..., None]
        for layer in self.layers:
            x = x + self.dropout(torch.tanh(layer(x)))
        logits = self.head(x)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten())
        return {"loss": loss, "logits": logits}

class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 8), nn.Linear(8, 4)
    def forward(self, x, edges):
        for layer in (self.first, self.second):
            y = torch.tanh(layer(x))
            x = torch.zeros_like(y).index_add(0, edges[1], y[edges[0]])
        return x

class Seen(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 5)
    def forward(self, images, labels):
        x = self.head(self.body(images).mean((2, 3)))
        return nn.functional.cross_entropy(x, labels)

def images():
    return torch.linspace(-1, 1, 8 * 75).reshape(8, 3, 5, 5).sin(), torch.arange(8) % 5

def batch():
    words = torch.arange(32).reshape(8, 4) % 10
    return {"words": words, "mask": torch.ones(8, 4), "labels": (words * 3) % 10}

def graph():
    return torch.linspace(-1, 1, 60).reshape(10, 6), torch.arange(40).reshape(2, 20) % 10
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "arguments", "options"),
    [
        ("Net", "batch", ("--task", "pipeline", "--stages", 2, "--micro-batch", 2)),
        ("Graph", "graph", ("--task", "partition")),
        ("Seen", "images", ("--task", "hybrid", "--dp", 2, "--batch", 8, "--precision", "fp32")),
    ],
)
def test_run__inputs_by_name_and_without_samples(
    monkeypatch, capfd, tmp_path, model, arguments, options
):
    """What Hugging Face's models take, a loss of their own, the edges of a graph, statistics."""
    pytest.importorskip("torch", "2.13", reason=OLDER)
    (tmp_path / "own_named.py").write_text(NAMED, encoding="utf-8")
    source = (f"own_named.py:{model}", "--args", arguments)
    plan = caller(monkeypatch, capfd, tmp_path, "plan")
    status, _, err = plan(*source, "--cluster", "2x1:v100", *options, "--out", "p.json")
    assert status == 0, err
    run = caller(monkeypatch, capfd, tmp_path, "run")
    status, out, err = run("p.json", *source, "--repeats", 1, "--json")
    assert status == 0, err
    found = json.loads(out)
    assert found["agrees"] and found["losses"] == pytest.approx(found["single"], rel=1e-6)
    if model == "Seen":
        assert all(x["agrees"] for x in found["traffic"].values())


# Kind of a module -> options of a plan that runs it; see ``foreign``.
REPLICAS, SHARED = ("--dp", 2, "--zero", 0, "--micro-batch", 4), ("--zero", 3, "--micro-batch", 2)
STAGES = ("--stages", 2, "--micro-batch", 2)
FOREIGN = {
    "table": REPLICAS, "mixed": REPLICAS, "root": REPLICAS, "types": REPLICAS, "time": SHARED,
    "unused": SHARED, "dropout": SHARED, "sum": SHARED, "weighted": STAGES, "labels": STAGES,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("kind", FOREIGN)
def test_run__foreign_modules_have_the_gradients_of_one_device(monkeypatch, capfd, tmp_path, kind):
    pytest.importorskip("torch", "2.13", reason=OLDER)
    import foreign

    number = list(foreign.KINDS).index(kind)
    source = (f"{foreign.__file__}:net_{number}", "--args", f"batch_{number}")
    plan = caller(monkeypatch, capfd, tmp_path, "plan")
    options = ("--cluster", "1x2:v100", "--batch", 8, "--precision", "fp32", *FOREIGN[kind])
    status, out, err = plan(*source, "--for", "torch", *options, "--out", "p.json")
    assert status == 0, err
    status, out, err = caller(monkeypatch, capfd, tmp_path, "run")("p.json", *source, "--json")
    assert status == 0, err
    assert json.loads(out)["gradients"]["agrees"]


FAULTS = """
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

class Net(nn.Module):
    fault, replica = "", False
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
    def forward(self, x):
        Net.replica = len(x) < 8
        fault = self.fault if Net.replica else ""
        if fault == "wrong":  # half of the samples are nobody's
            x = x[::2]
        bias = self.first.bias.detach() if fault == "dropped" else self.first.bias
        x = torch.tanh(x @ self.first.weight.T + bias)
        if fault == "nan":
            x = x * float("nan")
        if fault == "scaled":  # by less than rounding may move the state of Adam
            x.register_hook(lambda gradient: 1.001 * gradient)
        return ((self.second(x) - 1) ** 2).mean()

class Dropped(Net):
    fault = "dropped"

class NotFinite(Net):
    fault = "nan"

class Wrong(Net):
    fault = "wrong"

class Scaled(Net):
    fault = "scaled"

def forgets(optimizer, args, kwargs):
    for state in optimizer.state.values():
        if Net.replica:
            state["exp_avg"].zero_()

def stale():
    register_optimizer_step_post_hook(forgets)
    return Net()

def batch():
    return torch.linspace(-1, 1, 48).reshape(8, 6)
"""


@pytest.mark.slow
def test_run__finds_a_wrong_plan_a_dropped_gradient_a_stale_state_and_what_is_not_finite(
    monkeypatch, capfd, tmp_path
):
    pytest.importorskip("torch", "2.13", reason=OLDER)
    (tmp_path / "own_faults.py").write_text(FAULTS)
    run = caller(monkeypatch, capfd, tmp_path)
    task = ("--task", "partition", "--scope", "inputs", "--devices", 2, "--uneven", "forbid")
    assert run("plan", "own_faults.py:Net", "--args", "batch", *task, "--out", "p.json")[0] == 0
    for name, status, words in (
        ("Net", 0, "gradients of the first step: 4 arrays"),
        ("Dropped", 2, "first.bias"),
        ("NotFinite", 2, "the loss of the plan is nan in step 0"),
        ("Wrong", 2, "losses differ from those of one device by"),
        ("Scaled", 2, "the gradient of first."),
        ("stale", 2, "differs from that of one device by"),
    ):
        found, out, err = run(
            "run", "p.json", f"own_faults.py:{name}", "--args", "batch", "--repeats", 2
        )
        assert found == status and words in out + err, (name, out, err)


def test_run__bad_input_is_one_line_and_status_2(monkeypatch, capfd, folder, calibration):
    pytest.importorskip("torch")
    run = caller(monkeypatch, capfd, folder, "run")
    small = replace(calibration, cluster=replace(calibration.cluster, devices_per_server=1))
    small.save(folder / "small.json")
    bare = replace(calibration.cluster, measured=None)
    (folder / "bare.json").write_text(json.dumps(bare.to_json()))

    for model, options, words in (
        ("vgg-19", (), "run takes a model FILE.py:NAME, not 'vgg-19'"),
        ("own_net.py:other", (), "net.csv: a profile of another model: 0 has 168 bytes of we"),
        ("own_net.py:short", (), "net.csv: a profile of another model: own_net.py:short has n"),
        ("own_net.py:make", ("--processes", 3), "--processes 3: the plan is for 2; give that"),
        ("own_net.py:make", ("--device", "tpu"), "--device 'tpu' is unknown; known: cpu, cuda"),
        ("own_net.py:make", ("--device", "cuda"), "--device cuda: 2 asked for, and PyTorch"),
        ("own_net.py:make", ("--calibration", "small.json"), "of 1 devices, and the plan has 2"),
        ("own_net.py:make", ("--calibration", "bare.json"), "nothing was measured on it"),
        ("own_net.py:make", ("--calibration", "none.json"), "no file 'none.json'"),
        ("own_net.py:make", ("--repeats", 0), "--repeats must be from 1"),
    ):
        status, out, err = run("p.json", model, "--args", "batch", *options)
        assert (status, out) == (2, ""), (model, options)
        assert words in err and len(err.splitlines()) == 1, err
