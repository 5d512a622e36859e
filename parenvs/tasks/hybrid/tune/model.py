"""What trials teach: weights of machines, a Gaussian process over the rest, a grid of memory.

The model of a step time y of plan x on machine p is ``log y = log L_p(x) + g(x) + noise``. One
kernel serves all machines, whose weights are the likelihoods of their residuals. A plan runs if
``states + e^a others + c`` stay below a device's memory; (a, c) lie on one grid a stack.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp, ndtr

from parenvs.cluster import GIB
from parenvs.compiled import Array
from parenvs.tasks.hybrid.stack import Stack
from parenvs.tasks.hybrid.tune.prior import PARTICLES, Priced, joined

LENGTH, NOISE = 2.0, 0.09
"""The length over which plans are alike, and standard deviation of one trial."""
SPREADS = {(0.06, 0.15): 0.9, (0.3, 0.15): 0.06, (0.3, 0.5): 0.02, (1.0, 0.5): 0.02}
"""Standard deviations of a shift of all plans, and of what alike plans share -> probability.

Trials choose the likeliest. Machines that the stacks were measured on are within the first.
Processors and small models are several times slower than all stacks say, and not alike so.
"""
STUDENT, SURPRISE = 4.0, 1.6
"""Degrees of freedom of the noise of a trial that takes this many times the 99 % quantile."""
A_MEAN, A_SD, C_MEAN, C_SD = 0.1, 0.3, 5.0, 5.0
"""Of the logarithm of the factor of activations, and of the GiB that nothing counts."""
BLUR = 0.07
"""Standard deviation of the logarithm of a plan's bytes."""
DOUBT = 0.02
"""Least likelihood of a run, or of one that fails for want of memory, whatever the bytes."""
LEAST_WEIGHT = 1e-5
"""Machines of less weight, over that of the heaviest, are left out of predictions."""
_A = np.linspace(A_MEAN - 3 * A_SD, A_MEAN + 3 * A_SD, 13)
_C = np.linspace(C_MEAN - 2 * C_SD, C_MEAN + 3 * C_SD, 11)


class Result(NamedTuple):
    """What was told of one plan.

    Attributes:
        seconds: logarithm of the step time for the problem's batch; NaN of what did not run.
        repeats: runs that the step time is the mean of.
        oom: whether it ran out of memory.
        gib: GiB on the fullest device at the peak; NaN if that is not known.
    """

    seconds: float = np.nan
    repeats: int = 1
    oom: bool = False
    gib: float = np.nan


class Prediction(NamedTuple):
    """What is believed of N plans, by M machines of some weight.

    Attributes:
        weights: (M,) of the machines, in all 1.
        mean: (M, N) logarithms of the step time.
        deviation: (N,) standard deviation of one run around them.
        fits: (N,) probability that a plan runs.
    """

    weights: Array
    mean: Array
    deviation: Array
    fits: Array

    @property
    def center(self) -> Array:
        """(N,) mean of the logarithms."""
        return np.asarray(self.weights @ self.mean)

    def quantile(self, share: float, k: int) -> float:
        """Return the seconds below which plan k's step time lies with a probability."""
        low, high = self.mean[:, k].min() - 5, self.mean[:, k].max() + 5
        for _ in range(60):
            middle = (low + high) / 2
            below = self.weights @ ndtr((middle - self.mean[:, k]) / self.deviation[k])
            low, high = (middle, high) if below < share else (low, middle)
        return float(np.exp(low))

    def improvement(self, best: float) -> Array:
        """(N,) share of the best step time that a run of each plan is expected to save."""
        z = (best - self.mean) / self.deviation
        density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi)
        gain = self.deviation * (z * ndtr(z) + density)
        return np.asarray(self.weights @ gain * self.fits)


class Belief:
    """The posterior after some trials.

    Args:
        stacks: the stacks.
        weights: (S,) prior weights of the stacks.
        plans: of each trial the plan; one plan an object.
        results: what was told.

    Attributes:
        stacks: (S,) weights of the stacks.
        memory: (S, G) weights of the grid of (a, c).
        spread: of ``SPREADS``, the likeliest.
        noise: (n,) variances of the trials that took seconds.
    """

    def __init__(
        self,
        stacks: tuple[Stack, ...],
        weights: Array,
        plans: list[Priced],
        results: list[Result],
    ) -> None:
        self._names = stacks
        grid = np.exp(-0.5 * ((_A - A_MEAN) / A_SD) ** 2)[:, None]
        grid = (grid * np.exp(-0.5 * ((_C - C_MEAN) / C_SD) ** 2)).ravel()
        evidence = np.tile(np.log(grid / grid.sum()), (len(weights), 1))
        for plan, trial in zip(plans, results, strict=True):
            evidence += _memory_evidence(plan, trial)
        total = logsumexp(evidence, axis=1, keepdims=True)
        self.memory = np.exp(evidence - total)
        prior = np.log(weights) + total[:, 0] - np.log(PARTICLES)
        self._log_weights = np.repeat(prior, PARTICLES)  # (S P,)
        ran = [(x, t) for x, t in zip(plans, results, strict=True) if np.isfinite(t.seconds)]
        count = len(ran)
        self.spread, self._repeats = min(SPREADS), np.array([trial.repeats for _, trial in ran])
        self.noise = NOISE**2 / self._repeats
        if ran:
            priced = joined([plan for plan, _ in ran])
            self._features = priced.features
            seconds = np.array([trial.seconds for _, trial in ran])
            self._rest = seconds - priced.particles(stacks).reshape(-1, count)  # (S P, n)
            likelihoods = {x: self._settle(x) + np.log(SPREADS[x]) for x in SPREADS}
            self._settle(max(likelihoods, key=lambda x: likelihoods[x]))
        machines = self._posterior(count)
        self.weights = machines / machines.sum()
        self.stacks = self.weights.reshape(len(weights), -1).sum(axis=1)
        self._heavy = np.flatnonzero(self.weights > LEAST_WEIGHT * self.weights.max())

    def _settle(self, spread: tuple[float, float]) -> float:
        """Take standard deviations, and return the logarithm of the likelihood of all trials.

        Trials that took far longer than those before them allow get a wider noise.
        """
        self.spread, self.noise = spread, NOISE**2 / self._repeats
        for k in range(1, len(self.noise)):
            weights = self._posterior(k)
            weights /= weights.sum()
            mean, variance = self._at(self._features[k : k + 1], k)
            rest = self._rest[:, k] - mean[:, 0]
            deviation = np.sqrt(
                variance[0] + self.noise[k] + weights @ (rest - weights @ rest) ** 2
            )
            surprise = (weights @ rest) / deviation
            if weights @ rest > 2.33 * deviation + np.log(SURPRISE):
                self.noise[k] *= (STUDENT + surprise**2) / (STUDENT + 1) * surprise**2
        return float(logsumexp(self._evidence(len(self.noise))))

    def _posterior(self, count: int) -> Array:
        """(S P,) weights of the machines by the first ``count`` trials that took seconds."""
        evidence = self._evidence(count)
        return np.exp(evidence - evidence.max())

    def _evidence(self, count: int) -> Array:
        """(S P,) logarithms of those weights times the likelihood of the trials."""
        if not count:
            return self._log_weights
        root = self._root(count)
        scaled = np.linalg.solve(root, self._rest[:, :count].T)
        determinant = np.log(np.diag(root)).sum()
        return np.asarray(self._log_weights - 0.5 * (scaled**2).sum(axis=0) - determinant)

    def _root(self, count: int) -> Array:
        kernel = self._kernel(self._features[:count], self._features[:count])
        return np.linalg.cholesky(kernel + np.diag(self.noise[:count]))

    def _at(self, features: Array, count: int) -> tuple[Array, Array]:
        """(S P, N) mean and (N,) variance of the Gaussian process at plans."""
        across = self._kernel(features, self._features[:count])
        root = self._root(count)
        half = np.linalg.solve(root, across.T)
        mean = self._rest[:, :count] @ np.linalg.solve(root.T, half)
        return mean, self._variance - (half**2).sum(axis=0)

    @property
    def _variance(self) -> float:
        return sum(deviation**2 for deviation in self.spread)

    def _kernel(self, a: Array, b: Array) -> Array:
        squares = ((a[:, None] - b[None]) ** 2).sum(axis=-1)
        offset, smooth = self.spread
        return np.asarray(offset**2 + smooth**2 * np.exp(-squares / (2 * LENGTH**2)))

    def predict(self, plans: Priced, particles: Array | None = None) -> Prediction:
        """Return what is believed of plans.

        Args:
            plans: N plans.
            particles: ``plans.particles(stacks)``, where it is at hand.
        """
        every = plans.particles(self._names) if particles is None else particles
        mean = every.reshape(-1, every.shape[-1])[self._heavy]
        variance = np.full(mean.shape[1], self._variance)
        if len(self.noise):
            rest, variance = self._at(plans.features, len(self.noise))
            mean = mean + rest[self._heavy]
        weights = self.weights[self._heavy]
        running = _running(plans)  # (S, G, N)
        by_stack = np.einsum("sg,sgn->sn", self.memory, running, optimize=True)
        deviation = np.sqrt(np.maximum(variance, 0.0) + NOISE**2)
        return Prediction(weights / weights.sum(), mean, deviation, self.stacks @ by_stack)

    @property
    def of_memory(self) -> tuple[float, float]:
        """Mean factor of activations, and mean GiB that nothing counts."""
        grid = (self.stacks @ self.memory).reshape(len(_A), len(_C))
        return float(np.exp(grid.sum(axis=1) @ _A)), float(grid.sum(axis=0) @ _C)


def _bytes(plans: Priced) -> Array:
    """(S, G, N) logarithms of the bytes on a device at each point of the grid."""
    a, c = (axis.ravel()[:, None] for axis in np.meshgrid(_A, _C, indexing="ij"))
    held = plans.states[:, None] + np.exp(a) * plans.others[:, None] + c * GIB
    return np.asarray(np.log(np.maximum(held, GIB)))


def _running(plans: Priced) -> Array:
    return np.asarray(ndtr((np.log(plans.limit) - _bytes(plans)) / BLUR))


def _memory_evidence(plan: Priced, trial: Result) -> Array:
    """(S, G) logarithms of the likelihood of what was told of the memory of a plan."""
    if np.isfinite(trial.gib):
        rest = np.log(trial.gib * GIB) - _bytes(plan)[..., 0]
        return np.asarray(-0.5 * (rest / BLUR) ** 2)
    if not trial.oom and not np.isfinite(trial.seconds):
        return np.zeros(1)
    runs = _running(plan)[..., 0]
    # No trial is proof: a plan may fail for other reasons, and devices differ.
    return np.log(np.maximum(1 - runs if trial.oom else runs, DOUBT))
