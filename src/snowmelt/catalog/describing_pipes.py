"""DESCRIBE PIPE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.catalog import pipes
from snowmelt.catalog.pipe_syntax import DescribePipe
from snowmelt.catalog.results import Result
from snowmelt.catalog.showing import show
from snowmelt.catalog.showing_pipes import PIPE_COLUMNS, pipe_row
from snowmelt.errors import PipeNotFound

if TYPE_CHECKING:
    from snowmelt.catalog.session import Session


@show.register(DescribePipe)
def _describe_pipe(statement: DescribePipe, session: Session) -> Result:
    name = session.table_name(statement.name)
    found = pipes.find_pipe(session.connection, name)
    if found is None or not (session.is_administrator or found.owner == session.role):
        raise PipeNotFound(pipe=name)
    return Result(PIPE_COLUMNS, (pipe_row(found),))
