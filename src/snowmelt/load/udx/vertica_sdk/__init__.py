"""The module that user code imports as `vertica_sdk`: filters, parsers and sources.

`bases`: base classes of user code, and the states that it returns and receives.
`buffers`: input, output and length buffers of a call, row writer and rejected records.
`server_interface`: parameters, names, log and plan context.
`types`: column and parameter types.

Vertica's SDK for Python has neither sources nor the side channel. Here, both have the names of the
SDKs for other languages.
"""

from __future__ import annotations

from snowmelt.load.udx.vertica_sdk.bases import (
    BlockReader,
    BlockWriter,
    FilterFactory,
    InputState,
    MultiPhaseTransformFunctionFactory,
    ParserFactory,
    PartitionReader,
    PartitionWriter,
    ScalarFunction,
    ScalarFunctionFactory,
    SourceFactory,
    StreamState,
    TransformFunction,
    TransformFunctionFactory,
    TransformFunctionPhase,
    UDChunker,
    UDFilter,
    UDParser,
    UDSource,
    UDXFactory,
    UDXObject,
    UDXType,
)
from snowmelt.load.udx.vertica_sdk.buffers import (
    InputBuffer,
    LengthBuffer,
    OutputBuffer,
    RejectedRecord,
    StreamWriter,
)
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
from snowmelt.load.udx.vertica_sdk.types import ColumnTypes, SizedColumnTypes, VerticaType

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
