"""``PlanEnv``, the base of the environments: episodes build a plan, which ``render`` shows."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Collection
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.tasks.pipeline.plan import PipelinePlan
from parenvs.tasks.pipeline.problem import Pipeline, Report
from parenvs.view import rgb_array, text

RENDER_MODES = ["ansi", "rgb_array"]
"""Text, and pictures of shape (h, w, 3) uint8."""
PLAYED = ("random", "sequential")
"""Orders in which the problems of a set are played: drawn, or one after the other."""


class PlanEnv(gym.Env[dict[str, Any], np.int64]):
    """An environment whose episodes build a plan step by step.

    A subclass sets ``problem``, ``action_space`` and ``observation_space`` in its constructor, and
    implements ``plan``, ``_viewable``, and the hooks of an episode:

    * ``_start`` begins an episode of ``problem`` with fresh state, ``_over`` false and ``_outcome``
      empty; ``_observation`` and ``action_masks`` tell the state;
    * ``step`` takes the action through ``whole_number``, sets ``_over`` at the end, and where the
      plan is complete ``_outcome``: what infos say of it, name -> float (``length_seconds``,
      ``excess_bytes``, and ``optimum`` and ``regret`` where the optimum is known, see
      ``regret_of``). It returns ``_info()`` as its info.

    From these the base makes ``reset`` and ``_info``. At every reset the info has ``instance``, the
    name of the problem; at the end of an episode it has ``instance`` again, and ``_outcome``.

    ``reset(options=...)`` plays one episode of another problem. A subclass names what may be given:

    * ``OPTIONS``: arguments of the constructor that are keys of ``options``;
    * ``OF_PROBLEM``: attributes that belong to the problem. The base makes another environment of
      the given arguments and the options, refuses it if its spaces differ, and takes these
      attributes over for one episode.

    A subclass that draws problems overrides ``_enter``, and counts them in ``_next``, which a seed
    sets back to 0. One whose plans leave variables open overrides ``undecided``. A constructor
    calls ``warn_infeasible`` if no plan fits the memory, or raises ``InfeasibleError`` if there is
    no legal episode.

    Args:
        render_mode: ``"ansi"``, ``"rgb_array"`` or None.

    Raises:
        ValueError: the render mode is unknown.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 (Gymnasium declares it so)
        "render_modes": RENDER_MODES,
        "render_fps": 1,
    }
    OPTIONS: ClassVar[tuple[str, ...]] = ()
    OF_PROBLEM: ClassVar[tuple[str, ...]] = ("problem",)

    problem: Any  # a Pipeline or a Partitioning
    _given: tuple[tuple[Any, ...], dict[str, Any]]  # the arguments of the constructor
    _home: dict[str, Any] | None = (
        None  # what ``OF_PROBLEM`` names, while another problem is played
    )
    _away: tuple[dict[str, Any], Any] | None = None  # the last options, and their environment
    _next: int = 0  # number of the problem that is drawn next
    _over: bool = False
    _outcome: dict[str, float] = {}  # noqa: RUF012 (each episode sets its own)

    def __new__(cls, *args: Any, **kwargs: Any) -> PlanEnv:
        """Keep the arguments, of which ``reset(options=...)`` makes other environments."""
        env = super().__new__(cls)
        env._given = (args, kwargs)
        return env

    def __init__(self, render_mode: str | None) -> None:
        """Check the render mode."""
        if render_mode is not None and render_mode not in RENDER_MODES:
            raise ValueError(f"render_mode must be one of {RENDER_MODES}")
        self.render_mode = render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Start an episode with nothing chosen.

        Args:
            seed: seed of what is drawn; without drawn problems it changes nothing.
            options: arguments of the environment for this episode; those that the class's
                docstring names.

        Raises:
            ParenvsError: an option is unknown or would change the spaces, or the environment
                refuses it; the episode before goes on then.
        """
        other = self._elsewhere(options) if options else None
        super().reset(seed=seed)
        if seed is not None:
            self._next = 0
        self._enter(other)
        self._start()
        return self._observation(), self._info(start=True)

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (a,) bool; all are true once the episode is over."""
        raise NotImplementedError

    def plan(self) -> Plan:
        """Return the plan built so far."""
        raise NotImplementedError

    @property
    def draws(self) -> bool:
        """Whether episodes can be of different problems without ``options`` of ``reset``."""
        return False

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

    def _viewable(self) -> Any:
        """Return the judge's report on the plan so far, or the problem if nothing is chosen yet."""
        raise NotImplementedError

    def _start(self) -> None:
        """Start an episode of ``problem`` with nothing chosen; all state is made anew."""
        raise NotImplementedError

    def _observation(self) -> dict[str, Any]:
        """Return the observation as fresh arrays."""
        raise NotImplementedError

    def _info(self, start: bool = False) -> dict[str, Any]:
        """Return the info of a step, or of a reset if ``start`` is true."""
        info: dict[str, Any] = {"action_mask": self.action_masks().astype(np.int8)}
        if start or self._over:
            info["instance"] = self.instance
            info.update(self._outcome)
        return info

    def _enter(self, other: Any) -> None:
        """Take the problem of the next episode.

        Args:
            other: the environment of the options of the reset, or None without options.
        """
        if other is not None:
            if self._home is None:
                self._home = {name: getattr(self, name) for name in self.OF_PROBLEM}
            for name in self.OF_PROBLEM:
                setattr(self, name, getattr(other, name))
        elif self._home is not None:
            for name, value in self._home.items():
                setattr(self, name, value)
            self._home = None

    def _elsewhere(self, options: dict[str, Any]) -> Any:
        """Return an environment of this one's arguments and options of ``reset``.

        Raises:
            ParenvsError: an option is unknown, would change the spaces, or is refused.
        """
        check_options(options, self.OPTIONS)
        if self._away is not None and self._away[0] == options:
            return self._away[1]
        args, given = self._given
        kwargs: dict[str, Any] = {**given, "render_mode": None}
        if kwargs.get("problem") is not None and "problem" not in options:
            if "instance" not in options:
                raise ParenvsError(
                    f"options: {next(iter(options))!r} does not apply to the problem that the "
                    "environment was made of; give 'problem' or 'instance'"
                )
            del kwargs["problem"]
        other = type(self)(*args, **{**kwargs, **options})
        for kind in ("action_space", "observation_space"):
            mine, its = getattr(self, kind), getattr(other, kind)
            if mine != its:
                raise ParenvsError(
                    f"options: {', '.join(options)} would change the {kind.replace('_', ' ')} from "
                    f"{_brief(mine)} to {_brief(its)}; make another environment for it"
                )
        if all(isinstance(value, (str, int, float)) for value in options.values()):
            self._away = (dict(options), other)
        return other


def check_options(options: dict[str, Any], known: Collection[str]) -> None:
    """Raise an error if an option of a reset is unknown.

    Raises:
        ParenvsError: it is; the line names those that are known.
    """
    for key in options:
        if key not in known:
            choices = f"known: {', '.join(known)}" if known else "this environment has none"
            raise ParenvsError(
                f"options: unknown {shown(key)}{did_you_mean(str(key), known)}; {choices}"
            )


def is_sequential(order: str) -> bool:
    """Return whether problems are played one after the other.

    Args:
        order: the argument ``order`` of an environment.

    Raises:
        ParenvsError: it is none of ``PLAYED``.
    """
    if order not in PLAYED:
        raise ParenvsError(f"order must be one of {', '.join(PLAYED)}, not {shown(order)}")
    return order == PLAYED[1]


def whole_number(action: Any) -> int:
    """Return an action as an integer; floats that are whole are taken, too.

    Raises:
        ParenvsError: the action is no whole number.
    """
    try:
        return operator.index(action)
    except TypeError:
        number = np.asarray(action).item() if np.size(action) == 1 else None
        if not isinstance(number, (int, float)) or number != number // 1:
            raise ParenvsError(f"action: expected a whole number, not {shown(action)}") from None
        return int(number)


def regret_of(value: Any, optimum: Any) -> Any:
    """Return the share of the optimum that returns fall short of, from 0 to 1, elementwise.

    It is 0 for the best episode, and 1 for one that ends with an illegal action or plan, as such a
    plan is worth nothing.

    Args:
        value: returns of episodes; negative ones are those of illegal plans.
        optimum: the largest returns of the same problems, > 0.
    """
    return 1.0 - np.maximum(value, 0.0) / optimum


def outcome_of(value: float, optimum: float | None) -> dict[str, float]:
    """Return what infos tell of an episode's return: optimum and regret, if the optimum is known.

    Args:
        value: the return.
        optimum: the largest one; None or NaN if it is not known.
    """
    if optimum is None or optimum != optimum:
        return {}
    return {"optimum": optimum, "regret": float(regret_of(value, optimum))}


def warn_infeasible(words: str) -> None:
    """Warn that no plan of the environment's problem fits the memory.

    Args:
        words: the problem, and by how much it exceeds the memory.
    """
    warnings.warn(f"no plan fits the memory: {words}", stacklevel=3)


def rendered(mode: str, viewable: Any, undecided: Collection[str] | None = None) -> Any:
    """Render a problem or a judged plan in one of ``RENDER_MODES``."""
    show: Any = text if mode == "ansi" else rgb_array
    return show(viewable, undecided=undecided)


def pipeline_so_far(plan: PipelinePlan, pipeline: Pipeline) -> Report | Pipeline:
    """Return the judge's report on a plan whose last stage is the rest of the chain.

    Before the first cut there is nothing to judge, and the problem itself is returned.
    """
    return pipeline.report(plan, any_stages=True) if plan.cuts else pipeline


def _brief(space: Any) -> str:
    """Return a space in a few words: its size, or the shapes of its parts."""
    if isinstance(space, gym.spaces.Dict):
        return "{" + ", ".join(f"{key}: {_brief(part)}" for key, part in space.items()) + "}"
    if isinstance(space, gym.spaces.Box):
        return str(space.shape)
    return str(space)
