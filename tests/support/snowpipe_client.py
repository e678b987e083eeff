"""Program that runs the official client of Snowpipe's REST API in a separate environment.

Reads one JSON document from standard input: the arguments of `SimpleIngestManager`, and `calls`, a
list of method names with arguments. Prints the list of results. `wait` calls `get_history` until it
has reported a number of files.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from snowflake.ingest import SimpleIngestManager, StagedFile
from snowflake.ingest.error import IngestResponseError


def _call(manager: Any, name: str, arguments: list[Any]) -> Any:
    if name == "wait":
        files: list[Any] = []
        give_up_at = time.monotonic() + 120
        while len(files) < arguments[0] and time.monotonic() < give_up_at:
            files += manager.get_history()["files"]
            time.sleep(0.1)
        return files
    if name == "ingest_files":
        arguments = [[StagedFile(*each) for each in arguments[0]]]
    try:
        return getattr(manager, name)(*arguments)
    except IngestResponseError as error:
        return {"status": error.http_error_code, "message": error.message}


def main() -> None:
    """Run the calls."""
    given = json.load(sys.stdin)
    manager = SimpleIngestManager(**given["manager"])
    json.dump([_call(manager, name, arguments) for name, *arguments in given["calls"]], sys.stdout)


if __name__ == "__main__":
    main()
