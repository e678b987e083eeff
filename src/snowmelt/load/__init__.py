"""Files into rows: source, filters and parser, joined to one stream for each portion."""
