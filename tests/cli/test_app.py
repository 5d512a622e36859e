import json
import shutil
from dataclasses import replace
from pathlib import Path

import killed_writers
import pytest
import toys
from cases import each, slow
from commands import good

from parenvs import load_plan
from parenvs.cluster import PRESETS
from parenvs.instances import names

ROOT = Path(__file__).parents[2]


@pytest.fixture
def toy(tmp_path):
    """Arguments of a command for the dense toy: its chain, its cluster, its micro-batches."""
    kwargs = toys.dense().kwargs(tmp_path)
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps(kwargs["cluster"]))
    return [kwargs["instance"], "--cluster", cluster, "--stages", "2", "--micro-batches", "2"]


@pytest.fixture
def refused(run, tmp_path):
    """One line that names the trouble, status 2, nothing written."""

    def call(*arguments, words=""):
        before = sorted(tmp_path.rglob("*"))
        status, _, err = run(*arguments)
        assert status == 2, err
        assert err.startswith("parenvs: "), err
        assert err.count("\n") == 1, err
        assert err.endswith("\n"), err
        assert "Traceback" not in err
        for word in [words] if isinstance(words, str) else words:
            assert word in err
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return call


@pytest.mark.thorough
def test_cli__list(run):
    out = good(run("list"))
    for word in (*names(), *PRESETS, "PipelineCut-v0", "search", "pipedream", "ppo"):
        assert word in out


def test_cli__version(run):
    import parenvs

    assert good(run("--version")) == f"parenvs {parenvs.__version__}\n"


def test_cli__show(run, toy):
    out = good(run("show", "vgg-19", "--cluster", "B"))
    for words in (("variables", "38"), ("pivots", "164"), ("stages", "3"), ("batch size", "64")):
        assert any(all(word in line for word in words) for line in out.splitlines())
    out = good(run("show", *toy[:5]))
    assert "chain of dense on 2x2 toy" in out
    assert any("pivots with variables" in line and "6" in line for line in out.splitlines())


def test_cli__plan_of_the_toy_is_its_optimum(run, toy):
    out = good(run("plan", *toy, "--json", "--out", "plan.json"))
    content = json.loads(out.splitlines()[0])
    assert content["plan"]["cuts"] == [5]
    assert content["plan"]["device_cuts"] == [3]
    assert content["report"]["legal"] is True
    assert content["report"]["length_seconds"] == pytest.approx(22)
    assert content["report"]["value"] == pytest.approx(6 / 22)
    assert json.loads(Path("plan.json").read_text()) == content["plan"]
    assert "22.0" in good(run("plan", *toy)) or "22 s" in good(run("plan", *toy))
    assert "optimal" in good(run("plan", *toy))


def test_cli__plan_options_reach_the_plan(run):
    good(
        run(
            "plan", "vgg-19", "--cluster", "2x4:v100,10Gbps", "--stages", "3", "--micro-batch", "4",
            "--micro-batches", "8", "--radius", "5", "--candidates", "all", "--agent", "random",
            "--steps", "100", "--out", "p.json",
        )
    )  # fmt: skip
    plan = load_plan("p.json")
    assert (plan.micro_batch, plan.micro_batches, len(plan.cuts)) == (4, 8, 2)
    assert plan.cluster.devices == 8
    assert plan.cluster.inter_bw == 10e9 / 8


@pytest.mark.thorough
@pytest.mark.parametrize("ending", [".svg", *slow(".png", ".pdf")])
def test_cli__plot(run, toy, ending):
    good(run("plan", *toy, "--plot", f"plan{ending}"))
    assert Path(f"plan{ending}").stat().st_size > 5000
    assert [path.name for path in Path().iterdir()] == [f"plan{ending}"]


def test_cli__judge_on_another_instance(run, toy, tmp_path, refused):
    good(run("plan", *toy, "--out", "plan.json"))
    copy = tmp_path / "copy.csv"
    copy.write_bytes(Path(toy[0]).read_bytes())
    good(run("judge", "plan.json", "--instance", copy))
    copy.write_text(copy.read_text().replace("64", "65"))
    refused("judge", "plan.json", "--instance", copy, words="fingerprint")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cuts": (9,)}, "cuts: 9 is outside 1..5"),
        ({"cuts": (3, 2), "device_cuts": (1, 1)}, ["[3, 2] do not increase", "[1, 1] do not"]),
        ({"fingerprint": "sha256:00"}, "fingerprint: the plan is for sha256:00"),
        ({"cut_after": ("p0",)}, "cut_after: the pivot before cut 5 is 'p4', not 'p0'"),
        ({"micro_batches": 2**31 - 1}, "micro_batches"),
        ({"instance": "t5-3bb"}, "did you mean 't5-3b'"),
        ({"instance": "a" * 5000 + ".csv"}, "1 to 4,096 characters"),
        ({"instance": "a" * 4000 + ".csv"}, "no such file"),
        ({"instance": "a\nb"}, "unknown instance"),
    ],
)
def test_cli__judge_refuses(run, toy, tmp_path, refused, change, words):
    good(run("plan", *toy, "--out", tmp_path / "plan.json"))
    replace(load_plan(tmp_path / "plan.json"), **change).save(tmp_path / "plan.json")
    refused("judge", tmp_path / "plan.json", words=words)


def test_cli__judge_illegal_prints_the_report(run, toy, tmp_path):
    good(run("plan", *toy, "--out", "plan.json"))
    replace(load_plan("plan.json"), cuts=(9,)).save("plan.json")
    status, out, err = run("judge", "plan.json", "--json")
    assert status == 2
    assert json.loads(out)["reasons"][0] == "cuts: 9 is outside 1..5 (6 pivots)"
    assert json.loads(out)["length_seconds"] is None
    assert err.startswith("parenvs: plan.json: illegal: ")


HEADER = "name,forward_ms,backward_ms,cut_bytes,parameter_bytes\n"
ROWS = "a,1,2,3,4\nb,1,2,3,4\nc,1,2,3,4\nd,1,2,3,4\n"


@each(
    ("name", "data", "words"),
    [
        ("bad.pb", b"\x0a\xff\xff", "bad.pb"),
        ("bad.pb", b"", "bad.pb"),
        ("bad.txt", b"no HLO\nat all\n", "bad.txt"),
        ("bad.hlo", b"HloModule x\n\nENTRY main {", "bad.hlo"),
        ("bad.npz", b"PK\x03\x04", "bad.npz"),
        ("bad.npz", b"", "bad.npz"),
        ("bad.csv", HEADER.replace(",cut_bytes", "").encode(), "missing column 'cut_bytes'"),
        ("bad.csv", (HEADER + ROWS.replace("b,1", "b,-1")).encode(), ["line 3", "forward_ms"]),
        ("bad.csv", b"", "missing column 'name'"),
        ("bad.csv", b"\xff\xfe", "cannot be read as text"),
        ("bad.zip", b"x", "a file must end in"),
        ("bad.onnx", b"x", "weights and saved programs are not read"),
    ],
)
@each("command", ["plan", "show"])
def test_cli__bad_instances(refused, tmp_path, command, name, data, words):
    path = tmp_path / name
    path.write_bytes(data)
    out = ["--out", tmp_path / "plan.json"] if command == "plan" else []
    refused(command, path, *out, words=words)


@pytest.mark.parametrize("command", ["plan", *slow("show", "compare", "train")])
def test_cli__bad_problems(refused, tmp_path, command):
    if command == "train":
        pytest.importorskip("sb3_contrib")
    out = [] if command == "show" else ["--out", tmp_path / "out"]
    refused(command, "t5-3bb", *out, words="unknown instance 't5-3bb' (did you mean 't5-3b'?)")
    refused(command, tmp_path / "none.csv", *out, words="no such file")
    for cluster in ("Z", "4x8", "4x8:v101", "0x8:v100", "4x8:v100,fast", "none.json", ""):
        words = cluster if cluster == "none.json" else "cluster"
        refused(command, "vgg-19", "--cluster", cluster, *out, words=words)
    refused(command, "vgg-19", "--stages", 39, *out, words="hold variables")
    refused(command, "vgg-19", "--cluster", "1x4:v100", "--stages", 5, *out, words="only 4 devices")
    fewest = (
        "at least 2 stages, not 1"
        if command == "train"
        else "stages must be a whole number from 1, not 0"
    )
    refused(command, "vgg-19", "--stages", int(command == "train"), *out, words=fewest)
    refused(command, "vgg-19", "--micro-batch", 0, *out, words="micro")


@pytest.mark.parametrize("command", ["plan", *slow("compare", "train")])
@each(
    ("options", "words"),
    [
        (["--task", "hybrids"], "unknown task 'hybrids' (did you mean 'hybrid'?)"),
        (["--micro-batches", 0], "micro_batches must be"),
        (["--micro-batches", 2**31], "micro_batches must be"),
        (["--radius", -1], "radius must be"),
        (["--candidates", "few"], "unknown candidates 'few'; known: minima, all"),
        (["--steps", 0], "steps"),
        (["--seed", -1], "seed"),
        (["--seed", 2**32], "seed"),
    ],
)
def test_cli__bad_options(refused, tmp_path, command, options, words):
    refused(command, "vgg-19", *options, "--out", tmp_path / "out", words=words)


@pytest.mark.thorough
def test_cli__unknown_agent(refused, tmp_path):
    out = ["--out", tmp_path / "out"]
    refused("plan", "vgg-19", "--agent", "exakt", *out, words="(did you mean 'exact'?)")
    refused("compare", "vgg-19", "--agent", "even", "--agent", "pipedreem", *out,
            words="(did you mean 'pipedream'?)")  # fmt: skip
    pytest.importorskip("sb3_contrib")
    refused("train", "vgg-19", "--agent", "exact", *out, words="unknown agent 'exact'")


@pytest.mark.thorough
@pytest.mark.parametrize("agent", ["exact", "even", *slow("random", "ppo")])
def test_cli__no_plan_fits(refused, tmp_path, agent):
    """T5-11B on two servers: said by how many bytes the best plan misses."""
    if agent == "ppo":
        pytest.importorskip("sb3_contrib")
    steps = ("--steps", 512) if agent in ("random", "ppo") else ()
    err = refused(
        "plan", "t5-11b", "--cluster", "A", "--stages", 2, "--agent", agent, *steps,
        "--out", tmp_path / "p.json", "--plot", tmp_path / "p.png",
    )  # fmt: skip
    if agent.startswith("exact") or agent == "ppo":
        assert "no plan fits the memory; the best one needs" in err
        assert "bytes more than the 28,800,000,000 allowed" in err
    else:
        assert "illegal" in err
        assert "more than the 28,800,000,000 allowed" in err


def test_cli__unknown_picture(refused, toy, tmp_path, run):
    """Noticed before a plan is written."""
    out = ["--out", tmp_path / "plan.json"]
    for name in ("p.jpeg2", "p", "p.json"):
        refused("plan", *toy, *out, "--plot", tmp_path / name, words=[name, ".png, .svg, .pdf"])
        refused("compare", *toy, "--agent", "even", *out, "--plot", tmp_path / name, words=name)
    good(run("plan", *toy, *out))
    refused("judge", tmp_path / "plan.json", "--plot", tmp_path / "p.gif", words="p.gif")


def test_cli__places_that_cannot_be_written(refused, toy, tmp_path, run):
    file = tmp_path / "file"
    file.write_text("")
    folder = tmp_path / "folder"
    folder.mkdir()
    for place in (file / "x", file / "deep" / "x", Path("/proc/none/x")):
        refused("plan", *toy, "--out", place / "plan.json", words=str(place.parts[1]))
        refused("plan", *toy, "--plot", f"{place}.png")
    refused("plan", *toy, "--out", folder, words=str(folder))
    pytest.importorskip("sb3_contrib")
    refused("train", *toy, "--out", file / "run", "--steps", 1)
    refused("train", *toy, "--out", file, "--steps", 1)


@pytest.mark.thorough
def test_cli__train_and_evaluate(run, refused, tmp_path):
    pytest.importorskip("sb3_contrib")
    folder = tmp_path / "run"
    train = ["train", "vgg-19", "--cluster", "B", "--steps", 2048, "--out", folder]
    out = good(run(*train))
    for word in ("best return", "exact optimum", "gap", "2,048", "episodes"):
        assert word in out
    made = {path.name for path in folder.iterdir()}
    files = {"config.json", "state.pt", "curve.csv", "log", "model.pt", "plan.json", "result.json"}
    assert made == files
    result = json.loads((folder / "result.json").read_text())
    report = json.loads(good(run("judge", folder / "plan.json", "--json")))
    assert report["value"] == pytest.approx(result["value"], rel=1e-6)
    refused(*train, words="--resume")
    refused(*train[:-2], "--out", folder, "--resume", "--seed", 1, words="another configuration")
    refused("train", "vgg-19", "--cluster", "C", "--out", folder, "--resume", words="another conf")
    plan = (folder / "plan.json").read_bytes()
    good(run(*train, "--resume"))
    assert (folder / "plan.json").read_bytes() == plan
    again = json.loads((folder / "result.json").read_text())
    timed = {"seconds", "target_seconds"}
    assert {k: v for k, v in again.items() if k not in timed} == {
        k: v for k, v in result.items() if k not in timed
    }
    out = good(run("evaluate", folder, "--episodes", 5))
    for word in ("greedy policy", "mean of 5 samples", "optimum", "gap"):
        assert word in out
    for options in (["--episodes", 0], ["--seed", -1]):
        refused("evaluate", folder, *options, words="--")


def test_cli__train_until_optimal(run, toy, tmp_path):
    pytest.importorskip("sb3_contrib")
    out = good(run("train", *toy, "--out", tmp_path / "run", "--until-optimal"))
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["value"] == pytest.approx(6 / 22, rel=1e-6)
    assert result["target_steps"] <= result["steps"] < 60_000
    assert "steps to the optimum" in out
    assert "0.000 %" in out


@pytest.mark.slow
def test_cli__second_writers_are_refused(refused, toy, tmp_path, run):
    """A run's folder, a folder of entries and a site that another process writes."""
    pytest.importorskip("sb3_contrib")
    folder, entries, site = tmp_path / "run", tmp_path / "entries", tmp_path / "site"
    with killed_writers.holding(folder) as pid:
        words = (f"{folder}: process {pid} on ", "is writing to it")
        refused("train", *toy, "--out", folder, words=words)
    with killed_writers.holding(entries / "data-parallel") as pid:
        options = ["--task", "data-parallel", "--agent", "greedy", "--folder", entries]
        refused("leaderboard", "submit", *options, words=f"data-parallel: process {pid} on ")
    with killed_writers.holding(site, beside=True) as pid:
        source = ROOT / "leaderboard" / "submissions" / "data-parallel"
        (tmp_path / "one" / "data-parallel").mkdir(parents=True)
        shutil.copy(source / "greedy.json", tmp_path / "one" / "data-parallel")
        options = ["--folder", tmp_path / "one", "--out", site]
        refused("leaderboard", "site", *options, words=f"site: process {pid} on ")


def test_cli__evaluate_needs_trust(run, refused, tmp_path):
    """The file of a function is run when the caller says so, and not before."""
    pytest.importorskip("sb3_contrib")
    made, code = tmp_path / "made", tmp_path / "code.py"
    code.write_text(f"open({str(made)!r}, 'w')\n")
    instance = {"instance": f"{code}:step"}
    content = {"schema": 1, "env_id": "PipelineCut-v0", "env_kwargs": instance, "agent": "ppo"}
    (tmp_path / "config.json").write_text(json.dumps(content))
    (tmp_path / "model.pt").touch()
    refused("evaluate", tmp_path, words="--trust")
    assert not made.exists()
    status, _, err = run("evaluate", tmp_path, "--trust")
    assert status == 2 and "config.json: " in err
    pytest.importorskip("jax")
    assert made.exists()


def test_cli__evaluate_refuses(refused, tmp_path, run):
    pytest.importorskip("sb3_contrib")
    refused("evaluate", tmp_path / "none", words="not the folder of a training run")
    refused("evaluate", tmp_path, words="not the folder of a training run")
    config = tmp_path / "config.json"
    for text in ("", "{", "[]", "1", '"x"', "null", "{}", '{"parenvs": 1, "odd": 2}'):
        config.write_text(text)
        refused("evaluate", tmp_path, words="config.json: ")
    whole = {"schema": 1, "env_id": "PipelineCut-v0", "env_kwargs": {"instance": "vgg-19"}}
    config.write_text(json.dumps({**whole, "seed": "x"}))
    refused("evaluate", tmp_path, words="field 'seed' must be a whole number")
    config.write_text(json.dumps(whole))
    refused("evaluate", tmp_path, words="the run has not ended; parenvs train --resume")
    (tmp_path / "model.pt").write_bytes(b"PK broken")
    refused("evaluate", tmp_path, words="model.pt: damaged")
