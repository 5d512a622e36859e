"""Plans: environments build them, solvers return them, files hold them.

Plan files are JSON; every error in one names the file and the field. The package also holds the
defaults of the settings that a plan is made for (micro-batches, copies, rules, ...), as a file may
leave them out.
"""

from parenvs.plan.base import HEAD, ILLEGAL, SCHEMA, Bounded, Plan, TimedReport
from parenvs.plan.fields import LARGEST_NUMBER
from parenvs.plan.files import PARTITION_PLANS, PLANS, load_plan
from parenvs.plan.hybrid import (
    RECOMPUTE_MODES,
    SCHEDULES,
    SENDS,
    HybridPlan,
    HybridStage,
)
from parenvs.plan.intra_op import IntraOpPlan
from parenvs.plan.order import OrderPlan
from parenvs.plan.partition import REMADE, RULE_SETS, UNEVEN, BatchPlan, PartitionPlan
from parenvs.plan.pipeline import (
    COPIES,
    MICRO_BATCH,
    MICRO_BATCHES,
    RECOMPUTE,
    TIED,
    PipelinePlan,
)

__all__ = [
    "COPIES",
    "HEAD",
    "ILLEGAL",
    "LARGEST_NUMBER",
    "MICRO_BATCH",
    "MICRO_BATCHES",
    "PARTITION_PLANS",
    "PLANS",
    "RECOMPUTE",
    "RECOMPUTE_MODES",
    "REMADE",
    "RULE_SETS",
    "SCHEDULES",
    "SCHEMA",
    "SENDS",
    "TIED",
    "UNEVEN",
    "BatchPlan",
    "Bounded",
    "HybridPlan",
    "HybridStage",
    "IntraOpPlan",
    "OrderPlan",
    "PartitionPlan",
    "PipelinePlan",
    "Plan",
    "TimedReport",
    "load_plan",
]
