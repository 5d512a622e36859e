"""The same job on nodes of Ray, which really leave."""

import json
from pathlib import Path

import pytest
from commands import caller

pytestmark = pytest.mark.slow
for _package in ("torch", "jax", "ray"):
    pytest.importorskip(_package)

SOURCE = f"{Path(__file__).parents[2] / 'examples' / 'elastic_transformer.py'}:build"
TRACE = """seconds,event,node
0,add,a
0,add,b
60,remove,a
120,add,c
180,remove,b
180,remove,c
180,add,d
"""
"""A replica is left; a node comes; all leave."""


def test_run__on_nodes_of_ray(monkeypatch, capfd, tmp_path):
    (tmp_path / "nodes.csv").write_text(TRACE)
    run = caller(monkeypatch, capfd, tmp_path, "elastic", "run")
    status, out, err = run(
        "nodes.csv", SOURCE, "--launcher", "ray", "--processes", "2", "--interval-steps", "2",
        "--step-seconds", "0.01", "--every", "2", "--batch", "12", "--verify", "--json",
    )  # fmt: skip
    assert status == 0, err
    found = json.loads(out[out.index("{") :])
    assert found["samples_in_order"] and found["worst_difference"] < 1e-5
    happened = found["happened"]
    assert happened["nodes_lost"] == 2 and happened["from_checkpoint"] == 1
    # A replica costs nothing; all nodes cost the steps since the checkpoint.
    path = tmp_path / "elastic-run" / "intervals.jsonl"
    rows = [json.loads(x) for x in path.read_text().splitlines()]
    saved = max(x["steps"] for x in rows[:-1] if x["saved"])
    assert [x["lost"] for x in rows] == [0, 0, 0, rows[-2]["steps"] - saved]
    import ray

    assert not ray.is_initialized()


def test_run__refuses_an_address_where_nobody_is(monkeypatch, capfd, tmp_path):
    (tmp_path / "nodes.csv").write_text(TRACE)
    run = caller(monkeypatch, capfd, tmp_path, "elastic", "run")
    given = ("nodes.csv", SOURCE, "--launcher", "ray", "--processes", "2")
    status, _, err = run(*given, "--address", "127.0.0.1:1")
    assert status == 2 and "--address 127.0.0.1:1: nobody answers" in err.splitlines()[-1]
