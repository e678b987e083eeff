from snowmelt import errors as errors
from snowmelt.client.async_client import AsyncChannel as AsyncChannel
from snowmelt.client.async_client import AsyncClient as AsyncClient
from snowmelt.client.auth import OAuth as OAuth
from snowmelt.client.channel import Channel as Channel
from snowmelt.client.channel import InsertResult as InsertResult
from snowmelt.client.channel import OnError as OnError
from snowmelt.client.client import Client as Client
from snowmelt.client.client import connect as connect
from snowmelt.client.source_streaming import stream as stream
from snowmelt.client.statements import StatementClient as StatementClient
from snowmelt.embedded import embedded as embedded
from snowmelt.errors import SnowmeltError as SnowmeltError
from snowmelt.schema.conversion.row_converter import RowError as RowError

__version__: str

__all__ = [
    "AsyncChannel",
    "AsyncClient",
    "Channel",
    "Client",
    "InsertResult",
    "OAuth",
    "OnError",
    "RowError",
    "SnowmeltError",
    "StatementClient",
    "__version__",
    "connect",
    "embedded",
    "errors",
    "stream",
]
