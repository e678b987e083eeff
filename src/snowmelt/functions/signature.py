"""A function as its caller and its service both name it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from snowmelt.functions.refusals import DeclarationInvalid
from snowmelt.functions.types import SqlType, parse_type
from snowmelt.schema.types import MAX_TEXT_BYTES, display_name


@dataclass(frozen=True, slots=True)
class HeaderStyle:
    """How headers write a signature; the defaults are those of the published format.

    Newer engines send the name in capitals and 134217728 as the length of a plain VARCHAR.
    """

    upper_name: bool = False
    text_length: int = MAX_TEXT_BYTES


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument; `nullable` tells whether the function wants to see NULL in it.

    `default` is what stands for it where a call leaves it out: a constant as SQL text (`7`, `'x'`
    with backslashes and quotes doubled, `TRUE`, `NULL`), or None if a call must give it.
    """

    name: str
    type: SqlType
    nullable: bool = True
    default: str | None = None


@dataclass(frozen=True, slots=True)
class Signature:
    """Name, arguments and result of an external function."""

    name: str
    arguments: tuple[Argument, ...]
    returns: SqlType

    @property
    def least_arguments(self) -> int:
        """How many arguments a call gives at least; those with defaults are the last ones."""
        return sum(each.default is None for each in self.arguments)

    @property
    def is_strict(self) -> bool:
        """Whether a row with any NULL is NULL without being looked at."""
        return bool(self.arguments) and not any(each.nullable for each in self.arguments)

    def name_text(self, style: HeaderStyle) -> str:
        """Return the name as its header carries it."""
        return self.name.upper() if style.upper_name else self.name

    def arguments_text(self) -> str:
        """Return the arguments as the signature header lists them: `(N NUMBER, S VARCHAR)`."""
        listed = ", ".join(f"{each.name.upper()} {each.type.bare}" for each in self.arguments)
        return f"({listed})"

    def returns_text(self, style: HeaderStyle) -> str:
        """Return the type of the result as its header writes it."""
        return self.returns.full(style.text_length)

    def ddl(self) -> str:
        """Return `NAME(ARGUMENTS) RETURNS TYPE`, in two lines, as a CREATE statement writes it."""
        return f"{self.name}({self.arguments_ddl()})\nRETURNS {self.returns.ddl}"

    def arguments_ddl(self) -> str:
        """Return the arguments as a CREATE statement lists them, without parentheses."""
        return ", ".join(
            f"{display_name(each.name.upper())} {each.type.ddl}"
            + (f" DEFAULT {each.default}" if each.default is not None else "")
            for each in self.arguments
        )


@lru_cache(maxsize=1024)
def arguments_of(text: str) -> tuple[tuple[str, SqlType], ...] | None:
    """Return names and types that a signature header lists; None where it cannot be read.

    A name may hold blanks and commas, so a header is a hint, never a reason to fail.
    """
    inner = text.strip()
    if not (inner.startswith("(") and inner.endswith(")")):
        return None
    inner = inner[1:-1].strip()
    if not inner:
        return ()
    found = []
    for piece in _split(inner):
        name, _, type_text = piece.strip().rpartition(" ")
        try:
            found.append((name, parse_type(type_text)))
        except DeclarationInvalid:
            return None
    return tuple(found)


def _split(text: str) -> list[str]:
    """Split at commas outside parentheses: types may carry parameters."""
    pieces, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign == "(") - (sign == ")")
        if sign == "," and depth == 0:
            pieces.append(text[start:at])
            start = at + 1
    return [*pieces, text[start:]]
