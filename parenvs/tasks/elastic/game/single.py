"""``ElasticPlan-v0``: choose a plan again and again while nodes leave and come."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

from parenvs.core.plan import ILLEGAL
from parenvs.envs.base import PLAYED, PlanEnv, check_options, whole_number
from parenvs.shipped import ELASTIC_SETS
from parenvs.tasks.elastic.game.play import NUMBERS, Play
from parenvs.tasks.elastic.game.tables import CHANGE_COLUMNS, PLAN_COLUMNS, Source
from parenvs.tasks.elastic.library import MOST_PLANS
from parenvs.tasks.elastic.problem import SECONDS, Elastic
from parenvs.tasks.elastic.run import Run


class ElasticPlanEnv(PlanEnv):
    """Choose a plan again and again while nodes leave and come.

    ## Description
    A job trains on nodes that leave and come: spot machines, or shares of a cluster. At every
    interval (a minute) a plan is chosen for the nodes that are there: tensor, pipeline and data
    degrees, and nodes kept as spares. A change costs seconds, as the state of the model has to be
    moved (``parenvs.tasks.elastic.movement``). A node in use that leaves stops the job, unless a spare
    is ready; if no replica is left of a part of the state, the work since the last checkpoint is
    lost. What will happen is not known, so a plan made beforehand is no answer: a policy is
    (``docs/elastic.md``).

    ## Action Space
    ``Discrete(64)``: the number of a candidate plan; 0 waits. Choosing the plan in force again
    keeps it, and after a loss repairs it. The mask of legal actions is ``info["action_mask"]``
    (int8), ``action_masks()`` (bool), or part of the observation with
    ``parenvs.wrappers.MaskInObservation``: plans that the nodes are enough for, spares included.

    ## Observation Space
    ``Dict``, float32, all in [0, 1]. Rows beyond the last candidate are 0.

    * ``plans``: (64, 6) of each candidate: log2(1 + degree) / 7 of T, P and D, nodes that train
      / 64, spares / 2, samples a second / those of the fastest candidate.
    * ``change``: (64, 3) of each candidate, from the plan in force and what happened to it: seconds
      of the change / interval, at most 1; bytes that the busiest node sends / bytes of the state;
      1 for the plan in force.
    * ``numbers``: (16,): nodes there, joined, left, in use, spares, idle (all / 64); samples a
      second of the plan in force / the fastest; nodes in use that were lost / 4; spares are ready;
      state is lost; intervals since the state was safe / those between checkpoints; intervals since
      the last event / 60, at most 1; share of the episode that remains; running mean of the
      departures of a node; of joins / 64; 1 / intervals of an episode.

    ## Rewards
    Samples that the interval trains, over those of all intervals of an episode with the fastest
    plan and free changes (``Elastic.ideal``: of a trace its own, of a chain the expected number).
    The return is the share of that ideal. An interval can earn less than nothing: a change is paid
    for at once, and lost work is taken back. An illegal action pays -1 and ends the episode.

    ## Starting State
    Nothing runs; the first choice starts from a checkpoint. The course of the nodes is drawn by
    ``reset`` from the environment's generator, and whatever is chosen, the same seed gives the same
    course (common random numbers).

    ## Episode End
    After the last interval (240 minutes of a chain, the length of a trace) or an illegal action. No
    truncation.

    ## Info
    ``action_mask``; at a reset and at the end ``instance``, the problem's name; after the last
    interval ``samples`` and ``share``, that of the ideal of the very course.

    ## Arguments
    * ``instance``: a set (``"elastic-train"``, ``"elastic-validation"``, ``"elastic-test"``), from
      which each episode draws a chain; one problem of it (``"elastic-test/bulk-gpt-1.5b-003"``);
      or a trace: ``"p3"``, ``"g4dn"`` or the path of a ``.csv`` file, ``seconds,event,node`` or
      ``seconds,nodes``. ``reset(options={"instance": ...})`` sets the problem of one episode.
    * ``model``: of a trace (default ``"gpt-1.5b"``), or the only one of a set to draw from.
    * ``family``: of a set: only its problems of this family, like ``"bulk-gpt-1.5b"``.
    * ``order``: ``"random"``, or ``"sequential"``, which plays a set in its order, each problem
      once, and then again; a seed begins it anew. In a batch of n environment i plays the problems
      i, i + n, and so on. Courses are drawn all the same.
    * ``interval``: seconds, of a trace.
    * ``cluster``, ``batch``: of a trace: candidates by the cost model on such servers
      (``"16x8:a100"``), for any model; without them measured steps of ``gpt-1.5b`` or
      ``bert-large``.
    * ``problem``: a ``parenvs.tasks.elastic.problem.Elastic``, in place of all the above.

    ## Many at Once
    ``gym.make_vec("ElasticPlan-v0", num_envs=64)``, see ``ElasticPlanVectorEnv``.

    ## Version History
    * v0: first version.
    """

    OPTIONS = ("instance",)

    def __init__(
        self,
        instance: str = ELASTIC_SETS[0],
        model: str | None = None,
        interval: float = SECONDS,
        cluster: str | None = None,
        batch: int | None = None,
        problem: Elastic | None = None,
        family: str | None = None,
        order: str = PLAYED[0],
        render_mode: str | None = None,
    ) -> None:
        """Load the problems; see the class for the arguments."""
        super().__init__(render_mode)
        self._settings = {"model": model, "interval": interval, "cluster": cluster, "batch": batch}
        self.home = Source(
            instance,
            problem=problem,
            family=family,
            order=order,
            **self._settings,  # type: ignore[arg-type]
        )
        self._home_play = self._play = Play(1, self.home.tables)
        self._row = np.zeros(1, dtype=np.int64)
        self._use(self.home, self._home_play, np.random.default_rng(0))  # to render before a reset
        self.action_space = spaces.Discrete(MOST_PLANS)
        self.observation_space = spaces.Dict(
            {
                key: spaces.Box(0.0, 1.0, shape, np.float32)
                for key, shape in (
                    ("plans", (MOST_PLANS, len(PLAN_COLUMNS))),
                    ("change", (MOST_PLANS, len(CHANGE_COLUMNS))),
                    ("numbers", (len(NUMBERS),)),
                )
            }
        )

    @property
    def draws(self) -> bool:
        """Whether episodes differ by what is drawn."""
        return self.home.is_random

    def _elsewhere(self, options: dict[str, Any]) -> Source:
        check_options(options, self.OPTIONS)
        instance = options["instance"]
        place = instance.split("/")[0] if isinstance(instance, str) else ""
        settings = {} if place in ELASTIC_SETS else self._settings
        return Source(instance, **settings)  # type: ignore[arg-type]

    def _enter(self, other: Source | None) -> None:
        if other is None:
            self._use(self.home, self._home_play, self.np_random, self._next)
            self._next += 1
        else:
            self._use(other, Play(1, other.tables), self.np_random)

    def _use(self, source: Source, play: Play, rng: np.random.Generator, played: int = 0) -> None:
        """Draw a problem and its course, and start the episode."""
        number, drawn = source.draw(rng, played)
        self._play, self.problem = play, source.tables.problems[number]
        self._play.start(self._row, [number], [drawn])
        self._start()

    def _start(self) -> None:
        self._over, self._outcome = False, {}

    def step(
        self, action: int | np.int64
    ) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Choose the plan of an interval."""
        plan, reward = np.array([min(max(whole_number(action), -1), MOST_PLANS)]), ILLEGAL
        if self._over or not self._play.legal(plan)[0]:
            self._over = True
        else:
            rewards, over = self._play.step(self._row, plan)
            reward, self._over = float(rewards[0]), bool(over[0])
            if self._over:
                share = float(self._play.shares(self._row)[0])
                self._outcome = {"samples": float(self._play.total[0]), "share": share}
        return self._observation(), reward, self._over, False, self._info()

    def action_masks(self) -> np.ndarray:
        """Return the legal actions, (64,) bool; all are true once the episode is over."""
        if self._over:
            return np.ones(MOST_PLANS, dtype=np.bool_)
        return self._play.masks()[0].astype(np.bool_)

    def plan(self) -> Run:  # type: ignore[override]
        """Return the plans chosen so far, with what they earned."""
        return self._play.run(0)

    def _viewable(self) -> Run:
        return self.plan()

    @property
    def episode_steps(self) -> int:
        """Steps of an episode without illegal actions; of the longest, where problems differ."""
        return self._play.size

    @property
    def largest_return(self) -> float:
        """What learners scale returns by; a lucky course of a chain can have a little more."""
        return 1.0

    def _observation(self) -> dict[str, Any]:
        play = self._play
        changing = {key: value[0].copy() for key, value in play.observation(self._row).items()}
        return {"plans": play.tables.plans[play.row[0]].copy(), **changing}
