"""What ``same.py`` plays, plans and judges in both checkouts."""

from __future__ import annotations

from typing import Any

ENVIRONMENTS: dict[str, list[dict[str, Any]]] = {
    "DataParallel-v0": [
        {}, {"instance": "bert-48", "cluster": "B", "reward": "step_time"},
        {"instance": "t5-3b", "memory": True, "memory_limit": "device", "reward": "step_time"},
    ],
    "OperatorPartition-v0": [
        {}, {"instance": "vgg-19", "rules": "automap", "uneven": "forbid", "linkage": False},
        {"instance": "t5-base", "reward": "step_time", "masked": True, "memory": True,
         "memory_limit": "device", "cluster": "C"},
        {"instance": "bert-48", "reward": "step_time", "micro_batch": 8, "micro_batches": 2,
         "recompute": "full", "devices": 4},
    ],
    "PartitionPlan-v1": [
        {}, {"instance": "partition-test", "order": "sequential"}, {"rows": "bare"},
        {"instance": "partition-validation/dit-000"},
    ],
    "PipelineCut-v0": [
        {}, {"instance": "t5-3b"}, {"instance": "vgg-19", "cluster": "A", "candidates": "all"},
        {"instance": "bert-48", "cluster": "B", "radius": 1, "recompute": "none", "tied": "held",
         "sync": "parameter-server", "micro_batches": 4, "stages": 3},
    ],
    "PipelinePlan-v0": [
        {}, {"family": "cnn", "ranges": "outside"}, {"rows": "ahead", "repeat": 2},
        {"instance": "plan-outside", "order": "sequential"},
        {"instance": "plan-test/cnn-003"}, {"instance": "generated-2/inside/any/17"},
        {"instance": "t5-3b", "cluster": "C"},
        {"instance": "llama3-8b", "cluster": "4x8:h100", "micro_batch": 1, "stages": 4},
    ],
    "HybridPlan-v1": [
        {}, {"rows": "bare"}, {"instance": "hybrid-test"}, {"instance": "hetero-8-test"},
        {"instance": "hybrid-outside", "order": "sequential"}, {"instance": "hybrid/7"},
        {"instance": "hetero-16/3"}, {"fresh": True, "family": "gpt"},
        {"instance": "llama3-8b", "cluster": "2x8:h100", "batch": 64},
    ],
    "ElasticPlan-v1": [
        {}, {"instance": "elastic-test", "order": "sequential"}, {"family": "daynight"},
        {"rows": "bare"},
        {"instance": "p3"}, {"instance": "g4dn", "model": "bert-large", "interval": 120.0},
        {"instance": "p3", "model": "gpt-1.5b", "cluster": "16x8:a100", "batch": 256},
    ],
}  # fmt: skip
"""Id of an environment -> arguments of its cases."""
PIPELINES = [
    (name, {"cluster": cluster})
    for name, cluster in (("vgg-19", "A"), ("t5-base", "C"), ("t5-3b", "C"), ("bert-48", "B"))
] + [
    ("t5-3b", {"cluster": "C", "stages": 3, "recompute": "full", "micro_batches": 8}),
    ("llama3-8b", {"cluster": "4x8:h100", "micro_batch": 1, "tied": "held"}),
    ("plan-test/cnn-003", {}), ("plan-outside/uniform-001", {}),
]  # fmt: skip
PARTITIONS = [
    (name, {"reward": reward, "scope": scope})
    for name in ("vgg-19", "t5-base", "bert-48", "resnet-50")
    for reward, scope in (("paper", "variables"), ("step_time", "variables"), ("paper", "inputs"))
] + [
    ("t5-3b", {"reward": "step_time", "memory_limit": "device"}),
    ("llama3-8b", {"reward": "step_time", "cluster": "2x8:h100", "micro_batch": 2}),
    ("vgg-19", {"rules": "automap", "uneven": "forbid"}),
    ("partition-test/t5-000", {}), ("partition-validation/dit-000", {}),
]  # fmt: skip
HYBRIDS = [
    ("llama3-8b", {"cluster": "2x8:h100", "batch": 64}),
    ("gpt-1.5b", {"cluster": "2x8:a100", "batch": 64, "stack": "megatron-2022"}),
    ("bert-48", {"cluster": "1x8:v100", "batch": 64}),
    ("hybrid/7", {}), ("hybrid-test/llama-000", {}), ("hetero-8-test/spread-000", {}),
]  # fmt: skip
PLANNED: dict[str, tuple[list[tuple[str, dict[str, Any]]], dict[str, dict[str, Any]]]] = {
    "pipeline": (PIPELINES, {
        "search": {}, "even": {}, "pipedream": {}, "random": {"steps": 3000},
        "exact": {"time_limit": 600.0},
        "ppo": {"steps": 256}, "rainbow": {"steps": 256},
    }),
    "partition": (PARTITIONS, {
        "exact": {}, "greedy": {}, "expert": {}, "data-parallel": {},
        "random": {"steps": 3000}, "ppo": {"steps": 256}, "rainbow": {"steps": 256},
    }),
    "hybrid": (HYBRIDS, {
        "uniform": {}, "rule-of-thumb": {}, "random": {}, "exact": {"time_limit": 600.0},
        "swap-search": {}, "subset-dp": {},
    }),
    "sharding": ([(f"intra-op-{x}", {}) for x in (
        "test/mesh-000", "test/classes-001", "validation/mesh-002", "outside/classes-003")], {
        "exact": {"rounds": 20}, "greedy": {},
    }),
    "elastic": ([("elastic-test/independent-gpt-1.5b-000", {}), ("p3", {}), ("g4dn", {}),
                 ("elastic-validation/independent-gpt-1.5b-001", {})], {
        x: {} for x in ("exact", "optimal", "fastest", "hysteresis", "keep-degrees", "look-ahead",
                        "myopic")
    }),
}  # fmt: skip
"""Task -> its problems with their options, and its planners with theirs."""
LEARNED = ("ppo", "rainbow")
"""Planners that train, on the first problem of each list."""
LONG = (
    "hybrid exact: hetero",
    "pipeline exact: plan-outside",
    "pipeline pipedream: plan-outside",
)  # fmt: skip
"""Cases of more than a minute, which are left out."""
GRIDS = (
    ("llama3-8b", "2x8:h100", 64), ("llama3-70b", "16x8:h100", 512),
    ("mixtral-8x7b", "8x8:h100", 256), ("gpt3-175b", "64x8:a100", 1536), ("t5-3b", "4x8:v100", 64),
)  # fmt: skip
"""Models, clusters and samples of a step of which all uniform plans are judged."""
EXPLAINED = (
    (
        r"partition random: .* \| error",
        "A planner that found no plan within its budget says so by an error of its own, "
        "``TimeLimitError``, not as if there were none.",
    ),
    (
        r"after the end, info",
        "After an episode's end all environments tell alike: an action there is an illegal one.",
    ),
)
"""Pattern of ``kind | case | part`` -> why the two checkouts differ there."""
