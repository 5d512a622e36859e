"""The decision process: what happens to plans, what choices earn, candidates and their costs."""

from dataclasses import asdict, replace
from itertools import combinations

import elastic_toys as toys
import numpy as np
import pytest

from parenvs.agents.elastic.policies import optimal
from parenvs.cluster import Cluster
from parenvs.errors import InfeasibleError, ParenvsError
from parenvs.fields import write_rows
from parenvs.tasks.elastic.library import GONE, LOST, READY, Library
from parenvs.tasks.elastic.movement import Degrees
from parenvs.tasks.elastic.problem import Elastic, Moment
from parenvs.tasks.elastic.problems import elastic_rows, load_elastic, read_set
from parenvs.tasks.hybrid.model import HybridModel, shapes
from parenvs.tasks.hybrid.problem import Hybrid


def test_problem__what_happens_to_plans():
    """By replicas: which parts of the state are left when any nodes leave."""
    problem = toys.problem("wide")
    library = problem.library
    for count in range(7):
        for leaving in combinations(range(6), count):
            ranks = np.isin(np.arange(6), leaving)
            events = problem.events(np.concatenate([[0], ranks.cumsum()]).astype(np.int8))
            for k, plan in enumerate(library.candidates, 1):
                used, held = int(library.used[k]), int(library.needed[k])
                mine = [rank for rank in leaving if rank < used]
                data = plan.degrees.data
                kept = {rank // data for rank in range(used) if rank not in mine}
                if not mine:
                    wanted = 0
                elif len(kept) < used // data:
                    wanted = GONE
                elif sum(rank < held for rank in leaving) <= plan.spares:
                    wanted = READY + len(mine)
                else:
                    wanted = min(len(mine), LOST)
                assert events[k] == wanted
            assert events[0] == 0


def test_problem__samples_of_choices():
    problem = toys.problem()
    costs, library = problem.library.costs, problem.library
    seconds, egress = library.tables
    start = problem.samples(Moment(0, 3), 3)  # a start reads the checkpoint
    assert start == pytest.approx(1.9 * (60 - (33.587 + 9)))
    assert problem.samples(Moment(0, 3), 0) == 0
    assert problem.samples(Moment(4, 3, 3, 0, 1), 3) == pytest.approx(1.9 * 60)
    assert problem.samples(Moment(4, 3, 3, 0, 2), 3) == pytest.approx(1.9 * (60 - costs.save))
    gone = problem.samples(Moment(4, 3, 3, GONE, 2), 1)
    assert gone == pytest.approx(1.0 * (60 - 28.76 - 9) - 2 * 1.9 * 60)
    assert problem.samples(Moment(4, 3, 3, GONE, 2), 0) == pytest.approx(-2 * 1.9 * 60)
    # From the replicas to the pipeline: the host that sends most.
    moved = library.movements[Degrees(1, 1, 2), Degrees(1, 2, 1), 0]
    assert moved.egress_bytes == egress[0, 3, 2] == 0
    join = library.movements[Degrees(1, 1, 1), Degrees(1, 1, 2), 0]
    assert join.egress_bytes == pytest.approx(library.state.bytes)
    groups = 2 + 1 + 1 + 2
    planned = costs.fixed + groups * costs.join + library.state.bytes / costs.egress
    assert seconds[0, 1, 3] == pytest.approx(planned)
    repaired = seconds[1, 3, 3]
    assert repaired == pytest.approx(33.587 + library.state.bytes / costs.egress)
    ready = seconds[READY + 1, 4, 4]
    assert ready == pytest.approx(planned)
    assert seconds[0, 3, 4] == pytest.approx(costs.fixed + groups * costs.join)  # one spare more
    assert seconds[0, 4, 3] == 0


def test_problem__ideal_is_expected():
    problem = toys.problem("bulk", intervals=6)
    totals = [problem.best[problem.drawn(seed).nodes].sum() for seed in range(1500)]
    assert optimal(problem).ideal == pytest.approx(np.mean(totals), rel=0.02)


def test_problem__candidates_of_the_cost_model():
    hybrid = Hybrid(HybridModel.of_shape(shapes()["gpt-1.7b"]), Cluster.parse("4x2:a100"), 64)
    library = Library.modeled(hybrid)
    assert library.used.max() <= 4
    assert (library.rate[1:] > 0).all()
    assert library.costs.load == pytest.approx(7 * library.state.bytes / 23e9)
    by_nodes = [library.rate[library.used == n].max() for n in (1, 2, 4)]
    assert by_nodes == sorted(by_nodes)
    for k, plan in enumerate(library.candidates, 1):
        assert plan.degrees.ranks == 2 * library.used[k]
        assert library.used[k] % library.replicas[k] == 0


def test_problem__bad_input(tmp_path):
    chain = toys.CHAINS["calm"]
    with pytest.raises(ParenvsError, match="interval must be from 1 to 86,400 s"):
        Elastic(toys.library(), chain, 0.0)
    with pytest.raises(ParenvsError, match="intervals must be a whole number"):
        Elastic(toys.library(), chain, 60.0, 1.5)
    few = replace(toys.library(True), candidates=toys.library(True).candidates[-2:-1])
    with pytest.raises(InfeasibleError, match="smallest plan takes 6 nodes"):
        Elastic(few, chain)
    with pytest.raises(ParenvsError, match="unknown problem 'elastic-test/x'"):
        load_elastic("elastic-test/x")
    path = tmp_path / "set.json"
    rows = dict(list(elastic_rows("elastic-test").items())[:2])
    write_rows(path, {name: asdict(row) for name, row in rows.items()})
    assert read_set(path) == rows
    text = path.read_text()
    for old, new, words in (
        ('"schema": 1', '"schema": 2', "field 'schema' is 2; this version reads 1"),
        ('"model": "gpt-1.5b"', '"model": "gpt"', r"problems\[0\]: field 'model' must be one of"),
        ('"intervals": 240', '"intervals": "x"', "field 'intervals' must be a whole number"),
        (
            '"intervals"',
            '"interval"',
            r"problems\[0\]: field 'intervals' is missing, and 'interval' is no field",
        ),
        ("{", "", "not a JSON file"),
    ):
        path.write_text(text.replace(old, new, 1))
        with pytest.raises(ParenvsError, match=words):
            read_set(path)
