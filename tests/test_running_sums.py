"""Operations of arrays."""

import numpy as np
from cases import each

from parenvs.compiled import WIDE, running_sums


@each("shape", [(5,), (4, 3), (7, WIDE), (1, 2 * WIDE), (6, 4, WIDE)])
def test_running_sums__are_those_of_cumsum_to_the_bit(shape):
    rng = np.random.default_rng(0)
    for values in (rng.standard_normal(shape), rng.integers(-9, 9, shape)):
        sums = running_sums(values)
        assert sums.dtype == values.dtype and np.array_equal(sums, values.cumsum(axis=0))
