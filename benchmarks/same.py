"""Compares what two checkouts answer, to the last bit: one from before a change, one from after.

    python benchmarks/same.py dump ../before before.json     # half an hour each
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
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

Parts = dict[str, Any]
ENDS, STEPS, BATCH = 3, 300, 3
"""Episodes of a single environment; maximum number of steps; environments of a batch."""
SEED = 42
PARTS = ("observation", "reward", "over", "cut", "info")
"""What a step returns."""
ENVIRONMENTS: dict[str, list[dict[str, Any]]] = {
    "DataParallel-v0": [
        {}, {"instance": "bert-48", "cluster": "B", "reward": "step_time"},
        {"instance": "t5-3b", "memory": True, "memory_limit": "device", "reward": "step_time"},
    ],
    "OperatorPartition-v0": [
        {}, {"instance": "vgg-19", "rules": "automap", "uneven": "forbid", "linkage": False},
        {"instance": "t5-base", "reward": "step_time", "masked": True, "memory": True,
         "memory_limit": "device", "cluster": "C"},
        {"instance": "bert-48", "reward": "step_time", "micro_batch": 8, "micro_batches": 2,
         "recompute": "full", "devices": 4},
    ],
    "PartitionPlan-v0": [
        {}, {"instance": "partition-test", "order": "sequential"}, {"family": "vgg"},
        {"instance": "partition-validation/dit-000"},
    ],
    "PipelineCut-v0": [
        {}, {"instance": "t5-3b"}, {"instance": "vgg-19", "cluster": "A", "candidates": "all"},
        {"instance": "bert-48", "cluster": "B", "radius": 1, "recompute": "none", "tied": "held",
         "sync": "parameter-server", "micro_batches": 4, "stages": 3},
    ],
    "PipelinePlan-v0": [
        {}, {"family": "cnn", "repeat": 2}, {"ranges": "outside"}, {"draw": 2},
        {"draw": 2, "family": "transformer", "ranges": "outside"}, {"instance": "plan-test"},
        {"instance": "plan-outside", "order": "sequential"}, {"instance": "plan-test/cnn-003"},
        {"instance": "t5-3b", "cluster": "C"},
        {"instance": "llama3-8b", "cluster": "4x8:h100", "recompute": "none", "stages": 3},
    ],
    "HybridPlan-v0": [
        {}, {"mask": "completable"}, {"instance": "hybrid-test"}, {"instance": "hetero-8-test"},
        {"instance": "hybrid-outside", "order": "sequential"}, {"instance": "hybrid/7"},
        {"instance": "hetero-16/3"}, {"pool": 4, "most_chunks": 1},
        {"instance": "llama3-8b", "cluster": "2x8:h100", "batch": 64},
    ],
    "MicroBatchOrder-v0": [
        {}, {"tier": None, "ranges": "outside"}, {"tier": "p4-m8", "pool": 4},
        {"instance": "order-test"}, {"instance": "order-outside", "order": "sequential"},
        {"instance": "order-validation/p16-m32-003"},
    ],
    "IntraOpSharding-v0": [
        {"pool": 4}, {"pool": 2, "form": "improve"}, {"pool": 2, "family": "classes"},
        {"instance": "intra-op-test"}, {"instance": "intra-op-test/mesh-003", "reward": "ratio"},
        {"instance": "intra-op-validation/classes-001", "advice": "messages"},
        {"instance": "intra-op-test/mesh-002", "advice": "prices", "form": "construct"},
        {"instance": "intra-op-test/classes-002", "reduction": False},
    ],
    "ElasticPlan-v0": [
        {}, {"instance": "elastic-test", "order": "sequential"}, {"family": "daynight-gpt-1.5b"},
        {"instance": "p3"}, {"instance": "g4dn", "model": "bert-large", "interval": 120.0},
        {"instance": "p3", "model": "gpt-1.5b", "cluster": "16x8:a100", "batch": 256},
    ],
}  # fmt: skip
"""Id of an environment -> arguments of its cases."""
PIPELINES = [
    (name, {"cluster": cluster})
    for name, cluster in (("vgg-19", "A"), ("t5-base", "C"), ("t5-3b", "C"), ("bert-48", "B"))
] + [
    ("t5-3b", {"cluster": "C", "stages": 3, "recompute": "none", "micro_batches": 8}),
    ("gpt3-175b", {"cluster": "16x8:h100", "micro_batch": 1, "tied": "held"}),
    ("plan-test/cnn-003", {}), ("plan-outside/transformer-001", {}),
]  # fmt: skip
PARTITIONS = [
    (name, {"reward": reward, "scope": scope})
    for name in ("vgg-19", "t5-base", "bert-48", "resnet-50")
    for reward, scope in (("paper", "variables"), ("step_time", "variables"), ("paper", "inputs"))
] + [
    ("t5-3b", {"reward": "step_time", "memory_limit": "device"}),
    ("llama3-8b", {"reward": "step_time", "cluster": "2x8:h100", "micro_batch": 1}),
    ("vgg-19", {"rules": "automap", "uneven": "forbid"}),
    ("partition-test/t5-000", {}), ("partition-validation/dit-000", {}),
]  # fmt: skip
HYBRIDS = [
    ("llama3-8b", {"cluster": "2x8:h100", "batch": 64}),
    ("gpt-1.5b", {"cluster": "2x8:a100", "batch": 64, "stack": "megatron-2022"}),
    ("bert-48", {"cluster": "1x8:v100", "batch": 64}),
    ("hybrid/7", {}), ("hybrid-test/gpt-000", {}), ("hetero-8-test/spread-000", {}),
]  # fmt: skip
PLANNED: dict[str, tuple[list[tuple[str, dict[str, Any]]], dict[str, dict[str, Any]]]] = {
    "pipeline": (PIPELINES, {
        "exact-pruned": {}, "exact-points": {}, "even": {}, "pipedream": {}, "beam": {},
        "pretrained": {}, "pretrained-refined": {}, "random": {"steps": 3000}, "exact": {},
        "exact-full": {}, "ppo": {"steps": 256}, "rainbow": {"steps": 256},
    }),
    "partition": (PARTITIONS, {
        "exact": {}, "greedy": {}, "ones": {}, "expert": {}, "data-parallel": {}, "replicate": {},
        "random": {"steps": 3000}, "ppo": {"steps": 256}, "rainbow": {"steps": 256},
    }),
    "hybrid": (HYBRIDS, {
        "uniform": {}, "megatron": {}, "data-parallel": {}, "zero-3": {}, "tensor": {},
        "pipeline": {}, "random": {}, "exact-hybrid": {}, "sorted-servers": {},
        "random-servers": {}, "swap-search": {}, "subset-dp": {}, "sandwich": {},
    }),
    "order": ([(f"order-{x}", {}) for x in (
        "test/p4-m8-000", "test/p8-m16-001", "validation/p4-m8-002", "outside/p4-m8-001")], {
        **{x: {} for x in ("as-drawn", "ascending", "descending", "pyramid", "neh")},
        "swap": {"steps": 2000}, "random": {"steps": 2000}, "exact": {"time_limit": 600.0},
    }),
    "sharding": ([(f"intra-op-{x}", {}) for x in (
        "test/mesh-000", "test/classes-001", "validation/mesh-002", "outside/classes-003")], {
        "exact": {"rounds": 20}, "greedy": {}, "leanest": {},
    }),
    "elastic": ([("elastic-test/independent-gpt-1.5b-000", {}), ("p3", {}), ("g4dn", {}),
                 ("elastic-validation/independent-gpt-1.5b-001", {})], {
        x: {} for x in ("exact", "optimal", "fastest", "hysteresis", "keep-degrees", "look-ahead",
                        "myopic")
    }),
}  # fmt: skip
"""Task -> its problems with their options, and its planners with theirs."""
LEARNED = ("vgg-19",)
"""Problems that agents train on, as training takes time."""

EXPLAINED: tuple[tuple[str, str], ...] = ()
"""Pattern of ``kind | case | part`` -> why the two checkouts differ there."""


# What the checkout from before calls otherwise. A checkout from before has no ``core.sets``.


def is_old() -> bool:
    """Return whether the imported checkout is the one from before."""
    return find_spec("parenvs.core.sets") is None


def sets() -> Any:
    """Return the module of sets."""
    if is_old():
        from parenvs.datasets import sets as module
    else:
        from parenvs.core import sets as module
    return module


def problem_of(task: str, source: str, options: dict[str, Any]) -> Any:
    """Make a problem of a name."""
    import parenvs

    if not is_old():
        return parenvs.problem(source, task=task, **options)
    from parenvs import shipped

    place = source.partition("/")[0]
    if place in sets().set_names():
        return sets().set_of(place).load(source)
    if task == "elastic":
        return shipped.load_elastic(source, **options)
    rest = {key: value for key, value in options.items() if key != "scope"}
    is_batch = options.get("scope") == "inputs"
    old = {"pipeline": "pipeline-cut", "order": "packed-order",
           "partition": "data-parallel" if is_batch else "operator-partition"}  # fmt: skip
    return parenvs.problem(source, task=old.get(task, task), **rest)


def drawn(kind: str, number: int) -> Any:
    """Draw a problem by its number, or from a generator that is seeded with it."""
    rng = np.random.default_rng(number)
    if kind == "numbered":
        if is_old():
            from parenvs.tasks.pipeline.drawn import sequence
        else:
            from parenvs.datasets.pipeline import sequence
        return sequence.problem_of(number, None, ("inside", "outside")[number % 2]).pipeline
    if kind == "pipeline":
        from parenvs.datasets.pipeline import generators

        return generators.draw(rng, None, (generators.INSIDE, generators.OUTSIDE)[number % 2])
    if kind == "order":
        from parenvs.datasets.order import drawing

        return drawing.draw_ordering(rng, list(drawing.TIERS)[number % len(drawing.TIERS)])
    if kind == "sharding":
        from parenvs.datasets.sharding import drawing as mesh

        return mesh.drawn(mesh.FAMILIES[number % 2], number)
    return problem_of("hybrid", f"{kind}/{number}", {})


def solved(task: str, problem: Any, agent: str, options: dict[str, Any]) -> Any:
    """Plan a problem."""
    import parenvs

    if not is_old() or task not in ("sharding", "elastic"):
        return parenvs.solve(problem, agent, **options)
    if task == "elastic":
        from parenvs.agents.elastic import exact, rules
        from parenvs.tasks.elastic.run import follow

        course = problem.drawn(0)
        if agent == "exact":
            return exact.hindsight(problem, course)
        policy = exact.optimal(problem) if agent == "optimal" else rules.RULES[agent]()
        return follow(problem, course, policy)
    from parenvs.agents.sharding.solve import solve_iopddl
    from parenvs.tasks.sharding.turns.construct import board_of

    if agent == "exact":
        return solve_iopddl(problem, None, 0, options["rounds"])
    board = board_of(problem, True)
    plan = problem.plan(board.reduced.lift(board.first if agent == "greedy" else board.witness))
    return problem.report(plan)


# What is written down.


def digest(value: Any) -> str:
    """Return 16 hexadecimal digits of the bits of arrays, numbers, texts, and what holds them."""
    found = hashlib.sha256()
    _walk(value, found.update)
    return found.hexdigest()[:16]


SKIPPED = {"name", "instance", "task", "scope", "step", "settings"}
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
    return {key: x for key, x in content.items() if key not in ("task", "instance", "scope")}


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


def answer_parts(task: str, name: str, options: dict[str, Any], agent: str, more: Any) -> Parts:
    """Plan a problem, and return what the planner and the judge say."""
    answer = solved(task, problem_of(task, name, options), agent, more)
    report = getattr(answer, "report", answer)
    if task == "elastic":
        run = {x: getattr(report, x) for x in ("plans", "events", "samples", "seconds", "total")}
        return {"run": digest(run), "share": report.share.hex()}
    said = json.loads(json.dumps(report.to_json()))
    parts = {f"report {key}": digest(value) for key, value in said.items() if key != "plan"}
    parts["plan"] = digest(plan_json(report.plan))
    if answer is not report:
        for key in ("proven", "bound", "evaluations", "notes"):
            parts[key] = digest(getattr(answer, key))
    return parts


def table(task: str) -> Parts:
    """Judge all submissions of a task of the leaderboard, and rank them."""
    from parenvs.leaderboard.check import check_file, ranking
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
    for kind in ("numbered", "pipeline", "order", "sharding", "hybrid", "hetero-8", "hetero-64"):
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
    for name, cluster, samples in (
        ("llama3-8b", "2x8:h100", 64), ("llama3-70b", "16x8:h100", 512),
        ("mixtral-8x7b", "8x8:h100", 256), ("gpt3-175b", "64x8:a100", 1536),
        ("t5-3b", "4x8:v100", 64),
    ):  # fmt: skip
        yield "hybrid grids", f"{name} {cluster} {samples}", partial(grid, name, cluster, samples)
    for task, (problems, planners) in PLANNED.items():
        for (name, options), agent in ((x, y) for y in planners for x in problems):
            if agent in ("ppo", "rainbow") and name not in LEARNED:
                continue
            case = f"{task} {agent}: {name} {json.dumps(options)[1:-1]}".strip()
            more = planners[agent]
            yield "plans", case, partial(answer_parts, task, name, options, agent, more)
    for folder in sorted(Path("leaderboard/submissions").iterdir()):
        yield "leaderboard", folder.name, partial(table, folder.name)


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
        "| kind | cases | parts | equal | other |\n|:--|--:|--:|--:|--:|\n" + "\n".join(rows),
    ]
    for words, keys in sorted(why.items()):
        lines.append(f"## {words or 'Without an explanation'}")
        lines.append("\n".join(f"* {key}: {old.get(key)} -> {new.get(key)}" for key in keys))
    return "\n\n".join(lines) + "\n", len(why.get("", ()))


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
