"""How many small mistakes in the cost model and in the rules the tests notice.

Each mutant is a module with one change: an operator, a comparison, a number, a condition or a
function in place of another, or a statement left out. A first run of the tests records which of
them reach which line, and how long each takes. A mutant then meets the tests that reach its line,
quick ones first, and after them the others of the same files, as long as ``--seconds`` last. It is
killed if one fails or takes far longer than without it.

A process that has imported NumPy, pytest and the like, but not ``parenvs``, forks for each mutant.
Everything happens in a copy of the checkout. A run that was interrupted goes on where it was;
``--again`` runs those once more that lived. The kept tools do not fit: mutmut changes the bodies of
functions alone, not tables of rules; cosmic-ray runs one and the same test command for each mutant.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib
import json
import os
import resource
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import hypothesis
import pytest
from common import ROOT, parser, percent, progress, publish, table

MODULES = (
    "parenvs/judging.py",
    "parenvs/pipeline/formulas.py",
    "parenvs/pipeline/legality.py",
    "parenvs/pipeline/points.py",
    "parenvs/partitioning/formulas.py",
    "parenvs/partitioning/rules.py",
    "parenvs/partitioning/classes.py",
    "parenvs/partitioning/legality.py",
    "parenvs/partitioning/memory.py",
)
TESTS = ("tests/pipeline", "tests/partitioning", "tests/agents/exact/test_points.py")
"""Where the tests are that are to notice mistakes."""
MEMORY = 12 << 30
"""Bytes of addresses that a mutant may take."""
SLACK = 5.0
"""Processor seconds that each test may take beyond ten times its own."""

OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.And: ast.Or, ast.Or: ast.And,
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
    ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
FUNCTIONS = {
    "max": "min", "maximum": "minimum", "argmax": "argmin", "any": "all", "ceil": "floor",
}  # fmt: skip
FUNCTIONS |= {other: name for name, other in FUNCTIONS.items()}

EQUIVALENT = {
    (
        "parenvs/partitioning/formulas.py",
        "graph.parent >= 0",
        "graph.parent >= 1",
    ): "the first instruction is no loop: a loop has an operand, which stands before it",
}
"""Module, and what is changed to what: changes that no test can see -> the reason."""


@dataclass
class Mutant:
    """One change of one module.

    Attributes:
        module: the module's path.
        number: which of the module's mutants it is.
        digest: of the module's source.
        line: number of the line.
        end: number of the last line of what is changed.
        before: the expression or statement as it is, with the expression around it.
        after: what it is changed to.
        outcome: ``killed``, ``timeout`` or ``lives``; empty before it ran.
    """

    module: str
    number: int
    digest: str
    line: int
    end: int
    before: str
    after: str
    outcome: str = ""


def variants(node: ast.AST) -> Iterator[ast.AST]:
    """The changes of one node; each is a new node."""
    if isinstance(node, ast.Compare):
        for k, operator in enumerate(node.ops):
            changed = copy.deepcopy(node)
            changed.ops[k] = OPERATORS[type(operator)]()
            yield changed
    elif isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)):
        if type(node.op) in OPERATORS:
            changed = copy.deepcopy(node)
            changed.op = OPERATORS[type(node.op)]()
            yield changed
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Not, ast.USub, ast.Invert)):
        yield node.operand
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        yield ast.Constant(node.value + 1)
    elif isinstance(node, ast.Attribute) and node.attr in FUNCTIONS:
        yield ast.Attribute(node.value, FUNCTIONS[node.attr], node.ctx)
    elif isinstance(node, ast.Name) and node.id in FUNCTIONS:
        yield ast.Name(FUNCTIONS[node.id], node.ctx)
    elif isinstance(node, ast.Expr) and not isinstance(node.value, ast.Constant):
        yield ast.Pass()


def places(tree: ast.AST) -> Iterator[tuple[ast.AST, str, int | None]]:
    """Parent, field and index of every node that runs; annotations and f-strings are left out."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns"):
            continue
        for k, child in enumerate(value) if isinstance(value, list) else [(None, value)]:
            if isinstance(child, ast.AST) and not isinstance(child, ast.JoinedStr):
                yield tree, name, k
                yield from places(child)


def mutants(module: str, source: str) -> Iterator[tuple[Mutant, ast.Module]]:
    """Every mutant of a module, and its tree, which holds until the next one is asked for."""
    tree, number = ast.parse(source), 0
    digest = hashlib.sha256(source.encode()).hexdigest()[:12]
    for parent, field_name, k in list(places(tree)):
        held = getattr(parent, field_name)
        node = held if k is None else held[k]
        around = isinstance(parent, ast.expr)  # a number alone says little
        before = ast.unparse(parent if around else node)
        for changed in variants(node):
            ast.copy_location(changed, node)
            replace(parent, field_name, k, changed)
            after = ast.unparse(parent if around else changed)
            end = node.end_lineno or node.lineno
            mutant = Mutant(module, number, digest, node.lineno, end, before, after)
            yield mutant, ast.fix_missing_locations(tree)
            replace(parent, field_name, k, node)
            number += 1


def replace(parent: ast.AST, field: str, k: int | None, node: ast.AST) -> None:
    """Put a node in its parent's place."""
    if k is None:
        setattr(parent, field, node)
    else:
        getattr(parent, field)[k] = node


@dataclass
class Reach:
    """What the tests do without a change.

    Attributes:
        lines: test -> the lines that it runs, by module.
        seconds: test -> its processor seconds.
        imported: modules that the tests import, this project's and the tests left out.
    """

    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    imported: list[str] = field(default_factory=list)

    def tests(self, mutant: Mutant, most: float) -> list[str]:
        """The tests that a mutant meets, in their order, of ``most`` seconds in all."""
        place = range(mutant.line, mutant.end + 1)
        direct = {
            test
            for test, lines in self.lines.items()
            if not set(place).isdisjoint(lines.get(mutant.module, ()))
        }
        files = {_file(test) for test in direct} or {
            _file(test) for test, lines in self.lines.items() if mutant.module in lines
        }  # what runs at import is reached by all
        others = [test for test in self.seconds if _file(test) in files]
        chosen, total = [], 0.0
        for test in sorted(others, key=lambda x: (x not in direct, self.seconds[x])):
            total += self.seconds[test]
            if chosen and total > most:
                break
            chosen.append(test)
        return chosen


def _file(test: str) -> str:
    return test.split("::")[0]


class Recorder:
    """A plugin of pytest that fills a ``Reach``."""

    def __init__(self, folder: Path) -> None:
        self.files = {str(folder / module): module for module in MODULES}
        self.reach = Reach()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        """Run a test and note its lines and seconds."""
        seen: dict[str, set[int]] = {}
        local = {name: self._noting(seen, module) for name, module in self.files.items()}

        def trace(frame: FrameType, event: str, arg: object) -> Any:
            return local.get(frame.f_code.co_filename)

        start = time.process_time()
        sys.settrace(trace)
        threading.settrace(trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.reach.seconds[item.nodeid] = time.process_time() - start
            self.reach.lines[item.nodeid] = {k: sorted(v) for k, v in seen.items()}

    @staticmethod
    def _noting(seen: dict[str, set[int]], module: str) -> Callable[..., Any]:
        def local(frame: FrameType, event: str, arg: object) -> Any:
            seen.setdefault(module, set()).add(frame.f_lineno)
            return local

        return local


class Chosen:
    """A plugin of pytest that runs some tests in a given order, each within its limit of time."""

    def __init__(self, tests: list[str], seconds: dict[str, float]) -> None:
        self.tests, self.seconds = tests, seconds

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep the chosen tests; a parameter that the mutant renames is no longer among them."""
        by_name = {item.nodeid: item for item in items}
        items[:] = [by_name[test] for test in self.tests if test in by_name]

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Set the alarm that ends the process."""
        signal.setitimer(signal.ITIMER_PROF, SLACK + 10 * self.seconds[item.nodeid])


class Changed(SourceFileLoader):
    """Loads one module from a code object instead of its file, and is its finder, too."""

    def __init__(self, folder: Path, module: str, code: CodeType) -> None:
        name = module.removesuffix(".py").replace("/", ".")
        super().__init__(name, str(folder / module))
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        """The changed code."""
        return self.code

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """The module's specification, None for any other module."""
        return spec_from_file_location(name, self.path, loader=self) if name == self.name else None


def forked(work: Callable[[], int]) -> int:
    """Exit status of ``work`` in a process of its own, negative if a signal ended it."""
    process = os.fork()
    if process == 0:
        status = 3
        try:
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            status = work()
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def run(tests: list[str], plugin: object) -> int:
    """Run tests in this process, up to the first that fails; returns pytest's exit status."""
    hypothesis.settings.register_profile(
        "mutants",
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),  # a failure is enough
        database=None,
        derandomize=True,
        deadline=None,
    )
    hypothesis.settings.load_profile("mutants")
    options = ["-x", "-q", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly"]
    return int(pytest.main([*options, *tests], plugins=[plugin]))


def recorded(folder: Path) -> Reach:
    """Run all tests in the copy and record what they reach."""
    file = folder / "reach.json"

    def work() -> int:
        recorder = Recorder(folder)
        status = run(list(TESTS), recorder)
        own = ("parenvs", "agents", "datasets", "leaderboard", "tests", "__main__", "common")
        names = [name for name, module in sys.modules.items() if getattr(module, "__spec__", None)]
        helpers = {path.stem for path in (folder / "tests").rglob("*.py")}
        recorder.reach.imported = [
            name for name in names if name.split(".")[0] not in {*own, *helpers}
        ]
        file.write_text(json.dumps(asdict(recorder.reach)), encoding="utf-8")
        return status

    if forked(work) != 0:
        raise SystemExit(f"the tests fail without a change: python -m pytest {' '.join(TESTS)}")
    reach = Reach(**json.loads(file.read_text(encoding="utf-8")))
    unseen = set(MODULES) - {module for lines in reach.lines.values() for module in lines}
    if unseen:
        raise SystemExit(f"no test reaches {', '.join(sorted(unseen))}")
    return reach


def outcome(folder: Path, mutant: Mutant, code: CodeType, reach: Reach, most: float) -> str:
    """What becomes of a mutant; ``most`` limits the seconds of its tests."""
    tests = reach.tests(mutant, most)
    if not tests:
        return "lives"

    def work() -> int:
        sys.meta_path.insert(0, Changed(folder, mutant.module, code))
        signal.alarm(int(60 + 10 * most))  # seconds by the clock: it may wait instead of compute
        signal.setitimer(signal.ITIMER_PROF, 60.0)  # of the imports
        return run(list(dict.fromkeys(map(_file, tests))), Chosen(tests, reach.seconds))

    status = forked(work)
    if -status in (signal.SIGPROF, signal.SIGALRM):
        return "timeout"
    return "killed" if status else "lives"


def enter(folder: Path) -> None:
    """Make the copy the place that tests run in and that this project is imported from, anew."""
    for name in [name for name in sys.modules if name.split(".")[0] == "parenvs"]:
        del sys.modules[name]
    sys.path[:0] = [str(folder), str(folder / "tests" / "helpers")]
    os.chdir(folder)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder.parent)


def warm(imported: list[str]) -> None:
    """Import what the tests import besides this project."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in imported:
            with suppress(Exception):  # a part of a package that is not for importing alone
                importlib.import_module(name)


def examine(
    folder: Path, modules: list[str], known: dict[tuple[str, int, str], Mutant], most: float
) -> Iterator[tuple[Mutant, bool]]:
    """The mutants of some modules with their outcomes, and whether each ran just now."""
    reach: Reach | None = None
    for module in modules:
        for mutant, tree in mutants(module, (folder / module).read_text(encoding="utf-8")):
            key = (mutant.module, mutant.number, mutant.digest)
            if key in known:
                yield known[key], False
                continue
            if reach is None:
                enter(folder)
                reach = recorded(folder)
                progress(f"{len(reach.seconds)} tests, {sum(reach.seconds.values()):.0f} s")
                warm(reach.imported)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of comparisons that are always the same
                code = compile(tree, str(folder / module), "exec")
            mutant.outcome = outcome(folder, mutant, code, reach, most)
            yield mutant, True


def cell(text: str) -> str:
    """A cell of a table that holds code."""
    return "`" + text.replace("|", "\\|") + "`"


def reason(mutant: Mutant) -> str:
    """Why a survivor is none, or an empty text."""
    return EQUIVALENT.get((mutant.module, mutant.before, mutant.after), "")


def summary(found: list[Mutant]) -> list[object]:
    """Counts of some mutants, and the share that is killed of those not known to be equivalent."""
    living = [mutant for mutant in found if mutant.outcome == "lives"]
    equivalent = sum(bool(reason(mutant)) for mutant in living)
    killed = len(found) - len(living)
    share = killed / (len(found) - equivalent) if len(found) > equivalent else None
    return [len(found), killed, equivalent, len(living) - equivalent, percent(share, 1)]


def main() -> None:
    """Print and write the share killed for each module, and the survivors."""
    options = parser(__doc__, seconds=15)
    options.add_argument("modules", nargs="*", help="part of their paths (default: all)")
    options.add_argument("--again", action="store_true", help="run survivors once more")
    chosen = options.parse_args()
    modules = [m for m in MODULES if not chosen.modules or any(x in m for x in chosen.modules)]
    chosen.out.mkdir(parents=True, exist_ok=True)
    file = (chosen.out / "mutants.jsonl").resolve()
    known = {}
    for line in file.read_text(encoding="utf-8").splitlines() if file.exists() else ():
        mutant = Mutant(**json.loads(line))
        if not (chosen.again and mutant.outcome == "lives"):
            known[mutant.module, mutant.number, mutant.digest] = mutant
    found = []
    with tempfile.TemporaryDirectory() as root, file.open("a", encoding="utf-8") as stream:
        folder = Path(root).resolve() / "checkout"
        shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(".*", "__pycache__", "runs"))
        for mutant, new in examine(folder, modules, known, chosen.seconds):
            found.append(mutant)
            if new:
                stream.write(json.dumps(asdict(mutant)) + "\n")
                stream.flush()
                words = f"{mutant.before} -> {mutant.after}: {mutant.outcome}"
                progress(f"{len(found)} {mutant.module}:{mutant.line}: {words}")
        os.chdir(ROOT)
    rows = [[f"`{m}`", *summary([x for x in found if x.module == m])] for m in modules]
    counts = table(
        ["module", "mutants", "killed", "equivalent", "survivors", "share"],
        [*rows, ["**all**", *summary(found)]],
    )
    living = [x for x in found if x.outcome == "lives"]
    cells = [
        [cell(f"{x.module}:{x.line}"), cell(x.before), cell(x.after), reason(x)] for x in living
    ]
    survivors = table(["place", "is", "changed to", "why it is equivalent"], cells, left=4)
    publish("mutants", [counts, survivors], [], chosen.out)


if __name__ == "__main__":
    main()
