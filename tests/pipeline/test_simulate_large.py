"""The largest plans that can be judged are simulated in seconds."""

from __future__ import annotations

import time

import numpy as np
import pytest

from parenvs.tasks.pipeline.formulas import StageTimes, simulate


@pytest.mark.slow
def test_simulate__large_plan_is_fast():
    """299 stages and 2,000 micro-batches of equal passes: the closed form of a full pipeline."""
    resources, micro_batches = 2 * 299 - 1, 2_000
    one = np.ones(resources)
    start = time.perf_counter()
    length = simulate(StageTimes(one, one, np.zeros(resources)), micro_batches).length
    assert time.perf_counter() - start < 10
    assert length == 2 * (resources + micro_batches) - 2
