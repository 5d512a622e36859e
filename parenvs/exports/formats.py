"""What plans are exported to, by name."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import isfinite

from parenvs.core.plan import Plan
from parenvs.core.stages import Stages
from parenvs.errors import ParenvsError, did_you_mean, shown
from parenvs.exports.launchers.deepspeed import deepspeed_config, deepspeed_text, read_deepspeed
from parenvs.exports.launchers.megatron import megatron_flags, megatron_text, read_megatron
from parenvs.exports.launchers.torchtitan import torchtitan_table, torchtitan_text, read_torchtitan
from parenvs.exports.layout import layout_of
from parenvs.exports.stages import loss, stages_of
from parenvs.graph.graph import Graph

ROUNDED = 5e-4
"""Share by which a step may be longer without a word."""


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


def exported(plan: Plan, to: str, graph: Graph | None = None) -> Exported:
    """Write a plan in the words of a framework.

    Args:
        plan: the plan.
        to: one of ``FORMATS``.
        graph: that it was made for (default: the plan's instance).

    Raises:
        ParenvsError: an unknown framework, or one that cannot express the plan; the line names the
            field of the plan that stands against it.
    """
    if to not in FORMATS:
        raise ParenvsError(
            f"--to {shown(to)} is unknown{did_you_mean(to, FORMATS)}; known: {', '.join(FORMATS)}"
        )
    return FORMATS[to](plan, graph)


def runs_in(plan: Plan, graph: Graph | None = None) -> dict[str, float | str]:
    """Return, of each framework, the share by which a step is longer as it runs the plan.

    Args:
        plan: a legal plan of any task.
        graph: that it was made for (default: the plan's instance).

    Returns:
        Framework -> that share, or why it does not run the plan: a sentence that begins with the
        field that stands against it.
    """
    found: dict[str, float | str] = {}
    for name in FORMATS:
        try:
            loss = exported(plan, name, graph).loss
        except ParenvsError as error:
            found[name] = str(error)
        else:
            found[name] = loss if isfinite(loss) else "memory: as it runs there it does not fit"
    return found


def runs_words(found: Mapping[str, float | str]) -> str:
    """Return what ``runs_in`` returns as a line."""
    runs = [
        name + (f" ({loss:+.1%})" if loss >= ROUNDED else "")
        for name, loss in found.items()
        if not isinstance(loss, str)
    ]
    reasons: dict[str, list[str]] = {}
    for name, why in found.items():
        if isinstance(why, str):
            field = why.partition(":")[0]
            reasons.setdefault("instance" if " " in field else field, []).append(name)
    others = [f"{', '.join(names)} ({field})" for field, names in reasons.items()]
    told = [f"runs in: {', '.join(runs) or 'no framework as it is'}"]
    return "; not in ".join(told + ([", ".join(others)] if others else []))


def read_back(text: str, layers: int) -> Stages:
    """Return the stages that the settings of a launcher say.

    Args:
        text: flags of Megatron, TOML of torchtitan or JSON of DeepSpeed, told apart by their form.
        layers: of the model, where they do not say it.

    Raises:
        ParenvsError: a setting is missing or is no number; the line names it.
    """
    launcher = read_megatron
    if text.lstrip().startswith("{"):
        launcher = read_deepspeed
    elif "[parallelism]" in text:
        launcher = read_torchtitan
    return launcher(text, layers)


def _jax(plan: Plan, graph: Graph | None) -> Exported:
    """The specs of inputs and outputs, as JSON."""
    from parenvs.exports.jax import document

    content = document(layout_of(plan, graph))
    lines = []
    for key, value in content.items():
        if key in ("inputs", "outputs"):  # a line for each
            rows = ",\n  ".join(map(json.dumps, value))
            lines.append(f' "{key}": [\n  {rows}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value)}')
    return Exported("{\n" + ",\n".join(lines) + "\n}\n", tuple(content["notes"]))


def _torch(plan: Plan, graph: Graph | None) -> Exported:
    """Placements, styles and cuts by name, as JSON."""
    from parenvs.exports.torch import export

    words, _, planned = export(plan, graph)
    text = json.dumps(words.to_json(), indent=1) + "\n"
    return Exported(text, words.notes, 0.0 if planned is None else loss(planned))


def _megatron(plan: Plan, graph: Graph | None) -> Exported:
    """Flags, as an array of a shell script."""
    lines, planned = megatron_flags(stages_of(plan, graph))
    return _of_stages(megatron_text(planned, lines), planned)


def _torchtitan(plan: Plan, graph: Graph | None) -> Exported:
    """Sections of a configuration, as TOML."""
    sections, planned = torchtitan_table(stages_of(plan, graph))
    return _of_stages(torchtitan_text(planned, sections), planned)


def _deepspeed(plan: Plan, graph: Graph | None) -> Exported:
    """The configuration, and arguments of ``PipelineModule``, as JSON."""
    content, planned = deepspeed_config(stages_of(plan, graph))
    return _of_stages(deepspeed_text(content), planned)


def _of_stages(text: str, planned: Stages) -> Exported:
    """A text of stages that run so."""
    return Exported(text, planned.notes, loss(planned))


FORMATS: dict[str, Callable[[Plan, Graph | None], Exported]] = {
    "jax": _jax,
    "torch": _torch,
    "megatron": _megatron,
    "torchtitan": _torchtitan,
    "deepspeed": _deepspeed,
}
"""Name -> writer."""
