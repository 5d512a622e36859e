"""Names of agents, and what ``TrainConfig`` and ``parenvs train`` have in common; no PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from parenvs.core.task import option
from parenvs.fields import Text, whole

ALGORITHMS = {
    "ppo": "parenvs.agents.learning.ppo:PPO",
    "group": "parenvs.agents.learning.ppo:Group",
    "mappo": "parenvs.agents.learning.ppo:MAPPO",
    "rainbow": "parenvs.agents.learning.rainbow:Rainbow",
    "rainbow-paper": "parenvs.agents.learning.rainbow:RainbowPaper",
    "imitate": "parenvs.agents.learning.ppo:Imitate",
    "maskable-ppo": "parenvs.agents.learning.sb3:MaskablePPO",
}
"""Agent of this package that ``parenvs train`` takes -> its class."""
TRAINED = ("ppo", "rainbow", "rainbow-paper")
"""Agents that train on the problem itself (``parenvs train``, with the extra ``agents``)."""
LEARNED = "learned"
"""Planner by networks that ship, which were trained on other problems: the best of several plans
that a network makes."""
HEURISTIC, SCRATCH, IMITATION = STARTS = ("heuristic", "scratch", "imitation")
"""Where networks begin: as the heuristic, without it, or taught for a quarter of the steps."""
DISTRIBUTIONS = ("single", "actors", "inference", "learners", "environments", "server", "fused")


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of a training."""

    panel: ClassVar[str] = "training"
    """Panel of the commands' help that has all but the main options."""

    agent: Text = option(
        "ppo",
        "Agent: ppo, rainbow, mappo, group, imitate, ..., or one's own.",
        complete=tuple(ALGORITHMS),
        main=True,
    )
    seed: Annotated[int, whole(0, 2**31 - 1)] = option(0, "Seed of everything random.", main=True)
    start: Text = option(
        HEURISTIC,
        "Where the network begins: heuristic, scratch (without it), imitation, or a run's folder.",
        flag="from",
        complete=STARTS,
    )
    device: Text = option(
        "cpu", "Kind of device that the network is on: cpu, cuda, ...", complete=("cpu", "cuda")
    )
    distribution: Text = option(
        "single",
        "What acts and what learns: single, actors, inference, learners, environments, server or "
        "fused.",
        complete=DISTRIBUTIONS,
    )
    actors: Annotated[int, whole(1, 1 << 16)] = option(
        2, "Processes with environments, per learner."
    )
    learners: Annotated[int, whole(0, 1 << 16)] = option(
        0, "Learners, where there are several (default: 2; with fused one per GPU)."
    )
    staleness: Annotated[int, whole(0, 1 << 16)] | None = option(
        None, "With a server: learners do not wait; none is more steps ahead than this."
    )
