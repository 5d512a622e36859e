"""A process of a running exported plan is killed: the others end within seconds, and say why."""

import multiprocessing
import os
import signal
import socket

import pytest

from parenvs import Cluster, HybridPlan, HybridStage
from parenvs.exports.torch import torch_plan

pytest.importorskip("jax")
pytest.importorskip("torch")

MOST_SECONDS = 20.0


STAGES = {"replicas of ranks": {(0, 3): 2}, "pipeline": {(0, 1): 1, (1, 3): 1}}
"""Plans of four processes: layers of each stage, and its tp."""


@pytest.mark.slow
@pytest.mark.parametrize("name", STAGES)
def test_parallel__others_end_when_one_is_killed(example, tmp_path, name):
    """Three processes wait for sums with one that is gone, or for what its stage gives."""
    from exported_work import dying

    graph = example.read()
    own = STAGES[name]
    stages = tuple(HybridStage((part,), 4 // len(own), tp=tp) for part, tp in own.items())
    cluster = Cluster.parse("1x4:v100")
    plan = torch_plan(
        HybridPlan("net", graph.fingerprint, cluster, "roofline", "fp32", 8, 2, stages), graph
    )
    assert (plan.pipe, plan.data, plan.model) == ((1, 2, 2) if len(own) == 1 else (2, 2, 1))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    context = multiprocessing.get_context("forkserver")
    multiprocessing.set_forkserver_preload(["parenvs.exports.parallel", "torch._dynamo"])
    workers = [
        context.Process(target=dying, args=(rank, 4, port, plan, str(tmp_path)))
        for rank in range(4)
    ]
    try:
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(timeout=300)
        assert [worker.exitcode for worker in workers] == [2, 2, 2, -signal.SIGKILL]
    finally:
        for worker in workers:
            worker.kill()
    killed = float((tmp_path / "killed").read_text())
    for rank in range(3):
        ended, line = (tmp_path / str(rank)).read_text().split("\n", 1)
        assert 0 <= float(ended) - killed < MOST_SECONDS
        assert line.startswith(f"processes: rank {rank} of 4 lost another, which ended")
        assert "\n" not in line and "its own output says why" in line
