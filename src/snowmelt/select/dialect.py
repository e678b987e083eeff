"""SQL dialects of S3 Select: AWS, current Ceph, and Ceph of 2020.

All dialects share one grammar. The dialect matters only for constructs that the three interpret
differently.
"""

from __future__ import annotations

from enum import StrEnum


class Dialect(StrEnum):
    """SQL dialect of a statement. Constructs without conflicting meanings work in every dialect."""

    AWS = "aws"
    """Amazon's documentation: typed literals, three-valued logic, inferred types of strings."""

    CEPH = "ceph"
    """Current Ceph: no inference; empty fields are NULL."""

    CEPH_2020 = "ceph-2020"
    """Ceph's first engine: number conversions of C; row errors are counted and are not fatal."""

    @property
    def is_ceph(self) -> bool:
        """True for the two Ceph dialects."""
        return self is not Dialect.AWS
