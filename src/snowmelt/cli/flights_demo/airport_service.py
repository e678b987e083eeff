"""External function service of the demo: locations of airports and distances between them.

It uses only the public API. `snowmelt functions serve` runs it.
"""

from __future__ import annotations

from math import asin, cos, radians, sin, sqrt
from typing import TypedDict

from snowmelt.cli.flights_demo.dataset import read_csv_rows
from snowmelt.functions.service import RemoteService

EARTH_RADIUS_MILES = 3958.76

svc = RemoteService("airports")
_AIRPORTS = {row["faa"]: row for row in read_csv_rows("airports.csv")}


class AirportLocation(TypedDict):
    """Location of an airport, in degrees."""

    city: str
    latitude: float
    longitude: float


@svc.function
def place(code: str) -> AirportLocation | None:
    """Return the location of an airport, or None if it is not listed."""
    row = _AIRPORTS.get(code)
    if row is None:
        return None
    return AirportLocation(
        city=row["name"], latitude=float(row["lat"]), longitude=float(row["lon"])
    )


@svc.function
def miles(origin: str, dest: str) -> float | None:
    """Return the great-circle distance between two airports in statute miles.

    Returns None if an airport is not listed.
    """
    here, there = place(origin), place(dest)
    if here is None or there is None:
        return None
    latitudes = radians(here["latitude"]), radians(there["latitude"])
    turn = radians(there["longitude"] - here["longitude"])
    half = sin((latitudes[1] - latitudes[0]) / 2) ** 2
    half += cos(latitudes[0]) * cos(latitudes[1]) * sin(turn / 2) ** 2
    return 2 * EARTH_RADIUS_MILES * asin(sqrt(half))
