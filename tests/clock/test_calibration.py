"""Calibrations: the cluster that synthetic measurements give, the file, what is refused."""

import json
import multiprocessing
import re
from dataclasses import replace

import pytest
from cases import each
from commands import caller

import parenvs
from parenvs.clock.calibration import SIZES, Calibration, assembled
from parenvs.cluster import COLLECTIVES, DEVICES, Cluster, Device, Links, sync_bytes
from parenvs.errors import ClusterError

CPU = Device("cpu", 1.0, 1.0, 8e9)
LATENCY, BANDWIDTH = 3e-4, 2e9


def answers(processes=2, missing=None):
    """What processes of a synthetic machine measured; the last one is the slowest."""
    found = []
    for rank in range(processes):
        slower = 1.0 if rank == processes - 1 else 0.5
        collectives = {
            (kind, count, size): [slower * (LATENCY + float(sync_bytes(size, count)) / BANDWIDTH)]
            * 3
            for kind in COLLECTIVES
            for count in {2, processes}
            for size in SIZES
            if (rank < count or rank == processes - 1) and processes > 1
        }
        found.append({
            "products": {
                ("fp32", ("forward", 1, 64, 64, 64)): [slower * 1e-5] * 3,
                ("bf16", ("weight", 1, 64, 64, 64)): [slower * 4e-5] * 3,
                ("fp32", ("forward", 2, 32, 32, 16)): [slower * 1e-5] * (3 if rank else 1),
            },
            "attention": {("fp32", ("backward", 1, 16, 2, 1, 4, 4)): [slower * 1e-5] * 3},
            "layer_seconds": 2e-4,
            "copies": {2**20: [slower * 1e-5] * 3, 2**22: [slower * 1e-3] * 3},
            "collectives": collectives,
            "missing": dict(missing or {}),
        })  # fmt: skip
    return found


def test_assembled__figures_of_a_synthetic_machine():
    made = assembled(answers(4, {"fp8": "none"}), CPU, {"by": "a test"}, 4)
    cluster = made.cluster
    assert (cluster.servers, cluster.devices_per_server) == (1, 4)
    assert cluster.intra_bw == pytest.approx(BANDWIDTH)
    assert made.provenance["all_reduce_latency_seconds"] == pytest.approx(LATENCY)
    assert cluster.device.memory_bw == pytest.approx(2 * 2**22 / 1e-3)
    assert cluster.device.peak_flops == pytest.approx(2 * 64**3 / 1e-5)
    assert dict(cluster.device.peaks)["bf16"] == pytest.approx(2 * 64**3 / 4e-5)
    peak = 2 * 64**3 / 1e-5
    (attention,) = cluster.measured.attention
    # Five products of which two make 16 x 16 scores of 4 numbers for each of two heads.
    assert attention[:-1] == ("fp32", "backward", 1, 16, 2, 1, 4, 4)
    assert attention[-1] == pytest.approx(2.5 * 4 * 16 * 16 * 2 * 4 / 1e-5 / peak)
    shares = [(*product[:3], product[-1]) for product in cluster.measured.products]
    assert shares == [("fp32", "forward", 1, 1), ("bf16", "weight", 1, 1),
                      ("fp32", "forward", 2, pytest.approx(1 / 8))]  # fmt: skip
    # An all-reduce sends every byte twice, and an all-gather takes as long here: half the rate.
    share, step, once = cluster.measured.collectives["all-gather"]
    assert share == pytest.approx(1 / 2) and 3 * step + once == pytest.approx(LATENCY)
    assert [words.split(":")[0] for words in made.missing] == ["fp8", "peak FLOP/s", "inter_bw"]
    ring = Links(4, cluster.intra_bw, cluster.intra_bw).all_reduce(64e6, 4, 1)
    assert ring == pytest.approx(float(sync_bytes(64e6, 4)) / BANDWIDTH)


def test_assembled__known_devices_keep_the_data_sheet_and_one_has_no_links():
    made = assembled(answers(1), replace(DEVICES["h100"], memory_bytes=79e9), {}, 1)
    assert made.cluster.device.peaks == DEVICES["h100"].peaks
    assert made.cluster.device.peak_flops == DEVICES["h100"].peak_flops
    assert Cluster.parse(made.cluster.to_json()) == made.cluster
    assert all(0 < product[-1] < 1e-3 for product in made.cluster.measured.products)
    assert made.cluster.intra_bw == made.cluster.device.memory_bw
    assert [words.split(":")[0] for words in made.missing] == ["links"]


def test_calibration__file_is_a_cluster_and_reads_back(tmp_path):
    made = assembled(answers(), CPU, {"by": "a test", "load": 0.5}, 2)
    made.save(tmp_path / "m.json")
    assert Calibration.load(tmp_path / "m.json") == made
    cluster = Cluster.parse(tmp_path / "m.json")
    assert cluster == made.cluster and Cluster.parse(cluster.to_json()) == cluster
    others = Cluster.parse(f"4x8:{tmp_path / 'm.json'},1GB/s")
    assert others == replace(cluster, servers=4, devices_per_server=8, inter_bw=1e9)
    bare = replace(cluster, measured=None).to_json()
    (tmp_path / "bare.json").write_text(json.dumps(bare))
    with pytest.raises(ClusterError, match=r"bare\.json: nothing was measured on it"):
        Calibration.load(tmp_path / "bare.json")


@each(
    ("change", "words"),
    [
        ({"measured": []}, "an older parenvs calibrate wrote it; run that again"),
        ({"products": [["fp32", "forwards", 1, 8, 8, 8, 0.5]]}, "(did you mean 'forward'?)"),
        ({"products": [["fp32", "forward", 8, 8, 8, 0.5]]}, "must be a list of 7"),
        ({"products": [["fp32", "forward", 1, 8, 8, 8, 0.0]]}, "a share over 0, not 0.0"),
        ({"attention": [["fp32", "input", 1, 8, 8, 8, 4, 4, 0.5]]}, "one of forward, backward"),
        ({"traffic": {"others": [1.0, 0.0]}}, "not 'others'"),
        ({"collectives": {"all-gather": [1.0, 0.0]}}, "must be a list of 3"),
        ({"layer_seconds": -1}, "field 'measured.layer_seconds' must be seconds from 0, not -1"),
        ({"provenance": []}, "field 'provenance' must be an object"),
        ({"provenance": {"a": {}}}, "field 'provenance.a' must be a text or a number or a list"),
    ],
)
def test_cluster__refuses_what_was_not_measured_so(change, words, tmp_path):
    content = assembled(answers(), CPU, {}, 2).cluster.to_json() | {"provenance": {}}
    Cluster.parse(content)
    whole = {key: x for key, x in change.items() if key in ("measured", "provenance")}
    content |= whole or {"measured": {**content["measured"], **change}}
    (tmp_path / "m.json").write_text(json.dumps(content))
    with pytest.raises(ClusterError, match=re.escape(words)) as raised:
        Cluster.parse(tmp_path / "m.json")
    assert str(raised.value).startswith(str(tmp_path / "m.json"))


@pytest.mark.slow
def test_calibrate__this_machine_at_the_smallest_size(monkeypatch, capfd, tmp_path):
    pytest.importorskip("torch")
    run = caller(monkeypatch, capfd, tmp_path, "calibrate")
    shape = {"name": "s", "layers": 2, "hidden": 16, "heads": 2, "vocabulary": 32, "sequence": 8}
    (tmp_path / "s.json").write_text(json.dumps(shape))
    given = ("--largest", 0.07, "--model", "s.json", "--tp", "1,2", "--micro-batch", "1,2")
    status, out, err = run("--out", "m.json", "--repeats", 2, *given)
    assert status == 0, err
    assert "all-to-all" in out and "written to m.json; give it as --cluster m.json" in out
    assert "not measured: fp8" in err
    made = Calibration.load(tmp_path / "m.json")
    measured = made.cluster.measured
    assert set(measured.collectives) == {"all-gather", "all-to-all"} and measured.layer_seconds > 0
    assert made.provenance["backend"] == "gloo"
    # Every kernel of a plan of the model has its own rate.
    request = ("s.json", tmp_path / "m.json", "hybrid")
    problem = parenvs.problem(*request, batch=4, precision="fp32")
    report = parenvs.plan(problem, constraints={"tp": 2, "micro_batch": 2}).report
    assert report.as_measured == "with 17 of 17 kernels as measured"
    assert sorted(x.name for x in tmp_path.iterdir()) == ["m.json", "s.json"]
    assert multiprocessing.active_children() == []


def test_calibrate__bad_input_is_one_line_and_status_2(monkeypatch, capfd, tmp_path):
    torch = pytest.importorskip("torch")
    run = caller(monkeypatch, capfd, tmp_path, "calibrate")
    cases = [
        (("--device", "tpu"), "--device 'tpu' is unknown; known: cpu, cuda"),
        (("--device", "cuda", "--processes", 60), "--device cuda: 60 asked for, and PyTorch"),
        (("--processes", 0), "--processes must be from 1"),
        (("--processes", 1000), "--processes must be from 1 to 64"),
        (("--repeats", 0), "--repeats must be from 1"),
        (("--largest", 0), "--largest must be at least"),
        (("--out", "m.txt"), "--out must end in .json, not 'm.txt'"),
    ]
    assert torch.cuda.device_count() < 60
    for arguments, words in cases:
        status, out, err = run(*arguments)
        assert (status, out) == (2, ""), arguments
        assert words in err and len(err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []
