"""Calibrations: the cluster that synthetic measurements give, the file, what is refused."""

import json
import multiprocessing
import re
from dataclasses import replace

import pytest
from cases import each
from commands import caller

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
            "products": {("fp32", (64, 64, 64)): [slower * 1e-5] * 3,
                         ("bf16", (64, 64, 64)): [slower * 4e-5] * 3,
                         ("fp32", (32, 32, 32)): [slower * 1e-5] * (3 if rank else 1)},
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
    shares = {(x.precision, x.shape[0]): x.share for x in made.rows if x.kind == "matmul"}
    assert shares == pytest.approx({("fp32", 64): 1, ("bf16", 64): 1, ("fp32", 32): 1 / 8})
    assert [words.split(":")[0] for words in made.missing] == ["fp8", "peak FLOP/s", "inter_bw"]
    ring = Links(4, cluster.intra_bw, cluster.intra_bw).all_reduce(64e6, 4, 1)
    assert ring == pytest.approx(float(sync_bytes(64e6, 4)) / BANDWIDTH)


def test_assembled__known_devices_keep_the_data_sheet_and_one_has_no_links():
    made = assembled(answers(1), replace(DEVICES["h100"], memory_bytes=79e9), {}, 1)
    assert made.cluster.device.peaks == DEVICES["h100"].peaks
    assert made.cluster.device.peak_flops == DEVICES["h100"].peak_flops
    assert dict(made.cluster.device.measured)["bf16"] == pytest.approx(2 * 64**3 / 4e-5)
    text = made.cluster.to_json()
    assert Cluster.parse(text) == made.cluster and "bf16" in text["device"]["measured"]
    assert all(0 < x.share < 1e-3 for x in made.rows if x.kind == "matmul")
    assert made.cluster.intra_bw == made.cluster.device.memory_bw
    assert [words.split(":")[0] for words in made.missing] == ["links"]


def test_calibration__file_is_a_cluster_and_reads_back(tmp_path):
    made = assembled(answers(), CPU, {"by": "a test", "load": 0.5}, 2)
    made.save(tmp_path / "m.json")
    assert Calibration.load(tmp_path / "m.json") == made
    cluster = Cluster.parse(tmp_path / "m.json")
    assert cluster == made.cluster and Cluster.parse(cluster.to_json()) == cluster
    assert "measured" not in cluster.to_json()  # plans hold the figures that they are costed by
    (tmp_path / "bare.json").write_text(json.dumps(cluster.to_json()))
    with pytest.raises(ClusterError, match=r"bare\.json: nothing was measured on it"):
        Calibration.load(tmp_path / "bare.json")


@each(
    ("change", "words"),
    [
        ({"measured": {}}, "field 'measured' must be a list"),
        ({"kind": "all-reduc"}, "not 'all-reduc' (did you mean 'all-reduce'?)"),
        ({"seconds": 0}, "seconds must lie between low and high"),
        ({"low": "x"}, "field 'measured[0].low' must be a number from 0, not 'x'"),
        ({"repeats": 0}, "field 'measured[0].repeats' must be a whole number from 1"),
        ({"group": 1}, "group of a collective must be at least 2"),
        ({"more": 1}, "unknown field 'measured[0].more'"),
        ({"kind": "matmul", "shape": [1, 2]}, "shape must be 3 whole numbers"),
        ({"kind": "matmul", "shape": [1, 2, 3], "precision": "fp4"}, "precision must be one of"),
        ({"provenance": []}, "field 'provenance' must be an object"),
        (
            {"provenance": {"a": {}}},
            "field 'provenance.a' must be a text or a number or a list of texts",
        ),
    ],
)
def test_cluster__refuses_what_was_not_measured_so(change, words, tmp_path):
    made = assembled(answers(), CPU, {}, 2)
    row = {"kind": "all-reduce", "seconds": 1.0, "low": 1.0, "high": 1.0, "repeats": 3,
           "bytes": 4, "group": 2}  # fmt: skip
    content = {**made.cluster.to_json(), "provenance": {}, "measured": [row]}
    Cluster.parse(content)
    content |= {key: change[key] for key in ("measured", "provenance") if key in change}
    row |= {key: change[key] for key in change if key not in ("measured", "provenance")}
    (tmp_path / "m.json").write_text(json.dumps(content))
    with pytest.raises(ClusterError, match=re.escape(words)) as raised:
        Cluster.parse(tmp_path / "m.json")
    assert str(raised.value).startswith(str(tmp_path / "m.json"))


@pytest.mark.slow
def test_calibrate__this_machine_at_the_smallest_size(monkeypatch, capfd, tmp_path):
    pytest.importorskip("torch")
    import parenvs.clock.calibration as module

    monkeypatch.setattr(module, "SHAPES", [(8, 8, 8)])
    run = caller(monkeypatch, capfd, tmp_path, "calibrate")
    status, out, err = run("--out", "m.json", "--repeats", 2, "--largest", 0.07)
    assert status == 0, err
    assert "all-to-all" in out and "written to m.json; give it as --cluster m.json" in out
    assert "not measured: fp8" in err
    made = Calibration.load(tmp_path / "m.json")
    sizes = [1024, 4096, 16384, 65536]
    for kind in COLLECTIVES:
        assert [x.bytes for x in made.rows if x.kind == kind] == sizes
        # of every round as many
        assert all(x.group == 2 and x.repeats == 8 for x in made.rows if x.kind == kind)
    assert {x.precision for x in made.rows if x.kind == "matmul"} >= {"fp32"}
    assert made.provenance["backend"] == "gloo"
    assert [x.name for x in tmp_path.iterdir()] == ["m.json"]
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
