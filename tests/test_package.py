"""The package as it is installed: what the wheel holds, what importing it loads."""

import configparser
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

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
        "parenvs/envs/pipeline/cut.py",
        "parenvs/agents/exact/pipeline.py",
        "parenvs/datasets/build.py",
        "parenvs/datasets/data/manifest.json",
        "parenvs/datasets/data/t5-11b.npz",
        "parenvs/datasets/data/t5-11b-forward.npz",
    }
    assert needed <= set(names)
    code = [name for name in names if "/data/" not in name]
    assert not [name for name in code if "test" in name.lower() or "benchmark" in name]


def test_package__installed_wheel_runs_without_the_checkout(wheel, tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "-q", "--target", str(site)]
    subprocess.run([*command, str(wheel)], check=True)
    code = (
        f"import sys; sys.path.insert(0, {str(site)!r})\n"
        "import importlib.util, parenvs, parenvs.agents.exact.pipeline, gymnasium\n"
        f"assert parenvs.__file__.startswith({str(site)!r}), parenvs.__file__\n"
        "assert importlib.util.find_spec('agents') is None\n"
        "assert importlib.util.find_spec('datasets.build') is None if "
        "importlib.util.find_spec('datasets') else True\n"
        "env = gymnasium.make('PipelineCut-v0', instance='vgg-19', cluster='B')\n"
        "print(len(parenvs.load_graph('t5-base').opcode), env.reset(seed=0)[1].keys())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "action_mask" in done.stdout


def test_package__import_is_light():
    code = (
        "import sys, parenvs\n"
        "heavy = {'torch', 'jax', 'matplotlib', 'stable_baselines3', 'scipy', 'typer'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_package__lowest_versions_are_the_lower_bounds():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg", encoding="utf-8")
    extras = dict(setup["options.extras_require"])
    del extras["torch"]  # it asks for more of what others ask for; `make lowest` leaves it out
    groups = [setup["options"]["install_requires"], *extras.values()]
    bounds = [line for group in groups for line in group.strip().splitlines()]
    assert all(line.count(">=") == 1 for line in bounds)
    text = (ROOT / "constraints-lowest.txt").read_text(encoding="utf-8")
    pinned = [line for line in text.splitlines() if not line.startswith("#")]
    assert pinned == sorted(line.replace(">=", "==") for line in bounds)
