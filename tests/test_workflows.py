"""What stands beside the code: workflows call what there is, forms ask, versions are one."""

import configparser
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from cases import each

ROOT = Path(__file__).parents[1]
FILES = [*sorted(ROOT.glob(".github/**/*.yml")), ROOT / ".pre-commit-config.yaml"]
TARGETS = set(re.findall(r"^([\w-]+):(?!=)", (ROOT / "Makefile").read_text(), re.M))
TESTED = ("3.10", "3.11", "3.12", "3.13")


def read(name):
    return yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))


def steps():
    """(workflow, step) of every job."""
    for path in sorted(ROOT.glob(".github/workflows/*.yml")):
        for job in read(path)["jobs"].values():
            yield from ((path.name, step) for step in job["steps"])


def test_workflows__all_of_them_are_read():
    assert len(FILES) >= 7
    for path in FILES:
        assert isinstance(read(path), dict), path
    for path in ROOT.glob(".github/workflows/*.yml"):
        content = read(path)
        assert content["permissions"] == {"contents": "read"}, path  # jobs ask for more
        assert set(content) >= {"name", True, "jobs"}, path  # YAML takes "on" for true


def test_workflows__commands_are_there():
    called = set()
    for name, step in steps():
        assert ("uses" in step) != ("run" in step), (name, step)
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v1)", step["uses"]), step
            continue
        for target in re.findall(r"\bmake ([\w-]+)", step["run"]):
            assert target in TARGETS, (name, target)
            called.add(target)
        for script in re.findall(r"\S+\.py\b", step["run"]):
            assert (ROOT / script).is_file(), (name, script)
    assert called >= {"lint", "docs", "slow", "renew", "fuzz", "audit", "release", "sbom"}


def test_workflows__sessions_of_nox_are_there():
    """Those that workflows run, each in versions that a file of constraints pins."""
    text = (ROOT / "noxfile.py").read_text(encoding="utf-8")
    defined = {name.replace("_", "-") for name in re.findall(r"^def (\w+)\(session", text, re.M)}
    called = {
        name for _, step in steps() for name in re.findall(r"nox -s ([\w -]+)", step.get("run", ""))
    }
    assert (
        {name for words in called for name in words.split()} == {"lowest", "lowest-jax"} < defined
    )
    assert re.search(r"^PYTHONS = \((.*)\)", text, re.M)[1] == ", ".join(f'"{x}"' for x in TESTED)
    for name in re.findall(r'tried\(session, "[\w,]+", "([\w-]+)"', text):
        assert (ROOT / "constraints" / f"{name}.txt").is_file()


def test_workflows__matrix_is_what_setup_cfg_allows():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    matrix = read(".github/workflows/tests.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert tuple(matrix["python"]) == TESTED
    assert setup["options"]["python_requires"] == f">={TESTED[0]}"
    assert [name.partition("-")[0] for name in matrix["os"]] == ["ubuntu", "macos", "windows"]


def test_workflows__linters_have_one_version():
    pinned = dict(
        line.split(";")[0].strip().split("==")
        for line in (ROOT / "constraints/tested.txt").read_text().splitlines()
        if "==" in line
    )
    for repo in read(".pre-commit-config.yaml")["repos"]:
        tool = next(name for name in ("ruff", "codespell") if name in repo["repo"])
        assert repo["rev"] == f"v{pinned[tool]}"


@pytest.mark.parametrize("name", ["plan", "bug"])
def test_workflows__forms_ask_for_the_doctor(name):
    form = read(f".github/ISSUE_TEMPLATE/{name}.yml")
    fields = {field["id"]: field for field in form["body"]}
    assert "parenvs doctor --json" in fields["doctor"]["attributes"]["label"]
    assert all(field["validations"]["required"] for field in fields.values())
    assert name == "bug" or "plan" in fields


@pytest.fixture
def landing(tmp_path):
    """Run .ci/run after some seconds, with a make that notes what it is asked for, or fails."""

    def run(begin=0, fails=("nothing", 0)):
        (tmp_path / ".ci").mkdir(exist_ok=True)
        shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
        script = f'#!/bin/sh\necho "$@" >> called\n[ "$1" != {fails[0]} ] || exit {fails[1]}\n'
        (tmp_path / "make").write_text(script)
        (tmp_path / "make").chmod(0o755)
        (tmp_path / "called").unlink(missing_ok=True)
        done = subprocess.run(
            ["bash", ".ci/run"], cwd=tmp_path, capture_output=True, text=True, check=False,
            env={**os.environ, "SECONDS": str(begin), "PATH": f"{tmp_path}:{os.environ['PATH']}"},
        )  # fmt: skip
        return done.returncode, (tmp_path / "called").read_text().splitlines(), done.stdout

    return run


LANDED = ["lint", "test", ".venv/.docs", "docs", "fuzz SECONDS=45 SEED=1"]


@pytest.mark.thorough
@pytest.mark.skipif(not shutil.which("timeout"), reason="needs bash and timeout(1)")
@each(
    "begin, fails, status, called, said",
    [
        (0, (), 0, LANDED, ""),
        (500, (), 0, LANDED, ""),
        (560, (), 0, [*LANDED[:2], LANDED[-1]], "the site is not built, 56"),
        (810, (), 0, LANDED[:2], "no fuzz, 81"),
        (0, (".venv/.docs", 2), 0, [*LANDED[:3], LANDED[-1]], "packages cannot be installed"),
        (0, ("docs", 124), 0, LANDED, "it took more than"),
        (0, ("docs", 2), 2, LANDED[:4], ""),
        (0, ("test", 2), 2, LANDED[:2], ""),
        (0, ("fuzz", 1), 1, LANDED, ""),
    ],
)
def test_landing__tests_always_the_rest_as_time_allows(landing, begin, fails, status, called, said):
    found = landing(begin, fails or ("nothing", 0))
    assert found[:2] == (status, called) and said in found[2]
    assert bool(found[2]) == bool(said)


def test_workflows__security_says_what_is_held():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    for path in re.findall(r"`((?:parenvs|leaderboard|tests|\.github)/[\w./-]*)`", text):
        assert (ROOT / path).exists(), path
    assert "@example.org" in text and "placeholder" in text
