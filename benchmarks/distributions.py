"""Every algorithm under every distribution: the same weights, or a reason; and after kills.

    python benchmarks/distributions.py
    python benchmarks/distributions.py --only kills --kills 10
    python benchmarks/distributions.py --engine ray

A pair is trained for two updates, beside ``single``. For kills, a process of a role is killed at
random times of one training, which goes on from its last checkpoint; the driver is a command that
is killed and resumed. The engine is local processes unless said otherwise.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.framework import ROOT, Case, Row, columns, main, measurement, table
from parenvs.errors import ParenvsError
from team_processes import pids

SINGLE, FUSED = "single", "fused"
WORDS: dict[str, dict[str, Any]] = {
    SINGLE: {}, "actors": {"actors": 3}, "inference": {"actors": 3}, "learners": {"learners": 3},
    "environments": {"learners": 2}, "server": {"learners": 3}, "server, staleness 2": {},
    FUSED: {"learners": 2},
}  # fmt: skip
ROWS = "PartitionPlan-v2"
"""The environment with action features in which most algorithms are tried."""
BOTH = ("CartPole-v1", ROWS)
PAIRS: dict[str, tuple[str, ...]] = {
    "ppo": (*BOTH, "Acrobot-v1"), "rainbow": BOTH, "mappo": ("hybrid_v1",),
    "group": (ROWS,), "reinforce": ("CartPole-v1",),
    "imitate": (ROWS,), "maskable-ppo": (ROWS,),
}  # fmt: skip
"""Algorithm -> environments that it is trained in."""
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"turns_a_step": 32}, "mappo": {"turns_a_step": 48}, "group": {"copies": 2},
    "rainbow": {"first": 48, "minibatch": 32, "sync": 2},
}  # fmt: skip
ONLY = ("words", "kills")
QUICK: dict[str, dict[str, Any]] = {
    "ppo": {"passes": 1, "turns_a_step": 96}, "rainbow": {"minibatch": 96, "reuse": 1.0},
}  # fmt: skip
"""Settings of trainings that are disturbed, two steps of the optimizer an update."""
ROLES = {
    "actors": ("actors", "player"), "environments": ("inference", "player"),
    "learners": ("learners", "learner"), "learners of a server": ("server", "learner"),
    "server": ("server", "server"), "driver": ("learners", "driver"),
}  # fmt: skip
"""Who is killed -> distribution, and role."""
LATEST = 0.3
"""Seconds behind an update at which a process is killed at the latest."""


def config_of(
    agent: str, env: str, word: str, updates: int = 2, settings: Any = None, **more: Any
) -> Any:
    """A small configuration, of all words alike but for the word."""
    from parenvs.agents.learning.algorithm import names, register_agent
    from parenvs.agents.learning.config import TrainConfig

    if "reinforce" not in names():
        sys.path.append(str(ROOT / "examples"))
        register_agent(__import__("own_agent").Reinforce)
    settings = {"envs": 12, "turns": 16, **SETTINGS.get(agent, {}), **(settings or {})}
    more = {**WORDS[word], **({"staleness": 2} if "," in word else {}), **more}
    return TrainConfig(
        env_id=env, agent=agent, seed=1, settings=settings,
        steps=updates * 192 * (3 if env == "hybrid_v1" else 1),
        distribution=word.partition(",")[0], **more,
    )  # fmt: skip


def weights(algorithm: Any) -> Any:
    """All weights of an agent."""
    import torch

    return torch.cat([each.detach().flatten() for each in algorithm.net.state_dict().values()])


def learned(config: Any, engine: str | None = None) -> list[Any]:
    """Train, and return the weights before the first update, behind it, and behind the last."""
    from parenvs.agents.learning.play import one_thread
    from parenvs.agents.learning.trainer import Training

    with one_thread(), closing(Training(config, engine=engine)) as run:
        found = [weights(run.agent).clone()]
        while run.turns < config.steps:
            run.update()
            found.append(weights(run.agent).clone())
    return [found[0], found[1], found[-1]]


@cache
def alone(agent: str, env: str, word: str) -> list[Any]:
    """Return the same of one process."""
    return learned(config_of(agent, env, word, learners=int(word == FUSED)))


def pair(agent: str, env: str, word: str, engine: str) -> Row:
    """Train by a word, and compare with ``single``, or say why not."""
    begin = time.perf_counter()
    try:
        found = learned(config_of(agent, env, word), engine)
        expected = alone(agent, env, FUSED if word == FUSED else SINGLE)
    except ParenvsError as error:
        return {"one": None, "difference": None, "moved": None, "seconds": 0.0,
                "reason": str(error)}  # fmt: skip
    one, last = (float((found[i] - expected[i]).abs().max()) for i in (1, 2))
    return {
        "one": one, "difference": last, "moved": float((found[-1] - found[0]).abs().max()),
        "reason": "", "seconds": time.perf_counter() - begin,
    }  # fmt: skip


def killed(agent: str, who: str, kills: int, updates: int) -> Row:
    """Kill processes of a role during one training; compare with the undisturbed one."""
    import torch

    from parenvs.agents.learning.play import one_thread
    from parenvs.agents.learning.trainer import Training, load, train

    word, role = ROLES[who]
    config = disturbed_config(agent, word, updates)
    begin = time.perf_counter()
    expected = weights(train(config, engine="local").algorithm)
    undisturbed = time.perf_counter() - begin
    rng, done, lines = random.Random(0), 0, []  # type: ignore[var-annotated]
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        if role == "driver":
            place = Path(folder) / "run"
            while True:
                given = f"{agent!r}, {updates}, {str(place)!r}"
                code = f"from benchmarks.distributions import driven; driven({given})"
                driver = subprocess.Popen(
                    [sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT
                )
                assert driver.stdout is not None
                if done == kills:
                    break
                driver.stdout.readline()
                time.sleep(rng.uniform(0.0, LATEST))
                driver.kill()
                done += driver.wait() != 0
            if driver.wait():
                raise SystemExit("a driver that was not killed failed")
            found = weights(load(place))
        else:
            run = Training(config, None, lines.append, engine="local")
            updated = told_of(run)

            def killer() -> None:
                nonlocal done
                while done < kills:
                    updated.clear()
                    while not updated.wait(0.01):
                        if over.is_set():
                            return
                    if over.wait(rng.uniform(0.0, LATEST)):
                        return
                    lost = len(lost_in(lines))
                    os.kill(rng.choice(pids(run.team, role)), signal.SIGKILL)
                    done += 1
                    while len(lost_in(lines)) == lost and not over.wait(0.01):
                        pass

            over = threading.Event()
            thread = threading.Thread(target=killer)
            thread.start()
            try:
                with one_thread():
                    run.learn(False)
                found = weights(run.agent)
            finally:
                over.set()
                thread.join()
                run.close()
    return {
        "kills": done, "equal": torch.equal(found, expected), "undisturbed": undisturbed,
        "seconds": time.perf_counter() - begin,
    }  # fmt: skip


def disturbed_config(agent: str, word: str, updates: int) -> Any:
    """A configuration for kills: two processes of a role are enough, as one of them is killed."""
    quick = QUICK.get(agent)
    return config_of(agent, ROWS, word, updates, quick, actors=2, learners=2)


def told_of(run: Any) -> threading.Event:
    """Return what is set whenever a training has made an update."""
    updated, update = threading.Event(), run.update

    def told() -> None:
        update()
        updated.set()

    run.update = told
    return updated


def lost_in(lines: list[str]) -> list[str]:
    """Lines that tell that a process was lost."""
    return [line for line in lines if "on from the last checkpoint" in line]


def driven(agent: str, updates: int, place: str) -> None:
    """Be a driver that tells when it has begun to learn."""
    from parenvs.agents.learning.trainer import Training, train

    update = Training.update

    def told(self: Any) -> None:
        update(self)
        print("update", flush=True)

    Training.update = told  # type: ignore[method-assign]
    train(disturbed_config(agent, ROLES["driver"][0], updates), place, True, engine="local")


@measurement(
    key="what agent env word",
    among={"only": ONLY, "agents": PAIRS, "engine": ("local", "ray")},
    about={"kills": "of each role", "updates": "of a training that is disturbed"},
    title="Algorithms and distributions",
)
def distributions(
    agents: tuple[str, ...] = tuple(PAIRS),
    only: tuple[str, ...] = ONLY,
    kills: int = 10,
    updates: int = 40,
    engine: str = "local",
) -> Iterator[Case]:
    for agent in agents if "words" in only else ():
        for env in PAIRS[agent]:
            for word in WORDS:
                key = {"what": "words", "agent": agent, "env": env, "word": word}
                yield key, partial(pair, agent, env, word, engine)
    for agent in [x for x in ("ppo", "rainbow") if x in agents] if "kills" in only else ():
        for who in ROLES:
            key = {"what": "kills", "agent": agent, "env": ROWS, "word": who}
            yield key, partial(killed, agent, who, kills, updates)


@distributions.page
def page(rows: list[Row]) -> list[str]:
    found = {(x["agent"], x["env"], x["word"]): x for x in rows if x["what"] == "words"}
    pairs = list(dict.fromkeys((agent, env) for agent, env, _ in found))
    reasons = list(dict.fromkeys(x["reason"] for x in found.values() if x["reason"]))
    lines = [
        [agent, env, *(_cell(found.get((agent, env, word)), reasons) for word in WORDS)]
        for agent, env in pairs
    ]
    disturbed = [x for x in rows if x["what"] == "kills"]
    names: list[Any] = [("agent", "{agent}"), ("killed", "{word}"), ("kills", "{kills}")]
    sections = [
        "Largest difference of a weight from `single`, behind one update and behind two, or, "
        "where one number stands, behind two; `fused` "
        "plays versions "
        "of environments on tensors: two processes of it beside one. A server with a staleness "
        "learns otherwise: how far it has moved. Letters are reasons. Learners add gradients in "
        "another order, which shifts weights by some of the last bits; in long trainings that "
        "grows, most of all where a row comes to lie on the other side of a rectifier's 0.",
        table(["agent", "environment", *WORDS], lines),
        "\n".join(f"- {_letter(i)}: {reason}" for i, reason in enumerate(reasons)),
    ]
    if disturbed:
        sections += [
            "SIGKILL at random times of one training, of one process of the role, at most "
            f"{LATEST:g} s behind an update: weights are those of the undisturbed training to the "
            "last bit, or not. Seconds of wall time, on a machine that others used.",
            columns(
                disturbed,
                [*names, ("equal", lambda x: "yes" if x["equal"] else "**no**"),
                 ("undisturbed, s", "{undisturbed:.0f}"), ("disturbed, s", "{seconds:.0f}")],
            ),
        ]  # fmt: skip
    return sections


def _cell(row: Row | None, reasons: list[str]) -> str:
    if row is None:
        return ""
    if row["reason"]:
        return _letter(reasons.index(row["reason"]))
    if "," in row["word"]:
        return f"moved {row['moved']:.1g}"
    given = (row.get(name) for name in ("one", "difference"))
    return ", ".join(f"{each:.0e}" if each else "0" for each in given if each is not None)


def _letter(index: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[index]


if __name__ == "__main__":
    main(distributions)
