"""``GameEnv``: a game of one episode as a Gymnasium environment."""

from __future__ import annotations

import operator
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np

from parenvs.core.game import EVERY, Game, Stream, check_options
from parenvs.core.plan import Plan
from parenvs.errors import ParenvsError, shown

RENDER_MODES = ["ansi", "rgb_array"]
"""Text, and pictures of shape (h, w, 3) uint8."""


class GameEnv(gym.Env[dict[str, Any], np.int64]):
    """An environment whose episodes build a plan step by step; the class of a game specifies it.

    At every reset the info has ``action_mask``, (a,) int8, and ``instance``, the name of the
    problem; at the end of an episode it has ``instance`` again, and what ``Game.outcome`` tells. An
    action after the end changes nothing, pays ``Game.after_end``, and ends the episode again.

    Args:
        render_mode: ``"ansi"``, ``"rgb_array"`` or None.
        **arguments: of the game.

    Attributes:
        game: the game, of one episode.

    Raises:
        ValueError: the render mode is unknown.
    """

    game_class: ClassVar[type[Game]]

    def __init_subclass__(cls, game: type[Game] | None = None, **more: Any) -> None:
        """Take the specification from the game."""
        super().__init_subclass__(**more)
        if game is not None:
            cls.game_class, cls.__doc__ = game, game.__doc__
            cls.metadata = {"render_modes": RENDER_MODES, "render_fps": game.render_fps}

    def __init__(self, *, render_mode: str | None = None, **arguments: Any) -> None:
        check_mode(render_mode)
        self.render_mode = render_mode
        self.game = self.game_class(1, **arguments)
        self.action_space = self.game.action_space
        self.observation_space = self.game.observation_space
        self._actions = int(self.action_space.n)
        self._streams = [Stream()]
        self.game.preview()

    @property  # type: ignore[misc]
    def np_random(self) -> np.random.Generator:
        """The generator that problems are drawn from."""
        return self._streams[0].rng

    @property
    def np_random_seed(self) -> int:
        """The seed of the generator."""
        return self._streams[0].seed

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
        source = elsewhere(self.game, options)  # may refuse, so it comes before anything changes
        super().reset(seed=seed)
        if seed is not None:
            self._streams[0].reseed(seed)
            self._np_random = self.np_random  # Gymnasium's checker looks for it
        self.game.deal(EVERY, self._streams, source)
        return self._observation(), self._info(start=True)

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Take an action."""
        number, game = whole_number(action), self.game
        reward = game.after_end
        if not game.over[0]:
            # Numbers that no int64 holds are as illegal as the nearest illegal action.
            within = min(max(number, -1), self._actions)
            reward = float(game.play(EVERY, np.array([within]))[0])
        return self._observation(), reward, bool(game.over[0]), False, self._info()

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (a,) bool; all are true once the episode is over."""
        if self.game.over[0]:
            return np.ones(self._actions, dtype=np.bool_)
        return owned(self.game.legal)[0]

    def plan(self) -> Plan:
        """Return the plan built so far."""
        return self.game.plan(0)

    @property
    def problem(self) -> Any:
        """The problem of the episode."""
        return self.game.problem(0)

    @property
    def instance(self) -> str:
        """Name or path of the instance."""
        return self.game.instance(0)

    @property
    def draws(self) -> bool:
        """Whether episodes can be of different problems without ``options`` of ``reset``."""
        return self.game.draws

    @property
    def episode_steps(self) -> int:
        """Steps of the longest episode."""
        return self.game.episode_steps

    @property
    def largest_return(self) -> float:
        """An upper bound of the return, by which learners scale returns."""
        return self.game.largest_return

    def render(self) -> Any:
        """Render the plan built so far and its cost, as text or as an (h, w, 3) uint8 picture."""
        if self.render_mode is None:
            gym.logger.warn("render() needs render_mode='ansi' or 'rgb_array' in gym.make")
            return None
        return rendered(self.game, 0, self.render_mode)

    def close(self) -> None:
        """Close the game."""
        self.game.close()

    def _observation(self) -> dict[str, Any]:
        observed = self.game.observation(EVERY)
        return {key: owned(value)[0] for key, value in observed.items()}

    def _info(self, start: bool = False) -> dict[str, Any]:
        info: dict[str, Any] = {"action_mask": self.action_masks().view(np.int8)}
        over = bool(self.game.over[0])
        if start or over:
            info["instance"] = self.instance
        if over:
            for key, (value,) in self.game.outcome(EVERY).items():
                if value == value:  # not NaN
                    info[key] = float(value)
        return info


def elsewhere(game: Game, options: dict[str, Any] | None) -> Any:
    """Return the source of the problem that options of a reset name; None without options."""
    if not options:
        return None
    check_options(options, game.options)
    return game.elsewhere(options)


def owned(values: np.ndarray) -> np.ndarray:
    """Return an array that no later call changes: views are copied, see ``Game.observation``."""
    return values if values.base is None else values.copy()


def check_mode(mode: str | None) -> None:
    """Raise ``ValueError`` unless the render mode is known or None."""
    if mode is not None and mode not in RENDER_MODES:
        raise ValueError(f"render_mode must be one of {RENDER_MODES}")


def rendered(game: Game, row: int, mode: str) -> Any:
    """Render an episode in one of ``RENDER_MODES``."""
    from parenvs.view import rgb_array, text

    show: Any = text if mode == "ansi" else rgb_array
    return show(game.view(row), undecided=game.undecided(row))


def whole_number(action: Any) -> int:
    """Return an action as an integer, whole floats too; else raise ``ParenvsError``."""
    try:
        return operator.index(action)
    except TypeError:
        number = np.asarray(action).item() if np.size(action) == 1 else None
        if not isinstance(number, (int, float)) or number != number // 1:
            raise ParenvsError(f"action: expected a whole number, not {shown(action)}") from None
        return int(number)
