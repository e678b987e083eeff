"""What Spark says, in a sentence."""

from __future__ import annotations

import pytest
from pyspark.errors import AnalysisException, PythonException

from snowmelt.cli.spark_session import translating_spark_errors
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
