"""The package as it is installed: what the wheel holds, what importing it loads."""

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    pytest.importorskip("setuptools")
    out = tmp_path_factory.mktemp("wheel")
    source = tmp_path_factory.mktemp("source") / "parenvs"
    files = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    for name in files:  # a copy, so that building leaves nothing behind in the checkout
        if (ROOT / name).is_file():
            target = source / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", ".", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "-q", "-w", str(out)], cwd=source, check=True)
    return next(out.glob("parenvs-*.whl"))


def test_package__wheel_holds_only_parenvs(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"parenvs"}
    needed = {
        "parenvs/py.typed",
        "parenvs/cli/app.py",
        "parenvs/tasks/pipeline/cut.py",
        "parenvs/agents/pipeline/exact.py",
        "parenvs/datasets/banks.py",
        "parenvs/datasets/data/manifest.json",
        "parenvs/datasets/data/t5-11b.npz",
        "parenvs/datasets/data/t5-11b-forward.npz",
    }
    roofs = {"agents", "datasets", "leaderboard"}  # beside the package, installed in it
    networks = (ROOT / "agents/learning/data").iterdir()  # each with the record that it is read by
    needed |= {f"parenvs/agents/learning/data/{file.name}" for file in networks}
    for folder in ("parenvs", *sorted(roofs)):
        for file in (ROOT / folder).rglob("*.py"):
            path = file.relative_to(ROOT).as_posix()
            if "submissions" not in path and "scripts" not in path:
                needed.add(f"parenvs/{path}" if folder in roofs else path)
    assert needed <= set(names), sorted(needed - set(names))
    code = [name for name in names if "/data/" not in name]
    assert not [name for name in code if "test" in name.lower() or "benchmark" in name]


@pytest.mark.slow
def test_package__installed_wheel_runs_without_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "-q", "--target", str(site)]
    subprocess.run([*command, str(wheel)], check=True)
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import importlib.util, parenvs, parenvs.agents.pipeline.exact, gymnasium\n"
        f"assert parenvs.__file__.startswith({str(site)!r}), parenvs.__file__\n"
        "assert importlib.util.find_spec('agents') is None\n"
        "assert importlib.util.find_spec('datasets.banks') is None if "
        "importlib.util.find_spec('datasets') else True\n"
        "env = gymnasium.make('PipelineCut-v0', instance='vgg-19', cluster='B')\n"
        "print(len(parenvs.load_graph('t5-base').opcode), env.reset(seed=0)[1].keys())\n"
    )
    alone = [sys.executable, "-I", "-c", code]  # A PYTHONPATH may name the checkout.
    done = subprocess.run(alone, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "action_mask" in done.stdout


def test_package__import_is_light():
    code = (
        "import sys, parenvs\n"
        "heavy = {'ray', 'torch', 'jax', 'matplotlib', 'stable_baselines3', 'scipy', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_package__lowest_versions_are_the_lower_bounds():
    """The extra torch asks for more of torch, and JAX for more of NumPy and SciPy."""
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    groups = {"": setup["options"]["install_requires"], **setup["options.extras_require"]}
    bounds = {
        extra: [line.split(";")[0] for line in lines.strip().splitlines() if line[0] != "#"]
        for extra, lines in groups.items()
    }
    assert all(line.count(">=") == 1 for lines in bounds.values() for line in lines)
    assert set(bounds.pop("ray")) == {*bounds["agents"], "ray>=2.60"}
    del bounds["docs"]  # no session of nox builds the site
    jax, torch = bounds.pop("jax"), bounds.pop("torch")
    assert set(jax) < set(torch)
    of_core = dict(line.split(">=") for lines in bounds.values() for line in lines)
    assert pinned("constraints/lowest.txt") == of_core
    with_jax = pinned("constraints/lowest-jax.txt")
    raised = {name: with_jax.pop(name) for name in ("numpy", "scipy")}
    assert with_jax == {
        name: version
        for name, version in {**of_core, **dict(line.split(">=") for line in torch)}.items()
        if name not in raised
    }
    assert all(version > of_core[name] for name, version in raised.items())


def pinned(file):
    """The versions that a file of constraints names, which is in order."""
    lines = (ROOT / file).read_text(encoding="utf-8").splitlines()
    lines = [line for line in lines if not line.startswith("#")]
    assert lines == sorted(lines)
    return dict(line.split("==") for line in lines)
