"""What a published row was run with: device, shape, plan, stack and cluster, and its assumptions.

A row that does not say a thing gets it from its source's other texts (``SAID``), else a default
that is named in the row's ``assumed``. ``CONSTANTS`` lists which constants of stacks were fitted on
which rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from parenvs.cluster import DEVICES, GIB, RUNS_ON, Cluster, Device
from parenvs.errors import ParenvsError, among, shown
from parenvs.tasks.hybrid.model import shapes
from parenvs.tasks.hybrid.rows import Row
from parenvs.tasks.hybrid.shape import TransformerShape
from parenvs.tasks.hybrid.stack import LOW, Stack
from parenvs.tasks.hybrid.stack import STACKS as SHIPPED
from parenvs.tasks.hybrid.uniform import Uniform

STACKS = SHIPPED | {
    stack.name: stack
    for stack in (
        Stack(
            "nccl-2021",
            {"other": 0.72},
            date="2021-12",
            link_share=0.53,
            source="collectives alone, on A100; share fitted on Galvatron's nine measurements",
        ),
        Stack(
            "nccl-2024",
            {"other": 0.60},
            date="2024-06",
            link_share=0.86,
            source="collectives alone, on H100; share fitted on 69 cells of nccl-tests",
        ),
    )
}
"""Stacks by name, and what is known of collectives alone."""


@dataclass(frozen=True)
class Server:
    """A kind of server that rows were measured on.

    Attributes:
        device: what it has in it.
        devices: how many.
        nic_bw: bytes/s of one device's share of its network.
        guess: what was assumed, or an empty string.
    """

    device: Device
    devices: int
    nic_bw: float
    guess: str = ""

    def cluster(self, count: int) -> Cluster:
        """Return the cluster of ``count`` such devices, whole servers where there are several."""
        inside = min(count, self.devices)
        return Cluster(
            servers=-(-count // inside),
            devices_per_server=inside,
            device=self.device,
            intra_bw=self.device.intra_bw,
            inter_bw=self.nic_bw * inside,
            nic_bw=self.nic_bw,
        )


def _sold(device: Device, count: int = 0, nic_bw: float = 0.0) -> Server:
    return Server(
        device, count or device.inside, nic_bw or device.inter_bw / (count or device.inside)
    )


SERVERS: dict[str, Server] = {
    **{name: _sold(device) for name, device in DEVICES.items()},
    "v100-16gb": _sold(replace(DEVICES["v100"], memory_bytes=15.75 * GIB)),
    "dgx-2": _sold(DEVICES["v100"], 16, 8 * 100e9 / 8 / 16),
    # torchtitan's H100: HBM2e, 500 W.
    "h100-96gb": _sold(
        replace(DEVICES["h100"], name="h100-96gb", memory_bw=2400e9, memory_bytes=95.0 * GIB)
    ),
}
"""Servers by the words of rows; the network of a server of V100 is that of cluster C's."""
ALIASES = {
    "dgx-2h": "dgx-2", "dgx2": "dgx-2", "ampere": "a100", "hopper": "h100", "volta": "v100",
    "blackwell": "b200",
}  # fmt: skip
"""Other words for them; ``GUESSES`` says which of them are one."""
GUESSES = {
    "ampere": "device 'ampere' is an A100",
    "hopper": "device 'hopper' is an H100",
    "blackwell": "device 'blackwell' is a B200",
}


def server_of(text: str | None, precision: str | None = None) -> Server:
    """Return the server that a row's ``device`` means.

    Args:
        text: the words of the row, or None.
        precision: the row's; FP8 without a device means an H100, MXFP8 and NVFP4 a GB200.

    Raises:
        ParenvsError: the device is unknown; no other is taken for it.
    """
    words = (text or "").lower().replace("_", "-").replace("nvidia", "").strip()
    known = sorted([*SERVERS, *ALIASES], key=len, reverse=True)
    for word in known:
        parts = [rf"\b{re.escape(part)}\b" for part in word.split("-")]
        if all(re.search(part, words) for part in parts):
            return replace(SERVERS[ALIASES.get(word, word)], guess=GUESSES.get(word, ""))
    if words:
        raise ParenvsError(f"unknown device {shown(text)}{among(words, SERVERS)}")
    base = RUNS_ON.get(precision or "bf16", precision or "bf16")
    key = next((x for x in ("a100", "h100") if base in dict(DEVICES[x].peaks)), "gb200")
    guess = f"no device is given: taken for {'a' if key == 'gb200' else 'an'} {key.upper()}"
    return replace(SERVERS[key], guess=guess)


@dataclass(frozen=True)
class Constant:
    """A constant of a stack that was fitted.

    Attributes:
        stack: the stack.
        name: the constant.
        source: the rows that it was fitted on: their source,
        table: their table,
        word: and a word in their names.
        key: of a share by device, the key.
        plausible: the least and the largest value that rows allow; None if it was not looked for.
        how: ``"fitted"``, or how else it was found on the rows: ``"counted"``.
        ships: whether the rows ship.
    """

    stack: str
    name: str
    source: str
    table: str = ""
    word: str = ""
    key: str = ""
    plausible: tuple[float, float] | None = None
    how: str = "fitted"
    ships: bool = True

    @property
    def value(self) -> float:
        """Its value in ``STACKS``."""
        value = getattr(STACKS[self.stack], self.name)
        return float(dict(value)[self.key] if self.key else value)

    @property
    def precision(self) -> str:
        """The precision in its key, or an empty text."""
        return self.key.partition(" ")[2]

    @property
    def words(self) -> str:
        """Its name, and that of its stack and device."""
        of = f" ({self.key})" if self.key else ""
        return f"{self.stack} {self.name}{of}"

    @property
    def rows(self) -> str:
        """The rows that it was fitted on, in words."""
        said = [self.source, self.table, self.word and f"'{self.word}'"]
        said += ["" if self.ships else "which does not ship"]
        return ", ".join(filter(None, [*said, "" if self.how == "fitted" else self.how]))

    def is_of(
        self, source: str, table: str, name: str, stack: str, device: str, precision: str
    ) -> bool:
        """Return whether it was fitted on a figure of such a row."""
        return (
            source == self.source
            and (not self.table or table == self.table)
            and self.word in name
            and stack == self.stack
            and (not self.key or self.key.split()[0] in (device, "other"))
            and (self.precision in ("", precision))
        )


def _fit(stack: str, name: str, source: str, table: str = "", **more: object) -> Constant:
    return Constant(stack, name, source, table, **more)  # type: ignore[arg-type]


_NEMO = ("nemo-2025", "nemo-2026")
_MOE = ("mb-moe-gb200", "mb-moe-h100")
CONSTANTS = (
    _fit("megatron-2021", "matmul_share", "megatron-sc21", "Table 1", key="a100"),
    _fit("megatron-2021", "matmul_share", "megatron-2020-11", key="v100", ships=False),
    _fit("megatron-2021", "link_share", "megatron-sc21", "Table 1"),
    _fit("megatron-2021", "send_share", "megatron-sc21-figures", "fig12"),
    _fit("megatron-2021", "send_share", "megatron-sc21-figures", "fig18"),
    _fit("megatron-2021", "send_wait", "megatron-sc21-figures", "fig12"),
    _fit("megatron-2021", "send_wait", "megatron-sc21-figures", "fig18"),
    _fit("megatron-2021", "gather_share", "megatron-sc21", "Table 2", word="zero3 175B"),
    _fit("megatron-2021", "hidden", "megatron-sc21", "Table 2", word="zero3 175B"),
    _fit("megatron-2022", "memory_share", "korthikanti", "Table 4"),
    _fit("megatron-2022", "matmul_share", "korthikanti", "Table 4", key="a100"),
    _fit("megatron-2022", "hidden", "korthikanti", "Table 4"),
    _fit("megatron-2019", "matmul_share", "megatron-v1", key="v100"),
    _fit("llama-2024", "matmul_share", "llama3", "Table 4", key="h100 bf16"),
    _fit("nemo-2024", "matmul_share", "nemo-24.07", key="h100 fp8"),
    _fit("torch-2024", "matmul_share", "mpt", key="a100"),
    _fit("torch-2024", "attention_share", "mpt", key="a100"),
    _fit("torch-2024", "memory_share", "mpt", word="a "),
    _fit("torch-2024", "hidden", "mpt", word="a "),
    _fit("torch-2024", "matmul_share", "mpt", key="h100 bf16"),
    _fit("torch-2024", "attention_share", "mpt", key="h100"),
    _fit("nccl-2024", "link_share", "nccl-h100"),
    _fit("nccl-2021", "link_share", "galvatron-hw"),
    _fit("deepspeed-2022", "matmul_share", "gpt-1.5b.json", key="v100 fp16", ships=False),
    _fit("deepspeed-2022", "link_share", "gpt-1.5b.json", ships=False),
    *(
        _fit(stack, "matmul_share", "mb-dense-gb200", key=f"gb200 {recipe}", plausible=(0.35, 0.55))
        for stack in _NEMO
        for recipe in ("fp8", "mxfp8")
    ),
    _fit("nemo-2025", "matmul_share", "dgxc-fp8", key="h100 fp8", plausible=(0.40, 0.50)),
    _fit("nemo-2025", "permute_passes", _MOE[0], key="other", plausible=(6.0, 40.0)),
    _fit("nemo-2025", "permute_passes", _MOE[1], key="h100", plausible=(6.0, 40.0)),
    _fit("nemo-2026", "permute_passes", _MOE[0], key="other", plausible=(4.0, 12.0)),
    *(
        _fit(stack, "sink_share", source, word="gpt-oss", plausible=(0.1, 0.35))
        for stack, source in (*zip(_NEMO, _MOE[:1] * 2, strict=True), (_NEMO[0], _MOE[1]))
    ),
    _fit("titan-2025", "matmul_share", "tt-2412", key="h100-96gb fp8", plausible=(0.35, 0.50)),
    _fit("titan-2025", "attention_share", "tt-2412", key="other", plausible=(0.25, 0.60)),
    _fit("titan-2025", "memory_share", "tt-2412", plausible=(0.35, 0.65)),
    _fit("titan-2025", "memory_share", "fms-fsdp-a100", plausible=(0.35, 0.65)),
    _fit("titan-2025", "matmul_share", "fms-fsdp-a100", key="a100", plausible=(0.65, 0.80)),
    _fit("titan-2025", "hidden", "fms-fsdp-a100", plausible=(0.5, 1.0)),
    _fit("internevo-2023", "matmul_share", "internevo", key="a100", plausible=(0.55, 0.78)),
    _fit("internevo-2023", "bucket", "internevo", plausible=(15e6, 100e6)),
    _fit(
        "megatron-deepspeed-2022", "matmul_share", "bigscience", key="a100", plausible=(0.60, 0.72)
    ),
    _fit(
        "megatron-deepspeed-2022", "accumulate_bytes", "bigscience", plausible=(12.0, 24.0),
        how="counted",
    ),
)  # fmt: skip
"""Every fitted constant, once for each table that it was fitted on.

``memory_share``, ``send_share`` and ``send_wait`` of the two Megatron stacks are the same; other
stacks have them from there unless they are listed. The shares of deepspeed-2022 are fitted on
measured steps of pipelines, the share of a V100 in megatron-2021 on a table
of November 2020 that is in no file. ``FP8_SHARE`` is a ratio of two constants of nemo-2024.
"""


def was_fitted(stack: str, device: str, precision: str) -> bool:
    """Return whether a stack's share of matrix products was fitted on a device and precision."""
    keys = (device, f"{device} {precision}")
    named = (item for item in CONSTANTS if item.name == "matmul_share")
    return any(item.stack == stack and item.key in keys for item in named)


GPT = {
    name: {"layers": layers, "hidden": hidden, "heads": heads, "tp": 8, **run}
    for name, layers, hidden, heads, run in (
        ("22B", 48, 6144, 64, {"pp": 1, "interleave": 1, "micro_batch": 4}),
        ("175B", 96, 12288, 96, {"pp": 8, "interleave": 3}),
        ("530B", 105, 20480, 128, {"pp": 35, "interleave": 3, "batch_per_dp": 280}),
        ("1T", 128, 25600, 160, {"pp": 64, "interleave": 1}),
    )
}
"""The four models of arXiv 2205.05198, Table 3, and how they were run."""
MEGASCALE = {
    "layers": 96, "hidden": 12288, "heads": 128, "tp": 8, "pp": 8, "seq": 2048, "vocab": 64000,
    "interleave": 6, "micro_batch": 1, "recompute": "selective", "sequence_parallel": True,
    "gradient_bytes": 4,
}  # fmt: skip
SAID: dict[str, dict[str, Any]] = {
    "megatron-sc21": {"vocab": 51200, "seq": 2048, "recompute": "full", "zero": 0},
    "korthikanti": {"vocab": 51200, "seq": 2048, "device": "a100", "micro_batch": 1},
    "korthikanti-fig1": {"vocab": 51200, "seq": 2048, "device": "a100", "gradient_bytes": 4},
    "llama3": {
        "interleave": 8, "micro_batch": 1, "zero": 1, "ddp_overlap": True, "gradient_bytes": 4,
        "sequence_parallel": True, "recompute": "none", "gated": True,
    },
    "megascale": MEGASCALE,
    "mb-moe": {"etp": 1},
    "mpt": {"vocab": 50368, "zero": 3, "dropout": False, "bias": False, "seq": 2048},
    "nemo": {"zero": 1, "ddp_overlap": True, "sequence_parallel": True, "recompute": "none"},
    "megatron-v1": {"vocab": 51200, "recompute": "full", "seq": 1024, "accumulation": 1},
}  # fmt: skip
"""What sources say, or spread tells of them, beside their tables: source -> fields.

Assumed rather than said: interleaving of llama3 and megascale, and of megascale the vocabulary,
recomputation and bytes of gradients. A source's name may go on behind a hyphen (``nemo-24.09``).
``accumulation`` 1 means that a replica runs its samples in one micro-batch.
"""
ASSUMED_OF = {
    "llama3": ("interleave",),
    "megascale": ("vocab", "interleave", "recompute", "sequence_parallel", "gradient_bytes"),
    "megatron-v1": ("recompute",),
    "nemo": ("zero", "ddp_overlap", "sequence_parallel", "recompute"),
    "mpt": ("dropout", "bias"),
}
"""Which of them are assumed."""
DEFAULTS: dict[str, Any] = {
    "tp": 1, "pp": 1, "cp": 1, "ep": 1, "interleave": 1, "micro_batch": 1, "seq": 2048,
    "vocab": 51200, "recompute": "none", "zero": 0, "sequence_parallel": False,
    "ddp_overlap": False, "gradient_bytes": 2,
}  # fmt: skip
"""What rows are taken to mean by what they leave out."""
WHOLE = 8
"""Most samples that a replica without a pipeline is assumed to run in one micro-batch."""
STACK_OF = {
    "megatron-sc21": "megatron-2021",
    "korthikanti": "megatron-2022",
    "megascale": "megatron-2022",
    "llama3": "llama-2024",
    "nemo": "nemo-2024",
    "mpt": "torch-2024",
    "megatron-v1": "megatron-2019",
}
"""Source -> the stack that ran its rows."""


@dataclass(frozen=True)
class Setting:
    """What a row was run with.

    Attributes:
        shape: the model.
        plan: one uniform plan.
        cluster: the devices.
        stack: the software.
        precision: of matrix products.
        assumed: what the row does not say, in words.
        fields: what it says, and what was assumed for the rest.
    """

    shape: TransformerShape
    plan: Uniform
    cluster: Cluster
    stack: Stack
    precision: str
    assumed: tuple[str, ...]
    fields: Mapping[str, Any]

    @property
    def gpus(self) -> int:
        """Devices that the row ran on."""
        return int(self.plan.devices[0])

    @property
    def batch(self) -> float:
        """Samples of a step."""
        return float(self.plan.batch[0])


def known_source(row: Row, table: Mapping[str, Any]) -> str | None:
    """Return the key of a table by source: the source's name, or what it begins with."""
    for key in sorted(table, key=len, reverse=True):
        if row.source == key or row.source.startswith(f"{key}-"):
            return key
    return None


def setting_of(
    row: Row, column: str = "", stacks: Mapping[str, Stack] = MappingProxyType({})
) -> Setting:
    """Return what a row was run with.

    Args:
        row: the row.
        column: the field that was measured; some columns of one row are of different plans.
        stacks: by name, stacks that stand in for those of the same names.

    Raises:
        ParenvsError: the row leaves out what has no default, or contradicts itself.
    """
    fields = dict(row.fields)
    assumed: list[str] = []
    if "sp" in fields:
        fields.setdefault("sequence_parallel", fields["sp"])
    key = known_source(row, SAID)
    said = dict(SAID[key]) if key else {}
    doubtful = ASSUMED_OF.get(key or "", ())
    if "hidden" not in fields:
        name, model = _model_of(row, key)
        said = {**said, **model}
        if name:
            assumed.append(f"{name} of arXiv 2205.05198, Table 3")
    for name, value in said.items():
        if name not in fields:
            fields[name] = value
            if name in doubtful and value is not False:
                assumed.append(f"{name} {value}")
    fields |= _columns(column)
    server = server_of(fields.get("device"), fields.get("precision"))
    if server.guess:
        assumed.append(server.guess)
    _fill(row, fields, assumed)
    shape = _shape(row, fields, assumed)
    pieces = fields["pp"] * fields["interleave"]
    if fields["pp"] > 1 and pieces > shape.layers + 2:  # embedding and head may stand alone
        raise row.error(
            f"pp x interleave = {pieces} is more than layers = {shape.layers}, embedding and head; "
            "correct one"
        )
    gpus = fields["tp"] * fields["pp"] * fields["dp"] * fields["cp"]
    if "gpus_per_node" in fields:
        server = replace(server, devices=fields["gpus_per_node"])
    if "node_gbit" in fields:
        server = replace(server, nic_bw=fields["node_gbit"] * 1e9 / 8 / server.devices)
    cluster = server.cluster(gpus)
    stack = _stack(row, fields, key, cluster, assumed)
    stack = _switched(stacks.get(stack.name, stack), fields)
    precision = _precision(row, fields, cluster, assumed)
    device = cluster.device.name
    if not was_fitted(stack.name, device, precision):
        share = stack.share_of(cluster.device, precision)
        assumed.append(
            f"stack {stack.name}: matmul share {share:g}, not fitted on {device} {precision}"
        )
    if fields["tp"] == 1:
        fields["sequence_parallel"] = False
    plan = Uniform(
        tp=fields["tp"],
        pp=fields["pp"],
        dp=fields["dp"],
        context=fields["cp"],
        expert=fields["ep"],
        micro_batch=fields["micro_batch"],
        batch=fields["batch"],
        chunks=fields["interleave"] if fields["pp"] > 1 else 1,
        sequence_parallel=fields["sequence_parallel"],
        recompute=fields["recompute"],
        zero=fields["zero"],
        shard=fields.get("shard", 0),
        expert_tp=own if (own := fields.get("etp", 0)) < fields["tp"] else 0,
        gradient_bytes=float(fields["gradient_bytes"]),
        gradient_overlap=fields["ddp_overlap"],
        blocking=stack.send_wait > 0,
        offload=fields.get("offload", False),
    )
    return Setting(shape, plan, cluster, stack, precision, tuple(assumed), fields)


def _model_of(row: Row, key: str | None) -> tuple[str, dict[str, Any]]:
    """Return the model that a row names, if it gives no shape, and how it was run.

    Raises:
        ParenvsError: it names none that is known.
    """
    if key == "megascale" and not row.name.startswith("530B"):
        return "", {}
    for name, model in GPT.items():
        if name in row.name.split():
            return name, dict(model)
    raise row.error("field 'hidden' is missing; a step needs the model's hidden, layers and heads")


def _columns(column: str) -> dict[str, Any]:
    """Return how the plans of some columns differ: Korthikanti's two, and their MFU."""
    if column in ("seconds_full_recompute", "mfu_full"):
        return {"recompute": "full", "sequence_parallel": False}
    if column in ("seconds_selective_sequence_parallel", "mfu_present"):
        return {"recompute": "selective", "sequence_parallel": True}
    return {}


def _fill(row: Row, fields: dict[str, Any], assumed: list[str]) -> None:
    """Fill in what the row does not say of its plan.

    Raises:
        ParenvsError: its numbers of devices contradict each other.
    """
    for name, value in DEFAULTS.items():
        if name not in fields and name != "micro_batch":
            fields[name] = value
            if name in ("seq", "vocab", "recompute"):
                assumed.append(f"{name} {value}")
    shared = fields["tp"] * fields["pp"] * fields["cp"]
    gpus = fields.get("gpus", shared * fields.get("dp", 1))
    if gpus % shared:
        raise row.error(f"{gpus} gpus are no multiple of tp x pp x cp = {shared}; correct one")
    if fields.setdefault("dp", gpus // shared) * shared != gpus:
        raise row.error(
            f"tp x pp x cp x dp = {shared * fields['dp']}, but gpus is {gpus}; correct one"
        )
    accumulation = fields.get("accumulation")
    if "micro_batch" not in fields:
        each = fields.get("batch", 0) // fields["dp"]
        alone = accumulation or (fields["pp"] == 1 and each <= WHOLE)
        fields["micro_batch"] = each if alone and each else 1
        assumed.append(f"micro_batch {fields['micro_batch']}")
    if "batch" not in fields:
        if "batch_per_dp" in fields:
            fields["batch"] = fields["batch_per_dp"] * fields["dp"]
        else:
            each = fields["micro_batch"] * fields["pp"]
            fields["batch"] = each * fields["dp"]
            assumed.append(f"batch {fields['batch']}, {fields['pp']} micro-batches a replica")
    ranks = fields["dp"] * fields["cp"]
    own = fields.get("etp", fields["tp"])
    if fields["tp"] % own:
        raise row.error(f"etp {own} does not divide tp {fields['tp']}; correct one")
    groups = ranks * fields["tp"] // own
    if groups % fields["ep"]:
        raise row.error(
            f"ep {fields['ep']} does not divide dp x cp x tp / etp = {groups}; correct one"
        )
    if fields.get("shard") and ranks % fields["shard"]:
        raise row.error(f"shard {fields['shard']} does not divide dp x cp = {ranks}; correct one")
    if fields["batch"] < fields["dp"]:
        raise row.error(
            f"batch {fields['batch']} is less than dp {fields['dp']}: a replica needs a sample"
        )
    most = fields["batch"] / fields["dp"]
    if fields["micro_batch"] > most:
        raise row.error(
            f"micro_batch {fields['micro_batch']} is more than batch / dp = {most:g}; correct one"
        )


OF_SHAPES = (
    "shared_experts", "experts_every", "leading_dense", "query_rank", "key_rank", "rope_width",
    "window", "full_every", "next_tokens", "sinks", "expert_bias",
)  # fmt: skip
"""Fields of rows that shapes have by the same names."""
FAMILIES = ("llama", "mistral", "mixtral", "qwen", "gemma", "deepseek", "405b")
"""Words in the names of models whose networks are gated, without biases and dropout."""


def _shape(row: Row, fields: dict[str, Any], assumed: list[str]) -> TransformerShape:
    if "layers" not in fields:
        raise row.error("field 'layers' is missing; a step needs the model's layers")
    hidden = fields["hidden"]
    if "heads" not in fields:
        fields["heads"] = max(1, hidden // 128)
        assumed.append(f"heads {fields['heads']}, 128 wide")
    kv_heads, inner = fields.get("kv_heads", 0), fields.get("ffn", 0)
    grouped = bool(kv_heads) and kv_heads != fields["heads"]
    family = any(word in row.name.lower() for word in FAMILIES)
    modern = grouped or family or (bool(inner) and inner != 4 * hidden)
    if modern and not {"gated", "dropout", "bias", "tied"} & set(row.fields):
        assumed.append("gated network without biases and dropout")
    experts = fields.get("experts", 1)
    _known(row, fields, assumed)
    try:
        return TransformerShape(
            row.name,
            fields["layers"],
            hidden,
            fields["heads"],
            fields["seq"],
            fields["vocab"],
            kv_heads=kv_heads,
            head_width=fields.get("head_width", 0),
            feed_forward=inner,
            gated=fields.get("gated", modern),
            dropout=fields.get("dropout", not modern),
            bias=fields.get("bias", not modern),
            causal=fields.get("causal", True),
            tied=fields.get("tied", not modern),
            positions=0 if modern else fields["seq"],
            experts=experts,
            active=fields.get("active_experts", min(2, experts)),
            **{name: fields[name] for name in OF_SHAPES if name in fields},
            dense_feed_forward=fields.get("dense_ffn", 0),
        )
    except ParenvsError as error:
        raise row.error(str(error).partition(": ")[2]) from None


KNOWN_OF_SHAPES = ("window", "full_every", "sinks", "leading_dense")
"""What a row takes from the shipped shape that it names, if it does not say it.

Whether experts have biases, and how wide leading dense networks are, too.
"""


def _known(row: Row, fields: dict[str, Any], assumed: list[str]) -> None:
    """Fill in what is known of a shipped model that a row names, and whose numbers it gives."""
    for name, shape in shapes().items():
        numbers = (shape.layers, shape.hidden, shape.heads, shape.experts)
        given = *(fields[key] for key in ("layers", "hidden", "heads")), fields.get("experts", 1)
        if name not in row.name.lower() or numbers != given:
            continue
        facts = {key: getattr(shape, key) for key in KNOWN_OF_SHAPES}
        facts["dense_ffn"] = shape.dense_feed_forward
        facts["expert_bias"] = shape.experts > 1 and (shape.bias or shape.expert_bias)
        missing = {key: x for key, x in facts.items() if x and key not in row.fields}
        if missing:
            fields |= missing
            said = ", ".join(f"{key} {value}" for key, value in missing.items())
            assumed.append(f"{said}, as {name} has")


def _stack(
    row: Row, fields: dict[str, Any], key: str | None, cluster: Cluster, assumed: list[str]
) -> Stack:
    """Return the stack: the row's own, its source's, or one of the device's years."""
    if "stack" in fields:
        try:
            stack = Stack.parse(fields["stack"])
        except ParenvsError as error:
            raise row.error(str(error)) from None
    elif (known := known_source(row, STACK_OF)) is not None:
        stack = STACKS[STACK_OF[known]]
        if key == "megascale" and "MegaScale" in row.name:
            stack = STACKS["megascale-2024"]
    else:
        name = _of_its_time(fields, cluster.device)
        if fields["zero"] == 3 and fields["tp"] == 1:
            name = "torch-2024"
        assumed.append(f"stack {name}, by device")
        stack = STACKS[name]
    return stack


MEGATRON = ("megatron-2021", "megatron-2022", "llama-2024", "megatron-2025")
"""Megatron's stacks of 16 bits, by their dates."""
FIRST = {"v100": 0, "a100": 1, "h100": 2, "gb200": 3, "mi355x": 3}
"""Device -> the oldest of them that ran on it, as an index."""


def _of_its_time(fields: dict[str, Any], device: Device) -> str:
    """Return the newest stack of the row's date or year, or the oldest that ran on its device.

    Gated networks are of the years of fused attention.
    """
    if fields.get("precision") in LOW or fields.get("experts", 1) > 1:
        family = tuple(name for name in STACKS if name.startswith("nemo-"))
        first = 1 if "gb200" in (device.name, device.like) else 0
    else:
        family, first = MEGATRON, FIRST.get(device.name, FIRST.get(device.like, 2))
        first = max(first, 2 if fields.get("gated") and device.name != "v100" else 0)
    date = fields.get("date", str(fields.get("year", "")))
    known = [name for name in family[first:] if STACKS[name].date[: len(date)] <= date and date]
    return max(
        [family[first], *known],
        key=lambda name: STACKS[name].date,
    )


EAGER = STACKS["torch-2024"].memory_share
"""Share of the memory bandwidth that kernels reach which no compiler has fused."""


def _switched(stack: Stack, fields: dict[str, Any]) -> Stack:
    """Return a stack with what a row says that its run switched on or off."""
    if fields.get("scatter_gather") is False:
        stack = replace(stack, scatter_gather=False)
    if "fused_norms" in fields:
        stack = replace(stack, fused_norms=fields["fused_norms"])
    if "expert_overlap" in fields:
        stack = replace(stack, expert_overlap=float(fields["expert_overlap"]))
    if fields.get("compile") is False:
        stack = replace(stack, memory_share=min(stack.memory_share, EAGER))
    if "async_tp" in fields:
        hidden = STACKS["titan-async"].tensor_overlap if fields["async_tp"] else 0.0
        stack = replace(stack, tensor_overlap=hidden, backward_overlap=False)
    return stack


RECIPE_WORDS = (
    ("nvfp4", re.compile(r"nv-?fp4")),
    ("fp8", re.compile(r"fp8-?(cs|ds)\b|tensor-?wise")),
    ("mxfp8", re.compile(r"mx-?fp8|fp8-?mx")),
    ("fp8-block", re.compile(r"fp8-?sc\b|block-?wise")),
    ("fp8-row", re.compile(r"row-?wise|fp8-?row")),
)
"""Precision -> what names of rows call it whose precision is FP8; the first that is found."""


def recipe_of(row: Row) -> str:
    """Return the precision that a row says, of FP8 the recipe in its name; empty if it says none.

    >>> recipe_of(Row(0, {"name": "llama3-70b MXFP8", "precision": "fp8"}))
    'mxfp8'
    """
    given, name = str(row.get("precision", "")), row.name.lower().replace("_", "-")
    if given != "fp8":
        return given
    return next((x for x, words in RECIPE_WORDS if words.search(name)), given)


def _precision(row: Row, fields: dict[str, Any], cluster: Cluster, assumed: list[str]) -> str:
    """Return the precision: the row's, and the recipe that its name says; or the device's."""
    if recipe := recipe_of(row):
        if recipe != fields["precision"]:
            assumed.append(f"precision {recipe}, by the name")
        return recipe
    peaks = dict(cluster.device.peaks)
    return "bf16" if "bf16" in peaks else "fp16"
