"""The README and the docs as a newcomer uses them: their examples run, their tables are real."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from cases import each
from commands import main

from benchmarks import pages as results

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    *sorted(page for page in DOCS.rglob("*.md") if DOCS / "generated" not in page.parents),
]


def blocks(page, language):
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.S)


SHORT = {
    "gamma=0.95, seed=0)": "gamma=0.95, seed=0, n_steps=64)",
    "model.learn(32_768)": "model.learn(64)",
    'model, "plan-s16-validation"))': 'model, "plan-s16-validation", first=1))',
    'agent="ppo", steps=20_000': 'agent="ppo", steps=2_000',
    "model.learn(1024)": "model.learn(512)",
}
"""What trains in an example, and how long it trains here."""
EXAMPLES = [(page.name, code) for page in PAGES for code in blocks(page, "python")]
LONG = ("elastic.md", "hybrid.md", "partition.md", "start.md")
"""Pages whose examples take seconds."""


def marks(name):
    return pytest.mark.slow if name in LONG else ()


def test_readme__examples_are_shortened():
    for written in SHORT:
        assert sum(written in code for _, code in EXAMPLES) == 1


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("page", "code"),
    [
        pytest.param(page, code, marks=marks(page), id=f"{page}-code{k}")
        for k, (page, code) in enumerate(EXAMPLES)
    ],
)
def test_readme__python_examples_run(page, code, tmp_path, monkeypatch):
    if "jax" in code:
        pytest.importorskip("jax")
    if any(x in code for x in ("sb3_contrib", "agents.learning")):
        pytest.importorskip("sb3_contrib")
    monkeypatch.chdir(tmp_path)
    for written, short in SHORT.items():  # as written, but for minutes of training
        code = code.replace(written, short)
    exec(compile(code, page, "exec"), {"__name__": "__main__"})


@pytest.mark.thorough
@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=marks(page.name), id=page.name) for page in PAGES]
)
def test_readme__commands_run(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    ran = 0
    for block in blocks(page, "bash"):
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[:1] != ["parenvs"] or words[1] in ("train", "evaluate", "compare"):
                continue  # those are run by test_cli and by the demo
            if any(word.startswith("runs/") for word in words):
                continue  # of a training that is not run here
            if words[1:3] == ["elastic", "run"]:
                continue  # on a trace and a model of one's own; tests/jobs runs it
            if words[1] == "verify" and importlib.util.find_spec("jax") is None:
                continue
            assert not main(monkeypatch, *words[1:]), (line, capsys.readouterr().err)
            ran += 1
    assert ran or page.name != "README.md"


@pytest.mark.thorough
def test_readme__head_is_what_its_command_prints(tmp_path, monkeypatch, capsys):
    """What is left out stands as three dots."""
    (block,) = blocks(ROOT / "README.md", "console")
    command, *lines = block.splitlines()
    monkeypatch.chdir(tmp_path)
    assert not main(monkeypatch, *shlex.split(command)[2:])
    said = capsys.readouterr().out.splitlines()
    for line, printed in zip(lines, said, strict=False):
        pattern = ".*".join(map(re.escape, line.split("...")))
        assert re.fullmatch(pattern, printed), printed


@pytest.mark.slow
def test_readme__tables_are_those_of_the_benchmarks():
    for path, text in results.pages():
        assert path.read_text(encoding="utf-8") == text, f"{path}: run benchmarks/pages.py"


@each("page", PAGES)
def test_readme__links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        if "://" not in link and not link.startswith("generated/"):  # the site's build makes those
            assert (page.parent / link).exists(), link
    for name in re.findall(
        r"`((?:benchmarks|docs|parenvs|agents|datasets|leaderboard)/[\w./-]+\.\w+)`", text
    ):
        assert (ROOT / name).exists(), name
