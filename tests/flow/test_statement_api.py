"""SQL statements over HTTP: with `StatementClient`, commands, and plain HTTP."""

from __future__ import annotations

import contextlib
import itertools
import json
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

import snowmelt
from fixtures.service import KeyPair, ServiceProcess
from snowmelt.errors import (
    AuthenticationFailed,
    ProfileNotFound,
    ServiceUnavailable,
    StatementError,
    StatementFailed,
    UnknownOutcome,
)
from support.ports import free_port

pytestmark = pytest.mark.slow
_numbers = itertools.count()


class Account:
    """An administrator and a user with few privileges on a shared service."""

    def __init__(self, service: ServiceProcess, folder: Path) -> None:
        self.service, self.folder = service, folder
        number = next(_numbers)
        self.database, self.user = f"stated_{number}", f"stater_{number}"
        self.keys = {}
        for user, role in ((f"boss_{number}", "ACCOUNTADMIN"), (self.user, None)):
            pair = KeyPair.generate()
            service.sql(f"CREATE USER {user} RSA_PUBLIC_KEY = '{pair.public_base64}'")
            if role:
                service.sql(
                    f"GRANT ROLE {role} TO USER {user}",
                    f"ALTER USER {user} SET DEFAULT_ROLE = {role}",
                )
            self.keys[user] = folder / f"{user}.pem"
            self.keys[user].write_text(pair.private_pem)
        self.boss = f"boss_{number}"
        service.sql(f"CREATE DATABASE {self.database}")

    def client(self, user: str | None = None, **options: str) -> snowmelt.StatementClient:
        user = user or self.boss
        return snowmelt.StatementClient(
            self.service.url, user=user, private_key=self.keys[user], **options
        )

    def command(
        self, *arguments: str, user: str | None = None, given: str | None = None
    ) -> subprocess.CompletedProcess[Any]:
        user = user or self.boss
        who = ("--url", self.service.url, "--user", user, "--private-key", str(self.keys[user]))
        return subprocess.run(
            [sys.executable, "-m", "snowmelt", *arguments, *who],
            cwd=self.folder,
            capture_output=True,
            text=True,
            input=given,
            timeout=280,
        )


@pytest.fixture
def account(shared_service: ServiceProcess, tmp_path: Path) -> Account:
    return Account(shared_service, tmp_path)


def test_statements_run_with_the_privileges_of_the_user(account: Account) -> None:
    with account.client() as boss, account.client(account.user) as other:
        table = f"{account.database}.public.t"
        [(told,)] = boss.execute(f"CREATE TABLE {table} (id NUMBER)").rows
        assert str(told).startswith("Table ")
        shown = boss.execute(f"SHOW TABLES IN DATABASE {account.database}")
        assert shown.columns[:2] == ("created_on", "name")
        assert [row[1] for row in shown.rows] == ["T"]
        assert shown == boss.execute(f"SHOW TABLES IN DATABASE {account.database};")
        local = account.service.sql(f"SHOW TABLES IN DATABASE {account.database}")
        assert (shown.columns, tuple(shown.rows)) == (local.columns, local.rows)
        with pytest.raises(StatementFailed, match="does not exist") as raised:
            other.execute(f"DROP TABLE {table}")
        assert raised.value.fields["code"] == "database_not_found"
    with (
        account.client(account.user, role="ACCOUNTADMIN") as climber,
        pytest.raises(StatementFailed, match="Role ACCOUNTADMIN is not granted"),
    ):
        climber.execute("SHOW TABLES")


def test_short_names_are_in_the_database_and_schema_of_the_client(account: Account) -> None:
    with account.client(database=account.database, schema="public") as client:
        client.execute("CREATE TABLE short (id NUMBER)")
        assert account.service.sql(f"DESCRIBE TABLE {account.database}.public.short").rows


def test_errors_name_the_position_and_the_cause(account: Account) -> None:
    with account.client() as client:
        with pytest.raises(StatementError) as raised:
            client.execute("CREATE TABLES x")
        assert (raised.value.fields["line"], raised.value.fields["column"]) == (1, 8)
        with pytest.raises(StatementFailed, match="This query over the statement API"):
            client.execute("SELECT 1")
    for url, error in (
        (account.service.url, AuthenticationFailed),
        (f"http://127.0.0.1:{free_port()}", ServiceUnavailable),
    ):
        with snowmelt.StatementClient(url) as client, pytest.raises(error):
            client.execute("SHOW TABLES")


class AnswerSwallower:
    """A relay that forwards requests, and closes the connection when the response starts."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port = self._socket.getsockname()[1]
        self.connections = 0
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._socket.accept()
                self.connections += 1
                with near, socket.create_connection(("127.0.0.1", self._target)) as far:
                    carrier = threading.Thread(target=self._carry, args=(near, far))
                    carrier.start()
                    far.recv(1)
                    near.shutdown(socket.SHUT_RDWR)
                    carrier.join()

    @staticmethod
    def _carry(near: socket.socket, far: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := near.recv(65536):
                far.sendall(data)

    def close(self) -> None:
        # Shut the socket down first, because closing it does not end a blocked `accept`.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()


def test_a_lost_answer_is_an_unknown_outcome_and_nothing_is_sent_again(account: Account) -> None:
    relay = AnswerSwallower(account.service.port)
    with contextlib.closing(relay):
        with (
            snowmelt.StatementClient(
                f"http://127.0.0.1:{relay.port}",
                user=account.boss,
                private_key=account.keys[account.boss],
            ) as client,
            pytest.raises(UnknownOutcome, match="Check with SHOW"),
        ):
            client.execute(f"CREATE SCHEMA {account.database}.once")
        assert relay.connections == 1
    shown = account.service.sql(f"SHOW SCHEMAS IN DATABASE {account.database}")
    assert "ONCE" in [row[1] for row in shown.rows]


def test_any_http_client_may_send_statements_as_to_the_sql_api(account: Account) -> None:
    from snowmelt.client.auth import KeyPairTokenProvider, load_private_key
    from snowmelt.clock import SystemClock

    token = KeyPairTokenProvider(
        "127", account.boss, load_private_key(account.keys[account.boss]), SystemClock()
    ).get_token()
    headers = {
        "Authorization": f"Bearer {token}",
        "X-Snowflake-Authorization-Token-Type": "KEYPAIR_JWT",
    }

    def post(**body: Any) -> httpx.Response:
        return httpx.post(
            f"{account.service.url}/api/v2/statements", json=body, headers=headers, trust_env=False
        )

    answer = post(statement=f"SHOW SCHEMAS IN DATABASE {account.database}", timeout=60)
    assert (answer.status_code, answer.json()["code"]) == (200, "090001")
    assert answer.json()["resultSetMetaData"]["numRows"] == len(answer.json()["data"]) == 1
    failed = post(statement="SHOW NOTHING")
    assert (failed.status_code, failed.json()["sqlState"]) == (422, "42000")
    assert (
        post(statement="SHOW ROLES", bindings={"1": {"type": "FIXED", "value": "1"}})
        .json()["message"]
        .endswith("bindings are not supported. Write values into the statement.")
    )
    assert httpx.get(f"{account.service.url}/api/v2/statements", trust_env=False).status_code == 405


def test_copy_runs_on_the_service_for_account_admins_only(account: Account, tmp_path: Path) -> None:
    table = f"{account.database}.public.copied"
    account.service.sql(f"CREATE TABLE {table} (id NUMBER, what VARCHAR)")
    file = tmp_path / "rows.csv"
    file.write_text("1,a\n2,b\n")
    load = f"COPY {table} FROM '{file}' DELIMITER ','"
    copied = account.command("copy", load, "--format", "json")
    assert copied.returncode == 0, copied.stderr
    assert json.loads(copied.stdout)[0]["rows_loaded"] == 2
    wrong = tmp_path / "wrong.csv"
    wrong.write_text("x,c\n")
    for name, lines in (("wrong", [1]), ("rows", [])):
        validated = account.command(
            *(
                "copy",
                f"COPY INTO {table} FROM '{tmp_path}/{name}' VALIDATION_MODE = RETURN_ERRORS",
            ),
            *("--format", "json"),
        )
        assert [each["row_number"] for each in json.loads(validated.stdout)] == lines
    inferred = account.command(
        "sql",
        f"SELECT * FROM TABLE(INFER_SCHEMA(LOCATION => '{file}', FILE_FORMAT => (TYPE = CSV)))",
        *("--format", "json"),
    )
    assert [each["type"] for each in json.loads(inferred.stdout)] == ["NUMBER(38,0)", "VARCHAR"]
    account.service.sql(
        f"GRANT USAGE ON DATABASE {account.database} TO ROLE PUBLIC",
        f"GRANT USAGE ON SCHEMA {account.database}.public TO ROLE PUBLIC",
        f"GRANT INSERT ON TABLE {table} TO ROLE PUBLIC",
    )
    for statement, user, reason in (
        (load, account.user, "only role ACCOUNTADMIN may run it, not PUBLIC"),
        (f"COPY {table} FROM STDIN DELIMITER ','", account.boss, "snowmelt tail"),
        (f"COPY {table} FROM LOCAL '{file}' DELIMITER ','", account.boss, "snowmelt tail"),
        (f"COPY {table} FROM '{file}.none' DELIMITER ','", account.boss, "no file matches"),
    ):
        refused = account.command("copy", statement, user=user)
        assert (refused.returncode, reason in refused.stderr) == (1, True), refused.stderr


def test_commands_work_on_a_service_elsewhere(account: Account) -> None:
    table = f"{account.database}.public.t"
    script = f"CREATE TABLE {table} (id NUMBER); SHOW TABLES IN DATABASE {account.database}"
    ended = account.command("sql", "--format", "json", given=script)
    assert ended.returncode == 0, ended.stderr
    assert '"name": "T"' in ended.stdout
    broken = account.command("sql", f"SHOW ROLES;\nDROP TABLE {table} NOW")
    assert "(line 2, column" in broken.stderr
    with snowmelt.Client(
        account.service.url, user=account.boss, private_key=account.keys[account.boss]
    ) as client:
        client.open_channel("Mine", table=table)
    listed = json.loads(
        account.command("channels", "list", "--table", table, "--format", "json").stdout
    )
    assert [row["name"] for row in listed] == ["MINE"]
    dropped = account.command("channels", "drop", "MINE", "--table", table)
    assert dropped.stdout == f"Channel MINE of {table} dropped.\n"
    added = account.command("user", "add", f"more_{account.user}", "--key-out", "more.pem")
    assert added.returncode == 0, added.stderr
    users = json.loads(account.command("user", "list", "--format", "json").stdout)
    assert f"more_{account.user}".upper() in [row["name"] for row in users]
    rotated = account.command("user", "rotate", f"more_{account.user}", "--key-out", "new.pem")
    assert "Still valid: SHA256:" in rotated.stdout, rotated.stderr
    for key in ("more.pem", "new.pem"):
        account.keys[f"more_{account.user}"] = account.folder / key
        with account.client(f"more_{account.user}") as more:
            assert more.execute("SHOW ROLES").rows == [("PUBLIC",)]
    given = account.command("user", "access-key", f"more_{account.user}", "--token")
    assert given.stdout.startswith("SMAK"), given.stderr
    assert account.command("user", "drop", f"more_{account.user}").returncode == 0
    refused = account.command("sql", "SHOW ROLES", "--data-dir", "x")
    assert "--url and --profile exclude --catalog and --data-dir" in refused.stderr


def test_a_profile_connects_clients_and_commands(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = f"{account.database}.public.t"
    account.service.sql(f"CREATE TABLE {table} (id NUMBER)")
    config = account.folder / "snowmelt.toml"
    config.write_text(
        f'[profiles.far]\nurl = "{account.service.url}"\nuser = "{account.boss}"\n'
        f'private_key = "{account.boss}.pem"\n[profiles.empty]\nuser = "x"\n'
    )
    with snowmelt.connect("far", config_file=config) as client:
        channel = client.open_channel("c", table=table)
        channel.insert_row({"id": 1}, offset_token="1")
        channel.wait_for_commit("1")
    monkeypatch.setenv("SNOWMELT_CONFIG", str(config))
    monkeypatch.setenv("SNOWMELT_PROFILE", "far")
    command = [sys.executable, "-m", "snowmelt", "channels", "list", "--format", "json"]
    command += ["--table", table]
    shown = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert json.loads(shown.stdout)[0]["offset_token"] == "1"
    with pytest.raises(snowmelt.errors.ConfigurationError, match=r"profiles\.empty\.url"):
        snowmelt.connect("empty")
    with pytest.raises(ProfileNotFound, match="near"):
        snowmelt.connect("near")
