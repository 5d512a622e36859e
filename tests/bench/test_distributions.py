"""The page of distributions: what is extrapolated by hand, and times to a stated return."""

import pytest

from benchmarks.distributions import BYTES_A_SECOND, MESSAGE, distributions, extrapolated, page

PARTS = {
    "environment": 50.0, "inference": 20.0, "playing": 10.0, "learning": 120.0, "wire": 8.0,
    "bytes": 1250.0, "gradient": 12500,
}  # fmt: skip
"""Microseconds and bytes of a turn: a turn is sent in 1 us, a gradient in 10 us."""


def test_extrapolated__of_one_worker():
    found = extrapolated(PARTS, 1)
    assert found["single"] == pytest.approx(1e6 / 200)
    assert found["learners"] == found["single"]  # one alone sends no gradient
    assert found["actors"] == pytest.approx(1e6 / (80 + 4 + 4 + 1 + 120))
    trips = 2e6 * MESSAGE / 64  # 64 turns a trip
    remote = 50 + 4 + trips + 4 + 1 + 20 + 10 + 120
    assert found["inference"] == found["environments"] == pytest.approx(1e6 / remote)
    step = 4 / 256 * (2e6 * MESSAGE + 2 * 1e6 * 12500 / BYTES_A_SECOND)
    assert found["server"] == pytest.approx(1e6 / (200 + step))


def test_extrapolated__of_many_workers():
    play_alone = {**PARTS, "learning": 0.0, "wire": 0.0, "bytes": 0.0, "gradient": 0}
    few, many = extrapolated(play_alone, 8), extrapolated(play_alone, 16)
    assert many["single"] == few["single"]
    assert many["actors"] == pytest.approx(2 * few["actors"])
    free = {**PARTS, "gradient": 0}
    for workers, doublings in ((2, 1), (8, 3), (64, 6)):  # of a ring's messages
        messages = 4 / (256 * workers) * 2e6 * MESSAGE * doublings
        assert extrapolated(free, workers)["learners"] == pytest.approx(
            1e6 / (200 / workers + messages)
        )
    sent = 1e6 / extrapolated(PARTS, 64)["learners"] - 1e6 / extrapolated(free, 64)["learners"]
    assert sent == pytest.approx(4 / (256 * 64) * 2 * 10)  # each gradient twice
    served = 1e6 / extrapolated(PARTS, 64)["server"] - 1e6 / extrapolated(free, 64)["server"]
    assert served == pytest.approx(4 / 256 * 2 * 10)  # of all learners, one after another
    last = extrapolated(PARTS, 10**9)
    assert last["actors"] == pytest.approx(1e6 / (4 + 1 + 120), rel=1e-3)
    assert last["inference"] == pytest.approx(1e6 / (4 + 1 + 20 + 10 + 120), rel=1e-3)


def test_page__returns_that_are_not_reached_count_as_longest():
    rows = [
        {
            "what": "returns", "agent": "ppo", "env": "CartPole-v1", "word": word, "seed": seed,
            "reached": seed < reached, "return": 480.0, "steps": 1000 * (seed + 1),
            "seconds": 10.0 * (seed + 1), "start": 1.0, "others": 0.5,
            "processor": 20.0 + 10.0 * (seed == 2),
        }
        for word, reached in (("single", 3), ("actors", 2), ("learners", 0)) for seed in range(3)
    ]  # fmt: skip
    text = "\n".join(page(rows))
    assert (
        "| single | 3 of 3 | 2,000 (1,000 to 3,000) | 20 (10 to 30) | 20 (20 to 30) | 1.0 | 0.5 |"
        in text
    )
    assert "| actors | 2 of 3 | 2,000 (1,000 to not reached) |" in text
    assert "| learners | 0 of 3 | not reached | not reached | not reached | 1.0 |" in text
    assert len({distributions.key_of(row) for row in rows}) == 9
