"""``IntraOpSharding-v0``: dead ends, speed, and how near agents come to the solver's bound.

    python benchmarks/iopddl_envs.py                    # everything; hours with five trainings
    python benchmarks/iopddl_envs.py --only dead        # or speed, solver, rules, learned, page

Every row is written to ``results/iopddl_envs.jsonl`` as soon as it is there; a run that was stopped
goes on where it was. Trained policies are kept in ``build/iopddl_envs``. Policies named ``drawn``
are trained on problems of the pool, never on those of a test set; ``B`` and ``G`` on that problem.
The contest's problems are left out where ``PARENVS_IOPDDL`` holds none.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.common import parser, percent, progress, publish, table
from parenvs.datasets.sharding.drawing import SETS, set_names
from parenvs.errors import ParenvsError
from parenvs.tasks.sharding import store
from parenvs.tasks.sharding.game import named, numbered
from parenvs.tasks.sharding.turns.advice import LEVELS
from parenvs.tasks.sharding.turns.board import Board
from parenvs.tasks.sharding.turns.construct import Construct

EPISODES = 10_000
"""Random episodes in which dead ends are counted."""
CONTEST = ("B", "G")
ENV, SEEDS, SAMPLES = "IntraOpSharding-v0", 5, 32
STEPS = {"PPO": 2_000_000, "PPO after imitation": 1_000_000, "PPO, improving": 100_000}
"""Environment steps of a training."""
LESSONS = 200
"""Problems of the pool whose plans by the solver are imitated."""
BUILD = Path("build/iopddl_envs")


class Rows:
    """Rows of a file, by part, problem, method and seed; each is written when it is added."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, []  # type: ignore[var-annotated]
        if path.exists():
            self.rows = [json.loads(line) for line in path.read_text().splitlines()]

    def of(self, part: str) -> list[dict[str, Any]]:
        """Return the rows of a part."""
        return [row for row in self.rows if row["part"] == part]

    def has(self, **key: Any) -> bool:
        """Whether there is a row with these values."""
        return any(key.items() <= row.items() for row in self.rows)

    def add(self, **row: Any) -> None:
        """Add a row."""
        self.rows.append(row)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a") as stream:
            stream.write(json.dumps(row) + "\n")


def contest(letters: str = "".join(CONTEST)) -> Iterator[tuple[str, Board]]:
    """Yield boards of the contest's problems that are there."""
    listed = store.names()
    for letter in letters:
        if any(name.endswith(f"-{letter}") for name in listed):
            yield letter, named(letter)
        else:
            progress(f"{letter} is left out: it is not in {store.folder()}")


def tested(most: int) -> Iterator[tuple[str, str]]:
    """Yield the group and the name of problems that agents plan, at most ``most`` of a group."""
    for name in SETS:
        for member in set_names(name):
            family, _, number = member.split("/")[1].partition("-")
            if name != "intra-op-validation" and int(number) < most:
                yield f"{name}, {family}", member
    for letter, _ in contest():
        yield letter, letter


# Dead ends and speed


def random_episodes(board: Board, count: int, guarded: bool, seed: int = 0) -> tuple[int, int]:
    """Play random legal episodes; the numbers of dead ends, and of plans that are not legal."""
    rng, dead, wrong, side = np.random.default_rng(seed), 0, 0, min(count, 500)
    for begin in range(0, count, side):
        rows = np.arange(min(side, count - begin))
        episodes = Construct(len(rows), int(board.sizes.max()), guarded=guarded)
        for row in rows.tolist():
            episodes.put(row, board)
        episodes.start(rows)
        while len(left := np.flatnonzero(~episodes.over)):
            legal = episodes.legal[left]
            episodes.play(left, (rng.random(legal.shape) * legal).argmax(axis=1))
        dead += int(episodes.dead.sum())
        whole = episodes.chosen[~episodes.dead, : len(board)]
        wrong += sum(not board.reduced.legal(chosen) for chosen in whole)
        report = board.problem.report(episodes.plan(int(np.argmin(episodes.dead))))
        assert not whole.size or report.legal
    return dead, wrong


def run_dead(rows: Rows, episodes: int) -> None:
    """Count dead ends with the witness, and without it where it is what prevents them."""
    cases: list[tuple[str, int, Callable[[], Board]]] = [
        (letter, episodes, lambda letter=letter: named(letter)) for letter, _ in contest("BGV")
    ]
    cases += [(letter, 20, lambda letter=letter: named(letter)) for letter, _ in contest("PLK")]
    cases += [
        (f"{family}-{number}", 1000 if family == "mesh" else 100,
         lambda family=family, number=number: numbered(family, number, "inside"))
        for family in ("mesh", "classes") for number in range(10)
    ]  # fmt: skip
    for name, count, load in cases:
        for guarded in (True, False):
            if rows.has(part="dead", problem=name, guarded=guarded):
                continue
            board = load()
            if not guarded and board.is_free:
                continue
            begin = time.process_time()
            dead, wrong = random_episodes(board, count, guarded)
            rows.add(part="dead", problem=name, guarded=guarded, episodes=count, dead=dead,
                     wrong=wrong, free=board.is_free, nodes=len(board),
                     seconds=time.process_time() - begin)  # fmt: skip
            progress(f"{name}, guarded {guarded}: {dead} dead ends in {count:,}")


def run_speed(rows: Rows) -> None:
    """Measure steps by second of processor time, single and batched."""
    cases = [
        ("mesh (pool of 16)", {"pool": 16}),
        ("classes", {"instance": "intra-op-test/classes-000"}),
    ]
    cases += [(letter, {"instance": letter}) for letter, _ in contest("BGV")]
    for number in range(16):
        numbered("mesh", number, "inside")  # drawn once, whoever plays them
    for name, kwargs in cases:
        for form in ("construct", "improve"):
            for count in (1, 16, 64, 256):
                if form == "improve" and count > 64:
                    continue
                key = {"part": "speed", "problem": name, "form": form, "envs": count}
                if rows.has(**key):
                    continue
                rows.add(**key, rate=speed({**kwargs, "form": form}, count))
                progress(str(rows.rows[-1]))


def speed(kwargs: dict[str, Any], count: int, seconds: float = 2.0) -> float:
    """Return the steps of all environments by second of processor time, resets included."""
    env: Any = gym.make_vec(ENV, num_envs=count, **kwargs) if count > 1 else gym.make(ENV, **kwargs)
    inner, rng = env.unwrapped, np.random.default_rng(0)
    env.reset(seed=0)

    def step() -> None:
        masks = inner.action_masks()
        actions = (rng.random(masks.shape) * masks).argmax(axis=-1)
        _, _, over, _, _ = env.step(actions)
        if count == 1 and over:
            env.reset()

    for _ in range(64):  # tables and blocks are made
        step()
    steps, begin = 0, time.process_time()
    while time.process_time() - begin < seconds:
        step()
        steps += count
    return steps / (time.process_time() - begin)


# Planners and agents


def run_solver(rows: Rows, most: int, seconds: float) -> None:
    """Bound every problem by the solver."""
    from parenvs.agents.sharding import solve_iopddl

    for group, name in tested(most):
        if not rows.has(part="plan", problem=name, method="solver"):
            answer = solve_iopddl(named(name).problem, seconds, processor=True)
            rows.add(part="plan", group=group, problem=name, method="solver", seed=0,
                     cost=answer.cost, bound=answer.bound, seconds=answer.seconds)  # fmt: skip
            progress(f"{name}: {answer.cost:,}, bound {answer.bound:,.0f}")


def run_rules(rows: Rows, most: int) -> None:
    """Plan every problem by the rules that do not learn."""
    from parenvs.agents.learning.sharding.train import greedy

    methods: dict[str, Callable[[Board], int]] = {
        f"greedy, advice {level}": lambda board, level=level: greedy(board, advice=level).cost
        for level in LEVELS
    }
    methods["random"] = lambda board: random_plan(board, 0, 1)
    methods[f"random, best of {SAMPLES}"] = lambda board: random_plan(board, 0, SAMPLES)
    methods["improving, greedy"] = lambda board: greedy(board, form="improve").cost
    methods["improving, random"] = lambda board: random_improving(board)
    for group, name in tested(most):
        for method, run in methods.items():
            if rows.has(part="plan", problem=name, method=method):
                continue
            begin = time.process_time()
            cost = run(named(name))
            rows.add(part="plan", group=group, problem=name, method=method, seed=0, cost=cost,
                     seconds=time.process_time() - begin)  # fmt: skip
        progress(name)


def random_plan(board: Board, seed: int, count: int) -> int:
    """Return the least cost of random legal plans."""
    rng, rows = np.random.default_rng(seed), np.arange(count)
    episodes = Construct(count, int(board.sizes.max()))
    for row in rows.tolist():
        episodes.put(row, board)
    episodes.start(rows)
    while not episodes.over.all():
        episodes.play(rows, (rng.random(episodes.legal.shape) * episodes.legal).argmax(axis=1))
    return int(episodes.cost.min())


def random_improving(board: Board) -> int:
    """Return the cost after moves of random blocks."""
    env: Any = gym.make(ENV, problem=board.problem, form="improve").unwrapped
    rng, over = np.random.default_rng(0), False
    env.reset()
    while not over:
        _, _, over, _, info = env.step(int(rng.choice(np.flatnonzero(env.action_masks()))))
    return int(info["cost"])


def run_learned(rows: Rows, most: int, seeds: int, share: float, match: str) -> None:
    """Train policies, and let them plan."""
    from parenvs.agents.learning.sharding.train import plan

    agents: list[tuple[str, str, dict[str, Any]]] = [
        ("PPO", "drawn", {}),
        ("imitation", "drawn", {}),
        ("PPO after imitation", "drawn", {}),
        ("PPO, improving", "drawn", {"form": "improve"}),
    ]
    agents += [("PPO", letter, {}) for letter, _ in contest()]
    for seed in range(seeds):
        for method, place, kwargs in agents:
            label = f"{method}, {place}"
            if match not in label:
                continue
            mine = [(g, n) for g, n in tested(most) if place in ("drawn", n)]
            counts = {label: 1} if kwargs else {label: 1, f"{label}, best of {SAMPLES}": SAMPLES}
            names = [
                (g, n) for g, n in mine
                if not all(rows.has(problem=n, method=m, seed=seed, share=share) for m in counts)
            ]  # fmt: skip
            if not names:
                continue
            agent, seconds = trained(method, place, kwargs, seed, share)
            progress(f"{label}, seed {seed}: trained in {seconds:.0f} s")
            for group, name in names:
                for told, count in counts.items():
                    begin = time.process_time()
                    answer = plan(agent, named(name), count, seed, **kwargs)
                    assert answer.report.legal
                    assert answer.report.cost == answer.cost
                    rows.add(part="plan", group=group, problem=name, method=told, seed=seed,
                             cost=answer.cost, seconds=time.process_time() - begin,
                             training=seconds, share=share)  # fmt: skip


def trained(
    method: str, place: str, kwargs: dict[str, Any], seed: int, share: float
) -> tuple[Any, float]:
    """Return an agent, and the processor seconds that its training took."""
    from sb3_contrib import MaskablePPO

    from parenvs.agents.learning.sharding.imitate import imitate, taught
    from parenvs.agents.learning.sharding.train import POOL, train

    stem = f"{method}-{place}-{seed}-{share:g}".replace(", ", "-").replace(" ", "-")
    path, took = BUILD / f"{stem}.zip", BUILD / f"{stem}.json"
    if path.exists() and took.exists():
        return MaskablePPO.load(path, device="cpu"), json.loads(took.read_text())
    begin, before = time.process_time(), 0.0
    if method == "imitation":
        count = max(int(LESSONS * min(share, 1.0)), 8)
        boards = [numbered("mesh", number, "inside") for number in range(min(count, POOL))]
        agent = imitate(taught(boards), seed)
    else:
        start = None
        if method == "PPO after imitation":
            start, before = trained("imitation", place, {}, seed, share)
        problem = {} if place == "drawn" else {"instance": place}
        steps = max(int(STEPS[method] * share), 1)
        agent = train({**kwargs, **problem}, seed, steps, start)
    seconds = time.process_time() - begin + before
    BUILD.mkdir(parents=True, exist_ok=True)
    agent.save(path)
    took.write_text(json.dumps(seconds))
    return agent, seconds


# The page


def page(rows: Rows, out: Path) -> None:
    """Write the page of all rows."""
    sections = ["## Dead ends", (
        "Random legal episodes. On free problems the mask is exact: a strategy is legal if and "
        "only if the plan can be completed with it. On the others a witness is kept; `without` is "
        "what would happen there with the mask of arc consistency and least usage alone."
    )]  # fmt: skip
    lines = []
    for row in (x for x in rows.of("dead") if x["guarded"]):
        bare = [x for x in rows.of("dead") if x["problem"] == row["problem"] and not x["guarded"]]
        without = f"{bare[0]['dead']:,} of {bare[0]['episodes']:,}" if bare else ""
        lines.append([row["problem"], f"{row['nodes']:,}", "yes" if row["free"] else "no",
                      f"{row['episodes']:,}", row["dead"], row["wrong"], without])  # fmt: skip
    head = ["problem", "nodes", "free", "episodes", "dead ends", "illegal plans", "without"]
    sections += [table(head, lines), "## Speed", (
        "Steps by second of processor time, random legal actions, masks and observations included."
    )]  # fmt: skip
    rates: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for row in rows.of("speed"):
        rates[row["problem"], row["form"]][row["envs"]] = row["rate"]
    counts = sorted({row["envs"] for row in rows.of("speed")})
    sections.append(table(
        ["problem", "form", *(f"{count} at once" if count > 1 else "single" for count in counts)],
        [[*key, *(f"{found[n]:,.0f}" if n in found else "" for n in counts)]
         for key, found in rates.items()],
    ))  # fmt: skip
    sections += ["## Plans", (
        "Cost over the solver's proven bound, less 1: median over problems and seeds, and the "
        "geometric mean; `beats greedy` is the share of plans that cost less than those of greedy "
        "without advice, `ties` of those that cost the same; the interval is the least and the "
        "largest of the seeds' medians. `seconds`: of processor time for a problem, median. "
        "`share` is the part of the full training that was run."
    )]  # fmt: skip
    plans = rows.of("plan")
    bound = {x["problem"]: max(x["bound"], 1.0) for x in plans if x["method"] == "solver"}
    base = {x["problem"]: x["cost"] for x in plans if x["method"] == "greedy, advice none"}
    for group in dict.fromkeys(row["group"] for row in plans):
        lines = []
        for method in dict.fromkeys(row["method"] for row in plans):
            mine = [x for x in plans if (x["group"], x["method"]) == (group, method)]
            mine = [x for x in mine if x["problem"] in bound and x["problem"] in base]
            longest = max((x.get("share", 1.0) for x in mine), default=1.0)
            mine = [x for x in mine if x.get("share", 1.0) == longest]
            if not mine:
                continue
            gaps: dict[int, list[float]] = defaultdict(list)
            for x in mine:
                gaps[x["seed"]].append(x["cost"] / bound[x["problem"]] - 1)
            every = np.concatenate([np.array(found) for found in gaps.values()])
            medians = [float(np.median(found)) for found in gaps.values()]
            less = np.mean([x["cost"] < base[x["problem"]] for x in mine])
            same = np.mean([x["cost"] == base[x["problem"]] for x in mine])
            lines.append([
                method, len(gaps), len(mine) // len(gaps), percent(float(np.median(every))),
                f"{percent(min(medians))} to {percent(max(medians))}" if len(gaps) > 1 else "",
                percent(float(np.exp(np.log1p(np.maximum(every, 0)).mean()) - 1)),
                percent(float(less), 0), percent(float(same), 0),
                f"{np.median([x['seconds'] for x in mine]):.2f}",
                f"{np.median([x['training'] for x in mine]):,.0f}" if "training" in mine[0] else "",
                mine[0].get("share", ""),
            ])  # fmt: skip
        head = ["method", "seeds", "problems", "gap, median", "of the seeds", "geometric mean",
                "beats greedy", "ties", "seconds", "training, s", "share"]  # fmt: skip
        sections += [f"### {group}", table(head, lines)] if lines else []
    publish("iopddl_envs", sections, None, out)


def main() -> None:
    """Run the benchmark."""
    options = parser(__doc__, seconds=10.0)
    options.add_argument("--only", choices=["dead", "speed", "solver", "rules", "learned", "page"])
    options.add_argument("--seeds", type=int, default=SEEDS, help="trainings of each agent")
    options.add_argument("--share", type=float, default=1.0, help="of the steps of a training")
    options.add_argument("--episodes", type=int, default=EPISODES, help="to count dead ends in")
    options.add_argument("--problems", type=int, default=1000, help="most of a group")
    options.add_argument("--match", default="", help="train only agents whose label has this text")
    given = options.parse_args()
    rows = Rows(given.out / "iopddl_envs.jsonl")
    parts: dict[str, Callable[[], None]] = {
        "dead": lambda: run_dead(rows, given.episodes),
        "speed": lambda: run_speed(rows),
        "solver": lambda: run_solver(rows, given.problems, given.seconds),
        "rules": lambda: run_rules(rows, given.problems),
        "learned": lambda: run_learned(rows, given.problems, given.seeds, given.share, given.match),
    }
    for name, run in parts.items():
        if given.only in (None, name):
            try:
                run()
            except ParenvsError as error:
                progress(f"{name}: {error}")
    page(rows, given.out)


if __name__ == "__main__":
    main()
