"""Kills actors, learners and drivers of trainings on Ray at random moments, and compares the ends.

Each training ends with the weights, the best plan and the steps of one that nobody disturbed. Needs
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
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.framework import ROOT, Case, Column, Row, Rows, columns, main, measurement
from parenvs.agents.learning.distributed.session import session
from parenvs.agents.learning.train.config import Config
from parenvs.agents.learning.train.run import load_model, train

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


@cache
def undisturbed(kind: str) -> Any:
    return train(_config(kind))


def trial(kind: str, seed: int, kills: int) -> Row:
    """A training with kills beside the undisturbed one."""
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as place:
        if kind == "driver":
            result, model, at = _driver(seed, Path(place) / "run")
        else:
            result, model, at = _with_kills(kind, seed, kills)
        reference, wanted = undisturbed(kind)
    return {
        "kills": len(at),
        "at": at,
        "restarts": 0 if kind == "driver" else model.workers.failures,
        "distance": _distance(model, wanted),
        "same": _same(result, reference),
        "seconds": round(time.perf_counter() - begin, 1),
    }


@measurement(key="kind seed", among={"kinds": KINDS}, about={"kills": "of each kind"})
def ray_faults(
    rows: Rows, kills: int = 10, kinds: tuple[str, ...] = tuple(KINDS)
) -> Iterator[Case]:
    for kind in kinds:
        with session(processes=4):
            while (left := kills - sum(row["kills"] for row in rows.of(kind=kind))) > 0:
                seed = 1 + max((row["seed"] for row in rows.of(kind=kind)), default=-1)
                key = {"kind": kind, "seed": seed}
                yield key, partial(trial, kind, seed, min(left, KILLS_A_RUN))


@ray_faults.page
def page(rows: list[Row]) -> list[str]:
    mine = {kind: [row for row in rows if row["kind"] == kind] for kind in KINDS}
    told: list[Column] = [
        ("killed", str),
        ("distribution", lambda kind: KINDS[kind]),
        ("trainings", lambda kind: len(mine[kind])),
        ("kills", lambda kind: sum(r["kills"] for r in mine[kind])),
        ("same", lambda kind: sum(r["same"] for r in mine[kind])),
        ("weights", lambda kind: f"{max(r['distance'] for r in mine[kind]):.1e}"),
        ("s each", lambda kind: f"{np.mean([r['seconds'] for r in mine[kind]]):.0f}"),
    ]
    return [
        f"VGG-19 on B, {UPDATES['actor']} updates (drivers: {UPDATES['driver']}), two actors or "
        "two learners. SIGKILL at a "
        "random moment to an actor, to a learner, or to the driver, which is then started again "
        "with `--resume`. Same: trainings that ended with the best plan, step and episodes of the "
        "undisturbed one; weights: the greatest difference from its weights.",
        columns([kind for kind in KINDS if mine[kind]], told),
    ]


if __name__ == "__main__":
    main(ray_faults)
