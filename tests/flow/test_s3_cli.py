"""The AWS CLI, unmodified."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from fixtures.s3 import S3Process

AWS = Path(sys.executable).parent / "aws"


@pytest.fixture
def aws(s3: S3Process, tmp_path: Path) -> Callable[..., str]:
    def run(*arguments: str, text: str | None = None) -> str:
        ended = subprocess.run(
            [sys.executable, AWS, *arguments],
            env=os.environ | s3.environment() | {"HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            input=text,
            timeout=120,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.mark.slow
def test_files_and_folders_go_both_ways(
    aws: Callable[..., str], bucket: str, tmp_path: Path
) -> None:
    place = f"s3://{bucket}"
    source = tmp_path / "source"
    (source / "sub dir").mkdir(parents=True)
    data = os.urandom(9_000_000)
    (source / "big.bin").write_bytes(data)
    (source / "sub dir" / "ü.txt").write_text("hello")
    aws("s3", "cp", str(source / "big.bin"), f"{place}/one")
    aws("s3", "sync", str(source), f"{place}/all/")
    assert "big.bin" in aws("s3", "ls", f"{place}/all/")
    listed = aws("s3", "ls", f"{place}/all/", "--recursive")
    assert "sub dir/ü.txt" in listed
    target = tmp_path / "target"
    aws("s3", "sync", f"{place}/all", str(target))
    assert (target / "big.bin").read_bytes() == data
    assert (target / "sub dir" / "ü.txt").read_text() == "hello"
    aws("s3", "mv", f"{place}/one", f"{place}/two")
    aws("s3", "cp", "-", f"{place}/piped", text="from a pipe")
    assert aws("s3", "cp", f"{place}/piped", "-") == "from a pipe"
    head = json.loads(aws("s3api", "head-object", "--bucket", bucket, "--key", "two"))
    assert head["ContentLength"] == len(data)
    address = aws("s3", "presign", f"{place}/piped").strip()
    with urllib.request.urlopen(address) as answer:
        assert answer.read() == b"from a pipe"
    aws("s3", "rm", place, "--recursive")
    aws("s3", "rb", place)


def test_an_access_key_of_the_command_line_is_for_the_shell(s3: S3Process, bucket: str) -> None:
    s3.service.sql("CREATE USER sheller", "GRANT ROLE accountadmin TO USER sheller")
    command = [sys.executable, "-m", "snowmelt", "--data-dir", str(s3.service.data_dir)]
    printed = subprocess.run(
        [*command, "user", "access-key", "sheller"], capture_output=True, text=True, check=True
    ).stdout
    script = f'eval "$KEYS"; {sys.executable} {AWS} s3 ls'
    listed = subprocess.run(
        ["/bin/sh", "-c", script],
        env=os.environ | s3.environment() | {"KEYS": printed},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert bucket in listed
