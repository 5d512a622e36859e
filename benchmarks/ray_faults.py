"""Kills actors, learners and drivers of trainings on Ray at random moments, and compares the ends.

Each training ends with the weights, the best plan and the steps of one that nobody disturbed. Every
trial is a line of ``ray_faults.jsonl``; a second call goes on with those that are missing. Needs
the extra ``ray``.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT, parser, progress, publish, table
from parenvs.agents.learning.distributed.session import session
from parenvs.agents.learning.train.config import Config
from parenvs.agents.learning.train.run import load_model, train
from parenvs.bench.runs import append, read
from parenvs.errors import ParenvsError

UPDATE = 64 * 8 * 2
"""Environment steps of an update on three stages."""
RUN = Config(env_kwargs={"instance": "vgg-19", "cluster": "B"}, seed=5)
KINDS = {"actor": "actors", "learner": "learners", "driver": "actors"}
"""What is killed -> the distribution."""
UPDATES = {"actor": 24, "learner": 24, "driver": 60}
"""Updates of a training; those of drivers are long enough to be killed in."""
KILLS_A_RUN = 2
"""Kills of actors or learners in one training."""


class Killer(threading.Thread):
    """Kills processes of a training at random moments, one after the other.

    Args:
        model: the agent.
        seed: of the moments.
        kills: how many.
    """

    def __init__(self, model: Any, seed: int, kills: int) -> None:
        super().__init__(daemon=True)
        self.model, self.draw, self.kills = model, random.Random(seed), kills
        self.at: list[int] = []
        self.over = threading.Event()

    def run(self) -> None:
        """Wait until the actors play, and kill."""
        import ray

        workers = self.model.workers
        while not workers.number and not self.over.wait(0.02):
            pass
        while len(self.at) < self.kills and not self.over.is_set():
            actor = self.draw.choice(workers._actors)
            try:
                pid = ray.get(actor.pid.remote())
            except ray.exceptions.RayActorError:
                time.sleep(0.2)
                continue
            if self.over.wait(self.draw.uniform(0, 1.0)):
                break
            number = workers.number
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            self.at.append(number)


def _with_kills(kind: str, seed: int, kills: int) -> tuple[Any, Any, list[int]]:
    """A training whose actors are killed: result, agent, and the rollouts at which they were."""
    from stable_baselines3.common.callbacks import BaseCallback

    class Start(BaseCallback):
        killer: Killer

        def _on_training_start(self) -> None:
            self.killer = Killer(self.model, seed, kills)
            self.killer.start()

        def _on_step(self) -> bool:
            return True

        def _on_training_end(self) -> None:
            self.killer.over.set()
            self.killer.join()

    start = Start()
    result, model = train(_config(kind), callbacks=[start])
    return result, model, start.killer.at


def _config(kind: str) -> Config:
    word = KINDS[kind]
    return replace(RUN, steps=UPDATES[kind] * UPDATE, distribution={"word": word, word: 2})


def _driver(seed: int, folder: Path) -> tuple[Any, Any, list[int]]:
    """A training whose driver is killed once, and that goes on by ``--resume``."""
    command = [
        sys.executable, "-m", "parenvs", "train", "vgg-19", "--cluster", "B", "--stages", "3",
        "--distribution", "actors", "--actors", "2", "--seed", str(RUN.seed), "--steps",
        str(_config("driver").steps), "--out", str(folder), "--resume",
    ]  # fmt: skip
    draw, environment = random.Random(seed), {**os.environ, "PYTHONPATH": str(ROOT)}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True}
    killed_at = []
    child = subprocess.Popen(command, env=environment, start_new_session=True, **quiet)
    log = folder / "log"
    while child.poll() is None and not log.exists():
        time.sleep(0.05)
    time.sleep(draw.uniform(0, 8.0))
    if child.poll() is None:
        os.kill(child.pid, signal.SIGKILL)
        killed_at = [int((folder / "checkpoint.zip").exists())]
    child.communicate()
    done = subprocess.run(command, env=environment, start_new_session=True, check=False, **quiet)
    if done.returncode:
        raise SystemExit(done.stderr)
    result = json.loads((folder / "result.json").read_text(encoding="utf-8"))
    return result, load_model(folder), killed_at


def _distance(one: Any, other: Any) -> float:
    """Greatest difference of two agents' weights."""
    pairs = zip(one.policy.parameters(), other.policy.parameters(), strict=True)
    return max(float((a - b).detach().abs().max()) for a, b in pairs)


def _same(one: Any, other: Any) -> bool:
    """Whether two results tell of the same best plan, found at the same step."""
    names = ("value", "actions", "steps", "best_steps", "episodes")
    fields = [x if isinstance(x, dict) else vars(x) for x in (one, other)]
    return all(fields[0][name] == fields[1][name] for name in names)


def main() -> None:
    """Kill, compare, print and write."""
    options = parser(__doc__)
    options.add_argument("--kills", type=int, default=10, help="of each kind")
    options.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    options.add_argument("--render-only", action="store_true", help="kill no more")
    chosen = options.parse_args()
    path = chosen.out / "ray_faults.jsonl"
    chosen.out.mkdir(parents=True, exist_ok=True)
    whole: dict[str, Any] = {}

    def undisturbed(kind: str) -> Any:
        if kind not in whole:
            whole[kind] = train(_config(kind))
        return whole[kind]

    def trial(kind: str, seed: int, kills: int) -> dict[str, Any]:
        begin = time.perf_counter()
        with tempfile.TemporaryDirectory() as place:
            if kind == "driver":
                result, model, at = _driver(seed, Path(place) / "run")
            else:
                result, model, at = _with_kills(kind, seed, kills)
            reference, wanted = undisturbed(kind)
        return {
            "kind": kind,
            "seed": seed,
            "kills": len(at),
            "at": at,
            "restarts": 0 if kind == "driver" else model.workers.failures,
            "distance": _distance(model, wanted),
            "same": _same(result, reference),
            "seconds": round(time.perf_counter() - begin, 1),
        }

    try:
        for kind in () if chosen.render_only else chosen.kinds:
            with session(processes=4):
                while True:
                    done = [r for r in read(path, _key).values() if r["kind"] == kind]
                    left = chosen.kills - sum(record["kills"] for record in done)
                    if left <= 0:
                        break
                    seed = 1 + max((record["seed"] for record in done), default=-1)
                    append(path, record := trial(kind, seed, min(left, KILLS_A_RUN)))
                    progress(f"{kind} {seed}: {record}")
    except KeyboardInterrupt:
        raise SystemExit(f"interrupted; the same command continues {path}") from None
    except ParenvsError as error:
        raise SystemExit(str(error)) from None
    records = list(read(path, _key).values())
    rows = []
    for kind in KINDS:
        mine = [record for record in records if record["kind"] == kind]
        if mine:
            rows.append([
                kind, KINDS[kind], len(mine), sum(r["kills"] for r in mine),
                sum(r["same"] for r in mine), f"{max(r['distance'] for r in mine):.1e}",
                f"{sum(r['seconds'] for r in mine) / len(mine):.0f}",
            ])  # fmt: skip
    sections = [
        f"VGG-19 on B, {UPDATES['actor']} updates (drivers: {UPDATES['driver']}), two actors or "
        "two learners. SIGKILL at a "
        "random moment to an actor, to a learner, or to the driver, which is then started again "
        "with `--resume`. Same: trainings that ended with the best plan, step and episodes of the "
        "undisturbed one; weights: the greatest difference from its weights.",
        table(["killed", "distribution", "trainings", "kills", "same", "weights", "s each"], rows),
    ]
    publish("ray_faults", sections, records, chosen.out)


def _key(record: dict[str, Any]) -> tuple[Any, ...]:
    return record["kind"], record["seed"]


if __name__ == "__main__":
    main()
