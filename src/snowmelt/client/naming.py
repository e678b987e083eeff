"""Names and offset tokens as a user gives them."""

from __future__ import annotations

from snowmelt.errors import ConfigurationError, UserError


def check_offset_token(token: object) -> None:
    """Let an offset token pass that every catalog can keep; None is none.

    Raises:
        UserError: It is no text, or holds NUL or half of a surrogate pair.
    """
    if token is None:
        return
    if not isinstance(token, str):
        raise UserError(f"An offset token is a text, not {type(token).__name__}: write str(…).")
    try:
        token.encode()
    except UnicodeEncodeError:
        raise UserError(f"Offset token {token[:100]!r} is no valid Unicode.") from None
    if "\0" in token:
        raise UserError(f"Offset token {token[:100]!r} holds the character NUL.")


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
