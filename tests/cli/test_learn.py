import pytest
from cases import each
from commands import caller

ENV = "ElasticPlan-v2"


@pytest.mark.slow
def test_train__an_environment_by_its_id(monkeypatch, capfd, tmp_path):
    run = caller(monkeypatch, capfd, tmp_path)
    for env_id, agent in ((ENV, "group"), ("CartPole-v1", "ppo")):
        words = ["train", env_id, "--agent", agent, "--steps", "64", "--out", f"run-{agent}"]
        status, out, _ = run(*words)
        assert status == 0 and f"{env_id}: {agent}, " in " ".join(out.split())
        assert (tmp_path / f"run-{agent}" / "model.pt").exists()
        status, _, err = run(*words)
        assert status == 2 and "holds a run already; continue it with" in " ".join(err.split())
        assert run(*words, "--resume")[0] == 0
    status, out, _ = run(
        "evaluate", "run-group", "--set", "elastic-test", "--family", "bulk-gpt-1.5b"
    )
    assert status == 0 and "4 problems" in " ".join(out.split())
    status, out, _ = run("evaluate", "run-ppo", "--episodes", "3")
    assert status == 0 and "CartPole-v1: mean return" in " ".join(out.split())
    status, _, err = run("evaluate", "run-ppo", "--set", "elastic-test")
    words = "run-ppo: elastic-test is a set of ElasticPlan-v2, not of 'CartPole-v1'"
    assert status == 2 and words in " ".join(err.split())
    status, _, err = run("train", ENV, "--agent", "pp0")
    assert status == 2 and "unknown agent 'pp0' (did you mean 'ppo'?)" in " ".join(err.split())
    assert not (tmp_path / "runs").exists()


@each(
    ("name", "option", "others"),
    [("single", "actors", "actors, inference, environments"), ("fused", "actors", "inference"),
     ("actors", "learners", "learners, environments, server, fused")],
)  # fmt: skip
def test_train__refuses_what_a_distribution_ignores(run, name, option, others):
    status, _, err = run("train", "pipeline", "--distribution", name, f"--{option}", "2")
    assert status == 2 and err.count("\n") == 1
    assert f"--{option}: distribution {name} ignores it" in err and others in err
