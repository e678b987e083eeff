"""The demo: 336,776 real flights through all parts of Snowmelt, with a crash in the middle.

`dataset`: the flights, and the expected query results.
`loader`: the process that streams the flights, and is killed.
`scenario`: the steps of the demo, and its latency measurements.
`raw_files`: weather and plane files for COPY.
`airport_service`: an external function service for airports.
`function_chapter`: the step that calls it.
"""
