"""Plan your own PyTorch model, and run the plan.

A module and example inputs become a graph; the plan becomes placements of its parameters; two
local processes train by them. The losses are those of one device. It needs the extra `torch`.
"""

import multiprocessing
import socket

import torch
from torch import nn

import parenvs
from parenvs.exports.parallel import Parallel
from parenvs.exports.torch import torch_plan

PROCESSES, WIDTH, BATCH, STEPS = 2, 32, 8, 5

# %% The model
# An ordinary module with an ordinary loss. Nothing in it knows of devices.


def make():
    """The module, with the same weights in every process."""
    torch.manual_seed(0)
    up, down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
    return nn.Sequential(up, nn.GELU(), down, nn.LayerNorm(WIDTH))


def loss(output, targets):
    """Mean square of the differences."""
    return nn.functional.mse_loss(output, targets)


def data():
    """Inputs and targets."""
    numbers = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, WIDTH, generator=numbers), torch.zeros(BATCH, WIDTH)


# %% The plan
# `parenvs.from_torch` reads the module through `torch.export`; the training step is made by
# differentiating it. The plan splits operators over two devices. `uneven="forbid"` leaves out what
# two does not divide.


def planned():
    """The exact plan, in PyTorch's words."""
    inputs, targets = data()
    graph = parenvs.from_torch(make(), inputs, loss=loss, targets=(targets,))
    problem = parenvs.problem(
        graph, f"1x{PROCESSES}:v100", task="partition", uneven="forbid", rules="automap"
    )
    return torch_plan(parenvs.plan(problem).plan, graph)


# %% One device, and several
# `Parallel` makes every parameter a distributed tensor as the plan says, and trains with the same
# loss and the same optimizer.


def losses(plan=None):
    """The loss of every step, on one device or under a plan."""
    model, (inputs, targets) = make(), data()
    parallel = None if plan is None else Parallel(model, loss, plan, inputs)
    parameters = model.parameters() if parallel is None else parallel.parameters()
    optimizer = torch.optim.Adam(parameters, 1e-2)
    curve = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        if parallel is None:
            value = loss(model(inputs), targets)
            value.backward()
            curve.append(value.item())
        else:
            curve.append(parallel.step(inputs, targets))
        optimizer.step()
    return curve


def work(rank, port, plan):
    """What each process does."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", world_size=PROCESSES, rank=rank
    )
    single, split = losses(), losses(plan)
    worst = max(abs(a / b - 1) for a, b in zip(split, single, strict=True))
    if rank == 0:
        print(f"one device: {single[0]:.4f} -> {single[-1]:.4f}")
        print(f"two:        {split[0]:.4f} -> {split[-1]:.4f}")
        print("equal" if worst < 1e-4 else f"they differ by {worst:.1e}", flush=True)
    torch.distributed.destroy_process_group()
    assert worst < 1e-4


# %% Run it
# The processes meet at a free port of this machine. On several machines `torchrun` starts them, and
# the rest stays.


def main():
    """Plan once, and train in two processes."""
    plan = planned()
    for name, dimensions in sorted(plan.placements.items()):
        print(f"{name}: dimension {dimensions[1]} is split")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=work, args=(r, port, plan)) for r in range(PROCESSES)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    assert all(process.exitcode == 0 for process in started)


if __name__ == "__main__":
    main()
