import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from parenvs.agents.learning.rainbow.buffer import SumTree

values = st.one_of(st.just(0.0), st.floats(1e-12, 1e12))


@pytest.mark.thorough
@given(st.lists(values, min_size=1, max_size=70), st.data())
@settings(max_examples=100)
def test_sum_tree__is_the_running_sum(start, data):
    """Any updates, then any masses, against numpy.cumsum."""
    array = np.array(start)
    tree = SumTree(len(array))
    tree[np.arange(len(array))] = array
    for _ in range(data.draw(st.integers(0, 3))):
        places = data.draw(st.lists(st.integers(0, len(array) - 1), min_size=1, max_size=9))
        news = data.draw(st.lists(values, min_size=len(places), max_size=len(places)))
        tree[np.array(places)] = np.array(news)
        for place, new in zip(places, news, strict=True):
            array[place] = new
    assert (tree[np.arange(len(array))] == array).all()
    assert tree.total == pytest.approx(array.sum(), rel=1e-12)
    if array.sum() == 0:
        return
    shares = data.draw(st.lists(st.floats(0, 1), min_size=1, max_size=20))
    masses = np.minimum(np.array(shares) * tree.total, tree.total)
    found = tree.find(masses)
    assert (array[found] > 0).all()
    sums = np.append(0.0, np.cumsum(array))
    slack = 1e-9 * tree.total
    assert (sums[found] <= masses + slack).all()
    assert (masses <= sums[found + 1] + slack).all()


def test_sum_tree__finds_by_hand():
    tree = SumTree(5)
    tree[np.arange(5)] = np.array([1.0, 0.0, 2.0, 0.0, 4.0])
    masses = np.array([0.0, 0.5, 1.0, 2.5, 3.0, 6.9, 7.0])
    assert tree.find(masses).tolist() == [0, 0, 2, 2, 4, 4, 4]
    tree[np.array([4])] = 0.0
    assert tree.total == 3
    assert tree.find(np.array([2.9, 3.0])).tolist() == [2, 2]  # not beyond the last value


def test_sum_tree__last_of_an_index_given_twice_counts():
    tree = SumTree(6)
    tree[np.array([3, 3, 1, 3])] = np.array([5.0, 6.0, 1.0, 2.0])
    assert tree[np.arange(6)].tolist() == [0, 1, 0, 2, 0, 0]
    assert tree.total == 3


def test_sum_tree__single_value():
    tree = SumTree(1)
    tree[np.array([0])] = 2.0
    assert tree.total == 2
    assert tree.find(np.array([0.0, 1.9, 2.0])).tolist() == [0, 0, 0]


def test_sum_tree__does_not_drift():
    """A great value that comes and goes leaves no trace in the sums."""
    tree = SumTree(4)
    tree[np.arange(4)] = 0.1
    before = tree.total
    for _ in range(100):
        tree[np.array([2])] = 1e17
        tree[np.array([2])] = 0.1
    assert tree.total == before


def test_sum_tree__refuses():
    with pytest.raises(ValueError, match="capacity"):
        SumTree(0)
    with pytest.raises(ValueError, match="all values are 0"):
        SumTree(3).find(np.array([0.0]))
