"""How a batch travels: headers, bodies, values. Bytes in, values out; no input or output."""
