"""Libraries of user code and what is made of them, by SQL."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from fixtures.catalog import World
from fixtures.chunks import Lakehouse
from snowmelt.catalog.objects.libraries import (
    LibraryRecord,
    LoadFunctionRecord,
    create_library,
    create_load_function,
    drop_library,
    list_load_functions,
    read_library_files,
)
from snowmelt.catalog.statements.executor import execute_statement
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.errors import AlreadyExists, NotFound, PrivilegeMissing, StatementError, UserError
from support.interleaving import begin_beside, run_after


@pytest.fixture
def run(lakehouse: Lakehouse) -> Callable[..., StatementResult]:
    return lambda text, **options: execute_statement(lakehouse.database, text, **options)


@pytest.fixture
def library(tmp_path: Path, run: Any) -> Path:
    path = tmp_path / "own.py"
    path.write_text("Factory = Other = None")
    run(f"CREATE LIBRARY own AS '{path}' LANGUAGE 'Python'")
    return path


def test_a_library_is_its_file_and_what_it_needs(
    tmp_path: Path, run: Any, lakehouse: Lakehouse
) -> None:
    (tmp_path / "site" / "deep").mkdir(parents=True)
    (tmp_path / "site" / "deep" / "more.py").write_text("more")
    (tmp_path / "own.py").write_text("own")
    text = f"CREATE LIBRARY own AS '{tmp_path}/own.py' DEPENDS '{tmp_path}/site/*'"
    assert run(text).message == "Library OWN created, 2 files."
    with lakehouse.database.reading() as connection:
        files = read_library_files(connection, ["OWN"])
    assert list(files["OWN"].items()) == [("own.py", b"own"), ("deep/more.py", b"more")]


def test_a_replaced_library_keeps_what_is_made_of_it(
    library: Path, run: Any, lakehouse: Lakehouse
) -> None:
    run("CREATE FILTER f AS LANGUAGE 'Python' NAME 'Factory' LIBRARY own NOT FENCED")
    library.write_text("Factory = 2")
    with pytest.raises(AlreadyExists):
        run(f"CREATE LIBRARY own AS '{library}'")
    assert run(f"CREATE OR REPLACE LIBRARY own AS '{library}'").message.startswith("Library OWN re")
    with lakehouse.database.reading() as connection:
        assert read_library_files(connection, ["OWN"]) == {"OWN": {"own.py": b"Factory = 2"}}
        [function] = list_load_functions(connection)
    assert (function.kind, function.name, function.factory) == ("filter", "F", "Factory")
    [shown] = run("SHOW FILTERS").rows
    assert shown[1:4] == ("F", "Factory", "OWN")
    [shown] = run("SHOW LIBRARIES").rows
    assert shown[1:5] == ("OWN", "Python", str(library), 1)


def test_one_name_may_be_of_each_kind(library: Path, run: Any) -> None:
    for kind in ("FILTER", "PARSER", "SOURCE"):
        run(f"CREATE {kind} x AS NAME 'Factory' LIBRARY own")
        with pytest.raises(AlreadyExists):
            run(f"CREATE {kind} x AS NAME 'Factory' LIBRARY own")
        run(f"CREATE OR REPLACE {kind} public.x AS NAME 'Other' LIBRARY own")
    run("DROP PARSER public.x()")
    assert [len(run(f"SHOW {kind}S").rows) for kind in ("FILTER", "PARSER", "SOURCE")] == [1, 0, 1]
    with pytest.raises(NotFound):
        run("DROP PARSER x")
    assert "nothing was done" in run("DROP PARSER IF EXISTS x").message


def test_a_used_library_is_dropped_with_cascade_alone(library: Path, run: Any) -> None:
    run("CREATE FILTER f AS NAME 'Factory' LIBRARY own")
    with pytest.raises(UserError, match=r"Cannot drop library .*: it is used by filter F"):
        run("DROP LIBRARY own")
    run("DROP LIBRARY own CASCADE")
    assert run("SHOW FILTERS").rows == run("SHOW LIBRARIES").rows == ()


def test_user_code_is_for_administrators(library: Path, run: Any) -> None:
    run("CREATE ROLE writer")
    for text in (
        f"CREATE LIBRARY other AS '{library}'",
        "CREATE FILTER f AS NAME 'Factory' LIBRARY own",
        "DROP LIBRARY own",
    ):
        with pytest.raises(PrivilegeMissing):
            run(text, role="WRITER")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("CREATE LIBRARY l AS 'x.so' LANGUAGE 'C++'", "LANGUAGE 'C..' is not supported"),
        ("CREATE FILTER f AS NAME 'a b' LIBRARY l", "name of a function or class"),
        ("CREATE FILTER other.f AS NAME 'a' LIBRARY l", "does not belong to a schema"),
        ("CREATE FILTER f AS NAME a LIBRARY l", "in single quotes"),
    ],
)
def test_what_is_wrong_is_said(text: str, reason: str, run: Any) -> None:
    with pytest.raises(StatementError, match=reason):
        run(text)


def test_a_function_needs_its_library_and_a_library_its_file(run: Any) -> None:
    with pytest.raises(NotFound):
        run("CREATE FILTER f AS NAME 'Factory' LIBRARY own")
    with pytest.raises(UserError, match=r"Object own\.py not found"):
        run("CREATE LIBRARY own AS '/nowhere/own.py'")


@pytest.mark.postgres
def test_a_function_is_not_dropped_with_a_library_that_had_none(postgres_world: World) -> None:
    database, now = postgres_world.database, postgres_world.now
    library = LibraryRecord("OWN", "Python", "own.py", ("own.py",), "ACCOUNTADMIN", now)
    function = LoadFunctionRecord("filter", "F", "Factory", "OWN", "ACCOUNTADMIN", now)
    with database.writing() as connection:
        create_library(connection, library, {"own.py": b""}, replace=False)

    def create() -> None:
        with database.writing() as connection:
            create_load_function(connection, function, replace=False)

    creation: list[Future[None]] = []
    with database.writing() as connection:
        run_after(
            connection,
            "FROM load_functions",
            lambda: creation.append(begin_beside(database, create)),
        )
        drop_library(connection, "OWN", cascade=False)
    with pytest.raises(IntegrityError):
        creation[0].result(60)
