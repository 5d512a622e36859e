"""What a game's returns are worth beside the optimum."""

import numpy as np

from parenvs.core.game import regret_of


def test_regret__is_the_share_that_is_missing():
    assert regret_of(np.array([2.0, 1.5, 0.0, -1.0]), 2.0).tolist() == [0.0, 0.25, 1.0, 1.0]
