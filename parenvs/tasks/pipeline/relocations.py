"""Relocations: a stage of a plan goes from one place of the pipeline to another.

A relocation (s, t) removes the s-th cut of a plan, so that two stages become one, and parts the
t-th of the stages that are left by half its work and half its devices. What is then wrong with the
stages around it, a few sweeps *mend*. Sweeps alone end in a plan that no
small change improves; relocations lead to others.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from parenvs.compiled import Array, compiled
from parenvs.tasks.pipeline.problem import Tables, first_from, in_front
from parenvs.tasks.pipeline.sweeps import fitting_seconds, spread, sweep, to_groups

Kinds = tuple[tuple[int, int, int], ...]
"""Pivots to either side of a cut, devices to either side, and 1 if places are tilted."""
TILTED, STRAIGHT = (3, 0, 1), (1, 2, 0)
"""Kinds of the sweeps that mend a relocation."""
LABELS, AGAIN = 2, 2
"""Labels of a place that stay in sweeps, and sweeps with the same places at most."""
NEAR = 1
"""Cuts to either side of a change that are mended first."""
HOPE = 1.05
"""Relative: how much longer a plan may then be for all cuts to be mended."""
# Relative: a sweep that shortens a plan by more is repeated.
_LITTLE = 1e-3
# Devices to either side where devices share no sample.
_WHOLE = 4


def modes_of(tables: Tables, distances: Iterable[float], kinds: Kinds) -> Array:
    """Modes of sweeps, (k, 5) int64, see ``sweeps.sweep``: each kind at each distance in turn.

    Distances between places are over that at which the places of two cuts meet. Where devices share
    no sample, places are not tilted, and more devices count.
    """
    widest = np.array([len(tables.work), len(tables.is_group)]) / (2 * tables.stages)
    modes = []
    for distance in distances:
        pivot_step, device_step = np.maximum(distance * widest, 1).astype(np.int64).tolist()
        for pivots, devices, tilt in kinds:
            reach = max(devices, _WHOLE) if tables.whole else devices
            modes.append((pivots, pivot_step, reach, device_step, tilt * (not tables.whole)))
    return np.array(list(dict.fromkeys(modes)))


def mending(tables: Tables) -> tuple[Array, Array]:
    """Return the modes that mend the cuts near a change, and those that then mend all cuts."""
    near = modes_of(tables, (0.5,), (TILTED, STRAIGHT))
    wide, close = modes_of(tables, (0.5,), (TILTED,)), modes_of(tables, (0.0,), (STRAIGHT,))
    return near, np.concatenate([wide, close])


@compiled
def relocate(tables, cuts, devices, s, t):
    """Remove cut s, from 1 on, then part the t-th of the stages that are left, from 0 on."""
    stages = len(cuts) - 1
    for i in range(s, stages):
        cuts[i], devices[i] = cuts[i + 1], devices[i + 1]
    half = (tables.work[cuts[t]] + tables.work[cuts[t + 1]]) / 2
    device = (devices[t] + devices[t + 1]) // 2
    for i in range(stages - 1, t + 1, -1):
        cuts[i], devices[i] = cuts[i - 1], devices[i - 1]
    cuts[t + 1], devices[t + 1] = first_from(tables.work, half), device
    spread(tables, cuts, devices)
    if tables.whole:
        to_groups(tables, cuts, devices)


@compiled
def seconds_ahead(tables, cuts, devices):
    """Core plus tail of the plans behind all relocations, (S-1, S-1), before they are mended.

    Rows are removed cuts; whether plans fit the memory does not count.
    """
    stages = len(cuts) - 1
    seconds = np.empty((stages - 1, stages - 1))
    for s in range(1, stages):
        for t in range(stages - 1):
            moved, moved_devices = cuts.copy(), devices.copy()
            relocate(tables, moved, moved_devices, s, t)
            _, _, core, tail = in_front(tables, moved, moved_devices, stages)
            seconds[s - 1, t] = core + tail
    return seconds


@compiled
def mend(tables, cuts, devices, modes, free, upper):
    """Sweep around a plan, in place, up to ``AGAIN`` times in each mode, a row of ``modes_of``.

    Returns core plus tail of the plan, or ``upper`` if no sweep found a shorter one; arguments are
    those of ``sweeps.sweep``.
    """
    for number in range(len(modes)):
        row = modes[number]
        mode = row[0], row[1], row[2], row[3], row[4]
        for _ in range(AGAIN):
            before, upper = upper, sweep(tables, cuts, devices, mode, free, upper, LABELS)
            if not upper < before * (1 - _LITTLE):
                break
    return upper


@compiled
def relocated(tables, cuts, devices, s, t, near, every, now):
    """Relocate and mend; change the plan, in place, if it gets shorter than ``now``.

    The cuts near the change are mended first, by the modes ``near`` of ``mending``. Only where the
    plan then comes near ``now``, all of them are, by the modes ``every``. Returns core plus tail of
    the plan, or ``now`` if it stays as it is.
    """
    moved, moved_devices = cuts.copy(), devices.copy()
    relocate(tables, moved, moved_devices, s, t)
    free = np.zeros(len(cuts), np.bool_)
    for changed in (s - 1 if t >= s else s, t + 1):
        free[max(changed - NEAR, 0) : changed + NEAR + 1] = True
    upper = fitting_seconds(tables, moved, moved_devices)
    upper = mend(tables, moved, moved_devices, near, free, upper)
    if upper < now * HOPE:
        free[:] = True
        upper = mend(tables, moved, moved_devices, every, free, upper)
    if upper < now:
        now = upper
        for i in range(len(cuts)):  # an assignment of slices would compile the text of its error
            cuts[i], devices[i] = moved[i], moved_devices[i]
    return now
