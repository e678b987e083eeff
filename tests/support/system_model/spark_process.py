"""Spark session of Snowmelt in a process of its own, for statements that require `lake.sql`.

Run as `python -m support.system_model.spark_process DATA_FOLDER`. Requests are texts of statements, responses
are pairs of the name of an error, or "ok", and a text.
"""

from __future__ import annotations

import sys

from support.system_model.writer_process import receive_message, send_message


def main() -> None:
    """Run statements until the input ends."""
    from snowmelt.spark import Snowmelt

    requests, responses = sys.stdin.buffer, sys.stdout.buffer
    sys.stdout = sys.stderr
    lake = Snowmelt.local(sys.argv[1])
    send_message(responses, ("ok", "started"))
    while True:
        try:
            statement = receive_message(requests)
        except EOFError:
            return
        try:
            response = ("ok", str(lake.sql(statement).collect()))
        except Exception as error:
            response = (type(error).__name__, str(error))
        send_message(responses, response)


if __name__ == "__main__":
    main()
