"""Collectives of groups by stride and ranks (group 7 of the specification)."""

import numpy as np
import pytest

from benchmarks.hybrid import groups
from benchmarks.hybrid_predictions import predictions
from parenvs.cluster import Cluster, Links
from parenvs.tasks.hybrid.rows import read_rows


@pytest.mark.slow
def test_links__nccl_tests_on_h100():
    """One share fitted on 69 cells; the rule of the whole server errs by a factor."""
    found, _ = predictions(read_rows())
    (part,) = [part for part in groups(found) if part.source == "nccl-h100"]
    assert len(part.predictions) == 69
    logs = np.log([one.predicted / one.measured for one in part.predictions])
    assert np.sqrt(np.mean((logs - logs.mean()) ** 2)) < 0.16
    assert abs(logs.mean()) < 0.01  # the share is the best one
    assert np.sqrt(np.mean(part.errors**2)) < 0.16


def test_links__whole_servers_as_the_pure_task_counts():
    cluster = Cluster.parse("h100-4")
    links = Links(8, cluster.intra_bw, cluster.device_nic_bw)
    for end in (4, 8, 16, 24, 32):
        want = cluster.sync_seconds(np.array(1e9), np.array(0), np.array(end))
        assert links.all_reduce(1e9, end, 1) == pytest.approx(float(want), rel=1e-12)
