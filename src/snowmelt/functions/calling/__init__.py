"""Former place of the caller, for one release.

`plan`: `CallerOptions`, which is in `snowmelt.functions` now.
"""
