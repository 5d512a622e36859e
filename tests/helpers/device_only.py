"""A group of processes that takes tensors of one device alone, as NCCL does, and sends nothing.

On a GPU where there is one, else on PyTorch's device ``meta``, whose tensors have no values. What
it shows: every tensor given to a collective is on the device, and no operation mixes devices. What
it cannot show: values, deadlocks, streams, kernels that an accelerator lacks.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.pipelining.stage import PipelineStage
from torch.distributed.tensor import _redistribute, debug
from torch.testing._internal.distributed.fake_pg import FakeStore

DEVICE = "cuda" if torch.cuda.is_available() else "meta"


class Later(Exception):
    """Another stage has to say first what it sends."""


def by_turns(processes: int, ranks: Sequence[int], work: Callable[[], Any]) -> list[Any]:
    """Be some processes of such a group by turns, until all of them have done their work.

    Args:
        processes: of the group.
        ranks: of those that work; one of each stage will do.
        work: what each of them does.

    Returns:
        What the work returned, by rank.
    """
    said: dict[Any, Any] = {}
    done: dict[int, Any] = {}
    for _ in ranks:
        for rank in ranks:
            if rank not in done:
                try:
                    with _process(rank, processes, said):
                        done[rank] = work()
                except Later:
                    pass
    return [done[rank] for rank in ranks]


@contextmanager
def _process(rank: int, processes: int, said: dict[Any, Any]) -> Iterator[None]:
    """Be a process of the group; stages leave in ``said`` what they say of their tensors."""
    dist.init_process_group(f"{DEVICE}:fake", store=FakeStore(), rank=rank, world_size=processes)

    def tell(stage: Any, what: Any, to: int) -> None:
        said[stage.stage_index, to] = what

    def hear(stage: Any, of: int) -> Any:
        if (of, stage.stage_index) not in said:
            raise Later
        return said[of, stage.stage_index]

    accelerator = SimpleNamespace(**{**vars(torch.cpu), "current_device": lambda: 0})
    try:
        with ExitStack() as stack:
            for owner, name, value in (
                (PipelineStage, "_send_meta", tell),
                (PipelineStage, "_recv_meta", hear),
                (torch.Tensor, "item", lambda x: 0),
                (torch, "meta", accelerator),
                (FSDPParamGroup, "_validate_no_meta_params", lambda group: None),
            ):
                stack.enter_context(patch.object(owner, name, value, create=name == "meta"))
            yield
    finally:
        dist.destroy_process_group()
        debug._clear_sharding_prop_cache()
        _redistribute._gen_transform_infos.cache_clear()
