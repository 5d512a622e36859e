"""``PlanEnv``, the base of the environments: episodes build a plan, which ``render`` shows."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from parenvs.pipeline.problem import Pipeline, Report
from parenvs.plan import PipelinePlan, Plan
from parenvs.viewer import rgb_array, text

if TYPE_CHECKING:
    from parenvs.viewer import Viewable

RENDER_MODES = ["ansi", "rgb_array"]
"""Text, and pictures of shape (h, w, 3) uint8."""


class PlanEnv(gym.Env[dict[str, Any], np.int64]):
    """An environment whose episodes build a plan step by step.

    A subclass sets ``problem`` and implements ``plan`` and ``_viewable``, and also ``undecided`` if
    its plans leave variables open.

    Args:
        render_mode: ``"ansi"``, ``"rgb_array"`` or None.

    Raises:
        ValueError: the render mode is unknown.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium declares it so)
        "render_modes": RENDER_MODES,
        "render_fps": 1,
    }

    problem: Any  # a Pipeline or a Partitioning

    def __init__(self, render_mode: str | None) -> None:
        """Check the render mode."""
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise ValueError(f"render_mode must be one of {RENDER_MODES}")
        self.render_mode = render_mode

    def plan(self) -> Plan:
        """Return the plan built so far."""
        raise NotImplementedError

    @property
    def instance(self) -> str:
        """Name or path of the instance; plans carry it."""
        return str(self.problem.instance)

    def render(self) -> Any:
        """Render the plan built so far and its cost, as text or as an (h, w, 3) uint8 picture."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='ansi' or 'rgb_array' in gym.make")
            return None
        return rendered(self.render_mode, self._viewable(), self.undecided())

    def undecided(self) -> Collection[str] | None:
        """Return the paths of undecided variables; None if the task does not decide variables."""
        return None

    def _viewable(self) -> Viewable:
        """Return the judge's report on the plan so far, or the problem if nothing is chosen yet."""
        raise NotImplementedError


def rendered(mode: str, viewable: Viewable, undecided: Collection[str] | None = None) -> Any:
    """Render a problem or a judged plan in one of ``RENDER_MODES``."""
    show: Any = text if mode == "ansi" else rgb_array
    return show(viewable, undecided=undecided)


def pipeline_so_far(plan: PipelinePlan, pipeline: Pipeline) -> Report | Pipeline:
    """Return the judge's report on a plan whose last stage is the rest of the chain.

    Before the first cut there is nothing to judge, and the problem itself is returned.
    """
    return pipeline.report(plan, any_stages=True) if plan.cuts else pipeline
