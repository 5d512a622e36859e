"""The plans that a hybrid problem has: constraints, all uniform plans, objectives."""

from parenvs.tasks.hybrid.space.constraints import SOFTWARE, Constraints, Software, software_of
from parenvs.tasks.hybrid.space.plans import UniformSpace, infeasible, uniform_plans

__all__ = [
    "SOFTWARE",
    "Constraints",
    "Software",
    "UniformSpace",
    "infeasible",
    "software_of",
    "uniform_plans",
]
