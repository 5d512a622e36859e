"""Devices of a stage that share no sample: every planner keeps to it, the exact ones with proof."""

import json
from dataclasses import replace

import brute_force as bf
import gymnasium as gym
import numpy as np
import pytest
from cases import slow

import parenvs
from parenvs import Pipeline, StageProfile, judge, load_plan, problem
from parenvs.agents.pipeline.exact import exact_candidates, exact_full, leanest_plan, plan_within
from parenvs.agents.pipeline.heuristics import to_whole_samples
from parenvs.agents.pipeline.planners import PipelineRequest
from parenvs.agents.pipeline.shapes import exact_shape
from parenvs.errors import InfeasibleError
from parenvs.tasks.pipeline.spaces import CutSpace
from parenvs.tasks.pipeline.view import text

pytestmark = pytest.mark.thorough


def of_whole_samples(pipeline, samples):
    return replace(
        pipeline, profile=replace(pipeline.profile, micro_batch=samples), fractions=False
    )


def whole_plans(pipeline, stages):
    """Every plan whose devices divide the samples, by their definition."""
    cuts, device_cuts = bf.all_plans(pipeline, stages)
    ends = np.full((len(cuts), 1), pipeline.cluster.devices)
    groups = np.diff(np.concatenate([0 * ends, device_cuts, ends], axis=1), axis=1)
    kept = (pipeline.profile.micro_batch % groups == 0).all(axis=1)
    return cuts[kept], device_cuts[kept]


@pytest.mark.parametrize("seed", [0, *slow(*range(10, 100, 10))])
def test_exact__equals_brute_force_over_whole_samples(seed):
    seen = set()
    for case in range(seed, seed + 10):
        pipeline, stages = bf.random_pipeline(np.random.default_rng([case, 7]))
        pipeline = of_whole_samples(pipeline, (1, 2, 4, 6)[case % 4]).with_stages(stages)
        plans = whole_plans(pipeline, stages)
        if not len(plans[0]):
            seen.add("none")
            with pytest.raises(InfeasibleError, match="a whole number for each device"):
                exact_full(pipeline)
            continue
        best = bf.best_of(pipeline, plans)
        assert leanest_plan(pipeline)[1] == pytest.approx(best.excess, abs=0.5)
        assert (plan_within(pipeline, pipeline.memory_limit) is None) == (best.excess > 0)
        if best.excess > 0:
            seen.add("full")
            with pytest.raises(InfeasibleError, match="no plan fits the memory"):
                exact_full(pipeline)
        else:
            seen.add("plan")
            answer = exact_full(pipeline)
            assert answer.proven and answer.cost == pytest.approx(best.length, rel=1e-9)
            assert answer.report.legal and not answer.report.remarks
    assert "plan" in seen


@pytest.mark.parametrize("seed", [0, *slow(*range(10, 60, 10))])
def test_exact_candidates__keeps_to_whole_samples_of_its_candidates(seed):
    found = 0
    for case in range(seed, seed + 10):
        space = bf.random_space(np.random.default_rng([case, 1]))
        samples = (2, 4, 6)[case % 3]
        space = replace(space, pipeline=of_whole_samples(space.pipeline, samples))
        cuts, device_cuts = bf.legal_plans(space)
        ends = np.full((len(cuts), 1), space.pipeline.cluster.devices)
        groups = np.diff(np.concatenate([0 * ends, device_cuts, ends], axis=1), axis=1)
        kept = (samples % groups == 0).all(axis=1)
        if not kept.any():
            with pytest.raises(InfeasibleError, match=r"whole number|whole samples|no plan fits"):
                exact_candidates(space)
            continue
        best = bf.best_of(space.pipeline, (cuts[kept], device_cuts[kept]))
        if best.excess <= 0:
            found += 1
            assert exact_candidates(space).cost == pytest.approx(best.length, rel=1e-9)
    assert found


def profile(micro_batch=4, n=12):
    rng = np.random.default_rng(0)
    forward = rng.uniform(1, 2, n)
    return StageProfile(
        "own", np.array([f"p{k}" for k in range(n)], dtype=object), forward, 2 * forward,
        rng.uniform(1, 5, n), rng.uniform(1, 5, n), micro_batch=micro_batch,
    )  # fmt: skip


def test_every_planner__gives_plans_of_whole_samples():
    own = problem(profile(), "1x7:v100", stages=3, fractions=False)
    assert not own.fractions
    request = PipelineRequest(problem=own, steps=64)
    for agent in ("exact", "search", "even", "pipedream", "random"):
        plan = request.run(agent).plan
        groups = np.diff([0, *plan.device_cuts, 7]).tolist()
        assert sorted(groups) == [1, 2, 4], (agent, groups)
        assert own.report(plan).legal and not plan.fractions
    even = request.run("even")
    assert "whole samples" in even.notes[0] and not even.proven
    cuts = (np.array([4, 8]), np.array([2, 5]))  # groups of 2, 3 and 2 devices
    assert np.diff([0, *to_whole_samples(own, cuts)[1], 7]).tolist() == [2, 4, 1]


def test_judge__says_who_shares_a_sample():
    allowed = problem(profile(), "1x7:v100", stages=3, fractions=True)
    plan = allowed.plan(np.array([4, 8]), np.array([2, 5]))
    report = allowed.report(plan)
    assert report.legal
    assert report.remarks == (
        "stage 1: 4 samples are no whole number for each of 3 devices: exports refuse it",
    )
    assert report.remarks[0] in str(report) and report.to_json()["remarks"] == [*report.remarks]
    assert report.remarks[0] in text(report)
    own = problem(profile(), "1x7:v100", stages=3, fractions=False)
    refused = own.report(plan)
    assert not refused.legal and refused.remarks == ()
    assert refused.reasons[0].startswith("stage 1: 4 samples are no whole")


def test_plans__say_in_their_files_whether_samples_are_whole(tmp_path):
    own = problem(profile(), "1x8:v100", stages=2, fractions=False)
    made = parenvs.plan(own, agent="exact").plan
    made.save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    assert content["fractions"] is False and load_plan(tmp_path / "plan.json") == made
    content["device_cuts"] = [3]
    (tmp_path / "other.json").write_text(json.dumps(content))
    other = load_plan(tmp_path / "other.json")
    assert "stage 0: 4 samples" in judge(other, own.profile).reasons[0]
    del content["fractions"]  # as files of before
    (tmp_path / "before.json").write_text(json.dumps(content))
    before = judge(load_plan(tmp_path / "before.json"), own.profile)
    assert before.legal and before.remarks


def test_problem__says_what_to_change_where_no_stages_share_samples():
    with pytest.raises(InfeasibleError) as caught:
        parenvs.plan(problem(profile(1), "1x4:v100", stages=2, fractions=False), agent="exact")
    words = str(caught.value)
    assert "2 stages on 4 devices cannot share 1 sample of a micro-batch" in words
    assert all(option in words for option in ("--micro-batch", "--stages", "--fractions"))
    assert exact_shape(
        problem(profile(1), "1x4:v100", stages=1, fractions=False)
    ).answer.problem.can_split(4)


def test_tasks_of_the_paper__divide_as_they_did():
    assert problem("vgg-19", "A").fractions and problem("t5-base", "C").fractions
    assert problem("plan-test/cnn-003").fractions
    assert "fractions" not in problem("vgg-19", "A").plan([20], [3]).to_json()
    own = problem(profile(), "1x7:v100", stages=3, fractions=False)
    env = gym.make("PipelineCut-v0", problem=own)
    env.reset()
    assert env.unwrapped.problem.fractions  # environments play on as they did
    assert Pipeline(profile(), "1x7:v100").fractions
    assert problem(profile(), "1x7:v100").fractions and not problem("llama3-8b", "C").fractions
    assert problem("llama3-8b", "C", fractions=True).fractions
    assert isinstance(CutSpace.build(own), CutSpace)
