"""Compares what two checkouts answer, to the last bit: one from before a change, one from after.

    python benchmarks/same.py dump ../before before.json     # ten minutes and more
    python benchmarks/same.py dump . after.json
    python benchmarks/same.py compare before.json after.json # writes results/same.md

A dump runs in a process that imports the checkout alone. It writes a digest of every array, plan
and number, by kind, case and part. Planners have budgets of steps or search until they have a
proof, so that clocks change nothing. ``compare`` lists what is equal, and every difference with its
explanation from ``EXPLAINED``; its status is 1 if one has none.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from same_cases import ENVIRONMENTS, EXPLAINED, GRIDS, LEARNED, LONG, PLANNED
from same_sides import drawn, is_old, problem_of, sets, solved

Parts = dict[str, Any]
ENDS, STEPS, BATCH = 3, 300, 3
"""Episodes of a single environment; maximum number of steps; environments of a batch."""
SEED = 42
PARTS = ("observation", "reward", "over", "cut", "info")
"""What a step returns."""


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits of the bits of arrays, numbers, texts, and what holds them."""
    found = hashlib.sha256()
    _walk(value, found.update)
    return found.hexdigest()[:16]


SKIPPED = {"name", "instance", "task", "scope", "step", "settings", "step_seconds"}
"""Fields of problems that are names, or that both checkouts spell in other ways."""


def _walk(value: Any, update: Callable[[bytes], None]) -> None:
    if isinstance(value, np.ndarray) and value.dtype != object:
        update(f"{value.dtype.str}{value.shape}".encode() + np.ascontiguousarray(value).tobytes())
    elif isinstance(value, (np.generic, int, float, bool)):
        number = value.item() if isinstance(value, np.generic) else value
        update((number.hex() if isinstance(number, float) else repr(number)).encode() + b";")
    elif isinstance(value, dict):
        for key in sorted(value, key=str):
            update(f"{key}:".encode())
            _walk(value[key], update)
    elif isinstance(value, (list, tuple, np.ndarray)):
        update(f"[{len(value)}".encode())
        for each in value:
            _walk(each, update)
    elif dataclasses.is_dataclass(value):
        if hasattr(value, "parameter_tensor"):  # graphs are told apart in a kind of their own
            update(value.fingerprint.encode())
            return
        for field in sorted(dataclasses.fields(value), key=lambda each: each.name):
            if field.name not in SKIPPED and field.init:
                update(f"{field.name}=".encode())
                _walk(getattr(value, field.name), update)
    else:
        update(f"{value};".encode())


class Tape:
    """Digests of all that is added, by part."""

    def __init__(self) -> None:
        self._parts: dict[str, Any] = defaultdict(hashlib.sha256)
        self.names: list[str] = []

    def add(self, part: str, value: Any) -> None:
        """Add a value to a part."""
        if part.rpartition(" ")[2] == "instance":
            self.names += np.atleast_1d(np.asarray(value, dtype=object)).tolist()
        elif isinstance(value, dict):
            for key in sorted(value):
                self.add(f"{part} {key}", value[key])
        else:
            _walk(value, self._parts[part].update)

    def parts(self) -> Parts:
        """Return the digests, and names in words."""
        found = {part: each.hexdigest()[:16] for part, each in self._parts.items()}
        return {**found, "instances": " ".join(str(x) for x in dict.fromkeys(self.names))}


def plan_json(plan: Any) -> Any:
    """Return a plan's JSON object without what names its problem."""
    content = json.loads(json.dumps(plan.to_json()))
    named = ("task", "instance", "scope", "reward")
    return {key: x for key, x in content.items() if key not in named}


def single(env_id: str, arguments: dict[str, Any]) -> Parts:
    """Play episodes by random legal actions; the last one ends with an illegal action."""
    import gymnasium as gym

    env = gym.make(env_id, disable_env_checker=True, **arguments)
    rng, tape = np.random.default_rng(SEED), Tape()
    for episode in range(ENDS):
        observation, info = env.reset(seed=SEED if episode == 0 else None)
        over, steps = False, 0
        while True:
            tape.add("observation", observation)
            tape.add("info", info)
            if over or steps == STEPS:
                break
            legal = info["action_mask"].astype(bool)
            illegal = episode == ENDS - 1 and steps >= 2 and not legal.all()
            action = int(rng.choice(np.flatnonzero(~legal if illegal else legal)))
            observation, reward, over, _, info = env.step(action)
            tape.add("reward", (reward, over))
            steps += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            plan = env.unwrapped.plan() if hasattr(env.unwrapped, "plan") else None
        if hasattr(plan, "to_json"):
            tape.add("plan", plan_json(plan))
    if over:
        for part, value in zip(PARTS, env.step(0), strict=True):
            tape.add(f"after the end, {part}", value)
    return tape.parts()


def batch(mode: str, env_id: str, arguments: dict[str, Any]) -> Parts:
    """Play a native batch by random legal actions."""
    import gymnasium as gym

    envs = gym.make_vec(env_id, BATCH, "vector_entry_point", autoreset_mode=mode, **arguments)
    rng, tape = np.random.default_rng(SEED), Tape()
    observation, infos = envs.reset(seed=SEED)
    for _ in range(STEPS // BATCH):
        tape.add("observation", observation)
        tape.add("infos", infos)
        masks = infos["action_mask"].astype(bool)
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in masks])
        observation, rewards, ends, cut, infos = envs.step(actions)
        tape.add("rewards", (rewards, ends, cut))
        if mode == "Disabled" and ends.any():
            tape.add("final", (observation, infos))
            observation, again = envs.reset(options={"reset_mask": ends.copy()})
            infos = {**again, "action_mask": np.where(ends[:, None], again["action_mask"],
                                                      infos["action_mask"])}  # fmt: skip
    return tape.parts()


def answered(task: str, name: str, options: dict[str, Any], agent: str, more: Any) -> Parts:
    """Plan a problem, and return what the planner and the judge say."""
    answer = solved(task, problem_of(task, name, options), agent, more)
    report = getattr(answer, "report", answer)
    if task == "elastic":
        run = {x: getattr(report, x) for x in ("plans", "events", "samples", "seconds", "total")}
        return {"run": digest(run), "share": report.share.hex()}
    said = json.loads(json.dumps(report.to_json()))
    parts = {f"report {key}": digest(x) for key, x in said.items() if key not in ("plan", "task")}
    parts["plan"] = digest(plan_json(report.plan))
    if answer is not report and (task, agent == "exact") != ("sharding", False):
        parts |= {key: digest(getattr(answer, key)) for key in ("proven", "bound", "evaluations")}
        parts["notes"] = re.sub(r"[0-9.]+ s\b", "", " ".join(answer.notes))  # without seconds
    return parts


def table(task: str) -> Parts:
    """Judge all submissions of a task of the leaderboard, and rank them."""
    from parenvs.leaderboard.check import check_file
    from parenvs.leaderboard.ranking import ranking
    from parenvs.leaderboard.tasks import tasks

    files = sorted(Path("leaderboard/submissions", task).glob("*.json"))
    checked, parts = [check_file(path) for path in files], {}
    for entry in checked:
        for verdict in entry.verdicts:
            said = verdict.to_json()
            reasons = [*said["reasons"], said.get("note", "")]
            parts[f"{entry.entry.entry} {verdict.problem.name}"] = (
                f"{verdict.state.value} {float(verdict.cost).hex()} {said['score'].hex()} "
                f"{digest(reasons)}"
            )
        parts[f"{entry.entry.entry} score"] = entry.score.hex()
    for standing in ranking(tasks().tasks[task], checked):
        own = f"rank {standing.rank}, {standing.score!r}, {standing.reached}"
        parts[standing.checked.entry.entry] = f"{own}, {sorted(standing.checked.figures.items())}"
    return parts


def plan_files(task: str) -> Parts:
    """Judge the first plans of submissions as plan files, which alone say what they are for."""
    import parenvs

    parts = {}
    for path in sorted(Path("leaderboard/submissions", task).glob("*.json")):
        plans = json.loads(path.read_text(encoding="utf-8")).get("plans") or {}
        for name, content in list(plans.items())[:3]:
            with tempfile.TemporaryDirectory() as folder:
                file = Path(folder) / "plan.json"
                file.write_text(json.dumps(content), encoding="utf-8")
                try:
                    said = parenvs.judge(str(file)).to_json()
                except Exception as error:
                    said = {"error": str(error).replace(folder, "")}
            for key, value in said.items():
                if key not in ("plan", "task"):
                    parts[f"{path.stem} {name} {key}"] = digest(json.loads(json.dumps(value)))
    return parts


def members(name: str) -> Parts:
    """Return references and problems of a set."""
    own, parts = sets().set_of(name), {}
    for member in own.problems:
        reference = own.reference(member)
        parts[f"{member} reference"] = f"{reference.value.hex()} {reference.bound.hex()} " + (
            reference.kind
        )
        parts[member] = digest(own.load(member))
    return parts


def grid(name: str, cluster: str, samples: int) -> Parts:
    """Judge all uniform plans of a shape."""
    from parenvs.tasks.hybrid.space import UniformSpace

    options = {"cluster": cluster, "batch": samples}
    space = UniformSpace.build(problem_of("hybrid", name, options))
    found = {"plans": len(space), "best": space.best(), "map": space.map()}
    return {key: digest(x) for key, x in {**found, **space.seconds, **space.memory}.items()}


def graph(path: Path) -> Parts:
    """Read a shipped graph, and what is derived of it."""
    from parenvs.graph.graph import Graph

    read = Graph.load(path)
    arrays = {each.name: digest(getattr(read, each.name)) for each in dataclasses.fields(read)}
    derived = {"pivots": read.pivots(), "flops": read.total_flops, "print": read.fingerprint}
    return {**arrays, **{key: digest(value) for key, value in derived.items()}}


def traced(name: str) -> Parts:
    """Lower a shipped model by JAX, read it anew, and return digests of the arrays."""
    import parenvs
    from parenvs.datasets.models import MODELS, forward, train_step

    read = parenvs.Graph.from_jax if is_old() else parenvs.from_jax
    parts = {}
    for make in (forward, train_step):
        function, given = make(MODELS[name])
        found = read(function, *given, name=name, batch_size=MODELS[name].batch_size)
        parts |= {f"{make.__name__} {each.name}": digest(getattr(found, each.name))
                  for each in dataclasses.fields(found)}  # fmt: skip
    return parts


def cases() -> Iterator[tuple[str, str, Callable[[], Parts]]]:
    """Yield kind, name and function of each case."""
    for path in sorted(Path("datasets/data").glob("*.npz")):
        if not path.name.startswith("plan-"):
            yield "graphs", path.stem, partial(graph, path)
    for name in ("vgg-19", "t5-base"):
        yield "graphs", f"{name}, traced", partial(traced, name)
    for name in sets().set_names():
        yield "sets", name, partial(members, name)
    for kind in ("numbered", "pipeline", "sharding", "hybrid", "hetero-8", "hetero-64"):
        numbers = range(20 if kind != "sharding" else 6)
        yield (
            "drawn problems",
            kind,
            lambda k=kind, n=numbers: {f"{k} {x}": digest(drawn(k, x)) for x in n},
        )
    for env_id, forms in ENVIRONMENTS.items():
        for arguments in forms:
            name = f"{env_id} {json.dumps(arguments)[1:-1]}".strip()
            yield "rollouts", f"{name}, single", partial(single, env_id, arguments)
            for mode in ("NextStep", "SameStep", "Disabled"):
                yield "rollouts", f"{name}, {mode}", partial(batch, mode, env_id, arguments)
    for name, cluster, samples in GRIDS:
        yield "hybrid grids", f"{name} {cluster} {samples}", partial(grid, name, cluster, samples)
    for task, (problems, planners) in PLANNED.items():
        for (name, options), agent in ((x, y) for y in planners for x in problems):
            case = f"{task} {agent}: {name} {json.dumps(options)[1:-1]}".strip()
            is_left = agent in LEARNED and name != problems[0][0]
            if not is_left and not case.startswith(LONG):
                yield "plans", case, partial(answered, task, name, options, agent, planners[agent])
    for folder in sorted(Path("leaderboard/submissions").iterdir()):
        yield "leaderboard", folder.name, partial(table, folder.name)
        yield "plan files", folder.name, partial(plan_files, folder.name)


def write(out: Path, words: list[str]) -> None:
    """Run the cases of the imported checkout whose name holds one of the words, or all."""
    import parenvs

    if Path.cwd() not in Path(parenvs.__file__).parents:
        raise SystemExit(f"{parenvs.__file__} is not of {Path.cwd()}")
    found: dict[str, Parts] = {}
    for kind, name, run in cases():
        case, begin = f"{kind} | {name}", time.perf_counter()
        if words and not any(word in case for word in words):
            continue
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found[case] = run()
        except Exception as error:  # both checkouts may refuse the same
            found[case] = {"error": f"{type(error).__name__}: {error}"}
        print(f"{time.perf_counter() - begin:7.2f} s {case}", file=sys.stderr, flush=True)
    out.write_text(json.dumps(found, indent=0), encoding="utf-8")


def flat(path: Path) -> dict[str, str]:
    """Read a dump as ``kind | case | part`` -> digest."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return {f"{case} | {part}": x for case, parts in content.items() for part, x in parts.items()}


def compared(before: Path, after: Path) -> tuple[str, int]:
    """Return the page of two dumps, and the number of differences without an explanation."""
    from parenvs.machine import commit  # not before the checkout of a dump is chosen

    old, new = flat(before), flat(after)
    kinds = list(dict.fromkeys(key.split(" | ")[0] for key in new))
    rows, why = [], defaultdict(list)
    for kind in kinds:
        keys = [key for key in {**old, **new} if key.startswith(f"{kind} | ")]
        other = [key for key in keys if old.get(key) != new.get(key)]
        count = len({key.rpartition(" | ")[0] for key in keys})
        rows.append(
            f"| {kind} | {count} | {len(keys):,} | {len(keys) - len(other):,} | {len(other)} |"
        )
        for key in other:
            found = (words for pattern, words in EXPLAINED if re.search(pattern, key))
            why[next(found, "")].append(key)
    lines = [
        "# Two checkouts, to the last bit",
        "`python benchmarks/same.py compare`",
        f"commit {commit()}",
        "| kind | cases | parts | equal | other |\n|:--|--:|--:|--:|--:|\n" + "\n".join(rows),
    ]
    for words, keys in sorted(why.items()):
        lines.append(f"## {words or 'Without an explanation'}")
        lines.append(
            "\n".join(f"* {key}: {_brief(old.get(key))} -> {_brief(new.get(key))}" for key in keys)
        )
    return "\n\n".join(lines) + "\n", len(why.get("", ()))


def _brief(value: str | None) -> str:
    """Return the first word of a part, and dots if there is more."""
    first, space, _ = str(value).partition(" ")
    return f"{first} ..." if space else first


def main() -> int:
    """Run the command line, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=("dump", "write", "compare"))
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("words", nargs="*", help="cases whose name holds one of these")
    options = parser.parse_args()
    if options.command == "compare":
        page, unexplained = compared(options.first, options.second)
        (Path(__file__).parent / "results" / "same.md").write_text(page, encoding="utf-8")
        return int(unexplained > 0)
    if options.command == "write":
        write(options.second, options.words)
        return 0
    root, out = options.first.resolve(), options.second.resolve()
    command = [sys.executable, str(Path(__file__).resolve()), "write", ".", str(out)]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    inside = {**os.environ, **threads, "PYTHONPATH": str(root)}
    return subprocess.run([*command, *options.words], cwd=root, env=inside, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
