"""``load``: networks as policies, shipped or trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from parenvs.agents.learning.network import shipped
from parenvs.core.registry import environments
from parenvs.errors import need_extra


def load(source: str | Path, trust: bool = False) -> Any:
    """Load a network as a policy, with ``predict``.

    Args:
        source: the id of an environment, for the network that ships for it, which needs no PyTorch
            and plays with ``rows="ahead"``; or the folder of a training run.
        trust: whether a run on a Python function may run the function's file.

    Raises:
        ParenvsError: no network ships for the environment, or the folder holds no run.

    >>> import parenvs
    >>> policy = parenvs.load("HybridPlan-v2")
    >>> parenvs.evaluate_set(policy, "hybrid-validation", first=2).coverage
    1.0
    """
    if source in environments():
        return shipped(str(source))
    with need_extra("agents", "networks of training runs"):
        from parenvs.agents.learning.trainer import player
    return player(source, trust)
