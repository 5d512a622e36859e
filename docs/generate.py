"""Writes the pages that the code itself describes into docs/generated, which git ignores.

A page an environment, from its docstring, its registration and its measured agents; a page a
tutorial, from its script and what that prints; a page a group of commands, from Typer; the public
names, for autodoc; and copies of the pages that lie outside of ``docs``.

    python docs/generate.py
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
OUT = DOCS / "generated"
sys.path[:0] = [str(ROOT)]

OUTSIDE = {
    "CHANGELOG.md": "docs/generated/changelog.md",
    "CONTRIBUTING.md": "docs/generated/contributing.md",
    "leaderboard/README.md": "docs/generated/leaderboard/rules.md",
    "README.md": "docs/index.md",
    "docs": "docs/index.md",
}
"""Files outside of ``docs`` -> the pages that show them."""
TITLES = {
    "leaderboard/README.md": "Leaderboard: the rules",
}
"""Titles of pages whose files have that of another page, or too long a one."""
TOPICS = {
    "Read a model": (
        "from_jax", "from_torch", "from_hlo", "load_graph", "load_profile", "in_parts", "Graph",
        "StageProfile", "TransformerShape",
    ),
    "Pose a problem": ("problem", "Pipeline", "Partitioning", "Hybrid", "Cluster", "Device"),
    "Plan": (
        "plan", "compare", "explain", "export", "tune", "PipelinePlan", "PartitionPlan",
        "HybridPlan", "HybridStage", "load_plan",
    ),
    "Judge": ("judge", "verify", "Report", "PartitionReport", "HybridReport", "show"),
    "Evaluate agents": ("evaluate", "evaluate_set", "load", "register_agent"),
    "Errors": ("ParenvsError",),
}  # fmt: skip
"""Topic -> public names, in the order in which they are used."""
MOST_VALUES = 16
"""Values of an option that its row lists."""
KINDS = {"int": "a whole number", "float": "a number", "path": "a path", "list": "texts"}
"""Part of a type's name -> what an option of that type takes; others take a text."""
CELL = re.compile(r"^# %% ", re.M)
"""Where a part of a tutorial begins."""
MARK = "\x1e"
"""What stands between the outputs of two parts."""
EXTRAS = ("jax", "torch", "sb3_contrib")
"""Modules without which a tutorial is shown without what it prints."""


def write_all() -> None:
    """Write every generated page; what no longer belongs there is removed."""
    pages = dict(_pages())
    for path in [*OUT.rglob("*.md")]:
        if path not in pages:
            path.unlink()
    for path, text in pages.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def _pages() -> Iterator[tuple[Path, str]]:
    for name in environments():
        yield OUT / "environments" / f"{name}.md", environment_page(name)
    for path in sorted((DOCS / "tutorials").glob("*.py")):
        yield OUT / "tutorials" / f"{path.stem}.md", tutorial_page(path, printed(path))
    for name, text in command_pages():
        yield OUT / "commands" / f"{name}.md", text
    yield OUT / "api.md", names_page()
    yield OUT / "stacks.md", stacks_page()
    yield OUT / "rows.md", rows_page()
    for source, page in OUTSIDE.items():
        if page.startswith("docs/generated/"):
            text = linked((ROOT / source).read_text(encoding="utf-8"), page, source)
            if source in TITLES:
                text = f"# {TITLES[source]}\n{text.partition(chr(10))[2]}"
            yield ROOT / page, text


# Environments


def environments() -> list[str]:
    """Ids of the registered environments, without the namespace."""
    import gymnasium as gym

    import parenvs  # noqa: F401

    ours = [spec.id for spec in gym.registry.values() if "parenvs" in str(spec.entry_point)]
    return sorted(name for name in ours if "/" not in name)


def environment_page(name: str) -> str:
    """The page of an environment: picture, registration, agents, docstring, arguments."""
    import gymnasium as gym

    env = gym.make(name).unwrapped
    spec = gym.registry[name]
    heading, _, rest = (inspect.getdoc(type(env)) or "").partition("\n")
    facts = {
        "Action space": _code(env.action_space),
        "Observation space": _space(env.observation_space),
        "Single": _code(spec.entry_point),
        "Many at once": _code(spec.vector_entry_point),
        "Render modes": ", ".join(map(_code, env.metadata["render_modes"])),
        "Options of `reset`": ", ".join(map(_code, getattr(env, "OPTIONS", ()))) or "none",
    }
    picture = DOCS / "pictures" / f"{name}.webp"
    lines = [f"# {name}", "", heading, ""]
    if picture.exists():
        words = f"An episode of {name}, one figure a step"
        lines += [f"![{words}]({os.path.relpath(picture, OUT / 'environments')})", ""]
    lines += ["```python", "import gymnasium as gym", ""]
    lines += [f'env = gym.make("parenvs:{name}")', "observation, info = env.reset(seed=0)"]
    lines += ['action = env.action_space.sample(info["action_mask"])', "env.step(action)", "```"]
    lines += ["", "| property | with the default arguments |", "|:--|:--|"]
    lines += [f"| {key} | {value} |" for key, value in facts.items()]
    lines += ["", *_agents(name), rest.strip(), ""]
    lines += ["## Signature", "", "```python", _signature(type(env)), "```"]
    return "\n".join(lines) + "\n"


def _agents(name: str) -> list[str]:
    """What chance, rules, agents and planners reach in an environment, and learning curves."""
    page = DOCS / "results" / "agents.md"
    text = page.read_text(encoding="utf-8").partition("\n## What learning adds")[0]
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    base = name.rpartition("-v")[0]
    lines: list[str] = []
    for env_id, where, *cells in (row for row in rows if row[0].startswith(f"`{base}-v")):
        words = f"Mean share of the best known cost on {where}, by {env_id}."
        lines += ["## Agents", "", words, ""]
        lines += ["| who plays | share |", "|:--|:--|"]
        for who, cell in zip(rows[0][2:], cells, strict=True):
            lines.append(f"| {who} | {cell.strip() or 'not measured'} |")
        there = os.path.relpath(page, OUT / "environments")
        where = f"docs/generated/environments/{name}.md"
        lines += ["", linked(f"[How it was measured]({there}).", where), ""]
    return lines


def _code(value: Any) -> str:
    return f"`{value}`".replace("|", "\\|")


def _space(space: Any) -> str:
    parts = getattr(space, "spaces", None)
    if not isinstance(parts, dict):
        return _code(space)
    return "<br>".join(f"`{key}`: {_code(_short(part))}" for key, part in parts.items())


def _short(space: Any) -> str:
    """A space in a table: bounds of a box only where they are the same everywhere."""
    words = str(space)
    if type(space).__name__ != "Box":
        return words
    low, high = space.low.min(), space.high.max()
    return f"Box({low:g}, {high:g}, {space.shape}, {space.dtype})"


def _signature(kind: type) -> str:
    given = inspect.signature(kind.__init__).parameters.values()
    arguments = [f"    {x}," for x in given if x.name != "self"]
    return "\n".join([f"{kind.__name__}(", *arguments, ")"])


# Tutorials


def tutorial_page(path: Path, said: Sequence[str] = ()) -> str:
    """The page of a script whose cells begin with ``# %% Title`` and comments that are prose.

    Args:
        path: of the script.
        said: what each of its parts prints, that before the first cell included; may be empty.
    """
    text = path.read_text(encoding="utf-8")
    heading, *cells = CELL.split(text)
    words, code = ast.get_docstring(ast.parse(text)) or "", heading.split('"""', 2)[2]
    title, _, intro = words.partition("\n")
    name = path.relative_to(ROOT)
    lines = [f"# {title.rstrip('.')}", "", intro.strip(), "", f"The page is the script `{name}`:"]
    lines += [f"`python {name}` runs it.", "", *_block(code), *_printed(said[:1])]
    for number, cell in enumerate(cells, 1):
        title, _, rest = cell.partition("\n")
        prose = re.match(r"(?:#.*\n?)*", rest)
        told = prose[0] if prose else ""
        lines += [f"## {title}", "", *(x.lstrip("# ") for x in told.splitlines()), ""]
        lines += [*_block(rest[len(told) :]), *_printed(said[number : number + 1])]
    return "\n".join(lines) + "\n"


def printed(path: Path) -> list[str]:
    """What each part of a tutorial prints; it is run, unless nothing has changed since it was.

    Returns:
        a text for each part; none where the tutorial needs what is not installed.

    Raises:
        subprocess.CalledProcessError: the tutorial fails.
    """
    text = path.read_text(encoding="utf-8")
    modules = [*(ROOT / "parenvs").rglob("*.py"), *(ROOT / "agents").rglob("*.py")]
    sources = b"".join(module.read_bytes() for module in sorted(modules))
    key = hashlib.sha256(text.encode() + sources).hexdigest()
    kept = OUT / "tutorials" / f"{path.stem}.json"
    if kept.exists():
        content = json.loads(kept.read_text(encoding="utf-8"))
        if content["key"] == key:
            return content["said"]
    # Processes that a tutorial starts import it again, and have nothing to mark.
    mark = f'__name__ == "__main__" and print("\\x{ord(MARK):02x}", end="")\n# %% '
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / path.name
        script.write_text(CELL.sub(lambda _: mark, text), encoding="utf-8")
        before = os.environ.get("PYTHONPATH")
        paths = os.pathsep.join(filter(None, [str(ROOT), before]))
        ended = subprocess.run(
            [sys.executable, "-u", script.name], cwd=folder, capture_output=True,
            env={**os.environ, "PYTHONPATH": paths}, text=True, encoding="utf-8",
        )  # fmt: skip
    missing = re.search(r"^ModuleNotFoundError: No module named '(\w+)", ended.stderr, re.M)
    if missing and missing[1] in EXTRAS:
        return []
    if ended.returncode:
        raise subprocess.CalledProcessError(ended.returncode, ended.args, stderr=ended.stderr)
    said = ended.stdout.split(MARK)
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(json.dumps({"key": key, "said": said}), encoding="utf-8")
    return said


def _block(code: str) -> list[str]:
    return ["```python", code.strip(), "```", ""] if code.strip() else []


def _printed(said: Sequence[str]) -> list[str]:
    words = "\n".join(said).strip()
    return ["It prints:", "", "```text", words, "```", ""] if words else []


# Commands


def command_pages() -> Iterator[tuple[str, str]]:
    """A page for the commands that stand alone, and one for each group."""
    import typer

    from parenvs.cli.app import app

    top = typer.main.get_command(app)
    alone, lines = ["# parenvs", "", top.help or "", ""], []
    for name in top.commands:
        command = top.get_command(typer.Context(top), name)
        if hasattr(command, "commands"):
            group = [f"# parenvs {name}", "", _text(command.help), ""]
            for inner, sub in command.commands.items():
                group += _command(f"parenvs {name} {inner}", sub)
            yield name, "\n".join(group)
        else:
            lines += _command(f"parenvs {name}", command)
    yield "parenvs", "\n".join([*alone, *lines])


def _command(name: str, command: Any) -> list[str]:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    words = [_metavar(p) if p.required else f"[{_metavar(p)}]" for p in arguments]
    usage = " ".join([name, *(["[OPTIONS]"] if options else []), *words])
    lines = [f"## {name}", "", _text(command.help), ""]
    lines += ["```text", usage, "```", ""] if usage != name else []
    if command.epilog:
        lines += ["Example:", "", "```text", *_examples(command.epilog), "```", ""]
    if arguments or options:
        lines += ["| argument, option | takes | meaning | default |", "|:--|:--|:--|:--|"]
    for parameter in [*arguments, *options]:
        given = ", ".join(f"`{x}`" for x in [*parameter.opts, *parameter.secondary_opts])
        given = f"`{_metavar(parameter)}`" if parameter in arguments else given
        cells = [given, _takes(parameter, command), _cell(parameter.help), _default(parameter)]
        lines.append(f"| {' | '.join(cells)} |")
    return [*lines, ""]


def _takes(parameter: Any, command: Any) -> str:
    """The type of an option, or its values, where they are few."""
    import typer

    if getattr(parameter, "is_flag", False):
        return "nothing"
    if "|" in (parameter.metavar or ""):
        return ", ".join(map(_code, parameter.metavar.split("|")))
    found = parameter.shell_complete(typer.Context(command), "")
    values = [item.value for item in found if item.type == "plain"]
    if values and len(values) <= MOST_VALUES:
        return ", ".join(map(_code, values))
    # Some versions of typer keep annotations, others make the types of click of them.
    kept = getattr(parameter, "type_descriptor", None)
    of = getattr(kept.annotation, "__name__", "") if kept else parameter.type.name.split()[0]
    kind = next((words for name, words in KINDS.items() if name in of.lower()), "a text")
    return kind + (f"; TAB completes {len(values)} values" if values else "")


def _metavar(parameter: Any) -> str:
    return parameter.metavar or parameter.name.upper()


def _default(parameter: Any) -> str:
    value = parameter.default
    if value is None or value is False or callable(value) or str(value) in ("", "()", "[]"):
        return ""
    return "" if "Sentinel" in type(value).__name__ else f"`{value}`"


def _examples(epilog: str) -> list[str]:
    return [line.strip()[2:] for line in epilog.splitlines() if line.strip().startswith("$ ")]


def _text(words: str | None) -> str:
    return _flags(inspect.cleandoc((words or "").replace("\b", "")).replace("*", "\\*"))


def _cell(words: str | None) -> str:
    return _flags(" ".join((words or "").split()).replace("|", "\\|").replace("*", "\\*"))


def _flags(words: str) -> str:
    """Options as code, as two dashes would become one long dash in prose."""
    return re.sub(r"(?<![\w`'-])--[a-z][\w-]*(?![\w`'])", r"`\g<0>`", words)


# The cost model of hybrid plans


def stacks_page() -> str:
    """Every constant of the stacks: meaning, values, plausible ranges, what it was fitted on."""
    from dataclasses import MISSING, fields

    from benchmarks.hybrid_settings import CONSTANTS
    from parenvs.cluster import DEVICES
    from parenvs.tasks.hybrid.stack import STACKS, Stack

    meaning = _attributes(Stack)
    lines = [
        "# Constants of the cost model",
        "",
        "A *stack* is one training software of a date. Formulas: [hybrid plans](../hybrid.md); "
        "errors: [predicted step times](../results/hybrid.md).",
        "",
        "| stack | date | from |",
        "|:--|:--|:--|",
    ]
    for name, stack in STACKS.items():
        lines.append(f"| {name} | {stack.date} | {_cell(stack.source)} |")
    for item in fields(Stack):
        if item.name in ("name", "source", "date"):
            continue
        own = {}
        for name, stack in STACKS.items():
            value = getattr(stack, item.name)
            if value != item.default:
                own.setdefault(_shown(value), []).append(name)
        lines += ["", f"## {item.name}", "", meaning[item.name].capitalize()]
        if item.default is not MISSING:
            lines += ["", f"Default: {_shown(item.default)}."]
        lines += ["", *(f"* {', '.join(names)}: {value}" for value, names in own.items())]
        fits = [x for x in CONSTANTS if x.name == item.name]
        if fits:
            lines += ["", "| fitted for | value | plausible | on |", "|:--|--:|:--|:--|"]
        for fit in fits:
            span = "{:g} to {:g}".format(*fit.plausible) if fit.plausible else ""
            of = f"{fit.stack} {fit.key}".strip()
            lines.append(f"| {of} | {fit.value:g} | {span} | {_cell(fit.rows)} |")
    lines += ["", "## Devices", "", "| device | peaks, TFLOP/s | GB, TB/s | from |",
              "|:--|:--|:--|:--|"]  # fmt: skip
    for device in DEVICES.values():
        peaks = ", ".join(f"{name} {peak / 1e12:,.4g}" for name, peak in device.peaks)
        size = f"{device.memory_bytes / 1e9:g}, {device.memory_bw / 1e12:.3g}"
        lines.append(f"| {device.name} | {peaks} | {size} | {_cell(device.source)} |")
    return "\n".join([*lines, ""])


def _shown(value: Any) -> str:
    if value is None or value == ():
        return "none"
    if isinstance(value, tuple):
        items = (x if isinstance(x, tuple) else (x,) for x in value)
        return ", ".join(" ".join(_shown(part) for part in item) for item in items)
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _attributes(kind: type) -> dict[str, str]:
    """What a class's docstring says of each attribute."""
    text = inspect.getdoc(kind).partition("Attributes:")[2]
    found = re.findall(r"^    (\w+): ((?:.*\n?)(?:^        .*\n?)*)", text, re.M)
    return {name: " ".join(words.split()) for name, words in found}


ROW_FIELDS = {
    "source": "who published it; rows of one source are judged together",
    "table": "the table or figure that it is from",
    "name": "what the row is called",
    "device": "the accelerator, in words",
    "precision": "of matrix products, as plans have it; of fp8 the name may say a recipe (MXFP8)",
    "recompute": "none, selective or full",
    "stack": "the training software or one of its stacks (default: by source, else by device)",
    "date": "of the software, as 2025-09 (default: its year)",
    "flops_formula": "how the source counts FLOPs: begins with 96, 72 or 6",
    "layers": "transformer blocks",
    "hidden": "width of the residual stream",
    "heads": "attention heads (default: 128 wide)",
    "kv_heads": "heads of keys and values (default: heads)",
    "head_width": "width of a head (default: hidden / heads)",
    "ffn": "inner width of a feed-forward network, or of an expert (default: 4 hidden)",
    "seq": "tokens of a sample",
    "vocab": "rows of the embedding",
    "experts": "feed-forward networks of a block (default: 1)",
    "active_experts": "experts that a token passes (default: 2)",
    "shared_experts": "experts that every token passes beside them",
    "experts_every": "2 if every second block has experts, and so on (default: 1)",
    "leading_dense": "dense blocks at the front",
    "dense_ffn": "inner width of dense blocks among those with experts (default: ffn)",
    "query_rank": "width of compressed queries, of latent attention",
    "key_rank": "width of compressed keys and values, of latent attention",
    "rope_width": "rotated width of a head, of latent attention",
    "window": "tokens that a token attends to, itself among them (default: all in front of it)",
    "full_every": "2 if every second block attends to all in spite of the window, and so on",
    "next_tokens": "tokens behind the next one that are predicted, too",
    "tp": "ranks that share every matrix",
    "pp": "stages",
    "dp": "replicas of the data (default: what is left of gpus)",
    "cp": "ranks that share the tokens of a sample",
    "ep": "ranks among which experts are dealt out",
    "etp": "ranks that share every matrix of an expert (default: tp)",
    "shard": "replicas, context ranks counted, among which ZeRO shares states (default: all)",
    "gpus": "devices in all",
    "gpus_per_node": "devices of a server (default: as the device is sold)",
    "batch": "samples of a step",
    "batch_per_dp": "the same of one replica",
    "micro_batch": "samples of a micro-batch in one replica",
    "interleave": "chunks on each stage",
    "gradient_bytes": "bytes of a gradient, 2 or 4",
    "year": "of the software",
    "nodes": "servers of a collective",
    "ranks_per_node": "ranks of a collective in each server",
    "node_gbit": "Gbit/s of a server's network, one direction (default: as sold)",
    "sequence_parallel": "whether tp ranks share what lies between the matrices",
    "sp": "the same by another name",
    "ddp_overlap": "whether gradients are summed during the last backward pass",
    "scatter_gather": "whether stages send each rank's share, gathered behind",
    "gated": "whether networks have a gate (default: by the shape)",
    "tied": "whether embedding and head share their weights",
    "dropout": "whether there is dropout",
    "bias": "whether there are biases",
    "causal": "whether a token attends to those before it only",
    "sinks": "whether heads have a learned logit beside those of tokens",
    "expert_bias": "whether experts have biases though nothing else has",
    "fused_norms": "whether a norm is one kernel (default: by the stack)",
    "compile": "false if kernels are not fused by a compiler (default: by the stack)",
    "async_tp": "whether tensor-parallel collectives run beside products (default: by the stack)",
    "offload": "whether activations wait for the backward pass in the memory of the server",
    "expert_overlap": "whether experts' dispatch runs beside products (default: by the stack)",
}
"""Field of a published row -> what it means."""


def rows_page() -> str:
    """Every field that a row of published measurements may have."""
    from parenvs.tasks.hybrid import rows

    lines = [
        "# Rows of published measurements",
        "",
        "`python benchmarks/hybrid.py --rows FILE --json` compares the cost model with your own "
        "rows. The file is an object with `rows`, a list of objects (or that list alone); "
        "`sources` says where each source is from, `reference_outputs` what other tools predict. A "
        "row needs `layers`, `hidden` and something measured. What it leaves out is assumed, and "
        "the page says what. A field that stands in none of these tables is refused, and so is a "
        "figure that the devices cannot reach.",
    ]
    parts = {
        "Texts": {name: ROW_FIELDS[name] for name in rows.TEXTS},
        "Whole numbers": {
            **{name: ROW_FIELDS[name] for name in rows.COUNTS},
            "zero": "0 to 3, which states the replicas share",
        },
        "Numbers": {name: ROW_FIELDS[name] for name in rows.NUMBERS},
        "True or false": {name: ROW_FIELDS[name] for name in rows.FLAGS},
        "Measured, one at least": {
            **{name: f"in {unit}" for name, unit in rows.MEASURED.items()},
            rows.PERCENT: "activations by way to save them, of those that nothing saves",
        },
        "For people": dict.fromkeys(rows.NOTES, "nothing is predicted from it"),
    }
    for title, table in parts.items():
        lines += ["", f"## {title}", "", "| field | meaning |", "|:--|:--|"]
        lines += [f"| `{name}` | {_cell(words)} |" for name, words in table.items()]
    return "\n".join([*lines, ""])


# Public names, tables, links


def names_page() -> str:
    """What ``import parenvs`` offers, by topic, for autodoc."""
    import parenvs

    named = {name for names in TOPICS.values() for name in names}
    assert named == set(parenvs.__all__), "each public name has one topic, in TOPICS"
    lines = ["# Public names", "", "All of this is in `parenvs` itself.", ""]
    for topic, names in TOPICS.items():
        lines += [f"## {topic}", "", "```{eval-rst}"]
        for name in names:
            if inspect.isfunction(getattr(parenvs, name)):
                lines += [f".. autofunction:: parenvs.{name}", ""]
            else:
                lines += [f".. autoclass:: parenvs.{name}", "   :members:", ""]
        lines += ["```", ""]
    commands = ["```{toctree}", ":caption: Commands", ":glob:", "", "commands/*", "```", ""]
    return "\n".join([*lines, *commands])


def linked(text: str, page: str, source: str | None = None) -> str:
    """Links between files become links between pages; those to code become plain words.

    Args:
        text: Markdown.
        page: the page that the text stands on, from the root of the repository.
        source: the file that it comes from, whose links are relative to it (default: ``page``).
    """
    folder = (ROOT / (source or page)).parent

    def link(match: re.Match[str]) -> str:
        image, words, target, anchor = match[1], match[2], match[3], match[4] or ""
        if "://" in target or target.startswith(("mailto:", "#")) or not target:
            return match[0]
        path = Path(os.path.normpath(folder / target))
        if not path.is_relative_to(ROOT):
            return match[0]
        name = str(path.relative_to(ROOT))
        name = OUTSIDE.get(name, name)
        name = re.sub(r"^docs/(tutorials/\w+)\.py$", r"docs/generated/\1.md", name)
        if not image and not (name.startswith("docs/") and name.endswith(".md")):
            return words
        there = os.path.relpath(ROOT / name, (ROOT / page).parent)
        return f"{image}[{words}]({there}{anchor})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^)#\s]*)(#[^)\s]*)?\)", link, text)


def front(text: str) -> str:
    """The first page, its words in capitals replaced by what README and tables say."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    parts = {
        "HEAD": "**" + readme.partition("\n\n**")[2].partition("<p align")[0],
        "LEARN": readme.partition("## Train an agent\n")[2].partition("\n## ")[0],
        "LEADERS": first_table("leaderboard/README.md", "<!-- begin ranking -->"),
    }
    for word, part in parts.items():
        text = text.replace(f"\n{word}\n", f"\n{linked(part, 'docs/index.md', 'README.md')}\n")
    return text


def first_table(name: str, mark: str) -> str:
    """The table of a file of Markdown behind a mark."""
    text = (ROOT / name).read_text(encoding="utf-8").partition(mark)[2]
    lines = text.partition("<!-- end")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


if __name__ == "__main__":
    write_all()
