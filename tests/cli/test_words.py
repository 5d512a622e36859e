"""What holds for every command: help, one meaning a word, completion, and how long a TAB takes."""

import os
import re
import resource
import subprocess
import sys
from collections import defaultdict
from itertools import takewhile

import pytest
from cases import each
from commands import walk

from parenvs.agents.elastic.policies import POLICIES
from parenvs.agents.learning.ray_tasks import ENGINES
from parenvs.cluster import PRECISIONS, PRESETS
from parenvs.core import task as lists
from parenvs.core.registry import TASKS
from parenvs.exports.formats import FORMATS
from parenvs.tasks.elastic import task as elastic
from parenvs.tasks.hybrid.plan import RECOMPUTE_MODES, SCHEDULES
from parenvs.tasks.hybrid.space import FRAMEWORKS

COMMANDS = dict(walk())
MOST_LINES = 40
"""Of a command's help, in a terminal of 80 columns."""
EMPTY = {"a", "an", "and", "for", "in", "it", "its", "of", "that", "the", "to", "with"}
"""Words that say nothing about what an option means."""
MOST_SECONDS = 0.2
"""Of processor, until a shell has the words that a TAB may mean."""
HEAVY = ("gymnasium", "jinja2", "matplotlib", "numpy", "pydantic", "rich", "scipy")


def options():
    """Name of an option -> (command, parameter) that have it."""
    found = defaultdict(list)
    for name, command in COMMANDS.items():
        for parameter in command.params:
            if parameter.param_type_name == "option" and parameter.help:
                found[parameter.opts[0]].append((name, parameter))
    return found


OPTIONS = options()


def meanings(parameter):
    """The sentences that say what an option is, without the tasks that they are of."""
    tasks = "|".join(TASKS)
    return [
        part
        for part in re.split(rf"(?:^|(?<=\. ))(?:(?:{tasks})(?:, )?)+: ", parameter.help)
        if part.strip()
    ]


@each("name", sorted(OPTIONS))
def test_words__one_meaning_each(name):
    """Where commands share a word, they say of it what begins alike, and take the same kind."""
    told = {text for _, parameter in OPTIONS[name] for text in meanings(parameter)}
    rows = zip(*(re.findall(r"[\w'.-]+", text.lower()) for text in told), strict=False)
    common = [row[0] for row in takewhile(lambda row: len(set(row)) == 1, rows)]
    assert set(common) - EMPTY, f"{name} means more than one thing: {sorted(told)}"
    flags = {parameter.is_flag for _, parameter in OPTIONS[name]}
    assert len(flags) == 1, f"{name} is a flag here, and takes a value there"


@pytest.mark.thorough
@each("name", sorted(COMMANDS))
def test_words__help_is_short(name, run):
    status, out, err = run(*name.split(), "-h")
    assert (status, err) == (0, "")
    assert len(out.strip().splitlines()) < MOST_LINES, out
    whole = run(*name.split(), "--help-all")[1] if "--help-all" in out else out
    shown = set(re.findall(r"--[\w-]+", whole))
    assert {opt for p in COMMANDS[name].params for opt in p.opts if opt[:2] == "--"} <= shown


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    from commands import caller

    monkeypatch.setenv("COLUMNS", "80")
    return caller(monkeypatch, capfd, tmp_path)


@pytest.mark.thorough
def test_words__a_plan_is_for_this_machine_or_for_a_cluster(run, monkeypatch):
    """What is planned for is said; it is never a cluster that nobody named."""
    status, out, err = run("plan", "vgg-19", "--agent", "even")
    assert status == 0 and "note: cluster 1x8:v100, the GPUs of this machine" in err
    assert run("plan", "intra-op-test/mesh-000", "--agent", "greedy")[2] == ""  # it has its own
    for gpus, told in (
        ([], "--cluster is missing, and this machine has no GPU"),
        ([("NVIDIA T4", 16e9)], "the GPUs of this machine (NVIDIA T4) are no known device"),
        ([("NVIDIA H100 PCIe", 40e9)], "are no known device"),
    ):
        monkeypatch.setattr("commands.GPUS", gpus)
        status, out, err = run("plan", "vgg-19")
        assert (status, out) == (2, "") and told in err


WRITERS = {
    "export", "leaderboard submit", "leaderboard site",
    "leaderboard update", "iopddl add", "iopddl export",
}  # fmt: skip
"""Commands whose result is a file; what they print is where it lies, or the file itself."""


def test_words__what_is_printed_is_json_too():
    without = {
        name
        for name, command in COMMANDS.items()
        if "--json" not in {o for p in command.params for o in p.opts}
    }
    assert without == WRITERS


def completed(*typed, code="", shell="bash"):
    """What a shell is told of a line that is typed so far, and processor seconds."""
    environment = {
        **os.environ,
        "_PARENVS_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": " ".join(typed),
        "COMP_CWORD": str(len(typed) - 1),
        "_TYPER_COMPLETE_ARGS": " ".join(typed),
    }
    source = f"import sys; sys.argv = ['parenvs']\nfrom parenvs.cli import main\n{code or 'main()'}"
    return performed(source, environment)


def performed(source, environment):
    """What a program prints, in words, and its processor seconds."""
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", source], env=environment, capture_output=True, text=True, check=False
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.stderr == ""
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return done.stdout.split(), seconds


LINES = {
    "a command": (("parenvs", "pl"), {"plan"}),
    "an option": (("parenvs", "plan", "--clu"), {"--cluster"}),
    "an instance": (("parenvs", "plan", "llama3-"), {"llama3-8b", "llama3-405b"}),
    "an agent": (("parenvs", "plan", "t5-3b", "--task", "elastic", "--agent", "fa"), {"fastest"}),
    "a task": (("parenvs", "plan", "--task", "hy"), {"hybrid"}),
    "a cluster": (("parenvs", "plan", "--cluster", "h100"), {"h100-2", "h100-4"}),
    "a framework": (("parenvs", "export", "plan.json", "--to", "tor"), {"torch", "torchtitan"}),
    "a value of a task": (("parenvs", "plan", "--schedule", "dual"), {"dualpipe", "dualpipe-v"}),
    "of a group": (("parenvs", "leaderboard", "submit", "--task", "het"), {"hetero"}),
}


TIMED = ("a command", "an agent")


@pytest.mark.slow
@each("line", LINES)
def test_words__a_shell_completes_them_at_once(line):
    """Nothing that takes its time is imported; seconds are of a machine where no others compute.

    Where they do, typer takes longer, too, which is a part of it.
    """
    typed, expected = LINES[line]
    told, least = completed(*typed)
    assert expected <= set(told)
    code = "try: main()\nfinally: print('MODULES', *sys.modules)"
    modules, _ = completed(*typed, code=code)
    assert not set(HEAVY) & {name.partition(".")[0] for name in modules if name != "rich"}
    if line not in TIMED:
        return
    for _ in range(3):
        least = min(least, completed(*typed)[1])
    alone = min(
        performed("import typer.main, typer.completion", {**os.environ})[1] for _ in range(3)
    )
    assert least < max(MOST_SECONDS, 3 * alone), f"{least:.2f} s; typer alone {alone:.2f} s"


@pytest.mark.thorough
def test_words__are_those_of_the_modules():
    """What costs nothing to import names what the modules behind it have."""
    for task in TASKS.values():
        assert task.planners == tuple(task.request_class().planners), task.name
    assert tuple(PRESETS) == lists.PRESETS
    assert tuple(PRECISIONS) == lists.PRECISIONS
    assert tuple(ENGINES) == lists.ENGINES
    assert tuple(FRAMEWORKS) == lists.FRAMEWORKS
    assert set(FORMATS) == set(FRAMEWORKS)
    assert tuple(POLICIES) == elastic.POLICIES
    limits = {flag.name: flag.values for flag in flags("hybrid")}
    assert limits["schedule"] == tuple(name for name in SCHEDULES if name != "early")
    assert limits["recompute"] == RECOMPUTE_MODES


def flags(task):
    from parenvs.cli.options import flags_of

    return flags_of(TASKS[task]).values()
