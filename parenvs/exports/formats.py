"""What plans are exported to, by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

from parenvs.core.plan import Plan
from parenvs.core.stages import Stages
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.exports.layout import layout_of
from parenvs.exports.stages import loss, stages_of


@dataclass(frozen=True)
class Exported:
    """A plan in the words of a framework.

    Attributes:
        text: of the file.
        notes: what the plan says and the file cannot, and what had to be rounded, in sentences.
        loss: share by which a step is longer as it runs than as it was planned.
    """

    text: str
    notes: tuple[str, ...] = ()
    loss: float = 0.0


def exported(plan: Plan, to: str) -> Exported:
    """Write a plan in the words of a framework.

    Args:
        plan: the plan.
        to: one of ``FORMATS``.

    Raises:
        ParenvsError: an unknown framework, or one that cannot express the plan; the line names the
            field of the plan that stands against it.
    """
    if to not in FORMATS:
        raise ParenvsError(
            f"--to {shown(to)} is unknown{did_you_mean(to, FORMATS)}; known: {', '.join(FORMATS)}"
        )
    return FORMATS[to](plan)


def _jax(plan: Plan) -> Exported:
    """The specs of inputs and outputs, as JSON."""
    from parenvs.exports.jax import document

    content = document(layout_of(plan))
    lines = []
    for key, value in content.items():
        if key in ("inputs", "outputs"):  # a line for each
            rows = ",\n  ".join(map(json.dumps, value))
            lines.append(f' "{key}": [\n  {rows}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value)}')
    return Exported("{\n" + ",\n".join(lines) + "\n}\n", tuple(content["notes"]))


def _torch(plan: Plan) -> Exported:
    """Placements, styles and cuts by name, as JSON."""
    from parenvs.exports.torch import torch_plan

    planned = torch_plan(plan)
    return Exported(json.dumps(planned.to_json(), indent=1) + "\n", planned.notes)


def _megatron(plan: Plan) -> Exported:
    """Flags, as an array of a shell script."""
    from parenvs.exports.launchers import megatron

    lines, planned = megatron.flags(stages_of(plan))
    return _of_stages(megatron.text(planned, lines), planned)


def _torchtitan(plan: Plan) -> Exported:
    """Sections of a configuration, as TOML."""
    from parenvs.exports.launchers import torchtitan

    sections, planned = torchtitan.table(stages_of(plan))
    return _of_stages(torchtitan.text(planned, sections), planned)


def _deepspeed(plan: Plan) -> Exported:
    """The configuration, and arguments of ``PipelineModule``, as JSON."""
    from parenvs.exports.launchers import deepspeed

    content, planned = deepspeed.document(stages_of(plan))
    return _of_stages(deepspeed.text(content), planned)


def _of_stages(text: str, planned: Stages) -> Exported:
    """A text of stages that run so."""
    return Exported(text, planned.notes, loss(planned))


FORMATS: dict[str, Callable[[Plan], Exported]] = {
    "jax": _jax,
    "torch": _torch,
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
}
"""Name -> writer."""
