"""The site's parts: tutorials run, the FAQ quotes real errors, generated pages are complete."""

import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
from cases import each
from commands import main

import parenvs
from parenvs.tasks.hybrid.stack import Stack

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [page for page in DOCS.rglob("*.md") if DOCS / "generated" not in page.parents]


def module(path):
    """A script of the repository as a module."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


generate = module(DOCS / "generate.py")

# Tutorials

SMALLER = {
    "write_a_solver": (
        ("ROUNDS, DRAWS = 40, 256", "ROUNDS, DRAWS = 10, 64"),
        (', ("t5-3b", "C")', ""),
    ),
    "leaderboard": (),
    "own_jax_model": (("LAYERS, WIDTH = 12, 4096", "LAYERS, WIDTH = 2, 64"),),
    "own_torch_model": (("BATCH, STEPS = 2, 32, 8, 5", "BATCH, STEPS = 2, 8, 4, 2"),),
    "train_ppo": (("STEPS = 6_000", "STEPS = 512"),),
    "elastic_policy": (("STEPS = 12_000", "STEPS = 4096"),),
}
"""Tutorial -> what is made smaller here."""
SLOW = ("write_a_solver", "own_torch_model", "train_ppo", "elastic_policy")
NEEDS = {"own_jax_model": "jax", "own_torch_model": "jax", "train_ppo": "sb3_contrib"}
NEEDS["elastic_policy"] = "sb3_contrib"
SAYS = {
    "write_a_solver": "above the optimal plan by: even ",
    "leaderboard": "accepted: True, score 0.75",
    "own_jax_model": "of one device's seconds",
    "own_torch_model": "equal",
    "train_ppo": "PPO has the smaller gap on ",
    "elastic_policy": "of hindsight on courses",
}


def test_tutorials__are_all_known():
    assert set(SMALLER) == {path.stem for path in (DOCS / "tutorials").glob("*.py")}


@pytest.mark.thorough
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=pytest.mark.slow) if n in SLOW else n for n in SMALLER]
)
def test_tutorials__run(name, tmp_path, monkeypatch, capfd):
    pytest.importorskip(NEEDS.get(name, "numpy"))
    text = (DOCS / "tutorials" / f"{name}.py").read_text(encoding="utf-8")
    for before, after in SMALLER[name]:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    script = tmp_path / f"{name}.py"
    script.write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    if "multiprocessing" in text:  # processes that it starts import it as their main program
        monkeypatch.setenv("PYTHONPATH", str(ROOT))
        subprocess.run([sys.executable, str(script)], check=True)
    else:
        runpy.run_path(str(script), run_name="__main__")
    assert SAYS[name] in capfd.readouterr().out


def test_tutorials__pages_show_the_whole_script():
    for path in (DOCS / "tutorials").glob("*.py"):
        page = generate.tutorial_page(path)
        code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.S))
        script = path.read_text(encoding="utf-8").split('"""', 2)[2]
        kept = [x for x in script.splitlines() if x and not x.startswith("#")]
        assert [x for x in code.splitlines() if x] == kept, path.name


# Errors that people meet

FAQ = (DOCS / "faq.md").read_text(encoding="utf-8")
QUOTED = re.findall(r"```console\n\$ (.*)\n(.*)\n```", FAQ)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with the files that the questions are about."""
    folder = tmp_path_factory.mktemp("faq")
    plan = parenvs.plan(parenvs.problem("vgg-19", cluster="B", stages=2)).plan
    plan.save(folder / "v.json")
    (folder / "m.py").write_text("def f(weights, batch):\n    return (batch @ weights).mean()\n")
    return folder


def test_faq__quotes_commands():
    assert len(QUOTED) == FAQ.count("```console") >= 10


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("line", "said"),
    [
        pytest.param(*one, marks=pytest.mark.slow) if "llama3-70b" in one[0] else one
        for one in QUOTED
    ],
    ids=[line for line, _ in QUOTED],
)
def test_faq__errors_are_those_of_the_command(line, said, desk, monkeypatch, capfd):
    if "m.py" in line:
        pytest.importorskip("jax")
    monkeypatch.chdir(desk)
    assert main(monkeypatch, *shlex.split(line)[1:]) == 2
    last = capfd.readouterr().err.strip().splitlines()[-1]
    assert all(part in last for part in said.split("...")), last


# Generated pages


@pytest.mark.slow
def test_generate__a_page_for_everything():
    names = generate.environments()
    assert len(names) >= 8 and "PipelineCut-v0" in names
    assert all((DOCS / "pictures" / f"{name}.webp").exists() for name in names)
    page = generate.environment_page("PipelineCut-v0")
    for heading in ("Action Space", "Observation Space", "Rewards", "Arguments", "Signature"):
        assert f"\n## {heading}\n" in page
    assert "`Discrete(302)`" in page and "../../pictures/PipelineCut-v0.webp" in page
    commands = dict(generate.command_pages())
    assert {"parenvs", "leaderboard", "iopddl"} <= set(commands)
    assert "## parenvs plan" in commands["parenvs"] and "`--cluster`" in commands["parenvs"]
    assert "parenvs iopddl show problem.json" in commands["iopddl"]
    text = generate.names_page()
    assert all(f"parenvs.{name}\n" in text for name in parenvs.__all__)


def test_generate__constants_and_rows_are_all_described():
    """Whatever type a constant has: numbers, shares by name, lists of names."""
    page = generate.stacks_page()
    described = re.findall(r"^## (.*)\n\n\S", page, re.M)
    constants = {x.name for x in fields(Stack)} - {"name", "source", "version", "date"}
    assert set(described) == constants | {"Devices"}
    assert re.search(r"^\* titan-2025.*: 1f1b, interleaved, early, zb-v$", page, re.M)
    assert "Default: 1f1b, interleaved, early." in page and "Default: none." in page
    assert "None" not in page and "Default: ." not in page
    assert generate._shown((("fp8", 0.5), ("bf16", 1.0))) == "fp8 0.5, bf16 1"
    assert "| `layers` |" in generate.rows_page()


def test_generate__titles_are_distinct():
    """In the sidebar no two pages look alike, and none has a bare file's name."""
    texts = {page: page.read_text(encoding="utf-8") for page in PAGES}
    generated = [
        source for source, page in generate.OUTSIDE.items() if page.startswith("docs/generated/")
    ]
    texts |= {ROOT / source: (ROOT / source).read_text(encoding="utf-8") for source in generated}
    titles = {page: text.splitlines()[0].removeprefix("# ") for page, text in texts.items()}
    titles |= {ROOT / source: title for source, title in generate.TITLES.items()}
    for page, title in titles.items():
        others = [name for name, other in titles.items() if other == title and name != page]
        assert not others, (page, others)
        assert title[0].isupper() or page.name == "index.md", page


def test_generate__a_tutorial_shows_what_each_part_prints(tmp_path, monkeypatch):
    script = tmp_path / "tried.py"
    script.write_text('"""Try."""\nprint(1)\n# %% Two\n# Prose.\nprint(2)\n# %% Three\nx = 3\n')
    monkeypatch.setattr(generate, "OUT", tmp_path)
    said = generate.printed(script)
    assert said == ["1\n", "2\n", ""]
    monkeypatch.setattr(generate.subprocess, "run", None)  # what is unchanged is not run again
    assert generate.printed(script) == said
    monkeypatch.setattr(generate, "ROOT", tmp_path)
    page = generate.tutorial_page(script, said)
    assert "print(2)\n```\n\nIt prints:\n\n```text\n2\n```" in page
    assert page.count("It prints:") == 2


def test_generate__options_have_types_and_choices():
    page = dict(generate.command_pages())["parenvs"]
    assert re.search(r"^\| `--task` \| `partition`, `pipeline`, .*\| Task", page, re.M)
    assert re.search(r"^\| `--seed` \| a whole number \|", page, re.M)
    assert re.search(r"^\| `--plot` \| a path \|", page, re.M)
    assert re.search(r"^\| `--json` \| nothing \|", page, re.M)
    prose = [line for line in page.splitlines() if line and not line.startswith((" ", "parenvs "))]
    assert [line for line in prose if re.search(r"(?<![`'\w-])--\w", line)] == []


def test_generate__an_environment_has_the_row_of_its_agents():
    lines = generate._agents("HybridPlan-v2")
    table = (DOCS / "results" / "agents.md").read_text(encoding="utf-8")
    row = next(line for line in table.splitlines() if line.startswith("| `HybridPlan-v"))
    shown = [line.split(" | ")[1].strip(" |") for line in lines if " | " in line][1:]
    assert shown == [cell.strip() or "not measured" for cell in row.strip("| ").split(" | ")[2:]]


def test_generate__the_first_page_is_the_readmes_head():
    page = generate.front((DOCS / "index.md").read_text(encoding="utf-8"))
    for words in ("How should a large model", "evaluate_set", "| pipeline-cut |"):
        assert words in page, words
    assert "\nHEAD\n" not in page and "\nLEADERS\n" not in page


def test_generate__links():
    def at(text):
        return generate.linked(text, "docs/elastic.md")

    assert at("[x](hybrid.md#seconds)") == "[x](hybrid.md#seconds)"
    assert at("[x](../CHANGELOG.md)") == "[x](generated/changelog.md)"
    assert at("[x](tutorials/train_ppo.py)") == "[x](generated/tutorials/train_ppo.md)"
    assert at("[x](../benchmarks/memory.py)") == "x"
    assert at("[x](https://a.b/c)") == "[x](https://a.b/c)"


def test_index__has_twelve_entries_and_every_page_is_in_some_contents():
    trees = r"```{toctree}\n(?::\w+:.*\n)*\n((?:[\w/*.-]+\n)+)```"
    contents = {page: re.findall(trees, page.read_text(encoding="utf-8")) for page in PAGES}
    (top,) = contents[DOCS / "index.md"]
    assert len(top.split()) <= 12
    named = {name for texts in contents.values() for text in texts for name in text.split()}
    for page in PAGES:
        if page.name != "index.md":
            name = str(page.relative_to(DOCS).with_suffix(""))
            assert name in named or f"{Path(name).parent}/*" in named, name


# The README answers what newcomers ask, or is one link away from the answer.

QUESTIONS = {
    "What does it do?": ("README.md", "A **plan** says which layers run where"),
    "How do I install it?": ("docs/start.md", "## Install"),
    "How do I plan my own model?": ("docs/tutorials/index.md", "Plan your own JAX model"),
    "Which environment do I train on?": ("docs/environments.md", "## Which one to train on"),
    "What is a pivot?": ("docs/glossary.md", "## Pivot"),
    "Is the cost model to be trusted?": ("docs/cost-model.md", "## What to trust"),
    "How good is it beside what I use?": ("docs/results/agents.md", "what one would take"),
    "How do I enter the leaderboard?": ("leaderboard/README.md", "## Enter"),
    "How do I report and cite it?": ("docs/reporting.md", "## Metric"),
    "What does this error mean?": ("docs/faq.md", "## Memory"),
}


@each("question", QUESTIONS)
def test_readme__answers(question):
    page, words = QUESTIONS[question]
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert page == "README.md" or f"]({page}" in readme, question
    assert words in (ROOT / page).read_text(encoding="utf-8")


def test_readme__two_screens():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 132


# The site


@pytest.mark.slow
def test_site__builds_without_a_warning(tmp_path):
    """As ``make docs`` does: warnings are errors, and every link inside leads somewhere."""
    pytest.importorskip("furo")
    site = tmp_path / "site"
    for command in (
        [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", DOCS, site],
        [sys.executable, "-m", "parenvs", "leaderboard", "site", "--out", site / "leaderboard"],
        [sys.executable, DOCS / "check_links.py", site],
    ):
        ended = subprocess.run(
            [*map(str, command)], cwd=ROOT, capture_output=True, text=True, timeout=1500
        )
        assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-2000:]


# What is released


def test_release__citation_and_notice():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {parenvs.__version__}\n" in citation
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{parenvs.__version__}] - " in changelog
    notice = (ROOT / "NOTICE").read_text(encoding="utf-8")
    for path in (ROOT / "datasets" / "data" / "measured").iterdir():
        assert path.name in notice, path.name
    for name in re.findall(r"\b[\w./-]+\.(?:json|csv)\b", notice):
        place = ROOT / name if "/" in name else ROOT / "datasets" / "data" / "measured" / name
        assert place.is_file(), name
