"""The module that user code imports as `vertica_sdk`: filters, parsers and sources.

`bases`: base classes of user code.
`buffers`: input, output and length buffers of a call.
`server_interface`: parameters, names, log and plan context.
`states`: states that phases return and receive.
`types`: column and parameter types.
`writers`: row writer and rejected records.

Vertica's SDK for Python has neither sources nor the side channel. Here both have the names that the
SDKs for other languages use.
"""

from __future__ import annotations

from snowmelt.load.udx.vertica_sdk.bases import (
    BlockReader,
    BlockWriter,
    FilterFactory,
    MultiPhaseTransformFunctionFactory,
    ParserFactory,
    PartitionReader,
    PartitionWriter,
    ScalarFunction,
    ScalarFunctionFactory,
    SourceFactory,
    TransformFunction,
    TransformFunctionFactory,
    TransformFunctionPhase,
    UDChunker,
    UDFilter,
    UDParser,
    UDSource,
    UDXFactory,
    UDXObject,
)
from snowmelt.load.udx.vertica_sdk.buffers import InputBuffer, LengthBuffer, OutputBuffer
from snowmelt.load.udx.vertica_sdk.server_interface import (
    ExecutorPlanContext,
    NodeSpecifyingPlanContext,
    ParamReader,
    ParamWriter,
    PerColumnParamReader,
    PlanContext,
    ServerInterface,
    SessionParamWriterMap,
)
from snowmelt.load.udx.vertica_sdk.states import InputState, StreamState, UDXType
from snowmelt.load.udx.vertica_sdk.types import ColumnTypes, SizedColumnTypes, VerticaType
from snowmelt.load.udx.vertica_sdk.writers import RejectedRecord, StreamWriter

__all__ = [
    "BlockReader",
    "BlockWriter",
    "ColumnTypes",
    "ExecutorPlanContext",
    "FilterFactory",
    "InputBuffer",
    "InputState",
    "LengthBuffer",
    "MultiPhaseTransformFunctionFactory",
    "NodeSpecifyingPlanContext",
    "OutputBuffer",
    "ParamReader",
    "ParamWriter",
    "ParserFactory",
    "PartitionReader",
    "PartitionWriter",
    "PerColumnParamReader",
    "PlanContext",
    "RejectedRecord",
    "ScalarFunction",
    "ScalarFunctionFactory",
    "ServerInterface",
    "SessionParamWriterMap",
    "SizedColumnTypes",
    "SourceFactory",
    "StreamState",
    "StreamWriter",
    "TransformFunction",
    "TransformFunctionFactory",
    "TransformFunctionPhase",
    "UDChunker",
    "UDFilter",
    "UDParser",
    "UDSource",
    "UDXFactory",
    "UDXObject",
    "UDXType",
    "VerticaType",
]
