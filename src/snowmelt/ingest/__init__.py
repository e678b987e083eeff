"""Receiving half of Snowpipe Streaming: channels, registrations and the row API.

`channels`: configuring clients; opening, checking and dropping channels; client schema evolution.
`channel_write_batcher`: small catalog writes of many clients, grouped into a few transactions.
`stage_locations`: upload locations and credentials for the blobs of a client.
`registration_structure_check`: structural checks of a registration, without any lookup.
`migration_backlog`: tables whose migration backlog exceeds the limit.
`registration_verifier`: checks of registrations against the stage; catalog data that never changes.
`decoder_pool`: child processes that decode blobs.
`blob_decoder`: reading, decrypting and decoding of blobs.
`chunk_content_check`: full check of a decrypted chunk and its statistics.
`stage_sync`: sync of the stage before a commit.
`registrar`: group commit of registrations and their responses.
`batch_worker_pool`: batching queue and worker threads.
`metrics`: counters and latencies of registrations and row requests.
`rows`: the row API, from request bodies to registered chunks.
"""
