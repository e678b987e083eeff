"""Names for functions of queries, so that a file which holds some beside its filters loads.

A load calls none of them.
"""

from __future__ import annotations

from snowmelt.load.hosting.vertica.bases import UDXFactory, UDXObject


class BlockReader:
    """Arguments of a scalar function."""


class BlockWriter:
    """Results of a scalar function."""


class PartitionReader(BlockReader):
    """Rows that a transform function reads."""


class PartitionWriter(BlockWriter):
    """Rows that a transform function writes."""


class ScalarFunction(UDXObject):
    """One value from each row."""


class ScalarFunctionFactory(UDXFactory):
    """Makes scalar functions."""


class TransformFunction(UDXObject):
    """Rows from rows."""


class TransformFunctionFactory(UDXFactory):
    """Makes transform functions."""


class TransformFunctionPhase:
    """One step of a transform function."""


class MultiPhaseTransformFunctionFactory(UDXFactory):
    """Makes transform functions of several steps."""
