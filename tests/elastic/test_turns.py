"""Episodes as policies of the leaderboard play them: those of the simulation, of any problem."""

import elastic_toys as toys
import numpy as np
import pytest

from parenvs.agents.elastic.play import Tables, Turns
from parenvs.agents.elastic.policies import Hysteresis
from parenvs.tasks.elastic.problem import Elastic, follow
from parenvs.tasks.elastic.problems import read_trace

COUNTS = "seconds,nodes\n0,3\n60,2\n130,6\n200,1\n300,4\n420,2\n"
NAMES = "seconds,event,node\n0,add,a\n0,add,b\n70,add,c\n190,remove,a\n260,add,d\n300,remove,c\n"


@pytest.fixture(params=["chain", "counts", "names"])
def problem(request, tmp_path):
    """Problems of each kind."""
    if request.param == "chain":
        return toys.problem("wide", 12)
    path = tmp_path / "trace.csv"
    path.write_text({"counts": COUNTS, "names": NAMES}[request.param])
    return Elastic(toys.library(True), read_trace(path, "small"), 60.0)


def test_turns__earn_what_the_simulation_does(problem):
    """Five courses at once, each with its own run."""
    count, who = 5, np.arange(5)
    turns = Turns(count, Tables.of([problem]))
    turns.start(who, [0] * count, [problem.draw(np.random.default_rng(seed)) for seed in who])
    courses = [problem.drawn(seed) for seed in who]
    runs = [follow(problem, course, Hysteresis()) for course in courses]
    for t in range(problem.intervals):
        fits = [problem.fits(int(course.nodes[t])) for course in courses]
        assert (turns.masks()[:, : len(fits[0])] == fits).all()
        assert not turns.masks()[:, len(fits[0]) :].any()
        seen = turns.observation(who)
        there = np.float32([course.nodes[t] / 64 for course in courses])
        assert seen["numbers"][:, 0].tolist() == there.tolist()
        for values in (*seen.values(), turns.tables.plans[turns.row]):
            assert values.dtype == np.float32 and 0 <= values.min() <= values.max() <= 1
        rewards, over = turns.step(who, np.array([run.plans[t] for run in runs]))
        earned = [run.samples[t] / problem.ideal for run in runs]
        assert rewards == pytest.approx(earned, abs=1e-12)
        assert over.tolist() == [t + 1 == problem.intervals] * count
    assert turns.total == pytest.approx([run.total for run in runs])
    assert turns.shares(who) == pytest.approx([run.share for run in runs])
    for index, run in enumerate(runs):
        assert (turns.run(index).plans == run.plans).all()
