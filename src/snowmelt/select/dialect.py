"""SQL dialects of S3 Select: AWS, current Ceph, and Ceph of 2020.

All dialects accept one grammar. The dialect decides only where the three conflict.
"""

from __future__ import annotations

from enum import StrEnum


class Dialect(StrEnum):
    """Three ways to read one statement; what does not collide works in all of them."""

    AWS = "aws"
    """Amazon's documentation: typed literals, three-valued logic, text inferred in comparisons."""

    CEPH = "ceph"
    """Today's Ceph: no inference, empty fields are NULL, integers wrap."""

    CEPH_2020 = "ceph-2020"
    """Ceph's first engine: C's number conversions, errors of a row are counted, not fatal."""

    @property
    def is_ceph(self) -> bool:
        """Whether this is one of the two that Ceph speaks or spoke."""
        return self is not Dialect.AWS
