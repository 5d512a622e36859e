"""Networks that ship beside all that does not learn, on held-out sets at equal processor seconds.

    python benchmarks/networks.py
    python benchmarks/networks.py --envs ElasticPlan-v1 --first 5

A network plays by its best actions, and by 16 and 64 copies that are drawn, of which the best plan
counts; ``learned+search`` is a search from its plan. Beside them stand the rule that it began
with, drawn from as often, heuristics, local search and exact search, at several limits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import Any

from benchmarks.framework import Case, Row, main, measurement, table
from benchmarks.learners import HEAD, PATIENCE, UNTRAINED, decoded, lines_of, planned, verdict
from benchmarks.rules import places
from parenvs.agents.learning.network import WEIGHTS, Network, file_of, shipped
from parenvs.agents.names import LEARNED, LEARNED_SEARCH

SEARCHES: dict[str, dict[str, dict[str, Any]]] = {
    "PipelinePlan-v1": {
        **{f"{name}/{limit} s": {"time_limit": limit}
           for limit in (0.1, 1.0) for name in ("exact", "corridor")},
        LEARNED_SEARCH: {},
    },
    "HybridPlan-v1": {
        "exact/0.3 s": {"time_limit": 0.3},
        **{f"{LEARNED_SEARCH}/{limit} s": {"time_limit": limit} for limit in (0.03, 0.3)},
    },
    "MicroBatchOrder-v1": {
        "exact/1 s": {"time_limit": 1.0},
        **{f"{LEARNED_SEARCH}/{steps} turns": {"steps": steps} for steps in (600, 6_000)},
    },
    "ElasticPlan-v1": {"fastest": {}},
}  # fmt: skip
"""Environment with a network that ships -> planners beside those of its task's ``rules``."""
SETS = ("plan-s16-test", "hybrid-test", "p8-m32", "p16-m64", "elastic-windows")
"""Sets, or families of them."""


def policy_of(env_id: str, method: str) -> Network:
    """Return the network of an environment, or the one that plays the rule that it began with."""
    if method == LEARNED:
        return shipped(env_id)
    from parenvs.agents.learning.config import TrainConfig
    from parenvs.agents.learning.trainer import untrained

    weights = untrained(TrainConfig(env_id=env_id, steps=1)).agent.net.state_dict()
    return Network({name: weights[name].numpy() for name in WEIGHTS})


def training(env_id: str, method: str) -> Row:
    """Return the processor seconds in which a method was trained, if it was."""
    if not method.startswith(LEARNED):
        return {}
    told = json.loads(file_of(env_id).with_suffix(".json").read_text(encoding="utf-8"))
    return {"training": told["chosen"]["seconds"]}


def measured(
    env_id: str, method: str, options: Any, name: str, family: str | None, first: int | None
) -> Row:
    """Decode or solve a set by a method."""
    if method in (LEARNED, UNTRAINED):
        row = decoded(policy_of(env_id, method), env_id, name, family, first)
    else:
        row = planned(name, family, method, options, first)
    return {**row, **training(env_id, method)}


@measurement(
    key="env method set family",
    title="Networks that ship, at equal seconds",
    among={"envs": SEARCHES},
    about={"sets": "sets, or families", "first": "problems of each set"},
)
def networks(
    envs: tuple[str, ...] = tuple(SEARCHES), sets: tuple[str, ...] = SETS, first: int = 12
) -> Iterator[Case]:
    for env_id in envs:
        _, own, planners = places()[env_id]
        methods = {LEARNED: {}, UNTRAINED: {}, **planners, **SEARCHES[env_id]}
        for name, family in own:
            if name in sets or family in sets:
                for method, options in methods.items():
                    key = {"env": env_id, "method": method, "set": name, "family": family or ""}
                    yield key, partial(measured, env_id, method, options, name, family, first)


@networks.page
def page(rows: list[Row], first: int) -> list[str]:
    sections = [
        f"Share of the best known cost on the first {first} problems of each set, one at a time: "
        "columns as on the page of learners. *rule* is what the network was before its training, "
        "drawn from as often. Both play with the copy that follows the rule; *alone* is without "
        "it. No more copies are tried where a set would take more than "
        f"{PATIENCE:g} s. Limits are of wall time, of which others that use the machine take a "
        "part; seconds are of the processor. Methods are compared with those that take no longer "
        "than 1.1 times their seconds.",
    ]
    for env_id in SEARCHES:
        game, own, planners = places()[env_id]
        for name, family in own:
            mine = [
                x for x in rows if (x["env"], x["set"], x["family"]) == (env_id, name, family or "")
            ]
            if not mine:
                continue
            lines = lines_of(mine, {**planners, **SEARCHES[env_id]})
            words = f"{name} {family or ''}".strip()
            sections += [
                f"**{env_id}, {words}**, {lines[0].shares.shape[1]} problems. "
                + verdict(lines, game.foreseen),
                table(HEAD, [line.cells() for line in lines]),
            ]
    return sections


if __name__ == "__main__":
    main(networks)
