"""Message types of the streaming protocols and the statement API. Data only.

`streaming`: requests, responses and status codes of streaming v1.
`column_statistics`: conversion of chunk statistics to and from their messages.
`statements`: messages of the statement API.
`row_api`: messages of the row API.
`file_pipes`: messages of Snowpipe's REST API.
"""
