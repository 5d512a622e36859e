"""Collectives of groups by stride and ranks (group 7 of the specification)."""

import numpy as np
import pytest

from parenvs.cluster import Cluster, Links


def test_links__whole_servers_as_the_pure_task_counts():
    cluster = Cluster.parse("h100-4")
    links = Links(8, cluster.intra_bw, cluster.device_nic_bw)
    for end in (4, 8, 16, 24, 32):
        want = cluster.sync_seconds(np.array(1e9), np.array(0), np.array(end))
        assert links.all_reduce(1e9, end, 1) == pytest.approx(float(want), rel=1e-12)
