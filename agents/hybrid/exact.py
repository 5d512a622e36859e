"""Proven optima of hybrid plans: among all uniform plans, and with every stage free."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import numpy as np

from parenvs.agents.hybrid.labels import HybridLabels, stage_of, warm_up
from parenvs.agents.hybrid.tables import FIRST, Setting, StageTables
from parenvs.agents.pipeline.bounds import SLACK
from parenvs.core.plan import Answer
from parenvs.errors import InfeasibleError, ParenvsError, TimeLimitError
from parenvs.tasks.hybrid.explain import Machines, under
from parenvs.tasks.hybrid.plan import SCHEDULES, HybridPlan, HybridStage
from parenvs.tasks.hybrid.problem import Hybrid
from parenvs.tasks.hybrid.space import (
    ANY,
    FREE,
    MOST_CHUNKS,
    TOKENS_EACH,
    Constraints,
    Objective,
    UniformSpace,
    infeasible,
    software_of,
)
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.tune.prior import lengths
from parenvs.view.words import duration

CANDIDATES = 300
"""Uniform plans that are simulated, at most."""
SIMULATING = 3.0
"""Seconds of the processor after which no further uniform plan is simulated: others' work on the
machine changes no plan."""


@dataclass
class Ranking:
    """The plan whose simulated step is best so far.

    Attributes:
        value: what is minimized of its simulated seconds, weighted by devices.
        count: plans that were simulated.
    """

    goal: Objective
    best: Answer | None = None
    value: float = np.inf
    count: int = 0
    seen: dict[str, float] = field(default_factory=dict)

    def offer(self, answer: Answer) -> float:
        """Simulate a plan, keep it if it is the best, and return its simulated seconds.

        The closed form counts for plans of more passes than are simulated.
        """
        key = str(answer.plan)
        if key not in self.seen:
            simulated = answer.problem.report(answer.plan).simulated_seconds
            # Rounding may put the simulation below the closed form, which bounds it from below.
            self.seen[key] = answer.cost if simulated is None else max(simulated, answer.cost)
            self.count += simulated is not None
        seconds = self.seen[key]
        value = seconds * self.goal.weight_of(answer.plan)
        if value < self.value * (1 - SLACK):
            self.best, self.value = answer, value
        return seconds


RANKED, NEAR = 20, 1.25
"""Plans of each stack among which that of the best mean is looked for, and how much longer by the
problem's own stack they may be than its best one."""


def best_mean(
    space: UniformSpace, stacks: tuple[Stack, ...], ranking: Ranking, deadline: float
) -> tuple[Answer, str]:
    """Return the plan of the best mean logarithm over stacks, and what they say of it.

    Simulations add by each stack what they add by the problem's own, whose best ``ranking`` has.
    """
    problem, goal, alone = space.problem, ranking.goal, ranking.best
    assert alone is not None
    values = np.log(space.length * goal.weight(space.plans.devices))
    near = np.flatnonzero(values <= values.min() + np.log(NEAR))
    plans = space.plans.take(near)
    logs = lengths(problem, stacks, plans) + np.log(goal.weight(plans.devices))
    means = logs.mean(axis=0)
    few = np.unique(np.argsort(logs, axis=1, kind="stable")[:, :RANKED])
    own = lengths(problem, stacks, alone.plan).mean() + np.log(goal.weight_of(alone.plan))
    best, least = alone, own + np.log(ranking.offer(alone) / alone.cost)
    most = least
    for k in few[np.lexsort((values[near[few]], means[few]))].tolist():
        # What the simulation adds is not negative: nothing behind can be better.
        if means[k] >= least - SLACK or time.process_time() > deadline:
            break
        answer = uniform_answer(space, int(near[k]), UNIFORM, 0.0)
        value = means[k] + np.log(ranking.offer(answer) / answer.cost)
        if value < least - SLACK:
            best, least = answer, value
    others = [replace(problem, stack=stack) for stack in stacks]
    judged = [(x.report(under(x, best.plan)), x.stack.name) for x in others]
    (low, first), *_, (high, last) = sorted((x.length_seconds, name) for x, name in judged)
    words = f"{len(stacks)} stacks say {duration(low)} ({first}) to {duration(high)} ({last})"
    if full := [name for report, name in judged if not report.legal]:
        words += f", and that it does not fit by {', '.join(full)}"
    if best is not alone:
        words += (
            f"; {problem.stack.name} alone prefers {alone.plan.words}, {duration(alone.cost)}, "
            f"{np.expm1(most - least):.1%} longer in the mean"
        )
    return best, words


UNIFORM = "uniform plans"
"""Words for the plans of ``exact_uniform``."""
FREE_STAGES = "1F1B plans of free stages"
"""Words for the plans of ``exact_hybrid``: cuts, devices, tp, ZeRO and recomputed layers differ."""
FREE_SHARE = 1 / 4
"""Share of a time limit that the search over free stages has at least."""
ELSEWHERE = 0.7
"""Seconds for what free stages would gain where a framework has to run the plan, at most."""
MOST_LAYERS = 200
"""Layers of a model of which that is said: tables of more take longer."""
WORTH = 1e-3
"""Share of a step by which they must be shorter to be named."""
FIRST_PHASE = 2 / 3
"""Share of the time in which plans are searched by the closed form, if others are simulated."""


def proven_of(problem: Hybrid, words: str, limits: Constraints) -> str:
    """Return over which plans, and of which costs, a proof holds, in words."""
    # Context and shard change what a plan is compared with, so a proof names them.
    pins = [f"{name} {getattr(limits, name)}" for name in ("context", "shard")
            if getattr(limits, name) is not None]  # fmt: skip
    shape = problem.model.shape
    if limits.context is None and shape is not None and shape.sequence > TOKENS_EACH:
        pins.append(f"at least {TOKENS_EACH:,} tokens a rank")
    if len(problem.model) > 2 * MOST_CHUNKS and limits.chunks is None:
        pins.append(f"at most {MOST_CHUNKS} chunks")
    words += f" with {' and '.join(pins)}" if pins else ""
    words += "" if problem.model.shape is not None else " without sequence parallelism"
    if limits.needs_framework:
        name = "a framework" if limits.framework == ANY else limits.framework
        words += f" that {name} runs as they are"
    is_changed = isinstance(problem.stack.to_json(), dict)
    stack = problem.stack.name + (" with other constants" if is_changed else "")
    return f"{words}, by the closed form under stack {stack}"


def exact_uniform(
    problem: Hybrid,
    constraints: Constraints | None = None,
    objective: Objective | None = None,
    space: UniformSpace | None = None,
) -> Answer:
    """Return the best uniform plan, with proof.

    ``space`` are the uniform plans, if they were judged before.

    Raises:
        InfeasibleError: none keeps to the constraints, or none fits; says how many bytes the best
            one lacks, and its largest part.
    """
    begin = time.perf_counter()
    space = UniformSpace.build(problem, constraints) if space is None else space
    goal = objective or Objective()
    k = space.best(goal.values(problem, space.length, space.plans.devices))
    if k is None:
        raise infeasible(space)
    among = proven_of(problem, UNIFORM, constraints or Constraints())
    bound = float(space.length[k]) if space.whole else problem.kernel_bound_seconds
    more = {"among": among, "proven": space.whole}
    return uniform_answer(space, k, "uniform", begin, bound=bound, **more)


def uniform_answer(space: UniformSpace, k: int, method: str, begin: float, **more: Any) -> Answer:
    """Return the k-th of all uniform plans as an answer; ``more`` are other fields of it."""
    more |= {"method": method, "evaluations": len(space)}
    return answer_of(space.problem, space.plan(k), float(space.length[k]), begin, **more)


def answer_of(problem: Hybrid, plan: HybridPlan, cost: float, begin: float, **more: Any) -> Answer:
    """Return a plan as an answer of a search that began at ``begin``, by ``perf_counter``."""
    seconds = time.perf_counter() - begin
    return Answer(problem=problem, plan=plan, cost=cost, seconds=seconds, **more)


def exact_hybrid(
    problem: Hybrid,
    constraints: Constraints | None = None,
    objective: Objective | None = None,
    incumbent: Answer | None = None,
    time_limit: float | None = None,
    ranking: Ranking | None = None,
) -> Answer:
    """Return the best plan of free stages, or the incumbent if none is better, with proof.

    ``incumbent`` is a plan that the answer must beat. After ``time_limit`` seconds the best plan
    found is returned without proof. ``ranking`` is offered the best plan of every setting that may
    have one of a shorter simulated step, as far as time allows.

    Raises:
        InfeasibleError: there is no incumbent, and no plan fits.
        TimeLimitError: there is no incumbent, and none was found in time.
    """
    warm_up()
    begin = time.perf_counter()
    deadline = np.inf if time_limit is None else begin + time_limit
    limits, goal = constraints or Constraints(), objective or Objective()
    best, others = incumbent, np.inf
    searches: list[tuple[float, HybridLabels]] = []
    for setting in settings(problem, limits):
        weight = goal.weight(setting.devices)
        if best is not None and time.perf_counter() > deadline:
            # A setting that was not searched has this bound alone.
            others = min(others, problem.kernel_bound_seconds * weight)
            continue
        if limits.pp in (None, 1):
            upper = np.inf if best is None else best.cost * goal.weight_of(best.plan) / weight
            stage = one_stage(problem, setting, limits, upper)
            if stage is not None:
                best = _answer(problem, setting, (stage[0],), stage[1])
        if limits.pp != 1 and setting.devices > 1:
            search = HybridLabels(problem, setting, limits)
            if search.bound < np.inf:
                searches.append((weight, search))
    share = 1.0 if ranking is None else FIRST_PHASE
    end = begin + share * (deadline - begin)
    best, bound = _deepened(problem, goal, best, searches, end, others)
    if ranking is not None and best is not None:
        ranking.offer(best)
        # Every setting that may beat it offers its best plan.
        for weight, search in sorted(searches, key=lambda pair: pair[0] * pair[1].bound):
            if time.perf_counter() > deadline:
                break
            if search.bound * weight < ranking.value:
                search.run(ranking.value / weight, deadline)
                if search.stages is not None:
                    ranking.offer(_answer(problem, search.setting, search.stages, search.upper))
    if best is None and bound < np.inf:
        least = f"{bound:.6g}" + (" device-seconds" if goal.name == "money" else " s")
        raise TimeLimitError(
            f"{problem}: no plan was found in {time_limit:g} s, which proves nothing but that none "
            f"takes less than {least}; allow more seconds"
        )
    if best is None:
        # Uneven stages may fit where even ones do not exist: their shortfall is reported then.
        space = UniformSpace.build(problem, replace(limits, uneven=True))
        if space.fits.any():
            asked = "--pin" if limits.pinned else "limits"
            raise InfeasibleError(
                f"{problem}: no plan within memory is one of the {FREE_STAGES} that keep to {asked}"
            )
        raise infeasible(space, " and none of free stages")
    return replace(
        best,
        among=proven_of(problem, FREE_STAGES, limits),
        method="exact",
        proven=bound >= best.cost * (1 - SLACK),
        bound=bound,
        evaluations=sum(search.evaluations for _, search in searches),
        seconds=time.perf_counter() - begin,
    )


def _deepened(
    problem: Hybrid,
    goal: Objective,
    best: Answer | None,
    searches: list[tuple[float, HybridLabels]],
    deadline: float,
    others: float,
) -> tuple[Answer | None, float]:
    """Search all settings for plans within ever more of their lower bound.

    ``others`` is what plans of no search weigh at least. Returns the best plan and a proven bound
    of its seconds; without a plan, of what is minimized.
    """
    # A search close above its bound is quick; the last one, which finds the best plan, takes about
    # as long as its proof.

    def bound() -> float:
        return min([others, *(weight * search.bound for weight, search in searches)])

    # A tight target prunes most labels; what it rules out raises the bound of the next round.
    least = bound()
    for share in _SHARES:
        finished = True
        incumbent = np.inf if best is None else best.cost * goal.weight_of(best.plan)
        target = min(incumbent, least * (1 + share))
        for weight, search in sorted(searches, key=lambda pair: pair[0] * pair[1].bound):
            finished &= search.run(target / weight, deadline)
            if search.stages is not None:
                best = _answer(problem, search.setting, search.stages, search.upper)
                # Later settings have to beat the new plan.
                target = search.upper * weight
        incumbent = np.inf if best is None else best.cost * goal.weight_of(best.plan)
        if not finished or incumbent <= target or time.perf_counter() > deadline:
            break
    if best is None:
        return None, bound()
    return best, min(incumbent, bound()) / goal.weight_of(best.plan)


_SHARES = (0.01, 0.02, 0.04, 0.08, 0.16, 0.4, 1.0, 4.0, np.inf)
"""Shares of the lower bound within which plans are looked for, one after the other."""


def exact(
    problem: Hybrid,
    constraints: Constraints | None = None,
    objective: Objective | None = None,
    time_limit: float | None = None,
    simulate: bool = True,
    stacks: tuple[Stack, ...] = (),
) -> Answer:
    """Return the best of uniform plans, chunks included, and of 1F1B plans of free stages.

    Where a framework has to run the plan it is uniform, the best in the mean over ``stacks`` if
    there are several, and a note says what free stages would gain in what is left of the time.

    By the closed form it is the shortest plan; with ``simulate`` that of the shortest simulated
    step, as the closed form is a lower bound where stages differ. Proofs are of the closed form.
    ``time_limit`` is for all with ``simulate``, and for the search over free stages without; that
    has ``FREE_SHARE`` of it at least.

    Raises:
        InfeasibleError: no plan fits; says how many bytes the best uniform one lacks.
        ParenvsError: layers are pinned, and a framework has to run the plan.
        TimeLimitError: no uniform plan fits, and none of free stages was found in time.
    """
    warm_up()
    begin = time.perf_counter()
    deadline = np.inf if time_limit is None else begin + time_limit
    limits, ranking = constraints or Constraints(), Ranking(objective or Objective())
    uniform, mean, count, notes = None, None, 0, list[str]()
    if limits.pinned and limits.needs_framework:
        raise ParenvsError(
            f"--pin: plans that {limits.framework} runs have equal stages; leave out --pin or --for"
        )
    if not limits.pinned:
        try:
            # What follows takes about as long again.
            end = begin + (deadline - begin) / 2
            space = UniformSpace.build(problem, replace(limits, uneven=True), end)
            count = len(space)
            uniform = exact_uniform(problem, limits, objective, space)
            if simulate:
                end = np.inf if time_limit is None else begin + (1 - FREE_SHARE) * time_limit
                # The search over free stages must keep its share of the time limit.
                left = max(min(SIMULATING, end - time.perf_counter()), 0.0)
                last = time.process_time() + left
                values = space.length * ranking.goal.weight(space.plans.devices)
                for k in np.argsort(values, kind="stable")[:CANDIDATES].tolist():
                    # The closed form is a lower bound: nothing behind can be shorter.
                    if values[k] >= ranking.value or time.process_time() > last:
                        break
                    if np.isfinite(values[k]):
                        ranking.offer(uniform_answer(space, k, UNIFORM, 0.0))
                if len(stacks) > 1 and limits.needs_framework and space.whole and ranking.best:
                    mean, words = best_mean(space, stacks, ranking, last)
                    notes.append(words)
        except InfeasibleError as error:
            if limits.needs_framework:
                words = "" if f"--for {FREE}" in str(error) else f"; --for {FREE} plans without one"
                raise InfeasibleError(f"{error}{words}") from None
            # else stages that differ may still fit
    spare = deadline - time.perf_counter()
    if simulate and time_limit is not None:  # what uniform plans took counts
        time_limit = max(spare, time_limit * FREE_SHARE)
    free = uniform
    if not limits.needs_framework:
        offered = ranking if simulate else None
        free = exact_hybrid(problem, limits, objective, uniform, time_limit, offered)
    elif simulate and spare > ELSEWHERE and len(problem.model) <= MOST_LAYERS and ranking.best:
        # What free stages would gain over the best plan is said if it is worth it.
        here, goal, simulated = ranking.best, ranking.goal, Ranking(ranking.goal)
        elsewhere = exact_hybrid(problem, replace(limits, framework=None), goal, here, ELSEWHERE)
        shorter, now = simulated.offer(elsewhere), simulated.offer(here)
        if shorter < now * (1 - WORTH):
            notes.append(
                f"stages that differ, which no framework runs, would take {shorter:.4g} s "
                f"({shorter / now - 1:+.1%}): --for free plans them"
            )
    assert free is not None
    best = free
    if ranking.best is None and time.perf_counter() > deadline:
        notes.append("the time was over before a plan was simulated")
    elif simulate:
        ranking.offer(free)
        assert ranking.best is not None
        best = mean or ranking.best
        if ranking.count > 1:
            notes.append(
                f"{ranking.count:,} plans were simulated; the passes of this one take "
                f"{ranking.offer(best):.4g} s"
            )
        # Where stages differ, the closed form leaves out waits that the simulation has.
        if mean is None and best.cost > free.cost * (1 + SLACK):
            notes.append(
                f"the closed form alone prefers a plan of {free.cost:.4g} s, which takes "
                f"{ranking.offer(free):.4g} s when it is simulated"
            )
    # The plan of the best simulated step need not be the shortest by the closed form.
    bound = free.bound if free.bound is None else min(free.bound, best.cost)
    if bound is not None and uniform is not None and not uniform.proven:
        bound = problem.kernel_bound_seconds  # the time was over before all were judged
    words = f"{UNIFORM} and {FREE_STAGES}"
    if limits.needs_framework or limits.pinned:
        words = FREE_STAGES if limits.pinned else UNIFORM
    return replace(
        best,
        among=proven_of(problem, words, limits),
        method="exact",
        proven=bound is not None and bound >= best.cost * (1 - SLACK),
        choice="" if mean is None else f"best mean of {len(stacks)} stacks",
        bound=bound,
        evaluations=free.evaluations + count,
        seconds=time.perf_counter() - begin,
        notes=tuple(notes),
    )


def robust(space: UniformSpace) -> Answer:
    """Return the uniform plan of least worst regret while constants move in their ranges.

    Regret is the share by which a plan takes longer than the best uniform plan of the same
    scenario; see ``parenvs.tasks.hybrid.explain``. An ``InfeasibleError`` says that none fits.
    """
    begin = time.perf_counter()
    machines = Machines(space)
    if not len(machines.numbers):
        raise infeasible(space)
    words = list(machines.problems)
    # (machines, n) excess of each plan over the best one on that machine.
    regrets = machines.lengths / machines.lengths.min(axis=1, keepdims=True) - 1
    worst = regrets.max(axis=0)
    chosen = int(worst.argmin())
    k = int(machines.numbers[chosen])
    note = (
        f"worst regret {worst[chosen]:.2%} over {len(words)} machines "
        f"({words[int(regrets[:, chosen].argmax())]}); {worst[0]:.2%} of the plan that is best "
        f"by the stack, which takes {machines.lengths[0, 0]:.4g} s"
    )
    return uniform_answer(space, k, "robust", begin, notes=(note,))


def one_stage(
    problem: Hybrid, setting: Setting, limits: Constraints, upper: float
) -> tuple[HybridStage, float] | None:
    """Return the best plan of one stage and its seconds, if it beats ``upper`` seconds."""
    tables = StageTables(problem, setting, limits, single=True)
    best: tuple[HybridStage, float] | None = None
    n = len(problem.model)
    # One stage has all layers and devices: a pin of fewer rules it out.
    pinned = set(limits.pinned) - {(0, n, None), (0, n, setting.devices)}
    if pinned or not len(tables.configs.tp):
        return None
    number = int(tables.classes[0, n])
    fits = np.isfinite(tables.costs(FIRST, 1).seconds[:, number])
    for config in np.flatnonzero(fits).tolist():
        stage = stage_of(tables, 0, 1, config, (0, n))
        length = problem.length(plan_of(problem, setting, (stage,)))
        if length < upper * (1 - SLACK):
            upper, best = length, (stage, length)
    return best


def settings(problem: Hybrid, limits: Constraints) -> Iterator[Setting]:
    """Yield everything that the stages of a plan may share."""
    software, batch = software_of(problem), problem.batch
    if limits.schedule not in (None, SCHEDULES[0]) or limits.chunks not in (None, 1):
        return
    if limits.expert_tp:
        return
    sequences = [False, True] if limits.sequence_parallel is None else [limits.sequence_parallel]
    choices = limits.contexts(problem), limits.experts(problem), sequences
    for devices in limits.device_counts(problem):
        # A micro-batch of all replicas divides the batch; each replica has ``most_micro_batch``.
        most = min(batch, devices * limits.most_micro_batch)
        for samples in (x for x in range(1, most + 1) if batch % x == 0):
            for context, expert, sequence in product(*choices):
                yield Setting(
                    batch // samples, samples, devices, sequence, context, expert, software,
                    limits.shard or 0,
                )  # fmt: skip


def plan_of(
    problem: Hybrid, setting: Setting, stages: Sequence[HybridStage], **more: Any
) -> HybridPlan:
    """Return a plan of a setting's stages; ``more`` are other fields of it."""
    first = stages[0]
    return problem.plan(
        stages,
        setting.samples // (first.devices // (first.tp * setting.context)),
        schedule=SCHEDULES[0],
        sequence_parallel=setting.sequence_parallel and any(stage.tp > 1 for stage in stages),
        context=setting.context,
        expert=setting.expert,
        shard=setting.shard,
        **setting.software.of_plan,
        **more,
    )


def _answer(
    problem: Hybrid, setting: Setting, stages: tuple[HybridStage, ...], length: float
) -> Answer:
    return Answer(problem=problem, plan=plan_of(problem, setting, stages), cost=length)
