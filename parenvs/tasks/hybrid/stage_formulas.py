"""What a stage of a plan takes and holds, elementwise: the formulas of seconds and bytes.

``parenvs.tasks.hybrid.formulas`` calls these functions with arrays, the stage axis first, and the
compiled loops of ``parenvs.tasks.hybrid.moves`` with the numbers of one stage. Figures of layers
and numbers of layers stand in tables, a row for each kind; ``rates`` is of
``parenvs.tasks.hybrid.stack.Rates``.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from parenvs.cluster import ring_of, ring_seconds, send_seconds
from parenvs.compiled import Figure, choose, shared, some
from parenvs.tasks.hybrid.stack import exposed

BYTES, RUNNING, PARAMETERS, WEIGHTS = 6, 9, 10, 14
"""Columns of figures of layers: bytes kept, working bytes, parameters, different weights."""


@shared
def total(figures: Any, column: int, counts: Any, which: int, kinds: int) -> Figure:
    """Sum a figure over the layers of all kinds; ``which`` of them is a row of ``counts``."""
    result = counts[which][0] * figures[0][column]
    for kind in range(1, kinds):
        result = result + counts[which][kind] * figures[kind][column]
    return result


@shared
def number(counts: Any, which: int, kinds: int) -> Figure:
    """Return the number of layers of all kinds."""
    result = counts[which][0]
    for kind in range(1, kinds):
        result = result + counts[which][kind]
    return result


@shared
def exposed_seconds(total: Figure, layers: Figure, backward: Figure, overlap: Figure) -> Figure:
    """Seconds of gradients' collectives that a stage's last backward pass does not hide.

    Those of one of the stage's layers are never hidden, and without ``overlap`` all are exposed.
    """
    # The gradients of the first layer are made last, so its share can hide beside nothing.
    hidden = np.maximum(total / np.maximum(layers, 1), total - backward)
    return choose(overlap, hidden, total)


@shared
def pair_seconds(rates: Any, size: Figure) -> Figure:
    """Seconds in which two devices of different servers sum arrays of ``size`` bytes."""
    bandwidth, lap = ring_of(rates, 2, rates.devices_per_server)
    return 2.0 * ring_seconds(size, 2, bandwidth, lap)


@shared
def summing_seconds(
    rates: Any, own: Figure, expert: Figure, replicas: Any, gradient_bytes: Figure
) -> Figure:
    """Seconds of the sums of gradients that one in ``expert`` replicas has, see ``reduction``."""
    zero, ranks, sharing, tp, _ = replicas
    within = choose(zero == 0, ranks, sharing)
    # Ranks with the same experts are as many times farther apart as experts are dealt out.
    every, stride = np.maximum(ranks // expert, 1), tp * expert
    group = np.maximum(within // expert, 1)
    bandwidth, lap = ring_of(rates, group, stride)
    scattered = ring_seconds(gradient_bytes * own, group, bandwidth, lap, rates.bucket)
    gathered = ring_seconds(rates.gathered * own, group, bandwidth, lap, rates.bucket)
    # A ring sums arrays in the time in which it scatters and gathers them.
    seconds = scattered + choose(zero == 0, scattered, gathered)
    # Nothing is exchanged where there is nothing to sum, nor with ZeRO 3 at the end of a step.
    seconds = choose(zero >= 3, 0.0, seconds)
    if some(within != ranks):  # the ranks that hold one part, one in each group
        others = every // group
        bandwidth, lap = ring_of(rates, others, stride * group)
        part = ring_seconds(gradient_bytes * own / group, others, bandwidth, lap, rates.bucket)
        seconds = seconds + 2 * part
    return choose(own == 0, 0.0, seconds)


@shared
def scatter_seconds(
    rates: Any, held: Any, replicas: Any, software: Any, backward: Figure
) -> Figure:
    """Seconds that a micro-batch waits for ZeRO 2's collectives of gradients.

    A rank keeps a share of the gradients, so each micro-batch's are scattered before the next one's
    are made; those of the last are in ``reduction``, so that with one micro-batch a step takes what
    it takes with ZeRO 1.
    """
    zero, _, sharing, tp, apart = replicas
    u, overlap, micro_batches = software
    group, group_of_experts = np.maximum(sharing, 1), np.maximum(sharing // apart, 1)
    bandwidth, lap = ring_of(rates, group, tp)
    dense = ring_seconds(u * held[2], group, bandwidth, lap, rates.bucket)
    bandwidth, lap = ring_of(rates, group_of_experts, tp * apart)
    experts = ring_seconds(u * held[3], group_of_experts, bandwidth, lap, rates.bucket)
    scatters = choose(held[2] == 0, 0.0, dense) + choose(held[3] == 0, 0.0, experts)
    left = exposed(scatters, backward, rates.gather_hidden)
    waits = choose(overlap, left, scatters)
    return choose(zero == 2, waits * (1 - 1 / np.maximum(micro_batches, 1)), 0.0)


@shared
def gather_seconds(
    rates: Any, kinds: int, figures: Any, counts: Any, replicas: Any, ahead: Figure, behind: Figure
) -> tuple[Figure, Figure, Figure]:
    """Seconds of ZeRO 3's collectives of a micro-batch; arguments as of ``stage_seconds``.

    Weights are gathered in both passes, of ``ahead`` and ``behind`` seconds, gradients of trained
    ones scattered in the backward pass; each pass hides its own.

    Returns:
        What a stage waits for, the collectives of one layer, which nothing can hide, and what of
        the backward pass hides some.
    """
    zero, _, sharing, tp, apart = replicas
    forward, backward = 0.0 * ahead, 0.0 * behind
    # The rings of what all replicas hold, and of the same experts. Their ranks are tp apart, as tp
    # ranks lie between them; those with the same experts as many times farther apart as experts are
    # dealt out.
    group, group_of_experts = np.maximum(sharing, 1), np.maximum(sharing // apart, 1)
    bandwidth, lap = ring_of(rates, group, tp)
    # Seconds of a byte of each weight, without the latency of the way around.
    passing = (ring_seconds(1.0, group, bandwidth, lap) - lap) / rates.gather_share
    bandwidth, lap_of_experts = ring_of(rates, group_of_experts, tp * apart)
    of_experts = ring_seconds(1.0, group_of_experts, bandwidth, lap_of_experts) - lap_of_experts
    of_experts = of_experts / rates.gather_share
    for kind in range(kinds):
        count = counts[0][kind]
        for experts in range(2):
            own = figures[kind][PARAMETERS + experts]
            learned = figures[kind][PARAMETERS + 2 + experts]
            if some(own > 0):
                each = choose(experts > 0, of_experts, passing)
                latency = choose(experts > 0, lap_of_experts, lap)
                gather = count * (rates.gathered * own * each + latency)
                scatter = count * (rates.width * learned * each + latency)
                # Nothing is gathered, with no latency either, where there is nothing.
                gather = choose(own > 0, gather, 0.0)
                forward = forward + gather
                backward = backward + gather + choose(learned > 0, scatter, 0.0)
    late = exposed(backward, behind, rates.gather_hidden)
    waits = exposed(forward, ahead, rates.gather_hidden) + late
    start = (forward + backward) / np.maximum(number(counts, 0, kinds), 1)
    on = zero >= 3
    return choose(on, waits, 0.0), choose(on, start, 0.0), choose(on, backward - late, 0.0)


@shared
def again_seconds(rates: Any, kinds: int, figures: Any, counts: Any) -> Figure:
    """Return the seconds in which a stage's backward pass recomputes."""
    result = 0.0
    for kind in range(kinds):
        repeated = figures[kind][0] + figures[kind][2]
        if rates.early_stop:
            # Nothing behind the last product is needed to compute gradients.
            repeated = repeated - figures[kind][5]
        attention = counts[3][kind] * figures[kind][4]
        result = result + counts[2][kind] * repeated + attention
    return result


@shared
def stage_seconds(
    rates: Any, kinds: int, figures: Any, counts: Any, offload: Any, ends: Any, sends: Any,
    held: Any, replicas: Any, software: Any, two_ways: bool,
) -> tuple[Figure, ...]:  # fmt: skip
    """Return what stages take, the fields of ``Step`` up to ``update``, elementwise.

    Args:
        rates: of the machine.
        kinds: number of kinds of layers.
        figures: see ``parenvs.tasks.hybrid.layers.figures_of``, by kind.
        counts: by kind: layers, those of the first chunk, recomputed in full, and selectively.
        offload: whether activations wait in the server's memory, and bytes/s to it.
        ends: forward and backward seconds of embedding and head, and whether the first chunk has
            them.
        sends: seconds of waits, and of the first chunk's.
        held: parameters of all replicas and of experts, and those of both that are trained.
        replicas: ZeRO level, ranks with the same parameters, those of them that share states, tp,
            and replicas among which experts are dealt out.
        software: bytes of a gradient, whether sums run beside backward passes, micro-batches.
        two_ways: whether a stage has the weights of its opposite, too.
    """
    forward_ends, backward_ends, begins = ends
    zero = replicas[0]
    forward, backward = total(figures, 0, counts, 0, kinds), total(figures, 1, counts, 0, kinds)
    forward_exchange = total(figures, 2, counts, 0, kinds)
    backward_exchange = total(figures, 3, counts, 0, kinds)
    first, last = total(figures, 0, counts, 1, kinds), total(figures, 1, counts, 1, kinds)
    chunk = first + last + total(figures, 2, counts, 1, kinds) + total(figures, 3, counts, 1, kinds)
    again = again_seconds(rates, kinds, figures, counts)
    layers = np.maximum(number(counts, 0, kinds), 1)
    # Recomputation and waits of a stage are spread over its layers: a chunk has its share of them.
    part = number(counts, 1, kinds) / layers
    if some(offload[0]):
        # What layers keep leaves beside the forward pass and comes back beside the backward pass,
        # which hide a copy as they hide a collective.
        copy = choose(offload[0], saved_bytes(kinds, figures, counts)[0] / offload[1], 0.0)
        forward_exchange = forward_exchange + exposed(copy, forward, rates.hidden)
        backward_exchange = backward_exchange + exposed(copy, backward + again, rates.hidden)
        chunk = chunk + exposed(copy * part, first, rates.hidden)
        chunk = chunk + exposed(copy * part, last + again * part, rates.hidden)
    forward, backward = forward + forward_ends, backward + backward_ends
    chunk = chunk + again * part + sends[1]
    if rates.accumulate_bytes:
        # Each micro-batch's gradients are added to those of the micro-batches before.
        adding = rates.accumulate_bytes * (held[2] + held[3]) / rates.memory_bw
        backward, chunk = backward + adding, chunk + adding * part
    chunk = chunk + choose(begins, forward_ends + backward_ends, 0.0)
    exchange = forward_exchange + backward_exchange
    busy = forward + backward + again + exchange + sends[0]
    # Collectives run beside the kernels and collectives of a pass, not beside its waits.
    hiding = backward + again + backward_exchange
    gathers, start, filled = 0.0 * busy, 0.0 * busy, 0.0 * busy
    if some(zero >= 3):
        gathers, start, filled = gather_seconds(
            rates, kinds, figures, counts, replicas, busy - hiding, hiding
        )
    if some(zero == 2):
        gathers = gathers + scatter_seconds(rates, held, replicas, software, hiding)
    busy, chunk = busy + gathers, chunk + gathers * part
    sums = summing_seconds(rates, held[2], 1, replicas, software[0])
    if some(held[3] > 0):
        sums = sums + summing_seconds(rates, held[3], replicas[4], replicas, software[0])
    if two_ways:
        own = software[0] * (held[2] + held[3]) / choose(zero == 0, 1, replicas[2])
        sums = sums + pair_seconds(rates, own)
    # ZeRO 3 scatters the gradients of each layer as soon as they are there. What hides its
    # collectives in the last backward pass hides no sums of gradients.
    left = exposed_seconds(sums, layers, hiding - filled, software[1] | (zero >= 3))
    # The optimizer is bound by memory: seconds are bytes over bandwidth.
    dealt = np.maximum(replicas[2] / replicas[4], 1)
    own = choose(zero >= 1, held[2] / replicas[2] + held[3] / dealt, held[2] + held[3])
    update = rates.traffic * own / rates.memory_bw
    return (
        forward, backward, again, exchange, forward_exchange, sends[0], gathers, chunk, busy, sums,
        left, start, hiding, update,
    )  # fmt: skip


@shared
def wait_seconds(
    rates: Any, on: Figure, back: Figure, both: Figure, seconds: Figure, ahead: Figure, hop: Figure,
    hop_ahead: Figure, samples: Figure, chunks: Figure, share: Figure, blocking: Figure,
) -> tuple[Figure, Figure]:  # fmt: skip
    """Return the seconds that a stage waits for sends, and those of its first chunk.

    ``both`` are the seconds of an element over both of its links, without ``duplex``; ``share`` is
    that of the first chunk. See ``_sends``.
    """
    passing = on * seconds + back * ahead
    if not rates.duplex:
        passing = both
    # Both directions start together, so the slower one counts.
    hops = np.maximum(hop, hop_ahead) + rates.send_wait
    waits = choose(blocking, samples * passing + 2 * chunks * hops, 0.0)
    return waits, choose(blocking, samples * share * passing + 2 * hops, 0.0)


@shared
def element_seconds(
    rates: Any, first: Figure, last: Figure, tp: Figure, replicas: Figure, first_behind: Figure,
    last_behind: Figure, tp_behind: Figure, replicas_behind: Figure, sequence_parallel: Figure,
) -> tuple[Figure, Figure]:  # fmt: skip
    """Seconds that a stage's send to the next takes: for each element of a micro-batch, and once.

    ``first`` and ``last`` are servers of its first and its last device.
    """
    # Both stages in one server: no device of either is in another.
    single = np.maximum(last, last_behind) == np.minimum(first, first_behind)
    scattered = sequence_parallel | (rates.scatter_gather > 0)
    # With unequal ranks the side with fewer of them passes the larger shares.
    fewest = np.minimum(
        replicas * choose(scattered, tp, 1), replicas_behind * choose(scattered, tp_behind, 1)
    )
    hop = choose(single, rates.hop_in, rates.hop_out)
    seconds = (send_seconds(rates, rates.width, single, fewest) - hop) / fewest
    gathering = scattered & np.logical_not(sequence_parallel)
    if some(gathering):
        # Each rank gets the share of its tp rank and gathers the rest over tp.
        bandwidth, lap = ring_of(rates, tp_behind, 1)
        # The lap's latency counts once per message, not per element.
        whole = rates.width / replicas_behind
        gather = ring_seconds(whole, tp_behind, bandwidth, lap) - lap
        seconds = seconds + choose(gathering, gather, 0.0)
        hop = hop + choose(gathering, lap, 0.0)
    return seconds, hop


@shared
def saved_bytes(kinds: int, figures: Any, counts: Any) -> tuple[Figure, Figure]:
    """Return the bytes that a stage keeps of a micro-batch, and the most that a layer does."""
    saved, most = 0.0, 0.0
    for kind in range(kinds):
        full, selective = counts[2][kind], counts[3][kind]
        plain = counts[0][kind] - full - selective
        size = figures[kind]
        saved = saved + plain * size[BYTES] + selective * size[BYTES + 1] + full * size[BYTES + 2]
        most = np.maximum(most, choose(plain > 0, size[BYTES], 0.0))
        most = np.maximum(most, choose(selective > 0, size[BYTES + 1], 0.0))
        most = np.maximum(most, choose(full > 0, size[BYTES + 2], 0.0))
    return saved, most


@shared
def working_bytes(kinds: int, figures: Any, counts: Any) -> Figure:
    """Return the bytes that exist only while a stage's layers run."""
    working = 0.0
    for kind in range(kinds):
        # A layer that is recomputed in full holds all its activations while its backward pass runs.
        at_work = choose(counts[2][kind] > 0, figures[kind][BYTES], 0.0)
        working = np.maximum(working, at_work + figures[kind][RUNNING])
    return working


@shared
def in_flight(
    left: Figure, count: Figure, micro_batches: Figure, chunks: Figure, early: bool
) -> Figure:
    """Return the chunks of micro-batches whose activations a stage holds at once.

    One chunk: ``min(S - s, M)``, or ``min(2 (S - s) - 1, M)`` if stages start early. v chunks:
    ``min(2 (S - s - 1) + (v - 1) S + 1, M v)`` (arXiv 2104.04473, section 2.2); on the first stage
    that is Megatron's factor ``1 + (S-1)/(S v)``. ``left`` is S - s.
    """
    # 1F1B: stage s has S - s micro-batches on their way before the first one comes back.
    alone = np.minimum(choose(early, 2 * left - 1, left), micro_batches)
    many = np.minimum(2 * (left - 1) + (chunks - 1) * count + 1, micro_batches * chunks)
    return choose(np.equal(chunks, 1), alone, many)


@shared
def kept_bytes(
    saved: Figure, front: Figure, back: Figure, flight: Figure, chunks: Figure, offload: Figure,
    most: Figure,
) -> Figure:  # fmt: skip
    """Return the bytes of activations of ``flight`` chunks, those of embedding and head too.

    ``most`` is the largest of a layer, which counts with ``offload``.
    """
    kept = saved * flight / chunks
    if some(offload):  # one layer's are at work while another's are on their way
        kept = choose(offload, np.minimum(kept, 2 * most), kept)
    return kept + front * flight / chunks + back


@shared
def state_bytes(
    rates: Any, kinds: int, figures: Any, counts: Any, held: Any, replicas: Any,
    gradient_bytes: Figure,
) -> tuple[Figure, Figure, Figure]:  # fmt: skip
    """Return the bytes of weights, of gradients, and of the optimizer (arXiv 2205.05198).

    A parameter takes the bytes of weight and gradient, and ``Stack.moment_bytes`` of fp32 master
    weight and two moments at half precision, 8 of moments at full. ZeRO 1 shares the last among the
    replicas, or some of them, 2 the gradients, 3 the weights, of which two layers are gathered at a
    time. Weights that are not trained have neither gradient nor moments. Arguments are as of
    ``stage_seconds``.
    """
    width, zero, sharing = rates.width, replicas[0], replicas[2]
    if rates.states:
        plain = width * (held[0] + held[1])
        # Only the total is known of such a stack: gradients stand for all but the weights.
        return plain, (rates.states - 1) * (width * (held[2] + held[3])), 0.0 * plain
    # Of the largest layer: weights, those that are trained, and those of products, a shape once.
    layer, trained, shapes = 0.0, 0.0, 0.0
    for kind in range(kinds):
        own = figures[kind][PARAMETERS] + figures[kind][PARAMETERS + 1]
        layer = np.maximum(layer, choose(counts[0][kind] > 0, own, 0.0))
        own = figures[kind][PARAMETERS + 2] + figures[kind][PARAMETERS + 3]
        trained = np.maximum(trained, choose(counts[0][kind] > 0, own, 0.0))
        own = choose(counts[0][kind] > 0, figures[kind][WEIGHTS], 0.0)
        shapes = np.maximum(shapes, own)
    # Only replicas that hold the same experts can share their states.
    part, dealt = 1 / sharing, 1 / np.maximum(sharing / replicas[4], 1)
    weights = choose(zero >= 3, part, 1.0) * held[0] + choose(zero >= 3, dealt, 1.0) * held[1]
    # One layer runs while the next one is gathered.
    weights = width * weights + choose(zero >= 3, 2 * layer * width, 0.0)
    sums = choose(zero >= 2, part, 1.0) * held[2] + choose(zero >= 2, dealt, 1.0) * held[3]
    # A layer's gradients are whole until they are scattered.
    copies = np.maximum(rates.copied_layers, choose(zero >= 2, 1.0, 0.0))
    copied = choose(sharing > 1, copies * trained, 0.0)
    gradients = np.maximum(gradient_bytes, rates.gradient_least) * (sums + copied)
    if rates.dummy_gradients:
        gradients = gradients + width * shapes
    moments = choose(zero >= 1, part, 1.0) * held[2] + choose(zero >= 1, dealt, 1.0) * held[3]
    return weights, gradients, rates.moments * moments
