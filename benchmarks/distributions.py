"""Every algorithm under every distribution: the same weights, or a reason; and after kills.

    python benchmarks/distributions.py
    python benchmarks/distributions.py --only kills --kills 10
    python benchmarks/distributions.py --only parts
    python benchmarks/distributions.py --only returns
    python benchmarks/distributions.py --engine ray

A pair is trained for two updates, beside ``single``. For kills, a process of a role is killed at
random times of one training, which goes on from its last checkpoint; the driver is a command that
is killed and resumed. The engine is local processes unless said otherwise. Parts of a training
alone are timed, and what they say of many workers is extrapolated. For returns, a pair is trained
until its last episodes return what is stated.
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
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import mean, median
from typing import Any

from benchmarks.framework import ROOT, Case, Row, apart, columns, main, measurement, table
from parenvs.errors import ParenvsError

SINGLE, FUSED = "single", "fused"
WORDS: dict[str, dict[str, Any]] = {
    SINGLE: {}, "actors": {"actors": 3}, "inference": {"actors": 3}, "learners": {"learners": 3},
    "environments": {"learners": 2}, "server": {"learners": 3}, "server, staleness 2": {},
    FUSED: {"learners": 2},
}  # fmt: skip
ENVS: dict[str, tuple[str, dict[str, Any]]] = {
    "CartPole-v1": ("CartPole-v1", {}), "Acrobot-v1": ("Acrobot-v1", {}),
    "ElasticPlan-v1": ("ElasticPlan-v1", {}), "HybridPlan-v1": ("HybridPlan-v1", {}),
    "hybrid_v0": ("hybrid_v0", {}), "PipelinePlan-v1": ("PipelinePlan-v1", {}),
}  # fmt: skip
BOTH = ("CartPole-v1", "ElasticPlan-v1")
PAIRS: dict[str, tuple[str, ...]] = {
    "ppo": (*BOTH, "Acrobot-v1"), "rainbow": BOTH, "mappo": ("hybrid_v0",),
    "group": ("ElasticPlan-v1",), "reinforce": ("CartPole-v1",),
    "imitate": ("ElasticPlan-v1",), "maskable-ppo": ("ElasticPlan-v1",),
}  # fmt: skip
"""Algorithm -> environments that it is trained in."""
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": {"turns_a_step": 32}, "mappo": {"turns_a_step": 48}, "group": {"copies": 2},
    "rainbow": {"first": 48, "minibatch": 32, "sync": 2},
}  # fmt: skip
WIRED = ("ElasticPlan-v1", "HybridPlan-v1", "PipelinePlan-v1", "hybrid_v0", "CartPole-v1")
"""Environments whose bytes on the wire are counted."""
ONLY = ("words", "kills", "wire", "parts", "returns")
APART = ("CartPole-v1", "PipelinePlan-v1", "HybridPlan-v1")
"""Environments in which the parts of a training are timed."""
BYTES_A_SECOND, MESSAGE = 1.25e9, 1e-4
"""Of a network of 10 Gbit/s, and the seconds that a message takes there: assumed."""
QUICK: dict[str, dict[str, Any]] = {
    "ppo": {"passes": 1, "turns_a_step": 96}, "rainbow": {"minibatch": 96, "reuse": 1.0},
}  # fmt: skip
"""Settings of trainings that are disturbed, two steps of the optimiser an update."""
ROLES = {
    "actors": ("actors", "actor"), "environments": ("inference", "actor"),
    "learners": ("learners", "learner"), "learners of a server": ("server", "learner"),
    "server": ("server", "server"), "driver": ("learners", "driver"),
}  # fmt: skip
"""Who is killed -> distribution, and role."""
LATEST = 0.3
"""Seconds behind an update at which a process is killed at the latest."""
GOALS: dict[str, tuple[float, int, dict[str, Any], dict[str, Any]]] = {
    "CartPole-v1": (475.0, 150_000, {}, {"envs": 16, "turns": 16, "turns_a_step": 64}),
    "HybridPlan-v1": (
        -0.1, 10_000, {"form": "construct"},
        {"envs": 16, "turns": 20, "turns_a_step": 64, "sharpness": 0.0},
    ),
}  # fmt: skip
"""Environment -> return that is stated, turns until which it is to be reached, arguments, settings.

All were chosen by ``single`` on a seed that is not shown, 100.
"""
LAST = 100
"""Episodes whose mean is to reach the stated return."""
TIMED = ("environment", "inference", "playing", "learning", "wire")
"""Parts of a training: playing is the rest of it, wire what writing and reading batches takes."""


def config_of(
    agent: str, env: str, word: str, updates: int = 2, settings: Any = None, **more: Any
) -> Any:
    """A small configuration, of all words alike but for the word."""
    from parenvs.agents.learning.algorithm import names, register_agent
    from parenvs.agents.learning.config import TrainConfig

    if "reinforce" not in names():
        sys.path.append(str(ROOT / "examples"))
        register_agent(__import__("own_agent").Reinforce)
    env_id, env_kwargs = ENVS[env]
    settings = {"envs": 12, "turns": 16, **SETTINGS.get(agent, {}), **(settings or {})}
    more = {**WORDS[word], **({"staleness": 2} if "," in word else {}), **more}
    return TrainConfig(
        env_id=env_id, env_kwargs=env_kwargs, agent=agent, seed=1, settings=settings,
        steps=updates * 192 * (3 if env == "hybrid_v0" else 1),
        distribution=word.partition(",")[0], **more,
    )  # fmt: skip


def weights(algorithm: Any) -> Any:
    """All weights of an agent."""
    import torch

    return torch.cat([each.detach().flatten() for each in algorithm.net.state_dict().values()])


def learnt(config: Any, engine: str | None = None) -> list[Any]:
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
    return learnt(config_of(agent, env, word, learners=int(word == FUSED)))


def pair(agent: str, env: str, word: str, engine: str) -> Row:
    """Train by a word, and compare with ``single``, or say why not."""
    begin = time.perf_counter()
    try:
        found = learnt(config_of(agent, env, word), engine)
        expected = alone(agent, env, FUSED if word == FUSED else SINGLE)
    except ParenvsError as error:
        return {"one": None, "difference": None, "moved": None, "seconds": 0.0,
                "reason": str(error)}  # fmt: skip
    one, last = (float((found[i] - expected[i]).abs().max()) for i in (1, 2))
    return {
        "one": one, "difference": last, "moved": float((found[-1] - found[0]).abs().max()),
        "reason": "", "seconds": time.perf_counter() - begin,
    }  # fmt: skip


def learner_of(recipe: Any) -> Any:
    """One learner, who has all environments."""
    from parenvs.agents.learning.play import Share
    from parenvs.agents.learning.team import Learner

    return Learner(recipe, Share(0, recipe.settings.envs, recipe.settings.envs))


def wired(env: str) -> Row:
    """Bytes of a turn of an environment, as actors send it, and as arrays alone are pickled."""
    import pickle

    from parenvs.agents.learning.engine import sent
    from parenvs.agents.learning.team import Recipe

    recipe = Recipe(config_of("ppo", env, SINGLE))
    learner = learner_of(recipe)
    with closing(learner):
        learner.play.restart(0)
        batch = learner.play.collect(learner.agent, recipe.settings.turns)
    arrays = [value.numpy() for value in batch.seen]
    turns = batch.actions.numel()
    legal = float(batch.seen.mask.float().sum(dim=-1).mean())
    return {
        "sent": len(sent(batch)) / turns, "legal": legal, "actions": batch.seen.mask.shape[-1],
        "pickled": len(pickle.dumps(arrays, pickle.HIGHEST_PROTOCOL)) / turns,
    }  # fmt: skip


def parted(env: str, updates: int = 3) -> Row:
    """Processor seconds of a turn, part by part, in a training alone, and bytes of turns and steps.

    64 environments, 16 turns of each, 4 passes, 256 turns a step of the optimiser.
    """
    from parenvs.agents.learning.engine import received, sent
    from parenvs.agents.learning.play import one_thread
    from parenvs.agents.learning.team import Recipe

    settings = {"envs": 64, "turns": 16, "passes": 4, "turns_a_step": 256}
    recipe = Recipe(config_of("ppo", env, SINGLE, settings=settings))
    learner = learner_of(recipe)
    agent, play, spent = learner.agent, learner.play, dict.fromkeys(TIMED, 0.0)

    def timed(part: str, work: Any, *given: Any) -> Any:
        begin = time.process_time()
        try:
            return work(*given)
        finally:
            spent[part] += time.process_time() - begin

    with closing(learner), one_thread():
        play.restart(0)
        agent.learn(play.collect(agent, 16), 0.0)  # memory is taken, kernels are loaded
        step, act = play.envs.step, agent.act
        play.envs.step = partial(timed, "environment", step)
        agent.act = partial(timed, "inference", act)
        for _ in range(updates):
            batch = timed("playing", play.collect, agent, 16)
            data = timed("wire", sent, batch)
            timed("wire", received, data)
            timed("learning", agent.learn, batch, 0.0)
    turns = updates * batch.actions.numel()
    row = {part: 1e6 * seconds / turns for part, seconds in spent.items()}
    row["playing"] -= row["environment"] + row["inference"]
    return {
        **row, "bytes": len(data) / batch.actions.numel(),
        "gradient": 4 * sum(each.numel() for each in agent.weights),
    }  # fmt: skip


@cache
def measure() -> Any:
    """What clients share."""
    sys.path.append(str(ROOT / "benchmarks" / "clients"))
    return __import__("measure")


def clocks() -> list[float]:
    """Seconds of the clock, of processors here and below, and of processors of all processes."""
    fields = Path("/proc/stat").read_text(encoding="utf-8").split(maxsplit=4)
    busy = sum(map(int, fields[1:4])) / measure().TICKS
    return [time.perf_counter(), measure().seconds(), busy]


def reached(env: str, word: str, seed: int) -> Row:
    """Train until the stated return, by two processes of each role; seconds from their start.

    Between two words of processes that tell several updates at once, seconds are interpolated.
    """
    from parenvs.agents.learning.play import one_thread
    from parenvs.agents.learning.trainer import Training

    goal, steps, arguments, settings = GOALS[env]
    config = config_of("ppo", env, word, settings=settings, actors=2, learners=2)
    config = replace(config, steps=steps, seed=seed, env_kwargs=arguments)
    returns: list[float] = []
    begin = before = clocks()
    with one_thread(), closing(Training(config, engine="local")) as run:
        start = time.perf_counter() - begin[0]
        updates = run.team.updates
        told: list[Any] = []

        def listened(*given: Any) -> list[Any]:
            told[:] = updates(*given)
            return told

        run.team.updates = listened
        while True:
            run.update()
            after = clocks()
            for share, each in enumerate(told, 1):
                returns += each.returns
                value = mean(returns[-LAST:]) if len(returns) >= LAST else -float("inf")
                if value >= goal or each.turns >= steps:
                    spans = zip(begin, before, after, strict=True)
                    wall, processor, all_busy = (
                        y + (z - y) * share / len(told) - x for x, y, z in spans
                    )
                    return {
                        "reached": value >= goal, "return": value, "steps": each.turns,
                        "seconds": wall, "processor": processor, "start": start,
                        "others": (all_busy - processor) / wall,
                    }  # fmt: skip
            before = after


def extrapolated(row: Row, workers: int) -> dict[str, float]:
    """Turns a second of words with many workers, by the measured parts of one alone.

    Each worker has the environments of one alone, and each learner's share of a step of the
    optimiser is as large as the step alone. Playing and learning take turns. ``environments`` has
    8 workers a learner. A ring's all-reduce sends each gradient twice, a server takes one of each
    learner and sends the network back. A message is pickled at one end and read at the other.
    """
    env, infer, rest, learn, wire = (
        1e-6 * row[x] for x in ("environment", "inference", "playing", "learning", "wire")
    )
    half, sent, gradient = (
        wire / 2,
        row["bytes"] / BYTES_A_SECOND,
        row["gradient"] / BYTES_A_SECOND,
    )
    trips = 2 * MESSAGE / (64 * workers)  # of what all environments see, and of all actions
    learners = max(workers // 8, 1)

    def ring(count: int) -> float:
        """Seconds that an all-reduce of learners takes, of a turn's share of a step."""
        messages = 2 * MESSAGE * (count - 1).bit_length()
        return 4 / (256 * count) * (messages + 2 * gradient * (count > 1))

    play, central = env + infer + rest, half + sent + infer + rest + learn
    seconds = {
        SINGLE: play + learn,
        "actors": (play + half) / workers + half + sent + learn,
        "inference": (env + half) / workers + trips + central,
        "learners": (play + learn) / workers + ring(workers),
        "environments": (env + half) / workers + trips + central / learners + ring(learners),
        "server": (play + learn) / workers
        + 4 / (256 * workers) * (2 * MESSAGE + 2 * workers * gradient),
    }
    return {word: 1.0 / each for word, each in seconds.items()}


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
    return config_of(agent, "ElasticPlan-v1", word, updates, quick, actors=2, learners=2)


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
    key=lambda row: (*(row[x] for x in ("what", "agent", "env", "word")), row.get("seed")),
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
            key = {"what": "kills", "agent": agent, "env": "ElasticPlan-v1", "word": who}
            yield key, partial(killed, agent, who, kills, updates)
    for env in WIRED if "wire" in only else ():
        yield {"what": "wire", "agent": "ppo", "env": env, "word": "actors"}, partial(wired, env)
    for env in APART if "parts" in only else ():
        yield {"what": "parts", "agent": "ppo", "env": env, "word": SINGLE}, partial(parted, env)
    for seed in range(3) if "returns" in only else ():
        for env in GOALS:
            for word in (x for x in WORDS if x != FUSED or env == "CartPole-v1"):
                key = {"what": "returns", "agent": "ppo", "env": env, "word": word, "seed": seed}
                yield key, partial(apart, reached, env, word, seed)


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
    wire = [x for x in rows if x["what"] == "wire"]
    if wire:
        sections += [
            "Bytes of a turn of an environment between actors and learner: what is observed and "
            "what is done, legal rows alone and features in half precision, without loss; beside "
            "the arrays that are observed, pickled as they are.",
            columns(
                wire,
                [("environment", "{env}"), ("actions", "{actions}"),
                 ("legal, in the mean", "{legal:.1f}"), ("sent", "{sent:,.0f}"),
                 ("pickled", "{pickled:,.0f}")],
            ),
        ]  # fmt: skip
    parts = [row for row in rows if row["what"] == "parts"]
    until = [row for row in rows if row["what"] == "returns"]
    return sections + (_extrapolation(parts) if parts else []) + (_until(until) if until else [])


def _until(rows: list[Row]) -> list[str]:
    """How long trainings took to the stated returns."""

    def spread(mine: list[Row], name: str) -> str:
        told = sorted(row[name] if row["reached"] else float("inf") for row in mine)
        middle, *ends = (
            "not reached" if x == float("inf") else f"{x:,.0f}"
            for x in (median(told), told[0], told[-1])
        )
        return f"{middle} ({' to '.join(ends)})" if ends[0] != ends[1] else middle

    lines = []
    for env in GOALS:
        for word in WORDS:
            mine = [row for row in rows if (row["env"], row["word"]) == (env, word)]
            if mine:
                lines.append(
                    [env, word, f"{sum(row['reached'] for row in mine)} of {len(mine)}",
                     *(spread(mine, name) for name in ("steps", "seconds", "processor")),
                     *(f"{median(row[x] for row in mine):.1f}" for x in ("start", "others"))]
                )  # fmt: skip
    stated = "; ".join(
        f"{env} {goal:g} within {steps:,} turns" for env, (goal, steps, *_) in GOALS.items()
    )
    return [
        f"Time to a stated return: until the last {LAST} episodes of a training had that mean, or "
        f"not. {stated}. HybridPlan-v1 constructs plans of its bank, from a policy that does not "
        "know the rule; its environment takes most of the time. Returns, batches and settings were "
        "chosen by `single` on a seed that is not shown: 16 environments, 16 or 20 turns of each, "
        "64 turns a step of the optimiser, alike for all words. Two actors (of each learner) and "
        "two learners, local processes on the machine's cores, a thread each. Median of the seeds "
        "that were run, the number behind reached, and the least and the largest; what was not "
        "reached counts as longest. Episodes of one update are counted actor by actor, which may "
        "shift the end of equal trainings. Seconds are from the start of all processes, which is "
        "what start says; processor seconds are of all of them. "
        "**The machine was shared**: others are the cores that other processes took meanwhile, so "
        "seconds say less than processor seconds, which shared caches lengthen, too.",
        table(
            ["environment", "word", "reached", "turns", "seconds", "processor seconds",
             "start, s", "others, cores"],
            lines,
        ),
    ]  # fmt: skip


def _extrapolation(parts: list[Row]) -> list[str]:
    """Measured parts, and what they say of many workers."""
    columns_of: list[Any] = [("environment", "{env}")]
    columns_of += [(name, f"{{{name}:,.0f}}") for name in TIMED]
    columns_of += [("bytes a turn", "{bytes:,.0f}"), ("bytes of a gradient", "{gradient:,}")]
    words = list(extrapolated(parts[0], 1))
    lines = [
        [row["env"], str(workers), *(f"{extrapolated(row, workers)[word]:,.0f}" for word in words)]
        for row in parts for workers in (1, 8, 64)
    ]  # fmt: skip
    return [
        "Processor microseconds of a turn in a training alone, measured: 64 environments, 16 turns "
        "of each, 4 passes, 256 turns a step of the optimiser. Playing is what collecting takes "
        "beside environments and inference, wire what pickling a batch and reading it take.",
        columns(parts, columns_of),
        "**Extrapolated, not measured**: turns a second by these parts, where each worker has 64 "
        "environments and a core of its own, playing and learning take turns, a step of the "
        "optimiser goes over 256 turns of each learner, and the network has 10 Gbit/s and 0.1 ms "
        "a message. `environments` has 8 workers a learner. Nobody waits for a slower one here, so "
        "these are upper bounds: `actors` and `inference` end where one learner does, `server` "
        "where gradients of all are read one after another.",
        table(["environment", "workers", *words], lines),
    ]


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
