"""The order of samples: of one process whatever the degrees, and again after every change."""

import itertools
import json

import numpy as np
import pytest
from cases import each

from parenvs import ParenvsError
from parenvs.exports.stream import Stream

CHANGES = ((4, 2, 2), (1, 8, 3), (2, 1, 1), (8, 1, 4), (2, 4, 2), (1, 1, 5))
"""Replicas, micro-batches and steps: six plans, five changes between them."""


def told(stream):
    """The state as the checkpoint's index holds it."""
    return json.loads(json.dumps(stream.state_dict()))


def trained(length, batches, seed=3):
    """Ids of samples in the order of a run with five changes, each read from a state anew."""
    state, found, keys = None, [], []
    for (replicas, micro_batches, steps), batch in zip(CHANGES, batches, strict=True):
        stream = Stream(length, batch, seed if state is None else seed + 1)
        if state is not None:
            stream.load_state_dict(state)
        for _ in range(steps):
            for micro_batch in range(micro_batches):
                for replica in range(replicas):
                    given = replica, replicas, micro_batch, micro_batches
                    found += stream.ids(*given).tolist()
                    keys += stream.keys(*given).tolist()
            stream.advance()
        state = told(stream)
    return found, keys


@each("batches", [(8,) * 6, (16, 8, 4, 24, 8, 40)])
def test_stream__five_changes_keep_the_order(batches):
    count = sum(batch * steps for batch, (*_, steps) in zip(batches, CHANGES, strict=True))
    found, keys = trained(count, batches)
    alone = Stream(count, count, 3)
    assert found == alone.ids().tolist()
    assert sorted(found) == list(range(count))
    assert keys == alone.keys().tolist()
    assert len(set(keys)) == count


def test_stream__epochs_meet_inside_of_a_batch():
    """Each epoch has every sample once, in another order, and batches are whole throughout."""
    batches = list(itertools.islice(Stream(10, 4, 7), 5))
    assert {len(batch) for batch in batches} == {4}
    ids = list(itertools.chain(*batches))
    assert sorted(ids[:10]) == sorted(ids[10:]) == list(range(10))
    assert ids[:10] != ids[10:]
    stream = Stream(10, 4, 7)
    stream.position = 8
    assert stream.ids().tolist() == batches[2]
    assert (stream.epoch, Stream(10, 4, 8).ids().tolist() == batches[0]) == (0, False)


def mixed(z):
    """SplitMix64's finaliser in Python's numbers."""
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return z ^ z >> 31


def test_stream__order_and_keys_stay():
    """A checkpoint of today goes on under any NumPy; keys beside a second writing."""
    assert Stream(10, 10, 1).ids().tolist() == [3, 5, 2, 9, 7, 0, 8, 6, 1, 4]
    step = 0x9E3779B97F4A7C15
    keys = [mixed((mixed((1 + step) % 2**64) + step * k) % 2**64) for k in range(10)]
    assert Stream(10, 10, 1).keys().view("uint64").tolist() == keys


def test_stream__reading_ahead_trains_nothing():
    stream = Stream(100, 8)
    list(itertools.islice(stream, 9))
    assert stream.position == 0
    stream.advance()
    _, second = itertools.islice(Stream(100, 8), 2)
    assert next(iter(stream)) == stream.ids().tolist() == second


@each(
    "change, words",
    [
        ({"length": 11}, "length: the state is of 11 samples, and the data set has 10"),
        ({"position": -1}, "position must be a whole number from 0, not -1"),
        ({"position": True}, "position must be"),
        ({"seed": 2**63}, "seed must be"),
        ({"shuffle": 1}, "shuffle must be true or false"),
        ({"other": 1}, "its state has the fields"),
    ],
)
def test_stream__states_that_are_none(change, words):
    stream = Stream(10, 2, 4)
    with pytest.raises(ParenvsError, match=words):
        stream.load_state_dict({**stream.state_dict(), **change})
    assert stream.state_dict() == Stream(10, 2, 4).state_dict()


@pytest.mark.thorough
def test_dropout__belongs_to_samples():
    """Masks follow keys, differ by layer, and are zero as often as they should be."""
    torch = pytest.importorskip("torch")
    from parenvs.exports.stream import dropout

    keys = torch.from_numpy(Stream(1000, 64).keys())
    ones = torch.ones(64, 16, 32)
    whole = dropout(ones, 0.3, keys)
    assert abs(float((whole == 0).float().mean()) - 0.3) < 0.01  # 5 sigma of 32,768 draws: 0.013
    assert abs(float(whole.mean()) - 1) < 0.02
    order = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    assert torch.equal(dropout(ones, 0.3, keys[order]), whole[order])
    other = dropout(ones, 0.3, keys, layer=1)
    agree = ((other == 0) == (whole == 0)).float().mean()
    assert abs(float(agree) - (0.3**2 + 0.7**2)) < 0.015
    kept = (whole != 0).float().flatten(1)
    assert np.abs(np.corrcoef(kept.numpy()) - np.eye(64)).max() < 0.25
    assert torch.equal(dropout(ones, 0.0, keys), ones)
    with pytest.raises(ParenvsError, match="rate must be from 0 to less than 1"):
        dropout(ones, 1.0, keys)


@pytest.mark.slow
def test_stream__five_changes_train_as_one_process(tmp_path):
    """Shuffled samples and dropout: ids are those of one process, and losses equal."""
    pytest.importorskip("torch")
    import resharding
    import streamed

    from parenvs.exports.torch import torch_plan

    graph = resharding.example.read()
    names = ("D2", "T2", "P2", "D2 ZeRO 3", "T2", "D2")
    plans = [resharding.plan_of(graph, "net.npz", 2, *resharding.TWO[name]) for name in names]
    pairs = [(plan, torch_plan(plan, graph)) for plan in plans]
    job = {"folder": str(tmp_path), "plans": pairs}
    resharding.example.start(2, job, streamed.train)
    told = json.loads((tmp_path / "told.json").read_text())
    steps = len(names) * streamed.STEPS
    stream = Stream(streamed.SAMPLES, 8, seed=5)
    assert told["ids"] == list(itertools.chain(*itertools.islice(stream, steps)))
    assert told["losses"] == pytest.approx(streamed.alone(steps), rel=1e-5)
