"""The demo: 336,776 real flights pass through all parts of Snowmelt, with a crash in between.

`dataset`: flights, weather and plane files, and the expected results.
`loader`: the process that streams the flights and is killed.
`scenario`: the steps of the demo and the latency measurement.
`kafka_chapter`: a Kafka topic, and a connector that is killed.
`airport_service`: an external function service for airports.
"""
