"""The part of XLA's HloModuleProto that the reader needs, as protobuf messages.

The field numbers are openxla's (xla/service/hlo.proto and xla/xla_data.proto); the parser skips
fields that are not listed. The messages are built from ``_MESSAGES`` at import, so that neither a
protocol compiler nor a particular protobuf release is needed.
"""

from __future__ import annotations

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

# Message -> "field=number:type" of each field; a star marks a repeated one, and a type that starts
# with a capital is another message.
_MESSAGES = {
    "Wrapper": "module=1:Module",
    "Module": "name=1:string entry_computation_name=2:string computations=3*:Computation "
    "entry_computation_id=6:int64",
    "Computation": "name=1:string instructions=2*:Instruction id=5:int64 root_id=6:int64",
    "Instruction": "name=1:string opcode=2:string shape=3:Shape metadata=7:Metadata "
    "literal=8:Literal parameter_number=9:int64 tuple_index=13:int64 "
    "dimensions=14*:int64 window=15:Window convolution=16:Convolution slices=17*:Slice "
    "dynamic_slice_sizes=20*:int64 padding=21:Padding "
    "custom_call_target=28:string dot=30:Dot fft_length=32*:int64 gather=33:Gather "
    "gather_slice_sizes=34*:int64 id=35:int64 operand_ids=36*:int64 called_ids=38*:int64 "
    "sharding=40:Sharding scatter=48:Scatter feature_group_count=50:int64 "
    "batch_group_count=58:int64 comparison_direction=63:string",
    "Sharding": "type=1:int32",
    "Shape": "element_type=2:int32 dimensions=3*:int64 tuple_shapes=4*:Shape layout=5:Layout",
    "Layout": "minor_to_major=1*:int64",
    "Metadata": "op_name=2:string",
    "Literal": "preds=2*:bool s32s=4*:int32 s64s=5*:int64 u32s=6*:uint32 u64s=7*:uint64",
    "Window": "dimensions=1*:WindowDimension",
    "WindowDimension": "size=1:int64 stride=2:int64 padding_low=3:int64 padding_high=4:int64 "
    "window_dilation=5:int64 base_dilation=6:int64 reversal=7:bool",
    "Convolution": "kernel_input_feature=3:int64 kernel_output_feature=4:int64 "
    "kernel_spatial=6*:int64 input_batch=7:int64 input_feature=8:int64 output_batch=9:int64 "
    "output_feature=10:int64 input_spatial=11*:int64 output_spatial=12*:int64",
    "Slice": "start=1:int64 limit=2:int64 stride=3:int64",
    "Padding": "dimensions=1*:PaddingDimension",
    "PaddingDimension": "low=1:int64 high=2:int64 interior=3:int64",
    "Dot": "lhs_contracting=1*:int64 rhs_contracting=2*:int64 lhs_batch=3*:int64 "
    "rhs_batch=4*:int64",
    "Gather": "offset_dims=1*:int64 collapsed_slice_dims=2*:int64 start_index_map=3*:int64 "
    "index_vector_dim=4:int64 operand_batching_dims=5*:int64 start_indices_batching_dims=6*:int64",
    "Scatter": "update_window_dims=1*:int64 inserted_window_dims=2*:int64 "
    "scatter_dims_to_operand_dims=3*:int64 index_vector_dim=4:int64 input_batching_dims=5*:int64 "
    "scatter_indices_batching_dims=6*:int64",
}
_SCALARS = {"string": 9, "int64": 3, "int32": 5, "bool": 8, "uint32": 13, "uint64": 4}
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3

SPLIT = 3
"""Code of shardings that name devices (XLA's OTHER)."""


def _build() -> dict[str, type]:
    """Return the class of each message in ``_MESSAGES``, by name."""
    file = descriptor_pb2.FileDescriptorProto(
        name="parenvs/hlo.proto", package="parenvs.hlo", syntax="proto3"
    )
    for name, text in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for item in text.split():
            key, numbered_type = item.split("=")
            number, kind = numbered_type.split(":")
            field = message.field.add(name=key, number=int(number.rstrip("*")))
            field.label = _REPEATED if number.endswith("*") else _OPTIONAL
            field.type = _SCALARS.get(kind, _MESSAGE)
            if kind not in _SCALARS:
                field.type_name = f".parenvs.hlo.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"parenvs.hlo.{name}"))
        for name in _MESSAGES
    }


_CLASSES = _build()
Module = _CLASSES["Module"]
"""An HLO module; ``Module.FromString(data)`` parses a serialized HloModuleProto."""
Wrapper = _CLASSES["Wrapper"]
"""XLA's HloProto, which tools write: an HloModuleProto in field 1, and buffers (not read)."""
