"""The demo: 336,776 real flights through all parts of Snowmelt, with a crash in the middle.

`dataset`: flights, weather and plane files, and the expected results.
`loader`: the process that streams the flights, and is killed.
`scenario`: the steps of the demo, latency measurements, the external function step.
`airport_service`: an external function service for airports.
"""
