"""A study: which plan to try next on one's own cluster, from a journal of what was tried."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from parenvs.core.registry import problem as problem_of
from parenvs.errors import InfeasibleError, ParenvsError, shown
from parenvs.fields import Index, read, settle
from parenvs.files import StrPath, locked
from parenvs.tasks.hybrid.plan import HybridPlan
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.report import HybridReport, Outlook, over_memory
from parenvs.tasks.hybrid.rows import Row, read_rows
from parenvs.tasks.hybrid.space import Constraints, Objective, software_of, uniform_plans
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.tune.model import DOUBT, Belief, Prediction, Result
from parenvs.tasks.hybrid.tune.prior import Priced, lengths, priced, stacks_on, uniform_of
from parenvs.tasks.hybrid.uniform import Uniform, concatenated
from parenvs.view.words import plural

VERSION = 1
"""Of the files and the prior: lines that another version wrote are not used."""
KEPT = 400
"""Candidates that are looked at, those that are fastest before any trial."""
OVERFULL = 1.2
"""Share of a device's memory that a candidate may take by the model: trials teach the rest."""
FIRST = 0.2
"""Logarithm by which the step time to beat is longer than that expected, until a plan has run."""
WAIT = 60.0
"""Seconds to wait for another process that writes to a file."""


@dataclass(eq=False)
class Trial:
    """A plan to try, or that was tried.

    Attributes:
        number: of the trial in its study, from 0.
        expected_seconds: of a step, before the trial; None of a plan that was not asked for.
        interval: seconds of a step, quantiles of 10 and 90 %.
        fits: probability that it does not run out of memory.
        why: what spoke for it, in words.
        seconds: of a step, as told.
        gib: GiB on the fullest device at the peak, as told; NaN if it was not.
        failed: why it gave neither seconds nor "out of memory".
    """

    number: int
    plan: HybridPlan
    key: str
    expected_seconds: float | None = None
    interval: tuple[float, float] | None = None
    fits: float | None = None
    why: str = ""
    seconds: tuple[float, ...] = ()
    oom: bool = False
    gib: float = math.nan
    failed: str = ""

    @property
    def is_open(self) -> bool:
        """Whether nothing was told of it."""
        return not (self.seconds or self.oom or self.failed)

    def to_json(self) -> dict[str, Any]:
        """Return the trial as an object of JSON types, its plan in words."""
        content = {**vars(self), "plan": self.plan.words, "seconds": list(self.seconds)}
        content["gib"] = None if math.isnan(self.gib) else self.gib
        return {name: x for name, x in content.items() if name != "key"}


@dataclass(eq=False)
class Study:
    """Ask for a plan, run it, tell what it took.

    The next plan follows from the problem, the candidates, the journal, the site and the seed
    alone: the same files give the same plan.

    Attributes:
        problem: the model, the cluster and the batch; its stack counts only if ``stack`` is given.
        stack: the software that runs, as ``Stack.parse`` takes it, has half of the prior; of a list
            each has as much, and no other stack any.
        journal: file of JSON lines of this problem, which is made if there is none; None: nothing
            is kept.
        site: file of JSON lines of trials of any model on this cluster.
        candidates: uniform plans, published rows, or a file of such rows (default: the uniform
            plans that keep to ``constraints``).
        constraints: see ``Constraints``; a framework has to run the plans, any by default.
        tolerance: expected improvement of the next trial below which ``stop`` says so.
        seed: of ties between plans that are expected to be as good.
        limits: ``constraints`` as an object.
        notes: which trials of the site are used.

    Raises:
        ParenvsError: a file is damaged, or of another study.
    """

    problem: Hybrid
    stack: Any = None
    journal: StrPath | None = None
    site: StrPath | None = None
    candidates: Any = None
    constraints: Constraints | Mapping[str, Any] | None = None
    tolerance: float = 0.01
    seed: Index = 0
    limits: Constraints = field(init=False)
    notes: list[str] = field(default_factory=list, init=False)
    trials: list[Trial] = field(default_factory=list, init=False)
    _priors: dict[str, Priced] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        """Choose the stacks and read the files; the journal says what is not given."""
        for _, head in [] if self.journal is None else _lines(self.journal)[:1]:
            for name in ("stack", "constraints", "seed"):
                own = getattr(self, name)
                setattr(self, name, own or head.get(name, own))
        several, own = isinstance(self.stack, list), self._named()
        names = {stack.name for stack in own}
        others = () if several else tuple(x for x in stacks_on(self.problem) if x.name not in names)
        self._stacks = (*own, *others)
        self._names = [stack.name for stack in self._stacks]
        shares = [*(1 / len(own) for _ in own), *(1 / len(others) for _ in others)]
        self._weights = np.array(shares) / sum(shares)
        settle(self, "tolerance", "seed")
        asked = self.constraints or Constraints()
        if not isinstance(asked, Constraints):
            asked = read(Constraints, asked, "constraints")
        self.limits = asked
        self._read_journal()
        self._past = self._read_site()

    def _named(self) -> tuple[Stack, ...]:
        given = self.stack if isinstance(self.stack, list) else [self.stack]
        return tuple(Stack.parse(stack) for stack in given if stack is not None)

    # Candidates and what is believed of them.

    @cached_property
    def _space(self) -> tuple[Uniform, Priced, np.ndarray, list[str]]:
        """The candidates that are kept, what is believed of them, (S, P, N) particles, keys."""
        plans = self._listed() if self.candidates is None else self._given()
        every = priced(self.problem, self._stacks, plans)
        return plans, every, every.particles(self._stacks), keys_of(plans)

    def _given(self) -> Uniform:
        given = self.candidates
        if isinstance(given, (str, os.PathLike)):
            given = read_rows(given).rows
        parts = []
        for item in given:
            plan = of_row(item, self.problem) if isinstance(item, Row) else self._uniform(item)
            if plan is None:
                raise ParenvsError(f"a candidate is a uniform plan or a row, not {shown(item)}")
            parts.append(plan)
        if not parts:
            raise ParenvsError("there is no candidate; give plans or rows, or leave them out")
        return concatenated(parts)

    def _listed(self) -> Uniform:
        """The uniform plans that may fit, those that are fastest by the stacks."""
        problem = self.problem
        plans = uniform_plans(problem, self.limits.on_frameworks)
        device = problem.cluster.device
        held = plans.memory(problem.model, problem.machine)["total"] / device.memory_bytes
        if held.min() > OVERFULL:
            raise InfeasibleError(
                f"{problem.instance} on {problem.cluster}: the smallest of {plans.size} uniform "
                f"plans takes {held.min():.2f} times the memory"
            )
        fits = np.flatnonzero(held <= OVERFULL)
        plans, held = plans.take(fits), held[fits]
        seconds = lengths(problem, self._stacks, plans)
        # Copies take equal seconds by every stack, and equal bytes.
        figures = np.round(np.vstack([seconds, np.log(held)]), 9)
        first = np.sort(np.unique(figures, axis=1, return_index=True)[1])
        behind = self._weights @ (seconds - seconds.min(axis=1, keepdims=True))
        return plans.take(np.sort(first[np.argsort(behind[first], kind="stable")[:KEPT]]))

    def _uniform(self, plan: Any) -> Uniform | None:
        """Return a plan as a uniform one, or None if it is none."""
        if not isinstance(plan, HybridPlan):
            return None
        uniform = replace(uniform_of(plan), **software_of(self.problem).of_arrays)
        alike = self._plan(uniform, 0).stages == plan.stages and not plan.servers
        return uniform if alike else None

    def _plan(self, plans: Uniform, k: int) -> HybridPlan:
        at = replace(self.problem, batch=int(plans.batch[k]))
        return at.uniform_plan(plans, k)

    def key(self, plan: HybridPlan | Uniform) -> str:
        """Return a text that differs where the decisions of plans do; of uniform ones the first."""
        uniform = plan if isinstance(plan, Uniform) else self._uniform(plan)
        if uniform is not None:
            return keys_of(uniform)[0]
        assert isinstance(plan, HybridPlan)
        sends = software_of(self.problem).of_plan
        decisions = {name: x for name, x in plan.decisions().items() if name not in sends}
        return json.dumps([plan.batch, decisions], sort_keys=True)

    def _prior(self, trial: Trial) -> Priced:
        """What is believed of a plan before any trial, whether it is a candidate or not."""
        if trial.key not in self._priors:
            _, every, _, keys = self._space
            if trial.key in keys:
                prior = every.take(np.array([keys.index(trial.key)]))
            else:
                plan = self._uniform(trial.plan) or trial.plan
                prior = priced(self.problem, self._stacks, plan)
            self._priors[trial.key] = prior
        return self._priors[trial.key]

    def _result(self, trial: Trial) -> Result:
        if not trial.seconds:
            return Result(oom=trial.oom, gib=trial.gib)
        seconds = np.mean(trial.seconds) * self.problem.batch / trial.plan.batch
        return Result(float(np.log(seconds)), len(trial.seconds), gib=trial.gib)

    def _belief(self, pending: bool = False) -> Belief:
        """Return the posterior; open trials that are ``pending`` take what is expected of them."""
        told = [x for x in self.trials if x.seconds or x.oom]
        plans = [plan for plan, _ in self._past] + [self._prior(x) for x in told]
        results = [result for _, result in self._past] + [self._result(x) for x in told]
        belief = Belief(self._stacks, self._weights, plans, results)
        waiting = [self._prior(x) for x in self.trials if pending and x.is_open]
        if not waiting:
            return belief
        guesses = [Result(float(belief.predict(plan).center[0])) for plan in waiting]
        return Belief(self._stacks, self._weights, plans + waiting, results + guesses)

    # What is believed of any plan.

    @property
    def sources(self) -> str:
        """How many trials count, and of which files; those of others are refused."""
        told = sum(bool(x.seconds or x.oom) for x in self.trials)
        counts = {self.journal: told, self.site: len(self._past)}
        path = self.site or self.journal
        if path and not any(counts.values()):
            of = f"{self.problem.cluster} in {self.problem.precision}"
            raise ParenvsError(f"{path}: no trial is of {of}; take another file")
        used = (f"{plural(n, 'trial')} of {path}" for path, n in counts.items() if path)
        return " and ".join(used)

    def outlook(self, plan: HybridPlan) -> Outlook:
        """Return what is believed of a plan, whether it was tried or not."""
        key = self.key(plan)
        trial = next((x for x in self.trials if x.key == key), Trial(0, plan, key))
        prediction = self._belief().predict(self._prior(trial))
        fits = 1.0 if trial.seconds else 0.0 if trial.oom else float(prediction.fits[0])
        scale = plan.batch / self.problem.batch
        middle, low, high = (scale * prediction.quantile(q, 0) for q in (0.5, 0.1, 0.9))
        return Outlook(middle, low, high, fits, self.sources)

    def judged(self, report: HybridReport) -> HybridReport:
        """Return a report by what is believed of its plan: seconds, and whether it fits."""
        if report.held is None:
            return report
        outlook = self.outlook(report.plan)
        full = over_memory(report.held, report.memory_limit_bytes) if outlook.fits > 0.5 else ()
        reasons = [x for x in report.reasons if x not in full]
        reasons += [f"memory: {outlook}"] * (not outlook.fits)
        return replace(report, outlook=outlook, reasons=tuple(reasons))

    def chosen(self, problem: Hybrid, goal: Objective) -> HybridPlan:
        """Return the candidate of a problem that is best by seconds over the probability to fit."""
        plans, every, particles, keys = self._space
        prediction = self._belief().predict(every, particles)
        told = {x.key: float(bool(x.seconds)) for x in self.trials if not x.is_open}
        fits = [told.get(key, x) for key, x in zip(keys, prediction.fits, strict=True)]
        values = np.exp(prediction.center) * goal.weight(plans.devices)
        values /= np.maximum(fits, DOUBT)
        return replace(self._plan(plans, int(values.argmin())), instance=problem.instance)

    # Ask and tell.

    def ask(self, count: int | None = None) -> Any:
        """Return the trial to make next, or a list of ``count`` trials of different plans.

        Open trials count as if they took what is expected of them.

        Raises:
            InfeasibleError: every candidate was tried, or none fits.
        """
        with self._held():
            asked = [self._write(self._proposed()) for _ in range(1 if count is None else count)]
        return asked[0] if count is None else asked

    def preview(self) -> Trial:
        """Return the trial that ``ask`` would return, without asking for it."""
        return self._of(self._proposed())

    def _proposed(self) -> dict[str, Any]:
        """Return the next plan and what is believed of it, as a line of the journal."""
        k, gain, prediction, belief = self._next()
        plan = self._plan(self._space[0], k)
        own = plan.batch / self.problem.batch
        middle, *ends = (own * prediction.quantile(q, k) for q in (0.5, 0.1, 0.9))
        weights = zip(belief.stacks.tolist(), self._stacks, strict=True)
        stacks = sorted(weights, key=lambda pair: -pair[0])[:3]
        words = ", ".join(f"{stack.name} {weight:.0%}" for weight, stack in stacks)
        what = "explores" if self._incumbent is None else f"expected to save {gain:.1%}"
        return {
            "asked": len(self.trials), "plan": plan.to_json(), "expected_seconds": middle,
            "interval": ends, "fits": float(prediction.fits[k]),
            "why": f"{what}; stacks {words}",
        }  # fmt: skip

    def _next(self) -> tuple[int, float, Prediction, Belief]:
        """Return the number of the next plan, its expected gain, and what is believed."""
        _, every, particles, keys = self._space
        belief = self._belief(pending=True)
        prediction = belief.predict(every, particles)
        tried = {trial.key for trial in self.trials}
        free = np.array([key not in tried for key in keys])
        if not free.any():
            raise InfeasibleError(f"{self.problem.instance}: every candidate was tried")
        best = self._incumbent
        if best is None:
            likely = prediction.fits > 0.5
            center = prediction.center
            best = float(center[likely].min() if likely.any() else center.min()) + FIRST
        gains = prediction.improvement(best)
        order = np.arange(len(gains))
        if self.seed:
            order = np.random.default_rng(self.seed).permutation(order)
        k = int(order[np.where(free, gains, -1.0)[order].argmax()])
        return k, float(gains[k]), prediction, belief

    @property
    def _incumbent(self) -> float | None:
        """The logarithm of the shortest step time that was told, for the problem's batch."""
        return min((self._result(x).seconds for x in self.trials if x.seconds), default=None)

    def tell(
        self,
        trial: Trial | HybridPlan | int,
        seconds: float | Sequence[float] | None = None,
        oom: bool = False,
        gib: float | None = None,
        failed: str | None = None,
    ) -> None:
        """Record what a trial took: seconds, "out of memory", or that it failed.

        Args:
            trial: what ``ask`` returned, its number, or any plan of the problem; several runs of
                one plan are averaged.
            seconds: of a step, one or several.
            oom: it ran out of memory.
            gib: GiB on the fullest device at the peak, where that is known.
            failed: why it gave neither; it is not asked for again, and teaches nothing.

        Raises:
            ParenvsError: not exactly one of the three is given; or no device is so fast.
        """
        if sum((seconds is not None, oom, failed is not None)) != 1:
            raise ParenvsError("tell takes one of seconds, oom=True and failed='why'")
        if gib is not None and not 0 < gib < math.inf:
            raise ParenvsError(f"gib must be a positive number, not {shown(gib)}")
        taken = _numbers(seconds)
        with self._held():
            number = trial.number if isinstance(trial, Trial) else trial
            event: dict[str, Any] = {"told": number}
            if isinstance(number, HybridPlan):
                event, plan = {"plan": number.to_json()}, number
                model, settings = self.problem.model, ("cluster", "precision")
                values = {name: getattr(self.problem, name) for name in settings}
                for reason in plan.mismatches(model.name, model.fingerprint, values):
                    raise ParenvsError(f"the plan is not of this problem: {reason}")
                known = [x.key for x in self.trials]
                if (key := self.key(plan)) in known:
                    event = {"told": known.index(key)}
            elif number in range(len(self.trials)):
                plan = self.trials[number].plan
            else:
                raise ParenvsError(f"there is no trial {shown(number)}; ask for one")
            least = self.problem.bound_seconds * plan.batch / self.problem.batch
            if taken and min(taken) < least:
                raise ParenvsError(
                    f"{min(taken):g} s a step are impossible: at the devices' peak the matrix "
                    f"products alone take {least:.4g} s; tell seconds of a whole step"
                )
            told = {"seconds": list(taken), "oom": oom, "gib": gib, "failed": failed}
            self._write_site(self._write({**event, **{key: x for key, x in told.items() if x}}))

    @property
    def best(self) -> Trial | None:
        """The trial of the shortest step time that was told, None before the first."""
        ran = [trial for trial in self.trials if trial.seconds]
        return min(ran, key=lambda trial: self._result(trial).seconds, default=None)

    @property
    def stop(self) -> str:
        """Why to stop: no plan is expected to save ``tolerance``; else an empty text."""
        if self._incumbent is None:
            return ""
        try:
            gain = self._next()[1]
        except InfeasibleError as error:
            return str(error)
        if gain >= self.tolerance:
            return ""
        return f"the next trial is expected to save {gain:.1%}, less than {self.tolerance:.0%}"

    def table(self) -> list[dict[str, Any]]:
        """Return the trials in their order, as objects of JSON types."""
        return [trial.to_json() for trial in self.trials]

    def beliefs(self) -> dict[str, Any]:
        """Return what is believed now: weights of stacks, factor of activations, GiB besides."""
        belief = self._belief()
        factor, rest = belief.of_memory
        stacks = dict(zip(self._names, belief.stacks.tolist(), strict=True))
        return {"stacks": stacks, "activations": factor, "gib": rest, "site": len(self._past)}

    # Files.

    def _head(self) -> dict[str, Any]:
        """Return the first line of the journal: all that ``of_journal`` needs, as JSON types."""
        problem, several = self.problem, isinstance(self.stack, list)
        stacks = [stack.to_json() for stack in self._named()]
        usual, asked = vars(Constraints()), vars(self.limits)
        head = {
            "version": VERSION,
            "task": problem.task,
            "instance": problem.instance,
            "fingerprint": problem.model.fingerprint,
            "cluster": problem.cluster.to_json(),
            "batch": problem.batch,
            "precision": problem.precision,
            "stack": stacks if several else stacks[0] if stacks else None,
            "constraints": {name: x for name, x in asked.items() if x != usual[name]},
            "seed": self.seed,
        }
        return dict(json.loads(json.dumps(head)))

    @classmethod
    def of_journal(cls, journal: StrPath, **settings: Any) -> Study:
        """Resume the study of a journal whose candidates are the default ones."""
        lines = _lines(journal)
        if not lines:
            raise ParenvsError(f"{os.fspath(journal)}: no study begins there; name a model")
        where, head = lines[0]
        try:
            options = {name: head[name] for name in ("batch", "precision")}
            problem = problem_of(head["instance"], head["cluster"], "hybrid", **options)
        except LookupError as error:
            raise ParenvsError(f"{where}: {error} is missing") from None
        return cls(problem, journal=journal, **settings)

    @contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the journal's lock, and read what others wrote since."""
        if self.journal is None:
            yield
            return
        with locked(self.journal, beside=True, wait=WAIT):
            self._read_journal()
            yield

    def _read_journal(self) -> None:
        if self.journal is None:
            return
        self.trials = []
        for number, (where, content) in enumerate(_lines(self.journal)):
            if number:
                try:
                    self._apply(content)
                except (LookupError, TypeError, ValueError, ParenvsError) as error:
                    raise ParenvsError(f"{where}: {error}") from None
                continue
            for name, value in self._head().items():
                if name != "instance" and content.get(name) != value:
                    raise ParenvsError(
                        f"{where}: field {name!r} is {shown(content.get(name))}, not "
                        f"{shown(value)}: it is of another study; take another file"
                    )

    def _write(self, event: Mapping[str, Any]) -> Trial:
        if self.journal is not None:
            _append(self.journal, [event] if _lines(self.journal) else [self._head(), event])
        return self._apply(event)

    def _of(self, event: Mapping[str, Any]) -> Trial:
        """Return the trial of a line that has a plan."""
        plan = HybridPlan.from_json(event["plan"])
        about = ("expected_seconds", "interval", "fits", "why")
        known = {name: event[name] for name in about if name in event}
        return Trial(len(self.trials), plan, self.key(plan), **known)

    def _apply(self, event: Mapping[str, Any]) -> Trial:
        """Do what a line of the journal says."""
        if "plan" in event:
            trial = self._of(event)
            self.trials.append(trial)
        else:
            trial = self.trials[event["told"]]
        trial.seconds += _numbers(event.get("seconds"))
        trial.oom = bool(event.get("oom", trial.oom)) and not trial.seconds
        trial.gib = float(event.get("gib", trial.gib))
        trial.failed = str(event.get("failed", "" if trial.seconds else trial.failed))
        return trial

    def _place(self) -> dict[str, list[Any]]:
        """What makes two clusters one: devices, servers and links; and two problems on them."""
        cluster = self.problem.cluster
        device = [cluster.device.name, cluster.device.memory_bytes, cluster.devices_per_server]
        place = [*device, cluster.intra_bw, cluster.device_nic_bw, self.problem.precision]
        return {"place": place, "problem": [self.problem.model.fingerprint, cluster.devices]}

    def _write_site(self, trial: Trial) -> None:
        """Add a trial to the site with what was believed of it, so that it needs no model."""
        if self.site is None or trial.failed:
            return
        prior, result = self._prior(trial), self._result(trial)
        table = np.stack([prior.seconds, prior.states, prior.others], axis=-1)
        table = np.concatenate([table, prior.parts], axis=-1)[:, 0]
        event = {
            "version": VERSION, **self._place(), "key": trial.key,
            "stacks": dict(zip(self._names, table.tolist(), strict=True)),
            "features": prior.features[0].tolist(),
            "result": {name: x for name, x in result._asdict().items() if not math.isnan(x)},
        }  # fmt: skip
        with locked(self.site, beside=True, wait=WAIT):
            _append(self.site, [event])

    def _read_site(self) -> list[tuple[Priced, Result]]:
        """Return the trials of other problems on this cluster; the newest of each plan counts."""
        if self.site is None:
            return []
        found, others = {}, 0
        place, own = self._place().values()
        for where, line in _lines(self.site):
            try:
                is_here = line["place"] == place and line["version"] == VERSION
                if not is_here or not set(self._names) <= set(line["stacks"]):
                    others += 1
                elif line["problem"] != own or self.journal is None:  # else the journal tells
                    table = np.array([line["stacks"][name] for name in self._names], float)
                    columns = [table[:, :1], table[:, None, 3:], table[:, 1:2], table[:, 2:3]]
                    features = np.array([line["features"]], float)
                    prior = Priced._make([*columns, features, float(place[1])])
                    plan = json.dumps([line["problem"], line["key"]])
                    found[plan] = prior, Result(**line["result"])
            except (LookupError, TypeError, ValueError) as error:
                raise ParenvsError(f"{where}: {error!r}") from None
        self.notes.append(
            f"{self.site}: {len(found)} trials not in the journal are used, {others} of another "
            "cluster, stack or version are not"
        )
        return list(found.values())


SETTINGS = tuple(item.name for item in fields(Study) if item.init)[1:]
"""Names of the settings of a study."""


def of_row(row: Row, problem: Hybrid) -> Uniform:
    """Return the plan of a published row on a problem; what it leaves out is 1, or the stack's."""
    tp, pp, cp = (row.get(name, 1) for name in ("tp", "pp", "cp"))
    gpus, each, etp = (
        row.get("gpus", problem.cluster.devices),
        row.get("batch_per_dp"),
        row.get("etp"),
    )
    dp = row.get("dp", max(gpus // (tp * pp * cp), 1))
    names = {"micro_batch": 1, "zero": 0, "recompute": "none", "shard": 0}
    return Uniform(
        tp=tp, pp=pp, dp=dp, context=cp, expert=row.get("ep", 1), chunks=row.get("interleave", 1),
        expert_tp=0 if etp in (None, tp) else etp,
        batch=row.get("batch", problem.batch if each is None else each * dp),
        sequence_parallel=bool(row.get("sequence_parallel", row.get("sp", False))),
        **{name: row.get(name, default) for name, default in names.items()},
        **software_of(problem).of_arrays,
    )  # fmt: skip


def keys_of(plans: Uniform) -> list[str]:
    """Return for each plan what it decides, without how its software sends."""
    sends = ("blocking", "gradient_bytes", "gradient_overlap")
    columns = [x.tolist() for name, x in sorted(vars(plans).items()) if name not in sends]
    return ["/".join(str(x) for x in row) for row in zip(*columns, strict=True)]


def _numbers(seconds: Any) -> tuple[float, ...]:
    taken = seconds if isinstance(seconds, (list, tuple)) else [] if seconds is None else [seconds]
    for x in taken:
        if not isinstance(x, (int, float)) or not 0 < x < math.inf:
            raise ParenvsError(f"seconds must be positive numbers, not {shown(x)}")
    return tuple(map(float, taken))


def _append(path: StrPath, events: Sequence[Mapping[str, Any]]) -> None:
    """Append lines in the place of a last one that was cut, and wait until they are on the disk."""
    text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in events)
    with Path(path).open("ab+") as stream:
        stream.seek(0)
        stream.truncate(stream.read().rfind(b"\n") + 1)
        stream.write(text.encode())
        stream.flush()
        os.fsync(stream.fileno())


def _lines(path: StrPath) -> list[tuple[str, dict[str, Any]]]:
    """Return the lines of a file with their places; a last one that was cut is left out."""
    data = Path(path).read_bytes() if Path(path).exists() else b""
    found = []
    for number, line in enumerate(data[: data.rfind(b"\n") + 1].splitlines(), 1):
        where = f"{os.fspath(path)}, line {number}"
        try:
            content = json.loads(line)
        except ValueError:
            content = None
        if not isinstance(content, dict):
            raise ParenvsError(f"{where}: expected one JSON object")
        found.append((where, content))
    return found
