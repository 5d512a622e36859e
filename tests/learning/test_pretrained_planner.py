from dataclasses import replace
from importlib import resources

import numpy as np
import pytest
import toys
from cases import slow

from parenvs.agents.learning.pretrained.planner import WEIGHTS, gaps, policy, pretrained, refined
from parenvs.agents.learning.pretrained.policy import Draws
from parenvs.agents.pipeline.beam import beam
from parenvs.agents.pipeline.points import even_plan, exact_points
from parenvs.cluster import Cluster
from parenvs.core.judge import judge
from parenvs.datasets.pipeline.sets import load_set
from parenvs.errors import InfeasibleError
from parenvs.shipped import PAPER
from parenvs.tasks.pipeline.load import load_profile
from parenvs.tasks.pipeline.points import PointSpace
from parenvs.tasks.pipeline.problem import Pipeline


def real(name, cluster="C", stages=None):
    where = Cluster.parse(cluster)
    return PointSpace.build(Pipeline(load_profile(name, where), where, stages))


@pytest.fixture(scope="module")
def some():
    """Every fifth problem of the validation set, with its optimum."""
    spaces = [problem.space for problem in load_set("plan-validation")[::5]]
    return [(space, exact_points(space)) for space in spaces]


def test_network__ships_and_is_small():
    file = resources.files("parenvs.agents.learning.pretrained").joinpath(WEIGHTS)
    assert len(file.read_bytes()) < 5e6
    weights = policy().weights
    assert {x.dtype for x in weights.values()} == {np.dtype(np.float32)}
    assert all(np.isfinite(x).all() for x in weights.values())
    torch = pytest.importorskip("torch")
    from parenvs.agents.learning.pretrained.network import RatingNetwork

    network = RatingNetwork(weights["points.out.weight"].shape[1])
    network.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()})


@pytest.mark.parametrize("name", [*PAPER[:2], *slow(*PAPER[2:])])
def test_pretrained__real_graphs(name):
    space = real(name)
    answer = pretrained(space)
    report = judge(answer.plan)  # which names the instance
    assert report.legal
    assert report.length_seconds == pytest.approx(answer.cost)
    greedy, around = pretrained(space, draws=1), pretrained(space, refine=True)
    assert around.cost <= answer.cost <= greedy.cost
    assert (answer.method, around.method) == ("pretrained", "pretrained-refined")
    again = pretrained(space)
    assert np.array_equal(again.plan.cuts, answer.plan.cuts)
    assert np.array_equal(again.plan.device_cuts, answer.plan.device_cuts)


@pytest.mark.slow
def test_pretrained__near_the_optimum(some):
    """Looser than what is measured over 1,000 problems; a network of random weights is far off."""
    found = {
        kind: np.array([pretrained(space, **options).cost / best.cost for space, best in some])
        for kind, options in {"drawn": {}, "refined": {"refine": True}}.items()
    }
    assert (found["drawn"] >= 1 - 1e-9).all()
    assert np.median(found["drawn"]) < 1.01
    assert np.percentile(found["drawn"], 90) < 1.08
    assert np.percentile(found["refined"], 90) < 1.01
    assert (found["refined"] <= found["drawn"] + 1e-12).all()


@pytest.mark.thorough
def test_draws__shortest_first(some):
    space = some[1][0]
    drawn = policy().plan(space, 16, np.random.default_rng(0))
    assert isinstance(drawn, Draws)
    assert (np.diff(drawn.lengths) >= 0).all()
    for cuts, units, length in zip(drawn.cuts, drawn.units, drawn.lengths, strict=True):
        plan = space.plan(cuts, units)
        assert float(space.pipeline.length(*plan)) == pytest.approx(
            length * space.pipeline.bubble_free
        )
    greedy = policy().plan(space, 1, np.random.default_rng(5))
    assert greedy.lengths[0] in drawn.lengths


def test_refined__keeps_what_it_cannot_better(some):
    for space, best in some[:10]:
        points, units = (
            np.searchsorted(a, b)
            for a, b in ((space.pivots, best.plan.cuts), (space.devices, best.plan.device_cuts))
        )
        length = best.cost / space.pipeline.bubble_free
        plan, _ = refined(space, Draws(points[None], units[None], np.array([length])))
        assert float(space.pipeline.length(*plan)) <= best.cost * (1 + 1e-12)


def test_pretrained__short_chains_are_not_stretched():
    chain = toys.chain([1.0, 2.0, 1.0], [1.0, 1.0, 2.0], [4.0, 1.0, 4.0], [1.0, 1.0, 1.0])
    where = Cluster.parse(toys.shape(2, 2, 100.0, 10.0))
    space = PointSpace.build(Pipeline(chain, where, 3, 4))
    assert len(space.pivots) - 1 == 3
    answer = pretrained(space)
    assert answer.plan.cuts == (1, 2)
    assert pretrained(space, refine=True).cost == exact_points(space).cost


def test_pretrained__all_weight_in_one_pivot():
    n = 20
    heavy = np.zeros(n)
    heavy[7] = 100.0
    chain = toys.chain(
        np.where(heavy > 0, 5.0, 1e-3), np.where(heavy > 0, 9.0, 1e-3), np.ones(n), heavy + 1e-3
    )
    where = Cluster.parse(toys.shape(2, 4, 100.0, 10.0))
    space = PointSpace.build(Pipeline(chain, where, 2, 8))
    best = exact_points(space)
    assert pretrained(space, refine=True).cost == pytest.approx(best.cost)
    assert pretrained(space).cost <= 1.2 * best.cost


@pytest.mark.slow
def test_pretrained__memory(some):
    """Plans fit, tight or not; where nothing can, the end is clear."""
    tight = 0
    for space, _ in some:
        pipeline = space.pipeline
        for refine in (False, True):
            answer = pretrained(space, refine=refine)
            assert pipeline.excess_bytes(answer.plan.cuts, answer.plan.device_cuts) <= 0
        tight += float(pipeline.excess_bytes(*space.plan(*even_plan(space)))) > -0.3 * (
            pipeline.memory_limit
        )
    assert tight > 2
    where = Cluster.parse(toys.shape(2, 2, 100.0, 10.0, memory_bytes=1.0))
    chain = toys.chain([1.0] * 4, [1.0] * 4, [8.0] * 4, [3.0] * 4)
    with pytest.raises(InfeasibleError, match="fits the memory"):
        PointSpace.build(Pipeline(chain, where, 2, 4))


@pytest.mark.slow
def test_gaps__of_points_and_of_all_pivots():
    space = real("t5-base")
    answer = pretrained(space)
    of_points, of_all = gaps(space, answer)
    assert of_points.proven and of_all.proven
    assert of_points.ratio >= 1
    assert of_all.length <= of_points.length
    assert answer.cost == pytest.approx(of_points.length * of_points.ratio)
    assert f"{len(space.pivots) - 1} points" in of_points.over
    assert f"all {len(space.pipeline.profile)} pivots" in of_all.over
    best = exact_points(space)
    assert gaps(space, best)[0].text().startswith("at the optimum over")
    bounded = gaps(space, answer, seconds=0.0)[0]
    assert not bounded.proven
    assert bounded.text().startswith("at most ")
    assert bounded.length <= best.cost
    longer = replace(best, cost=1.25 * best.cost)
    assert gaps(space, longer)[0].text().startswith("25.000% above the optimum over")


def test_gaps__one_where_points_are_pivots(some):
    space = next(space for space, _ in some if len(space.pivots) - 1 == len(space.pipeline.profile))
    assert len(gaps(space, pretrained(space))) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("cluster", "stages"),
    [("4x8:v100", 12), pytest.param("16x8:v100", 16, marks=pytest.mark.slow)],
)
def test_pretrained__more_stages_than_the_environment(cluster, stages):
    """Twelve stages on fewer servers, sixteen on servers that are units."""
    space = real("t5-base", cluster, stages)
    assert len(space.devices) - 1 >= stages
    drawn, around = pretrained(space), pretrained(space, refine=True)
    for answer in (drawn, around, beam(space)):
        report = judge(answer.plan)
        assert report.legal
        assert len(answer.plan.cuts) == stages - 1
        assert report.length_seconds == pytest.approx(answer.cost)
    assert around.cost <= drawn.cost
    exact = exact_points(space, time_limit=2.0)
    assert exact.bound <= drawn.cost * (1 + 1e-9)
    assert around.cost < 1.2 * exact.cost
