"""What Spark says, in a sentence."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
from pyspark.errors import AnalysisException, PythonException

from snowmelt.cli.spark_session import start_quietly, translating_spark_errors
from snowmelt.errors import RemoteError

WORKER = """[PYTHON_DATA_SOURCE_ERROR] Failed when Python data source instance reads data: Traceback
  File "source.py", line 1, in read
snowmelt.errors.BlobCorrupt: Blob a/b.bdec, chunk at 0: MD5 differs.
 SQLSTATE: 38000
"""
CALLED = """An exception was thrown from the Python worker:
Traceback (most recent call last):
snowmelt.functions.errors.TransportFailed: 127.0.0.1:8700: Connection refused.

The above exception was the direct cause of the following exception:

  File "attempts.py", line 1, in ask
snowmelt.functions.errors.CallFailed: city, batch q:1:0:0:abc: it failed (status 500).
"""
JAVA = """An error occurred while calling o73.collectToPython.
: org.apache.spark.SparkException: Job aborted: Python worker exited unexpectedly (crashed).
	at org.apache.spark.scheduler.DAGScheduler.abortStage(DAGScheduler.scala:1)
"""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (PythonException(WORKER), "Blob a/b.bdec, chunk at 0: MD5 differs."),
        (PythonException(CALLED), "city, batch q:1:0:0:abc: it failed (status 500)."),
        (
            AnalysisException('[A.B] Cannot resolve "max(v)". SQLSTATE: 42K09; line 1\n\'Plan [x]'),
            'Cannot resolve "max(v)".',
        ),
        (AnalysisException(JAVA), "Job aborted: Python worker exited unexpectedly (crashed)."),
    ],
)
def test_spark_errors_become_sentences(
    raised: AnalysisException | PythonException, said: str
) -> None:
    with pytest.raises(RemoteError) as caught, translating_spark_errors():
        raise raised
    assert str(caught.value) == said


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(KeyError), translating_spark_errors():
        raise KeyError


def test_of_javas_output_only_waits_for_services_are_printed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    waits = "dbl is waiting for its service http://h:1/dbl: Connection refused; attempt 7"
    written = f"noise\n{waits}\nmore noise\n"
    start_quietly(lambda: run_python(f"import sys; sys.stderr.write({written!r})"))
    err = ""
    while "attempt 7" not in err:
        err += capfd.readouterr().err
        time.sleep(0.01)
    assert err == f"snowmelt: {waits}\n"


def test_a_start_that_fails_is_told_with_javas_last_line() -> None:
    def fail() -> None:
        run_python("import sys; sys.stderr.write('a trace\\nno memory\\n\\n')")
        raise OSError

    with pytest.raises(RemoteError, match=r"Spark did not start: no memory$"):
        start_quietly(fail)


def run_python(code: str) -> None:
    subprocess.run([sys.executable, "-c", code], check=True)
