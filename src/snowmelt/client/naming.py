"""Names as a user types them."""

from __future__ import annotations

from snowmelt.errors import ConfigurationError


def split_table_name(text: str) -> tuple[str, str, str]:
    """Return database, schema and table of `db.schema.table`, each as typed, quotes included.

    Raises:
        ConfigurationError: Not three parts, or a quote that does not end.
    """
    parts, quoted = [""], False
    for letter in text:
        quoted ^= letter == '"'
        if letter == "." and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    if quoted or len(parts) != 3 or not all(part.strip('"') for part in parts):
        reason = f'{text!r} is not of the form database.schema.table ("…" around odd names)'
        raise ConfigurationError(setting="table", reason=reason)
    return parts[0], parts[1], parts[2]
