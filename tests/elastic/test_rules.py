"""Rules that choose plans, and the processes of the systems that some of them are from."""

from dataclasses import replace

import elastic_toys as toys
import numpy as np
import pytest
from cases import each

from parenvs.agents.elastic.policies import POLICIES, LookAhead, play
from parenvs.errors import ParenvsError
from parenvs.tasks.elastic import library as lib
from parenvs.tasks.elastic.library import GONE, RECOVERIES, REDUNDANCY, Candidate, Library
from parenvs.tasks.elastic.movement import Degrees
from parenvs.tasks.elastic.problem import Course, Elastic, Moment, Recorded, hindsight
from parenvs.tasks.elastic.problems import load_library


def recorded(library, joined, gone, nodes=4):
    """A job on a course that is given."""
    course = Course.of_bits(joined[0], np.array(joined), np.array(gone, dtype=np.uint64), nodes)
    return Elastic(library, Recorded("given", course), name="toy/given")


def test_look_ahead__believes_its_prior_before_it_has_seen_much():
    """Of one replica or two at the same rate: departures that are expected decide."""
    plans = (Candidate(Degrees(1, 2, 1), 0, 2.01), Candidate(Degrees(1, 1, 2), 0, 2.0))
    library = Library("two", toys.state(), replace(toys.COSTS, every=10), 1, plans)
    problem = recorded(library, [2] + [0] * 20, [0] * 21)
    found = []
    for prior in ((0.0, 0.0), (60.0, 1200.0)):
        policy = LookAhead(prior=prior)
        policy.start(problem)
        found.append(policy.choose(Moment(0, 2), 2, 0))
    assert found == [1, 2]
    policy.start(replace(problem, checkpoints=True))
    saved = [policy.choose(Moment(k, 2, 2, 0, k), 0, 0) == lib.CHECKPOINT for k in range(9)]
    assert saved.index(True) + 1 == np.ceil(np.sqrt(2 * toys.COSTS.save / 60 / 0.05**2)), saved


def test_varuna__restarts_from_a_checkpoint_at_every_change():
    """By hand: a loss takes what was trained since one; before a join one is written."""
    library, costs = toys.library(), toys.COSTS
    anew = [costs.unplanned(None, Degrees(1, 1, n), 1) for n in (1, 2)]
    problem = recorded(library, [2, 0, 0, 1, 0], [0, 0, 2, 0, 0], 3)
    run = play(problem, problem.course(), POLICIES["varuna"]())
    assert run.plans.tolist() == [3, 3, 1, 3, 3] and run.events.tolist() == [0, 0, GONE, 0, 0]
    expected = [
        1.9 * (60 - anew[1]),
        1.9 * 60,
        1.0 * (60 - anew[0]) - 1.9 * 60,
        1.9 * (60 - costs.save - anew[1]),
        1.9 * 60,
    ]
    assert run.samples == pytest.approx(expected)
    assert run.problem is problem  # whose ideal shares are taken of


def test_bamboo__one_loss_needs_no_restart_and_two_neighbors_do():
    library = load_library("gpt-1.5b").under("redundant")
    original = load_library("gpt-1.5b")
    assert library.rate == pytest.approx(original.rate * (1 - REDUNDANCY))
    assert library.under("move") is original and original.under("redundant") is library
    problem = Elastic(library, Recorded("given", Course.of_bits(
        32, np.array([32, 0]), np.zeros(2, dtype=np.uint64), 32)))  # fmt: skip
    lone = [p.degrees.data == 1 and p.degrees.pipeline > 4 for p in library.candidates]
    k = 1 + lone.index(True)
    for lost, event in (((3,), 1), ((1, 2), 2), ((2, 3), GONE)):
        gone = np.isin(np.arange(32), lost)
        assert problem.events(np.append(0, gone.cumsum()).astype(np.int8))[k] == event
    (seconds, _), (before, _) = library.tables, original.tables
    assert seconds[1, k, k] < before[1, k, k]
    policy = POLICIES["bamboo"]()
    policy.start(problem)
    every = [plan.degrees.pipeline for plan in library.candidates]
    depths = {every[i - 1] for i in np.flatnonzero(policy.allowed) if i}
    assert len(depths) == 1 and depths.pop() >= 1.5 * min(every)
    with pytest.raises(ParenvsError, match="'hope'; known: move, checkpoint, redundant"):
        original.under("hope")


@each("name", POLICIES)
def test_policies__none_earns_more_than_hindsight_of_its_process(name):
    chain = toys.problem("wide", 30)
    for seed in range(3):
        course = chain.drawn(seed)
        policy = POLICIES[name]()
        run = play(chain, course, policy)
        library = chain.library.under(getattr(policy, "recovery", RECOVERIES[0]))
        best = hindsight(replace(chain, library=library, checkpoints=True), course)
        assert run.total <= best.total + 1e-9
        assert run.policy == name
        if name in ("parcae", "bamboo"):
            assert not chain.library.spares[run.plans].any()
