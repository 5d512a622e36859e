"""Roles, batch and refusals of programs against what was written down of them by hand.

The programs are those of ``tests/helpers``. Needs the extras ``jax`` and ``torch``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._higher_order_ops import while_loop
from torch.nn.attention.flex_attention import flex_attention

from benchmarks.framework import ROOT, Case, Column, Row, columns, main, measurement  # isort: split

from architectures import ARCHITECTURES
from hard_programs import HARD_PROGRAMS
from parenvs import ParenvsError, from_jax, from_torch
from parenvs.graph.graph import Graph, Role
from parenvs.graph.reader import read_module
from parenvs.graph.text import parse
from programs import SAMPLES
from torch_architectures import TORCH_ARCHITECTURES
from torch_programs import PROGRAMS, stated

JAX: dict[str, Callable[[], Any]] = HARD_PROGRAMS | ARCHITECTURES
TORCH: dict[str, Any] = PROGRAMS | TORCH_ARCHITECTURES


class Calling(nn.Module):
    """A linear layer, and a function of what it makes."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.dense, self.function = nn.Linear(4, 4), function

    def forward(self, x: Any, *rest: Any) -> Any:
        """The function's mean."""
        return self.function(self.dense(x), *rest).mean()


def packed(x: Any, lengths: Any) -> Any:
    """A packed sequence."""
    return nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True).data


def repeated(x: Any) -> Any:
    """A loop of a length that nobody knows."""
    return while_loop(lambda k, y: k < 3, lambda k, y: (k + 1, y * 2), (torch.tensor(0), x))[1]


def aligned(x: Any, labels: Any, steps: Any, lengths: Any) -> Any:
    """The loss of Graves, Fernandez, Gomez and Schmidhuber."""
    return nn.functional.ctc_loss(x.log_softmax(-1), labels, steps, lengths)


def attended(x: Any) -> Any:
    """Attention whose scores a function changes."""
    return flex_attention(x, x, x, lambda score, *at: score + at[2] - at[3])


REFUSED: dict[str, tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = {
    "rows that a mask picks": (lambda x: x[x[:, 0] > 0], lambda: (torch.ones(3, 4),)),
    "a branch by a value": (
        lambda x: x if x.sum().item() > 0 else -x,
        lambda: (torch.ones(3, 4),),
    ),
    "a packed sequence": (packed, lambda: (torch.ones(3, 5, 4), torch.tensor([5, 3, 2]))),
    "`while_loop`": (repeated, lambda: (torch.ones(3, 4),)),
    "`ctc_loss`": (
        aligned,
        lambda: (
            torch.ones(5, 3, 4),
            torch.ones(3, 2).long(),
            torch.full((3,), 5),
            torch.full((3,), 2),
        ),
    ),
    "`flex_attention`": (attended, lambda: (torch.ones(2, 2, 16, 4),)),
    "`special.bessel_j0`": (torch.special.bessel_j0, lambda: (torch.ones(3, 4),)),
}
"""What is done -> the function, and what makes its inputs."""


def told(graph: Graph) -> list[str]:
    """The roles of the inputs, in words."""
    return [Role(role).name.lower() for role in graph.parameter_role.tolist()]


def compared(paths: list[str], truth: list[str], found: list[str]) -> dict[str, Any]:
    """How many inputs have the role that was stated, and which have not."""
    odd: dict[str, list[str]] = {}
    for path, wanted, role in zip(paths, truth, found, strict=True):
        if wanted != role:
            odd.setdefault(f"{wanted} read as {role}", []).append(path)
    others = [
        f"{words}: `{own[0]}`" + (f" and {len(own) - 1} more" if own[1:] else "")
        for words, own in odd.items()
    ]
    wrong = sum(map(len, odd.values()))
    return {"inputs": len(paths), "as_stated": len(paths) - wrong, "others": others}


def of_jax(name: str, text: bool) -> Row:
    """A JAX program as a function, or as text without scopes and paths of results."""
    made = JAX[name]()
    if text:
        graph = read_module(parse(made.lowered.as_text("hlo"), name), where=name)
    else:
        graph = from_jax(made.function, *made.args, parts=False)
    found = compared(made.paths, [role.lower() for role in made.roles], told(graph))
    return found | {"batch": graph.batch_size, "samples": SAMPLES, "notes": list(graph.notes)}


def of_torch(name: str) -> Row:
    """A PyTorch module."""
    torch.manual_seed(0)
    make, samples, truth = TORCH[name]
    module, inputs = make()
    graph = from_torch(module, *inputs)
    wanted = [stated(path, truth).name.lower() for path in graph.paths]
    found = compared(graph.paths, wanted, told(graph))
    return found | {"batch": graph.batch_size, "samples": samples, "notes": list(graph.notes)}


def refusal(name: str) -> Row:
    """What is said of a module that is not read."""
    function, inputs = REFUSED[name]
    try:
        from_torch(Calling(function), *inputs())
    except ParenvsError as error:
        return {"refused": str(error).replace(f"{ROOT}/", "")}
    return {"refused": "it is read"}


def quietly(measure: Callable[[], Row]) -> Row:
    """Measure without warnings, which are in the notes."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return measure()


@measurement(title="Roles of inputs against those written by hand", key="kind program")
def roles() -> Iterator[Case]:
    for kind, names, measure in (
        ("JAX", JAX, partial(of_jax, text=False)),
        ("HLO text without scopes", JAX, partial(of_jax, text=True)),
        ("PyTorch", TORCH, of_torch),
        ("refused", REFUSED, refusal),
    ):
        for name in names:
            yield {"kind": kind, "program": name}, partial(quietly, partial(measure, name))


def is_silent(row: Row) -> bool:
    """Whether a role or the batch is not the stated one, and no note says that it is assumed."""
    return bool(row["others"] or row["batch"] != row["samples"]) and not row["notes"]


@roles.page
def page(rows: list[Row]) -> list[str]:
    read = [row for row in rows if row["kind"] != "refused"]
    sums: list[Row] = []
    for kind in dict.fromkeys(row["kind"] for row in read):
        own = [row for row in read if row["kind"] == kind]
        sums.append(
            {
                "kind": kind,
                "programs": len(own),
                "inputs": sum(row["inputs"] for row in own),
                "as_stated": sum(row["as_stated"] for row in own),
                "batch": sum(row["batch"] == row["samples"] for row in own),
                "noted": sum(bool(row["others"]) for row in own),
                "silent": sum(map(is_silent, own)),
            }
        )
    lines: list[Row] = []
    for row in read:
        notes = [n for n in row["notes"] if "roles rest on that" not in n]
        odd = row["others"]
        if odd or notes:
            said = notes or [row["notes"][0].rpartition("; ")[2]]
            lines.append(row | {"odd": "; ".join(odd), "said": "; ".join(said)})
    summary: list[Column] = [
        ("read as", "{kind}"),
        ("programs", "{programs}"),
        ("inputs", "{inputs:,}"),
        ("as stated by hand", "{as_stated:,}"),
        ("batches as stated", "{batch}"),
        ("programs with other roles", "{noted}"),
        ("of these without a note", "{silent}"),
    ]
    assumed: list[Column] = [
        ("read as", "{kind}"),
        ("program", "{program}"),
        ("other than stated", "{odd}"),
        ("said", "{said}"),
    ]
    refused: list[Column] = [("of a module", "{program}"), ("refused with", "{refused}")]
    return [
        "Roles, samples of the batch and refusals of the programs of `tests/helpers` "
        "(`hard_programs.py`, `architectures.py`, `torch_programs.py`, `torch_architectures.py`), "
        "which were written down by hand before they were read. Of text without scopes a note says "
        "that phases follow from the data flow; `roles rest on that` is its end.",
        columns(sums, summary),
        "What was assumed, or is other than stated:",
        columns(lines, assumed, left=4),
        "What is refused:",
        columns([row for row in rows if row["kind"] == "refused"], refused, left=2),
    ]


if __name__ == "__main__":
    main(roles)
