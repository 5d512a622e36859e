"""How many small mistakes in the cost model and in the rules the tests notice.

Each mutant is a module with one change: an operator, a comparison, a number, a condition or a
function in place of another, or a statement left out. A first run of the tests records which of
them reach which line, and how long each takes. A mutant then meets the tests that reach its line,
quick ones first, and after them the others of the same files, as long as ``--seconds`` last. It is
killed if one fails or takes far longer than without it. The tests are those of ``make test``.

A process that has collected the tests forks for each mutant and puts the changed code into the
functions that are there. What runs at import needs a fork of a process that has imported NumPy and
pytest, but not ``parenvs``. Everything happens in a copy of the checkout. ``--again`` runs those
once more that lived for no known reason. The modules are two groups: formulas and rules, and what
all tasks share. Each mutant has a number in an order drawn at random over all of its group:
``--sample N M`` runs the first N of the one and M of the other, uniform samples, and a page about a
part of the mutants says what share of all that leads to expect. The kept tools do not fit: mutmut
changes functions alone, not tables of rules, and cosmic-ray runs one and the same test command for
each mutant.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import io
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import asdict, dataclass, field
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from itertools import zip_longest
from pathlib import Path
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import Any

import hypothesis
import numpy as np
import pytest

from benchmarks.framework import (
    ROOT,
    Case,
    Column,
    Row,
    Rows,
    columns,
    main,
    measurement,
    progress,
    table,
)
from benchmarks.mutations import Key, Mutant, estimate, mutants, reason, summary

FORMULAS = {
    "parenvs/core/plan.py": "tests/pipeline/test_judge.py",
    "parenvs/tasks/pipeline/formulas.py": "tests/pipeline/test_formulas.py",
    "parenvs/tasks/pipeline/plan.py": "tests/pipeline/test_judge.py",
    "parenvs/tasks/pipeline/spaces.py": "tests/pipeline/test_points.py",
    "parenvs/tasks/partition/formulas.py": "tests/partition/test_formulas.py",
    "parenvs/graph/opcodes.py": "tests/graph/test_rules.py",
    "parenvs/tasks/partition/classes.py": "tests/partition/test_classes.py",
    "parenvs/tasks/partition/problem.py": "tests/partition/test_report.py",
}
"""Module -> its own tests, which are to notice mistakes in what runs at import."""
SPINE = {
    "parenvs/core/game.py": "tests/core/test_toy.py",
    "parenvs/core/sets.py": "tests/agents/evaluation/test_evaluate_set.py",
    "parenvs/envs/env.py": "tests/envs/test_conventions.py",
    "parenvs/envs/vector.py": "tests/envs/test_batched.py",
    "parenvs/fields.py": "tests/test_fields.py",
    "parenvs/tasks/partition/task.py": "tests/partition/test_report.py",
    "parenvs/tasks/hybrid/load.py": "tests/hybrid/test_problem.py",
    "parenvs/tasks/sharding/task.py": "tests/sharding/test_problem.py",
}
"""What all tasks share, and what makes and judges the problems of each; as ``FORMULAS``."""
GROUPS = {"the formulas and rules": FORMULAS, "what tasks share and load": SPINE}
ROOMS = FORMULAS | SPINE
ABOUT = {
    "pipeline": (
        "batch cuts exact_points formulas judge points problem profile ranges simulate "
        "simulate_large tied exact_shapes pipeline_cut pipeline_cut_vector pipeline_plan"
    ),
    "partition": (
        "classes explain formulas memory paper problem report space step "
        "partition_plan partition_vector"
    ),
    "graph": "rules rules_oracle",
    "hybrid": "problem plan single batch graph_special_cases graph_splitting",
    "sharding": "problem game",
    "elastic": "game",
    "core": "doors game registry toy",
    "cli": "planning hybrid",
    "envs": "batched conventions wrappers",
    "agents/evaluation": "evaluate evaluate_set",
    "leaderboard": "entry",
    ".": "fields plan instances",
}
TESTS = tuple(
    f"tests/{room}/test_{x}.py".replace("/./", "/")
    for room, names in ABOUT.items()
    for x in names.split()
)
"""The tests that are to notice mistakes in functions."""
MEMORY = 12 << 30
"""Bytes of addresses that a mutant may take."""
KEPT = ROOT / "build" / "mutants.json"
"""What the tests reached when they ran last."""
CLOCK = 600
"""Seconds by the clock that the tests of a mutant may take."""
SLACK = 5.0
"""Processor seconds that each test may take beyond ten times its own."""

Changes = Iterator[tuple[Mutant, CodeType]]
Note = Callable[[Mutant], object]


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

    def tests(self, mutant: Mutant, limit: float) -> list[str]:
        """The tests that a mutant meets, in their order, of ``limit`` seconds in all."""
        place = range(mutant.line, mutant.end + 1)
        direct = {
            test
            for test, lines in self.lines.items()
            if not set(place).isdisjoint(lines.get(mutant.module, ()))
        }
        files = {_file(test) for test in direct}
        if not (files and mutant.inside):  # a test that imports late reaches what runs at import
            files.add(ROOMS[mutant.module])
        others = [test for test in self.seconds if _file(test) in files]
        chosen, total = [], 0.0
        room = f"{ROOMS[mutant.module].rpartition('/')[0]}/"  # of the module's own task first

        def urgency(test: str) -> tuple[bool, bool, float]:
            return test not in direct, not test.startswith(room), self.seconds[test]

        for test in sorted(others, key=urgency):
            total += self.seconds[test]
            if chosen and total > limit:
                break
            chosen.append(test)
        return chosen


def _file(test: str) -> str:
    return test.split("::")[0]


class Recorder:
    """A plugin of pytest that fills a ``Reach``."""

    def __init__(self, folder: Path) -> None:
        self.files = {str(folder / module): module for module in ROOMS}
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


def forked(work: Callable[[], bool]) -> str:
    """What ``work`` says in a process of its own: ``killed`` or, if it is true, ``lives``.

    It is a ``timeout`` if it takes more processor time than its alarm allows.
    """
    process = os.fork()
    if process == 0:
        status = 3
        try:
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, 1)
            os.dup2(silent, 2)
            resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            signal.alarm(CLOCK)
            status = 0 if work() else 1
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    if status == 3:
        raise RuntimeError("the process for a mutant failed")
    waited = -status == signal.SIGALRM  # by the clock: that is no proof of a mistake
    return {0: "lives", -signal.SIGPROF: "timeout"}.get(status, "lives" if waited else "killed")


def run(tests: list[str], plugin: object) -> int:
    """Run tests in this process, up to the first that fails; returns pytest's exit status."""
    hypothesis.settings.register_profile(
        "mutants",
        phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),  # a failure is enough
        database=None,
        derandomize=True,
        deadline=None,
    )
    options = ["-x", "-q", "-s", "--tb=no", "-p", "no:cacheprovider", "-p", "no:randomly"]
    options.append("--hypothesis-profile=mutants")  # after that of the tests' own configuration
    with redirect_stdout(io.StringIO()):
        return int(pytest.main([*options, *tests], plugins=[plugin]))


def recorded(folder: Path) -> Reach:
    """What the tests in the copy reach; files of tests that did not change are not run again."""
    kept = json.loads(KEPT.read_text(encoding="utf-8")) if KEPT.exists() else {}
    places = [folder / place for place in TESTS]
    files = [f for p in places for f in (sorted(p.glob("test_*.py")) if p.is_dir() else [p])]
    sources = [
        f for p in ("parenvs", "agents", "tests/helpers") for f in (folder / p).rglob("*.py")
    ]
    shared = "".join(map(digest, sorted(sources)))
    reach, found = Reach(), {}
    for file in files:
        name = file.relative_to(folder).as_posix()
        key = hashlib.sha256(f"{name} {digest(file)} {shared}".encode()).hexdigest()
        if key not in kept:
            kept[key] = asdict(recorded_anew(folder, name))
            progress(f"{name}: {sum(kept[key]['seconds'].values()):.1f} s")
        found[key] = kept[key]
        KEPT.parent.mkdir(exist_ok=True)
        KEPT.write_text(json.dumps(found | kept), encoding="utf-8")
        reach.lines |= found[key]["lines"]
        reach.seconds |= found[key]["seconds"]
        reach.imported += found[key]["imported"]
    KEPT.write_text(json.dumps(found), encoding="utf-8")
    reach.imported = list(dict.fromkeys(reach.imported))
    unseen = set(ROOMS) - {module for lines in reach.lines.values() for module in lines}
    if unseen:
        raise SystemExit(f"no test reaches {', '.join(sorted(unseen))}")
    progress(f"{len(reach.seconds)} tests, {sum(reach.seconds.values()):.0f} s")
    return reach


def recorded_anew(folder: Path, tests: str) -> Reach:
    """Run a file of tests in a process of its own and record what they reach."""
    file = folder / "reach.json"

    def work() -> bool:
        signal.alarm(0)
        recorder = Recorder(folder)
        status = run([tests], recorder)
        own = ("parenvs", "agents", "datasets", "leaderboard", "tests", "benchmarks", "__main__")
        names = [name for name, module in sys.modules.items() if getattr(module, "__spec__", None)]
        helpers = {path.stem for path in (folder / "tests").rglob("*.py")}
        recorder.reach.imported = [
            name for name in names if name.split(".")[0] not in {*own, *helpers}
        ]
        file.write_text(json.dumps(asdict(recorder.reach)), encoding="utf-8")
        return status in (0, 5)  # 5: a file of slow tests alone, which setup.cfg leaves out

    if forked(work) != "lives":
        raise SystemExit(f"the tests fail without a change: python -m pytest {tests}")
    return Reach(**json.loads(file.read_text(encoding="utf-8")))


def digest(file: Path) -> str:
    """A number that is another one if the file's content is."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


def imported_anew(folder: Path, changes: Changes, reach: Reach, limit: float) -> Iterator[Mutant]:
    """Give mutants their outcomes in processes that import the changed module."""
    for mutant, code in changes:
        tests = reach.tests(mutant, limit)

        def work(mutant: Mutant = mutant, code: CodeType = code, tests: Any = tests) -> bool:
            sys.meta_path.insert(0, Changed(folder, mutant.module, code))
            signal.setitimer(signal.ITIMER_PROF, 60.0)  # of the imports
            status = run(list(dict.fromkeys(map(_file, tests))), Chosen(tests, reach.seconds))
            return status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)

        mutant.outcome = forked(work)
        yield mutant


class Session:
    """A plugin of pytest that gives mutants their outcomes once the tests are collected.

    Args:
        folder: the copy of the checkout.
        changes: the mutants, each with its code; all are inside of functions.
        reach: what the tests reach.
        limit: seconds of the tests of a mutant.
        note: is called with each mutant that has its outcome.
    """

    def __init__(
        self, folder: Path, changes: Changes, reach: Reach, limit: float, note: Note
    ) -> None:
        self.folder, self.changes, self.reach, self.limit = folder, changes, reach, limit
        self.note = note

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Run the tests that each mutant meets, in place of all tests."""
        items = {item.nodeid: item for item in session.items}
        gc.freeze()
        for mutant, code in self.changes:
            tests = [items[test] for test in self.reach.tests(mutant, self.limit) if test in items]

            def work(mutant: Mutant = mutant, code: CodeType = code, tests: Any = tests) -> bool:
                return transplanted(mutant.module, code) and self.passed(session, tests)

            mutant.outcome = forked(work)
            self.note(mutant)
        return True

    def passed(self, session: pytest.Session, tests: list[pytest.Item]) -> bool:
        """Whether tests pass, each within its time."""
        for item, after in zip(tests, [*tests[1:], None], strict=True):
            signal.setitimer(signal.ITIMER_PROF, SLACK + 10 * self.reach.seconds[item.nodeid])
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if session.testsfailed:
                return False
        return True


def transplanted(module: str, code: CodeType) -> bool:
    """Put the code of a changed module into its functions; False if it cannot even be imported."""
    name = module.removesuffix(".py").replace("/", ".")
    old = importlib.import_module(name)
    new = ModuleType(name)
    new.__dict__.update(__file__=old.__file__, __package__=old.__package__, __spec__=old.__spec__)
    try:
        exec(code, new.__dict__)
    except Exception:
        return False
    changed = dict(functions(vars(new), name))
    for key, function in functions(vars(old), name):
        function.__code__ = changed[key].__code__
    return True


def functions(space: Mapping[str, Any], module: str) -> Iterator[tuple[str, FunctionType]]:
    """The functions and methods of a module with their qualified names."""
    for value in space.values():
        for wrapper in ("__func__", "fget", "func", "__wrapped__"):
            value = getattr(value, wrapper, value)
        if getattr(value, "__module__", None) != module:
            continue
        if isinstance(value, FunctionType):
            yield value.__qualname__, value
        elif isinstance(value, type):
            yield from functions(vars(value), module)


def enter(folder: Path) -> None:
    """Make the copy the place that tests run in and that this project is imported from, anew."""
    sys.path[:0] = map(str, (folder, folder / "tests" / "helpers", folder / "examples"))
    os.chdir(folder)
    os.environ["PYTEST_DEBUG_TEMPROOT"] = str(folder.parent)
    forget(folder)


def forget(folder: Path) -> None:
    """Have this project and its tests imported anew when they are next."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        if name.split(".")[0] in ("parenvs", "benchmarks") or file.startswith(str(folder)):
            del sys.modules[name]


def warm(folder: Path, imported: list[str]) -> None:
    """Import what the tests import besides this project."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in imported:
            with suppress(Exception):  # a part of a package that is not for importing alone
                importlib.import_module(name)
    forget(folder)


def examine(folder: Path, new: dict[Key, Mutant], limit: float, note: Note) -> None:
    """Give the mutants ``new`` their outcomes; ``note`` is called with each."""

    def changes(inside: bool) -> Changes:
        for module in dict.fromkeys(mutant.module for mutant in new.values()):
            for mutant, tree in mutants(module, (folder / module).read_text(encoding="utf-8")):
                if mutant.key in new and mutant.inside == inside:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # of what is always the same
                        yield new[mutant.key], compile(tree, str(folder / module), "exec")

    enter(folder)
    reach = recorded(folder)
    warm(folder, reach.imported)
    for mutant in imported_anew(folder, changes(False), reach, limit):
        note(mutant)
    status = run(list(TESTS), Session(folder, changes(True), reach, limit, note))
    if status != pytest.ExitCode.OK:
        raise SystemExit(f"pytest ended with status {status}")


def code(text: str) -> str:
    """A cell of a table that holds code."""
    return "`" + text.replace("|", "\\|") + "`"


def every_mutant(rooms: Mapping[str, str]) -> list[Mutant]:
    return [x for m in rooms for x, _ in mutants(m, (ROOT / m).read_text(encoding="utf-8"))]


def drawn(every: list[Mutant], sample: int | None, seed: int) -> list[Mutant]:
    order = np.random.default_rng(seed).permutation(len(every))[:sample]
    return [every[k] for k in sorted(order.tolist())]


def samples(sample: Sequence[int], seed: int) -> Iterator[tuple[str, list[Mutant], list[Mutant]]]:
    """Name, mutants and drawn mutants of each group; without a number all are drawn."""
    for (name, rooms), count in zip_longest(GROUPS.items(), sample[: len(GROUPS)]):
        every = every_mutant(rooms)
        yield name, every, drawn(every, count, seed)


def chosen(modules: Sequence[str]) -> list[str]:
    """The modules whose paths hold one of some texts."""
    return [m for m in ROOMS if not modules or any(x in m for x in modules)]


@measurement(
    title="Mistakes that the tests notice",
    key="module number digest",
    positional=("modules",),
    about={
        "modules": "part of their paths (default: all)",
        "seconds": "of the tests of a mutant",
        "sample": "mutants drawn from each group of modules (default: all)",
        "seed": "of the draw",
    },
)
def mutants_(
    rows: Rows,
    again: bool,
    modules: tuple[str, ...] = (),
    seconds: float = 15.0,
    sample: tuple[int, ...] = (),
    seed: int = 0,
) -> Iterator[Case]:
    some = [x for *_, few in samples(sample, seed) for x in few if x.module in chosen(modules)]
    lives = [row for row in rows if row["outcome"] == "lives" and not reason(Mutant(**row))]
    new = {x.key: x for x in some if asdict(x) not in rows or (again and rows[asdict(x)] in lives)}
    progress(f"{len(some)} mutants, of which {len(some) - len(new)} are in {rows.path}")
    start = time.perf_counter()

    def note(mutant: Mutant) -> None:
        rows.add(asdict(mutant))
        words = f"{mutant.before} -> {mutant.after}: {mutant.outcome}"
        progress(f"{mutant.module}:{mutant.line}: {words}")

    if new:
        rows.path = rows.path.resolve()  # the tests run in another folder
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root).resolve() / "checkout"
            ignored = shutil.ignore_patterns(".*", "__pycache__", "runs")
            shutil.copytree(ROOT, folder, ignore=ignored)
            examine(folder, new, seconds, note)
            os.chdir(ROOT)
    progress(f"{len(new)} mutants in {time.perf_counter() - start:.0f} s")
    yield from ()


SURVIVORS: list[Column] = [
    ("place", lambda x: code(f"{x.module}:{x.line}")),
    ("is", lambda x: code(x.before)),
    ("changed to", lambda x: code(x.after)),
    ("why it is equivalent", reason),
]


@mutants_.page
def page(
    rows: list[Row], modules: tuple[str, ...], sample: tuple[int, ...], seed: int
) -> list[str]:
    known = {mutant.key: mutant for mutant in (Mutant(**row) for row in rows)}
    names, blocks, lines = chosen(modules), [], []
    met: list[Mutant] = []
    for group, every, few in samples(sample, seed):
        every = [known.get(x.key, x) for x in every if x.module in names]
        few = [known.get(x.key, x) for x in few if x.module in names]
        tried = [x for x in every if x.outcome]
        own = [name for name in names if any(x.module == name for x in every)]
        lines += [[f"`{m}`", *summary([x for x in tried if x.module == m])] for m in own]
        if 0 < len(few) < len(every) and all(x.outcome for x in few):
            blocks.append(estimate(group, few, len(every), seed))
        met += tried
    header = ["module", "mutants", "killed", "equivalent", "survivors", "share"]
    return [
        f"{len(met)} mutants were tried.",
        table(header, [*lines, ["**all**", *summary(met)]]),
        *blocks,
        columns([x for x in met if x.outcome == "lives"], SURVIVORS, left=4),
    ]


if __name__ == "__main__":
    main(mutants_)
