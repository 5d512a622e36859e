"""What decides a training in the fused loop, whichever agent learns."""

from __future__ import annotations

from dataclasses import dataclass

from parenvs.agents.learning.pretrained.network import HIDDEN

OBJECTIVES = ("value", "log")


@dataclass(frozen=True)
class Settings:
    """Settings that all agents have; equal ones give equal networks on one device.

    Attributes:
        seed: seed of everything random.
        envs: n, the number of episodes played at once.
        iterations: number of rollouts.
        choices: pairs of a point and a unit that each episode chooses in a rollout.
        rate: learning rate at first; it falls linearly to zero.
        problems: number of problems in the pool.
        part: number of problems that are replaced at once; it divides ``problems``.
        refill: iterations between two replacements; with 0 the pool stays as it is.
        family: draw problems of this family only.
        hidden: width of the network.
        objective: what is maximised: ``"value"`` is 1/L, ``"log"`` is ln(1/L), which counts a per
            cent of a long plan for as much as one of a short plan.
    """

    seed: int = 0
    envs: int = 256
    iterations: int = 200
    choices: int = 8
    rate: float = 1e-3
    problems: int = 512
    part: int = 64
    refill: int = 4
    family: str | None = None
    hidden: int = HIDDEN
    objective: str = "value"

    @property
    def samples(self) -> int:
        """Environment steps of a rollout."""
        return 2 * self.choices * self.envs
