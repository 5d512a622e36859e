import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs.tasks.pipeline.profile import RangeTable


@given(st.lists(st.sampled_from([0.0, 1.0, 2.0, 5.0, np.inf]), min_size=1, max_size=40))
@settings(max_examples=150)
def test_range_table__every_range(values):
    n = len(values)
    ranges = [(a, b) for a in range(n) for b in range(a + 1, n + 1)]
    first, end = np.array(ranges).T
    for greatest, best in ((False, min), (True, max)):
        table = RangeTable(np.array(values), greatest)
        assert table.value(first, end).tolist() == [best(values[a:b]) for a, b in ranges]
        place = table.place(first, end)
        assert ((first <= place) & (place < end)).all()
        assert table.values[place].tolist() == [best(values[a:b]) for a, b in ranges]
        assert table.place(np.array(0), np.array(n)) == values.index(best(values))  # the first
