"""The row API over HTTP: the endpoints that the official high-performance SDK calls."""
