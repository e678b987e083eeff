"""COPY into the lakehouse, in this process."""

from __future__ import annotations

import pytest

from fix_chunks import ROLE
from snowmelt.catalog.commands.executor import execute
from snowmelt.catalog.jobs import loads
from snowmelt.loaders.copy_job import CopyContext, copy_into
from snowmelt.loaders.task_runner import LocalRunner


class Copying:
    """A lakehouse with statements and COPY; files lie in `folder`, beside the lakehouse."""

    def __init__(self, house):
        self.house = house
        self.folder = house.folder.with_name(f"{house.folder.name}-in")
        self.folder.mkdir(exist_ok=True)
        self.context = CopyContext(house.database, house.warehouse.url, ROLE, house.clock, "DEMO")

    def sql(self, text):
        return execute(self.house.database, text, default_database="demo", clock=self.house.clock)

    def file(self, name, data):
        """Write a file and return its path, as SQL has it."""
        path = self.folder / name
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
        return f"'{path}'"

    def copy(self, text, *, run=None, **options):
        return copy_into(self.context, text, run or LocalRunner(), **options)

    def history(self):
        """Return files and their states, the newest load first."""
        with self.house.database.reading() as connection:
            return loads.file_history(connection)

    def states(self):
        with self.house.database.reading() as connection:
            return [str(load.state) for load in loads.loads_of(connection)]


@pytest.fixture
def copying(numbers_table):
    """COPY into the table NUMBERS (N NUMBER(18,0) NOT NULL, WORD VARCHAR(100))."""
    return Copying(numbers_table)
