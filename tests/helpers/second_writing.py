"""The pipeline length and memory of a plan written a second time, in scalars and loops."""

import numpy as np


def stages_of(pipeline, cuts, device_cuts):
    """(pivots, devices) of each compute stage, as ranges."""
    p = [0, *map(int, cuts), len(pipeline.profile)]
    d = [0, *map(int, device_cuts), pipeline.cluster.devices]
    return [(range(*p[s : s + 2]), range(*d[s : s + 2])) for s in range(len(p) - 1)]


def slow_bandwidth(cluster, devices):
    servers = {device // cluster.devices_per_server for device in devices}
    return cluster.intra_bw if len(servers) == 1 else cluster.inter_bw


def slow_sync(pipeline, weight, devices):
    count, bandwidth = len(devices), slow_bandwidth(pipeline.cluster, devices)
    if count == 1:
        return 0.0
    if pipeline.sync == "parameter-server":  # every worker pushes and pulls all over one link
        return 2 * weight * count / bandwidth
    return 2 * weight * (count - 1) / (count * bandwidth)


def slow_times(pipeline, cuts, device_cuts):
    """Lists F, B and AR of all stages; transfers stand between compute stages."""
    profile, stages = pipeline.profile, stages_of(pipeline, cuts, device_cuts)
    forward, backward, reduce = [], [], []
    for s, (pivots, devices) in enumerate(stages):
        if s:
            both = [*stages[s - 1][1], *devices]
            seconds = profile.cut_bytes[pivots[0] - 1] / slow_bandwidth(pipeline.cluster, both)
            forward.append(seconds)
            backward.append(seconds)
            reduce.append(0.0)
        forward.append(sum(profile.forward[i] for i in pivots) / len(devices))
        backward.append(sum(profile.backward[i] for i in pivots) / len(devices))
        weight = sum(profile.parameter_bytes[i] for i in pivots)
        reduce.append(slow_sync(pipeline, weight, devices))
    return forward, backward, reduce


def slow_length(pipeline, cuts, device_cuts):
    f, b, reduce = slow_times(pipeline, cuts, device_cuts)
    m, count = pipeline.micro_batches, len(f)
    core = max(
        sum(f[s] + b[s] for s in range(j + 1)) + (m - 1) * (f[j] + b[j]) for j in range(count)
    )
    tail = max(0, *(reduce[s] - sum(b[a] for a in range(s)) for s in range(count)))
    return core + tail


def slow_memory(pipeline, cuts, device_cuts):
    profile, stages = pipeline.profile, stages_of(pipeline, cuts, device_cuts)
    total = []
    for s, (pivots, devices) in enumerate(stages):
        weights = pipeline.copies * sum(profile.parameter_bytes[i] for i in pivots)
        flight = min(2 * (len(stages) - s) - 1, pipeline.micro_batches)
        if pipeline.recompute == "none":
            activations = flight * sum(profile.resident_bytes[i] for i in pivots)
        else:
            # Nothing crosses a cut after the last pivot, whatever the profile says.
            live = max(profile.cut_bytes[i] if i < len(profile) - 1 else 0 for i in pivots)
            entering = profile.cut_bytes[pivots[0] - 1] if s else 0
            activations = live + flight * entering
        total.append(weights + activations / len(devices))
    return total


def slow_features(pipeline, cuts, device_cuts, pivots, devices):
    """(c, 3) what each next cut (pivot, device) would do, the rest being one last stage.

    Longest all-reduce and longest transfer, seconds; least over greatest compute seconds.
    """
    rows = []
    for pivot, device in zip(pivots, devices, strict=True):
        plan = np.append(cuts, pivot).astype(int), np.append(device_cuts, device).astype(int)
        times = pipeline.stage_times(*plan)
        p = np.array([0, *plan[0], len(pipeline.profile)])
        d = np.array([0, *plan[1], pipeline.cluster.devices])
        compute = np.diff(pipeline.seconds_sum[p]) / np.diff(d)
        transfer = times.forward[1::2].max()
        rows.append([times.all_reduce.max(), transfer, compute.min() / compute.max()])
    return np.array(rows).reshape(-1, 3)
