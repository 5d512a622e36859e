"""What every table took: machine, processor hours and hours by the clock, as far as recorded.

    python benchmarks/compute.py

Reads the files of ``benchmarks/results``. Since commits are recorded, every measurement writes the
processor time of each row; of older ones only what their own columns hold is known.
"""

from __future__ import annotations

import json
from typing import Any

from benchmarks.framework import MADE, RESULTS, Row, columns, main, measurement, pages

PROCESSOR = {
    "cartpole": "seconds", "iopddl": "processor",
    "torch_models": "cpu_seconds",
}  # fmt: skip
"""Measurement -> the field of its older rows that holds processor seconds."""
CLOCK = {
    "clients": "wall", "distributions": "seconds", "exports": "wall",
    "iopddl": "wall", "proofs": "seconds", "torch_models": "seconds",
}  # fmt: skip
"""Measurement -> the field of its rows that holds seconds by the clock."""


def hours(rows: list[Row], field: str | None) -> float | None:
    """Hours of a field of rows; None if no row has it."""
    found = [row[field] for row in rows if field and isinstance(row.get(field), (int, float))]
    return sum(found) / 3600 if found else None


def processor(name: str, rows: list[Row]) -> float | None:
    """Processor hours of rows: those recorded with them, else those of a column of their own."""
    new = [row["made"] for row in rows if "processor_seconds" in row.get("made", {})]
    old = hours([row for row in rows if "made" not in row], PROCESSOR.get(name))
    if not new:
        return old
    return sum(made["processor_seconds"] for made in new) / 3600 + (old or 0.0)


def read(name: str) -> list[Row]:
    """The rows of a measurement; of one without rows what its file as a whole says."""
    lines, whole = RESULTS / f"{name}.jsonl", RESULTS / f"{name}.json"
    if lines.exists():
        return [json.loads(line) for line in lines.read_text(encoding="utf-8").splitlines()]
    content: dict[str, Any] = json.loads(whole.read_text(encoding="utf-8"))
    return [{"made": content["made"]}] if "made" in content else [{}]


@measurement(derived=True, title="Compute of every table")
def compute() -> list[Row]:
    found = []
    for name in sorted({*pages(), "agents", "bench_speed", "hybrid"}):
        if not any((RESULTS / f"{name}.{end}").exists() for end in ("json", "jsonl")):
            continue  # made of other files in no time, or a second page of one measurement
        rows = read(name)
        says = (RESULTS / f"{name}.md").read_text(encoding="utf-8").splitlines()[MADE]
        found.append(
            {
                "table": name,
                "rows": len(rows) if (RESULTS / f"{name}.jsonl").exists() else None,
                "machine": says.split(";")[0] if ";" in says else "",
                "processor": processor(name, rows),
                "clock": hours(rows, CLOCK.get(name)),
            }
        )
    return found


def shown(key: str) -> Any:
    """A column of hours, which says where they are not recorded."""
    return lambda row: "not recorded" if row[key] is None else f"{row[key]:.3f}"


@compute.page
def page(rows: list[Row]) -> list[str]:
    known = [row for row in rows if row["processor"] is not None]
    total = sum(row["processor"] for row in known)
    return [
        "Hours of one processor core, and by the clock, of what stands in each table; runs that "
        "were thrown away are not in it. Measurements of before commits were recorded have only "
        f"what a column of theirs holds. {len(known)} of {len(rows)} tables record processor "
        f"hours, {total:.2f} in all.",
        columns(
            rows,
            [
                ("table", "{table}"),
                ("machine", lambda row: row["machine"] or "not recorded"),
                ("rows", "{rows}"),
                ("processor hours", shown("processor")),
                ("hours by the clock", shown("clock")),
            ],
            left=2,
        ),
    ]


if __name__ == "__main__":
    main(compute)
