"""One strategy through the tasks: the hybrid seconds agree, or the page names what differs."""

import pytest

from benchmarks.price import AGREE, apart, compared, page


@pytest.mark.thorough
def test_compared__one_strategy_has_one_price():
    """On the smallest model: partitions sum the mean of a loss, and pipelines nothing beside."""
    data = compared("vgg-19", "data parallelism", 64)
    assert data["off"]["pipeline"] == pytest.approx(0.0, abs=1e-12)
    assert 0 < data["off"]["partition"] <= AGREE
    assert len(set(data["own"].values())) == 3  # each task has a cost of its own
    stages = compared("vgg-19", "two stages", 64)
    assert stages["off"] == {"pipeline": pytest.approx(0.0, abs=1e-12), "hybrid": 0.0}
    assert stages["parts"]["pipeline"]["sends"] > 0


def test_apart__names_the_parts_that_differ():
    parts = {"exchange": 0.0, "forward": 1.0}
    row = {
        "model": "net", "strategy": "data parallelism", "batch": 64,
        "own": {"partition": 7.0, "hybrid": 2.0}, "seconds": {"partition": 2.1, "hybrid": 2.0},
        "parts": {"partition": {"exchange": 0.1, "forward": 1.0}, "hybrid": parts},
        "off": {"partition": 0.05, "hybrid": 0.0},
    }  # fmt: skip
    assert apart(row) == {"partition: exchange": pytest.approx(0.05)}
    text = "\n".join(page([row]))
    assert "Of 1 plans, 0 take the hybrid plan's seconds to 1%" in text
    assert "+5.00 " in text and "partition: exchange +5.0%" in text
