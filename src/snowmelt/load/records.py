"""Bytes with the limits of their records beside them: what flows where the side channel is used."""

from __future__ import annotations

from typing import TypeAlias

import pyarrow as pa

# A batch of whole records, each an element of type `binary`, none of them null: one buffer of
# bytes and one of offsets, handed on without a copy. A record may be empty.
Records: TypeAlias = pa.BinaryArray
