"""The demo's external function service: locations of airports and distances between them.

It is written as a user would write one. `snowmelt functions serve` runs it.
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
    """Where an airport is, in degrees."""

    city: str
    latitude: float
    longitude: float


@svc.function
def place(code: str) -> AirportLocation | None:
    """Return where an airport is; None for one that is not listed."""
    row = _AIRPORTS.get(code)
    if row is None:
        return None
    return AirportLocation(
        city=row["name"], latitude=float(row["lat"]), longitude=float(row["lon"])
    )


@svc.function
def miles(origin: str, dest: str) -> float | None:
    """Return the length of the great circle between two airports, in statute miles."""
    here, there = place(origin), place(dest)
    if here is None or there is None:
        return None
    latitudes = radians(here["latitude"]), radians(there["latitude"])
    turn = radians(there["longitude"] - here["longitude"])
    half = sin((latitudes[1] - latitudes[0]) / 2) ** 2
    half += cos(latitudes[0]) * cos(latitudes[1]) * sin(turn / 2) ** 2
    return 2 * EARTH_RADIUS_MILES * asin(sqrt(half))
