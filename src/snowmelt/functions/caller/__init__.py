"""The caller: sends Arrow argument columns as batches over HTTP and returns Arrow result columns.

`plan`: description of one use of a function in a query, and of each batch in the call log.
`pipeline`: the entry point. Keeps batches of one task in flight, and returns values in row order.
`batcher`: splitting of Arrow column streams into batches, and batch IDs.
`request_deduplication`: requests for batches, with deduplication, cached values and splitting.
`request_encoder`: encoding of Arrow columns to request bodies.
`arrow_types`: Arrow types of arguments and results, and shared encoding helpers.
`translators`: the request and the response translator of a function, in child processes.
`translator_runtime`: execution of translator sources in Python and in sandboxed JavaScript.
`rate_and_concurrency_limits`: limits, budgets and circuit breakers that processes share.
`attempts`: sending of one batch until its response, with retries and polls.
`http_request`: HTTP requests with headers, compression, authentication and secrets by reference.
`http_client`: the HTTP/1.1 client, its connection pool, and the event loop thread.
`response_decoder`: decoding of response bodies to Arrow arrays.

The modules do not import Spark. `snowmelt.spark.functions` passes columns in and receives arrays.
"""
