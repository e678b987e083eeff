"""SQL over one object: from the text of a request to a stream of records."""
