"""The task ``order``: names, options, and what the rest of the package calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from parenvs.core.task import Task, option

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from rich.table import Table

    from parenvs.agents.order.planners import OrderRequest
    from parenvs.core.game import Game
    from parenvs.core.leaderboard import TaskKind
    from parenvs.core.plan import Answer, Price
    from parenvs.core.sets import SetKind, Validation
    from parenvs.tasks.order.plan import OrderPlan
    from parenvs.tasks.order.problem import Order, OrderReport


@dataclass(frozen=True, kw_only=True)
class OrderOptions:
    """There are none: the instance says all."""


@dataclass(frozen=True, kw_only=True)
class OrderSearch:
    """Options of planners; the help of each field says what it is."""

    time_limit: float | None = option(
        None,
        "Seconds of the search (default: 20 of exact, without --rounds; others end by themselves).",
        "seconds",
    )
    rounds: int | None = option(
        None, "Rounds of the exact search; without seconds the same order every time."
    )


class OrderTask(Task):
    """Order micro-batches that differ, so that a 1F1B step is as short as possible."""

    name = "order"
    words = "Order micro-batches that differ, so that a 1F1B step is as short as possible."
    options = OrderOptions
    search = OrderSearch
    planners = (
        "exact",
        "neh",
        "swap",
        "learned",
        "learned+search",
        "random",
        "as-drawn",
        "ascending",
        "descending",
        "pyramid",
    )
    sets = ("order-validation", "order-test", "order-outside", "order-large")
    drawn = ("order",)
    envs = {
        "MicroBatchOrder-v1": "parenvs.tasks.order.insertion:MicroBatchInsertion",
    }

    def find(self, name: str) -> Order:
        from parenvs.datasets.order.named import find_order

        return find_order(name)

    def plan_class(self) -> type[OrderPlan]:
        from parenvs.tasks.order.plan import OrderPlan

        return OrderPlan

    def request_class(self) -> type[OrderRequest]:
        from parenvs.agents.order.planners import OrderRequest

        return OrderRequest

    def load(self, source: Any, cluster: Any, options: OrderOptions) -> Order:
        from parenvs.tasks.order.load import load

        return load(source, cluster, options)

    def judge(self, plan: OrderPlan, target: Any = None, cluster: Any = None) -> OrderReport:
        from parenvs.tasks.order.load import judge

        return judge(plan, target, cluster)

    def set_kind(self, name: str) -> SetKind:
        from parenvs.datasets.order.sets import set_kind

        return set_kind(name)

    def training(self, instance: str | None) -> tuple[str, dict[str, Any], tuple[str, ...]]:
        from parenvs.tasks.order.load import training

        return training(instance)

    def validation(self, env_kwargs: Mapping[str, Any]) -> Validation:
        from parenvs.tasks.order.load import validation

        return validation(env_kwargs)

    def teacher(self, game: Game) -> Callable[[], np.ndarray] | None:
        from parenvs.agents.order.teacher import teach

        return teach(game)

    def leaderboard(self) -> Mapping[str, TaskKind]:
        from parenvs.agents.order.entries import TASKS

        return TASKS

    def text(self, viewable: OrderReport | Order, colour: bool = False) -> str:
        from parenvs.tasks.order.view.text import text

        return text(viewable, colour)

    def answer(self, report: OrderReport) -> str:
        from parenvs.tasks.order.view.text import answer

        return answer(report)

    def figure(self, viewable: OrderReport | Order) -> Figure:
        from parenvs.tasks.order.view.figure import draw

        return draw(viewable)

    def comparison(self, answers: Sequence[Answer]) -> Table:
        from parenvs.tasks.order.view.tables import comparison

        return comparison(answers)

    def strategy(self, report: OrderReport) -> Price:
        from parenvs.tasks.order.problem import price

        return price(report)
