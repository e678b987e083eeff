"""The module that existing code imports as `vertica_sdk`: filters, parsers and sources.

The SDK for Python has neither sources nor the side channel; here both are under the names that
other languages have for them.
"""

from __future__ import annotations

from snowmelt.load.hosting.vertica.bases import (
    FilterFactory,
    ParserFactory,
    SourceFactory,
    UDChunker,
    UDFilter,
    UDParser,
    UDSource,
    UDXFactory,
    UDXObject,
)
from snowmelt.load.hosting.vertica.buffers import InputBuffer, LengthBuffer, OutputBuffer
from snowmelt.load.hosting.vertica.columns import ColumnTypes, SizedColumnTypes, VerticaType
from snowmelt.load.hosting.vertica.functions import (
    BlockReader,
    BlockWriter,
    MultiPhaseTransformFunctionFactory,
    PartitionReader,
    PartitionWriter,
    ScalarFunction,
    ScalarFunctionFactory,
    TransformFunction,
    TransformFunctionFactory,
    TransformFunctionPhase,
)
from snowmelt.load.hosting.vertica.parameters import (
    ParamReader,
    ParamWriter,
    PerColumnParamReader,
    SessionParamWriterMap,
)
from snowmelt.load.hosting.vertica.rows import RejectedRecord, StreamWriter
from snowmelt.load.hosting.vertica.server import (
    ExecutorPlanContext,
    NodeSpecifyingPlanContext,
    PlanContext,
    ServerInterface,
)
from snowmelt.load.hosting.vertica.states import InputState, StreamState, UDXType

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
