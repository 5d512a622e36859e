"""The example's transformer with dropout, on shuffled samples, under one plan after another.

``examples`` has to be on the path, also of the processes that are started.
"""

import json
from pathlib import Path

import torch
import torch_transformer as example

from parenvs.exports.parallel import Parallel
from parenvs.exports.state import load, save
from parenvs.exports.stream import Stream, dropout
from parenvs.files import write_text

SAMPLES, STEPS = 27, 2
"""Samples of an epoch, which ends inside of a batch, and steps under each plan."""


class Dropped(example.Transformer):
    """The same parameters; samples' keys are an input."""

    def forward(self, words, keys):
        x = self.embedding(words)
        for number, layer in enumerate(self.layers):
            x = layer(dropout(x, 0.1, keys, number))
        return self.head(self.norm(x))


def data(stream):
    """Words, keys and targets of the next step."""
    words = torch.randint(
        0, example.WORDS, (SAMPLES, example.TOKENS), generator=torch.Generator().manual_seed(2)
    )[torch.from_numpy(stream.ids())]
    return words, torch.from_numpy(stream.keys()), (3 * words + 1) % example.WORDS


def alone(steps):
    """Losses of one process."""
    torch.manual_seed(0)
    model, stream = Dropped(), Stream(SAMPLES, example.BATCH, seed=5)
    optimizer = torch.optim.Adam(model.parameters(), example.RATE)
    curve = []
    for _ in range(steps):
        words, keys, targets = data(stream)
        optimizer.zero_grad()
        value = example.loss(model(words, keys), targets)
        value.backward()
        optimizer.step()
        stream.advance()
        curve.append(value.item())
    return curve


def train(rank, processes, port, job):
    """Train under every plan of a job, through a checkpoint; rank 0 writes losses and ids."""
    example.join(rank, processes, port)
    folder, curve, ids = Path(job["folder"]), [], []
    for number, (plan, exported) in enumerate(job["plans"]):
        torch.manual_seed(number)
        stream = Stream(SAMPLES, example.BATCH, seed=5 + number)
        inputs = data(stream)[:2]
        parallel = Parallel(Dropped(), example.loss, exported, *inputs)
        optimizer = torch.optim.Adam(parallel.parameters(), example.RATE)
        if number:
            load(folder / "state", parallel, optimizer, plan, stream)
        for _ in range(STEPS):
            ids += stream.ids().tolist()
            optimizer.zero_grad()
            curve.append(parallel.step(*data(stream)))
            optimizer.step()
            stream.advance()
        save(folder / "state", parallel, optimizer, plan, (number + 1) * STEPS, stream)
    if rank == 0:
        write_text(folder / "told.json", json.dumps({"losses": curve, "ids": ids}))
    torch.distributed.destroy_process_group()
