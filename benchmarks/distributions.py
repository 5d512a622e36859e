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
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.framework import ROOT, Case, Row, columns, main, measurement, table
from parenvs.errors import ParenvsError

WORDS: dict[str, dict[str, Any]] = {
    "single": {}, "actors": {"actors": 3}, "inference": {"actors": 3}, "learners": {"learners": 3},
    "environments": {"learners": 2}, "server": {"learners": 3}, "server, staleness 2": {},
    "fused": {"learners": 2},
}  # fmt: skip
ORDER: tuple[str, dict[str, Any]] = ("MicroBatchOrder-v1", {"tier": "p4-m8"})
ENVS: dict[str, tuple[str, dict[str, Any]]] = {
    "CartPole-v1": ("CartPole-v1", {}), "Acrobot-v1": ("Acrobot-v1", {}),
    "MicroBatchOrder-v1": ORDER, "HybridPlan-v1": ("HybridPlan-v1", {}),
    "hybrid_v0": ("hybrid_v0", {}),
}  # fmt: skip
BOTH = ("CartPole-v1", "MicroBatchOrder-v1")
PAIRS: dict[str, tuple[str, ...]] = {
    "ppo": (*BOTH, "Acrobot-v1"), "rainbow": BOTH, "mappo": ("hybrid_v0",),
    "a2c": ("CartPole-v1",), "group": ("MicroBatchOrder-v1",), "reinforce": ("CartPole-v1",),
    "imitate": ("MicroBatchOrder-v1",), "maskable-ppo": ("MicroBatchOrder-v1",),
}  # fmt: skip
"""Algorithm -> environments that it is trained in."""
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"turns_a_step": 32}, "mappo": {"turns_a_step": 48}, "group": {"copies": 2},
    "rainbow": {"first": 48, "minibatch": 32, "sync": 2},
}  # fmt: skip
ROLES = {
    "actors": ("actors", "actor"), "environments": ("inference", "actor"),
    "learners": ("learners", "learner"), "learners of a server": ("server", "learner"),
    "server": ("server", "server"), "driver": ("learners", "driver"),
}  # fmt: skip
"""Who is killed -> distribution, and role."""


def config_of(agent: str, env: str, word: str, updates: int = 2, **more: Any) -> Any:
    """A small configuration, of all words alike but for the word."""
    from parenvs.agents.learning.algorithms import names, register_agent
    from parenvs.agents.learning.config import TrainConfig

    if "reinforce" not in names():
        sys.path.append(str(ROOT / "examples"))
        register_agent(__import__("own_agent").Reinforce)
    env_id, env_kwargs = ENVS[env]
    settings = {"envs": 12, "turns": 16, **SETTINGS.get(agent, {})}
    more = {**WORDS[word], **({"staleness": 2} if "," in word else {}), **more}
    return TrainConfig(
        env_id=env_id, env_kwargs=env_kwargs, agent=agent, seed=1, settings=settings,
        steps=updates * 192 * (3 if env == "hybrid_v0" else 1),
        distribution=word.partition(",")[0], **more,
    )  # fmt: skip


def weights(algorithm: Any) -> Any:
    """All weights of an agent."""
    import torch

    return torch.cat([each.flatten() for each in algorithm.net.state_dict().values()])


def pair(agent: str, env: str, word: str, engine: str) -> Row:
    """Train by a word, and compare with ``single``, or say why not."""
    from parenvs.agents.learning.distributed.team import Recipe
    from parenvs.agents.learning.trainer import train

    begin = time.perf_counter()
    try:
        config = config_of(agent, env, word)
        trained = train(config, engine=engine)
        found = weights(trained.algorithm)
        is_fused = word == "fused"  # beside one process of its own kind
        one = {"word": word, "learners": 1} if is_fused else {"word": "single"}
        plain = config_of(agent, env, **one)
        expected = weights(train(plain).algorithm)
        recipe = Recipe(plain)
        moved = float((found - weights(recipe.agent(recipe.look().lens))).abs().max())
    except ParenvsError as error:
        return {"difference": None, "moved": None, "seconds": 0.0, "reason": str(error)}
    return {
        "difference": float((found - expected).abs().max()), "moved": moved, "reason": "",
        "seconds": time.perf_counter() - begin,
    }  # fmt: skip


def pids(team: Any, role: str) -> list[int]:
    """Local processes of a role."""
    if role == "actor":
        play = team.learner.play
        return [process.pid for _, process in getattr(play, "envs", play).engine.processes]
    server = [team.server[1].pid] if team.server else []
    every = [process.pid for _, process in team.engine.processes]
    return server if role == "server" else [pid for pid in every if pid not in server]


def killed(agent: str, who: str, kills: int, updates: int) -> Row:
    """Kill processes of a role during one training; compare with the undisturbed one."""
    import torch

    from parenvs.agents.learning.trainer import Training, load, train

    word, role = ROLES[who]
    config = config_of(agent, "MicroBatchOrder-v1", word, updates)
    expected = weights(train(config, engine="local").algorithm)
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
                time.sleep(rng.uniform(0.0, 1.0))
                driver.kill()
                done += driver.wait() != 0
            if driver.wait():
                raise SystemExit("a driver that was not killed failed")
            found = weights(load(place))
        else:
            run = Training(config, None, lines.append, engine="local")

            def killer() -> None:
                nonlocal done
                while done < kills and not over.wait(rng.uniform(0.05, 1.5)):
                    lost = len(lost_in(lines))
                    try:
                        os.kill(rng.choice(pids(run.team, role)), signal.SIGKILL)
                    except (IndexError, ProcessLookupError):  # processes are just begun anew
                        continue
                    done += 1
                    while len(lost_in(lines)) == lost and not over.wait(0.01):
                        pass

            over = threading.Event()
            thread = threading.Thread(target=killer)
            thread.start()
            try:
                run.learn(False)
                found = weights(run.agent)
            finally:
                over.set()
                thread.join()
                run.close()
    equal = torch.equal(found, expected)
    return {"kills": done, "equal": equal, "seconds": time.perf_counter() - begin}


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
    word = ROLES["driver"][0]
    train(config_of(agent, "MicroBatchOrder-v1", word, updates), place, True, engine="local")


@measurement(
    key="what agent env word",
    among={"only": ("words", "kills"), "agents": PAIRS, "engine": ("local", "ray")},
    about={"kills": "of each role", "updates": "of a training that is disturbed"},
    title="Algorithms and distributions",
)
def distributions(
    agents: tuple[str, ...] = tuple(PAIRS),
    only: tuple[str, ...] = ("words", "kills"),
    kills: int = 10,
    updates: int = 300,
    engine: str = "local",
) -> Iterator[Case]:
    for agent in agents if "words" in only else ():
        for env in PAIRS[agent]:
            for word in WORDS:
                key = {"what": "words", "agent": agent, "env": env, "word": word}
                yield key, partial(pair, agent, env, word, engine)
    for agent in [x for x in ("ppo", "rainbow") if x in agents] if "kills" in only else ():
        for who in ROLES:
            key = {"what": "kills", "agent": agent, "env": ORDER[0], "word": who}
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
        "Largest difference of a weight from `single`, behind two updates; `fused` plays versions "
        "of environments on tensors: two processes of it beside one. A server with a staleness "
        "learns otherwise: how far it has moved. Letters are reasons.",
        table(["agent", "environment", *WORDS], lines),
        "\n".join(f"- {_letter(i)}: {reason}" for i, reason in enumerate(reasons)),
    ]
    if disturbed:
        sections += [
            "SIGKILL at random times of one training, of one process of the role: weights are "
            "those of the undisturbed training to the last bit, or not.",
            columns(
                disturbed,
                [*names, ("equal", lambda x: "yes" if x["equal"] else "**no**"),
                 ("seconds", "{seconds:.0f}")],
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
    return f"{row['difference']:.0e}" if row["difference"] else "0"


def _letter(index: int) -> str:
    return "abcdefghijklmnopqrstuvwxyz"[index]


if __name__ == "__main__":
    main(distributions)
