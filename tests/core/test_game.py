"""What a game's returns are worth beside the optimum."""

import numpy as np

from parenvs.core.game import outcome_of, regret_of, with_regret


def test_regret__is_the_share_that_is_missing():
    assert regret_of(np.array([2.0, 1.5, 0.0, -1.0]), 2.0).tolist() == [0.0, 0.25, 1.0, 1.0]


def test_outcome__has_a_regret_where_the_optimum_is_known():
    assert outcome_of(1.5, 2.0) == {"optimum": 2.0, "regret": 0.25}
    assert outcome_of(1.5, None) == outcome_of(1.5, float("nan")) == {}
    figures, values = {"seconds": np.ones(2)}, np.array([1.0, 2.0])
    assert with_regret(figures, values, [np.nan, np.nan]) is figures
    told = with_regret(figures, values, [2.0, np.nan])
    assert list(told) == ["seconds", "optimum", "regret"]
    assert told["regret"][0] == 0.5 and np.isnan(told["regret"][1])
