"""Loading raw files into tables: COPY, from the statement to the commit."""
