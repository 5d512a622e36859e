"""Llama-3 8B in AutoParallel, placed by the solver of shardings and by AutoParallel's own.

    python examples/autoparallel_llama3.py
    python examples/autoparallel_llama3.py --layers 2

No GPU is needed: the mesh of 8 x 8 is one of CPUs in a group that sends nothing, as placements are
chosen before anything runs. It needs meta-pytorch/autoparallel, installed from its repository; it
says so and ends where that is missing.
"""

from __future__ import annotations

import argparse
import time

import torch

DATA, TENSOR = 8, 8
BATCH, TOKENS, WORDS = 2 * DATA, 8192, 128256


def main() -> None:
    """Place twice and print both objectives."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--layers", type=int, default=1, help="blocks of the 32")
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of the solver")
    arguments = parser.parse_args()
    try:
        from autoparallel._testing.models.llama3 import Transformer, TransformerModelArgs
        from autoparallel.api import AutoParallel
    except ImportError:
        print("skipped: autoparallel is not installed (github.com/meta-pytorch/autoparallel)")
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy
    from torch.distributed.tensor.placement_types import Replicate, Shard
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from parenvs.agents.sharding.autoparallel import attach

    if not hasattr(torch.cpu, "get_device_name"):  # AutoParallel finds a device's limits by it
        torch.cpu.get_device_name = lambda *_: "H100"  # type: ignore[attr-defined]
    torch.distributed.init_process_group(
        "fake", store=FakeStore(), rank=0, world_size=DATA * TENSOR
    )
    mesh = init_device_mesh("cpu", (DATA, TENSOR), mesh_dim_names=("dp", "tp"))
    with torch.device("meta"):
        model = Transformer(
            TransformerModelArgs(
                dim=4096,
                n_layers=arguments.layers,
                n_heads=32,
                n_kv_heads=8,
                ffn_dim_multiplier=1.3,
                multiple_of=1024,
                rope_theta=500000,
                vocab_size=WORDS,
                max_seq_len=TOKENS,
            )
        )

    def batch() -> torch.Tensor:
        return torch.randint(0, WORDS, (BATCH, TOKENS))

    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    with AutoParallel(model, batch, mesh, precision, repeated_subgraphs=True) as autop:
        autop.add_parameter_memory_constraint(low=None, high=None)
        autop.add_input_constraints([(Shard(0), Replicate())])
        autop.add_output_constraints([(Shard(0), Shard(2))])
        begin = time.perf_counter()
        autop.optimize_placement(verbose=False)
        objective = autop.sharding_optimizer.prob.objective.value()
        print(f"AutoParallel's: {objective:.6f} in {time.perf_counter() - begin:.1f} s")
        solver = attach(autop.sharding_optimizer, seconds=arguments.seconds)
        begin = time.perf_counter()
        autop.optimize_placement(verbose=False)
        placement = solver.placement
        assert placement is not None
        print(
            f"this solver's: {placement.cost:.6f}, bound {placement.bound:.6f} "
            f"in {time.perf_counter() - begin:.1f} s"
        )


if __name__ == "__main__":
    main()
