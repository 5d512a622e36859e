"""What holds the house up: layers without a circle, rooms of readable size, documented names.

A module imports from layers below its own, or from its own folder. Imports inside functions and
under ``TYPE_CHECKING`` count.
"""

import ast
import json
import re
from functools import cache
from pathlib import Path

import pytest
from cases import each
from weight import weigh

import parenvs
from parenvs.core.registry import TASKS

ROOT = Path(__file__).parents[1]
LAYERS = (
    ("compiled", "errors", "machine", "markdown"),
    ("files",),
    ("fields", "tensors"),
    ("cluster",),
    ("core",),
    ("graph",),
    ("instances", "diff"),
    ("view",),
    ("envs", "wrappers"),
    ("tasks.pipeline",),
    ("tasks.partition",),
    ("tasks.hybrid", "tasks.sharding"),
    ("tasks.elastic",),
    ("datasets",),
    ("agents",),
    ("shardy",),
    ("exports",),
    ("clock",),
    ("leaderboard", "jobs"),
    ("cli",),
    ("__main__",),
)
"""Folders and modules of ``parenvs``, from the bottom to the top; beside each other: no import.

The folder of a task is a room of its own.
"""
TASKLESS = (
    "agents.evaluation", "agents.planners", "agents.reference", "cli.app",
    "cli.leaderboard", "cli.options", "cli.planning", "cli.plans",
    "cli.tables", "cli.train", "clock", "cluster", "core", "diff", "exports",
    "fields", "files",
    "graph", "instances", "leaderboard", "shardy", "tensors", "view", "wrappers",
)  # fmt: skip
"""Modules, by the beginnings of their names, that know no task."""
LARGEST_FOLDER, LONGEST_FILE = 24, 1_000  # a task is one folder


def module_files():
    """Dotted names below ``parenvs`` -> files; a package stands for its ``__init__``."""
    found = {}
    for base in ("parenvs", "agents", "datasets", "leaderboard"):
        for path in sorted((ROOT / base).rglob("*.py")):
            parts = list(path.relative_to(ROOT).with_suffix("").parts)
            parts = parts[1:] if base == "parenvs" else parts
            parts = parts[:-1] if parts[-1] == "__init__" else parts
            found[".".join(parts)] = path
    return found


FILES = module_files()


@cache
def tree(name):
    """The syntax of a module."""
    return ast.parse(FILES[name].read_text(encoding="utf-8"))


def imports(name):
    """Modules of the package that a module imports, wherever the import stands.

    Of a task's ``task.py``, and of the ``Task`` that it derives from, imports at the top count:
    they join the rooms of a task, and import in methods what the rest of the house asks for.
    """
    joins = name == "core.task" or re.fullmatch(r"tasks\.\w+\.task", name)
    package = name.split(".") if FILES[name].name == "__init__.py" else name.split(".")[:-1]
    for node in tree(name).body if joins else ast.walk(tree(name)):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = node.module or ""
            if node.level:
                parts = ["parenvs", *package[: len(package) - node.level + 1], node.module or ""]
                start = ".".join(part for part in parts if part)
            targets = [f"{start}.{alias.name}" for alias in node.names]
        else:
            continue
        for target in targets:
            if target.split(".")[0] == "parenvs":
                inner = target.split(".")[1:]
                while inner and ".".join(inner) not in FILES:
                    inner.pop()
                yield ".".join(inner)


@cache
def edges():
    """Module -> the modules of the package that it imports."""
    return {name: sorted(set(imports(name)) - {name}) for name in FILES}


def room(name):
    """The first part of a module's name; of a task's modules the first two."""
    parts = name.split(".")
    return ".".join(parts[: 1 + (parts[0] == "tasks")])


def layer(name):
    return next(i for i, rooms in enumerate(LAYERS) if room(name) in rooms)


def test_house__contributing_draws_these_layers():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (picture,) = re.findall(r"```\n(cli .*?)```", text, re.S)
    drawn = [tuple(re.split(r" {4,}", row)[0].split()) for row in picture.splitlines()]
    assert drawn == [rooms for rooms in reversed(LAYERS) if rooms != ("__main__",)]


def test_house__every_module_has_a_layer():
    rooms = {room for rooms in LAYERS for room in rooms}
    assert {room(name) for name in FILES if name and name != "tasks"} == rooms


def test_house__public_methods_have_docstrings_or_override_a_method_that_has():
    public, documented, missing = re.compile(r"[A-Za-z]"), set(), []
    for name, path in FILES.items():
        for owner in tree(name).body:
            methods = owner.body if isinstance(owner, ast.ClassDef) else ()
            for method in methods:
                if isinstance(method, ast.FunctionDef) and public.match(method.name):
                    if ast.get_docstring(method):
                        documented.add(method.name)
                    elif public.match(owner.name):
                        missing.append((str(path.relative_to(ROOT)), owner.name, method.name))
    assert [row for row in missing if row[2] not in documented] == []


@cache
def top_names(name):
    """What the top level of a module binds; None if it makes names when they are asked for."""
    bound = {x.split(".")[-1] for x in FILES if x.rpartition(".")[0] == name}
    nodes = list(ast.parse(FILES[name].read_text(encoding="utf-8")).body)
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            bound.add(node.name)
        else:
            bound |= {x.id for x in ast.walk(node) if isinstance(x, ast.Name)}
            nodes += [x for x in ast.iter_child_nodes(node) if isinstance(x, ast.stmt)]
            nodes += [x for h in getattr(node, "handlers", ()) for x in h.body]
    return None if "__getattr__" in bound else bound


@pytest.mark.slow
def test_house__what_is_imported_is_there():
    """In functions, tests and scripts, too, which run seldom; names move."""
    missing = set()
    scripts = [
        p for folder in ("tests", "benchmarks", "docs") for p in (ROOT / folder).rglob("*.py")
    ]
    for path in (*FILES.values(), *scripts):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = getattr(node, "module", None) or ""
            if isinstance(node, ast.ImportFrom) and module.split(".")[0] == "parenvs":
                inner = module.partition(".")[2]
                names = top_names(inner) if inner in FILES else set()
                missing |= {
                    (str(path.relative_to(ROOT)), module, alias.name)
                    for alias in node.names
                    if names is not None and alias.name not in names
                }
    assert not missing


@pytest.mark.thorough
def test_house__nothing_imports_upward():
    """The package itself is the top: only its version may be asked for below.

    A task makes problems with the tools of ``datasets``, and may have generators in
    ``datasets/NAME``.
    """
    wrong = set()
    for name in FILES:
        for target in edges()[name] if name else ():
            if target == "":
                text = FILES[name].read_text(encoding="utf-8")
                taken = re.findall(r"^ *from parenvs import (.*)$", text, re.M)
                if any(words != "__version__" for words in taken):
                    wrong.add((name, "parenvs"))
            elif room(name) != room(target) and layer(target) >= layer(name):
                own = room(name).replace("tasks.", "datasets.")
                tools = (f"{own}.", "datasets.banks")
                if not (room(name) != own and target.startswith(tools)):
                    wrong.add((name, target))
    assert not wrong


def test_house__these_rooms_name_no_task():
    """They ask ``TASKS``; what is of one task lies in its folders."""
    for name in FILES:
        if name.startswith(TASKLESS) and "scripts" not in name:
            of_tasks = [
                target
                for target in edges()[name]
                if target.startswith("tasks.") or target.split(".")[1:2] in [[x] for x in TASKS]
            ]
            assert of_tasks == [], name


def own_task(name):
    """The task in whose folders a module lies; empty if it lies in none."""
    parts = name.split(".")
    inside = parts[0] in ("tasks", "agents", "datasets") and len(parts) > 1 and parts[1] in TASKS
    return parts[1] if inside else ""


def dispatches(name, classes):
    """Lines of a module that ask what an object's class is among some, or what its task is called.

    Args:
        name: the module.
        classes: names of classes.
    """

    def names_one(node):
        named = (getattr(x, "id", getattr(x, "attr", "")) for x in ast.walk(node))
        return any(word in classes for word in named)

    for node in ast.walk(tree(name)):
        is_call = isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
            "isinstance", "issubclass",
        )  # fmt: skip
        if (is_call and names_one(node.args[1])) or (
            isinstance(node, ast.MatchClass) and names_one(node.cls)
        ):
            yield node.lineno
        if isinstance(node, ast.Compare):
            sides = (node.left, *node.comparators)
            asks = any(getattr(x, "attr", getattr(x, "id", "")) == "task" for x in sides)
            words = {x.value for side in sides for x in ast.walk(side)
                     if isinstance(x, ast.Constant) and isinstance(x.value, str)}  # fmt: skip
            if asks and words & set(TASKS):
                yield node.lineno


def test_house__nothing_outside_asks_which_task_it_is():
    """It asks for a hook; agents that learn have policies and trainings of their own for tasks."""
    defined = {True: set(), False: set()}
    for name in FILES:
        classes = {node.name for node in tree(name).body if isinstance(node, ast.ClassDef)}
        defined[name.startswith("tasks.")] |= classes
    classes = defined[True] - defined[False]  # a pipeline's Report is one of many
    assert {"PartitionPlan", "Pipeline", "HybridReport", "Sharding"} <= classes
    outside = [x for x in FILES if not own_task(x) and not x.startswith("agents.learning")]
    found = {name: lines for name in outside if (lines := list(dispatches(name, classes)))}
    assert found == {}


def test_house__no_circle():
    inner = {name: [t for t in targets if t] for name, targets in edges().items() if name}
    state, path = {}, []

    def visit(name):
        state[name] = "open"
        path.append(name)
        for target in inner[name]:
            if state.get(target) == "open":
                pytest.fail(" -> ".join([*path[path.index(target) :], target]))
            if target not in state:
                visit(target)
        path.pop()
        state[name] = "done"

    for name in inner:
        if name not in state:
            visit(name)


def test_house__rooms_can_be_overlooked():
    folders = {}
    for path in FILES.values():
        folders.setdefault(path.parent, []).append(path.name)
    crowded = {str(f.relative_to(ROOT)): len(n) for f, n in folders.items()}
    assert {f: n for f, n in crowded.items() if n > LARGEST_FOLDER} == {}
    lengths = {str(p): len(p.read_text(encoding="utf-8").splitlines()) for p in FILES.values()}
    assert {p: n for p, n in lengths.items() if n > LONGEST_FILE} == {}


def test_house__tests_mirror_the_rooms():
    rooms = {str(path.parent.relative_to(ROOT)) for path in FILES.values()}
    tidy = {
        x.removeprefix("parenvs/").removeprefix("tasks/").removeprefix("agents/") for x in rooms
    }
    rooms = tidy | {x.removeprefix("parenvs/") for x in rooms} | {"helpers"}
    for folder in (ROOT / "tests").rglob("*"):
        if folder.is_dir() and folder.name != "__pycache__" and "corpus" not in folder.parts:
            assert str(folder.relative_to(ROOT / "tests")) in rooms


PUBLIC = (
    "Cluster", "Device", "Graph", "Hybrid", "HybridPlan", "HybridReport",
    "HybridStage", "ParenvsError", "PartitionPlan", "PartitionReport", "Partitioning", "Pipeline",
    "PipelinePlan", "Report", "StageProfile", "TransformerShape", "compare", "evaluate",
    "evaluate_set", "explain", "export", "from_hlo", "from_jax", "from_torch", "in_parts", "judge",
    "load", "load_graph", "load_plan", "load_profile", "plan", "problem", "register_agent", "show",
    "tune", "verify",
)  # fmt: skip
"""Everything that ``import parenvs`` offers; the list stands in ``parenvs/__init__.py`` too."""


def test_house__public_names():
    assert tuple(parenvs.__all__) == PUBLIC
    assert set(PUBLIC) <= set(dir(parenvs))  # what is imported late is offered all the same
    assert all(hasattr(parenvs, name) for name in PUBLIC)
    with pytest.raises(AttributeError, match="'nothing'"):
        parenvs.nothing  # noqa: B018


# What is counted may not grow.

HOUSE = json.loads((ROOT / "tests" / "house.json").read_text(encoding="utf-8"))


@each("figure", HOUSE)
def test_house__weighs_no_more_than_its_limits(figure):
    """A limit follows its figure down until it stands at the ceiling."""
    limit, ceiling = HOUSE[figure]["limit"], HOUSE[figure]["ceiling"]
    count = weigh(ROOT)[figure]
    assert count <= limit, f"{figure}: {count}; remove something first"
    assert limit == ceiling or limit <= 1.02 * count, f"lower the limit of {figure} to {count}"
    assert limit >= ceiling


def test_house__lines_are_not_packed():
    figures = weigh(ROOT)
    assert figures["product characters"] <= 1.05 * 38.9 * figures["product code"]
    assert figures["product fmt"] <= 322
