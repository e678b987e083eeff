"""Table references of a query with their positions in the text, and the columns that it needs.

Spark runs the user's text with the table names replaced in place, because regenerating the text
could lose a part. Queries that sqlglot cannot analyze read all columns, without pruning. The needed
columns come from the tokens, not from the tree: for a column with the name of a function (`user`,
`date`), the tree has no column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from snowmelt.errors import Unsupported

# sqlglot's Spark dialect lacks `v:city`, which Spark supports.
DIALECT = "databricks"
_EXPLAIN_MODES = frozenset({"EXTENDED", "CODEGEN", "COST", "FORMATTED"})
_QUERY_KEYWORDS = frozenset({"SELECT", "WITH", "FROM", "VALUES", "(", "INSERT", "MERGE"})
_RELATION_WORDS = frozenset({"FROM", "JOIN", "TABLE"})
_MODIFYING_NODES = (exp.Insert, exp.Update, exp.Delete, exp.Merge, exp.Create, exp.Schema)
# Characters that mark a regex of column names (`spark.sql.parser.quotedRegexColumnNames`).
_PATTERN_CHARACTERS = frozenset("*+?|()[]^")


@dataclass(frozen=True, slots=True)
class TableReference:
    """Reference to a table: its internal names and its position, text[start:end].

    `is_certain` is False if the words may also be a column. `node` is None if sqlglot could not
    parse the statement.
    """

    parts: tuple[str, ...]
    start: int
    end: int
    is_certain: bool
    is_aliased: bool
    node: exp.Table | None = None

    @property
    def alias(self) -> str:
        """Name that qualifies the table's columns in the statement."""
        if self.node is not None and self.node.alias:
            return self.node.alias
        return self.parts[-1]


@dataclass(frozen=True, slots=True)
class SparkQuery:
    """Statement for Spark, with its words and the tables that it may read."""

    text: str
    words: frozenset[str]
    references: tuple[TableReference, ...]
    tree: exp.Expr | None
    is_opaque: bool


def parse_query(text: str) -> SparkQuery:
    """Find the tables that a statement may read.

    Raises:
        Unsupported: If the statement would change a table.
    """
    try:
        tokens = tokenize_without_explain(text)
    except SqlglotError:
        return SparkQuery(text, frozenset(), (), None, is_opaque=True)
    tree = parse_statement(text, tokens)
    found = _find_references_in_tree(text, tree) if tree is not None else None
    if found is None:
        tree, found = None, {}
    for reference in _find_references_in_tokens(tokens, only_tables=tree is not None):
        found.setdefault(reference.start, reference)
    references = tuple(found[start] for start in sorted(found))
    _reject_modifications(references)
    words = frozenset(token.text.lower() for token in tokens)
    return SparkQuery(
        text, words, references, tree, is_opaque=tree is None or _has_implicit_columns(tokens, tree)
    )


def list_needed_columns(
    query: SparkQuery, reference: TableReference, columns: Iterable[str]
) -> list[str]:
    """Return the columns among `visible` that the query may need, in the same order."""
    columns = list(columns)
    if query.is_opaque or reference.node is None or _needs_all_columns(query, reference):
        return columns
    return [name for name in columns if name.lower() in query.words]


def qualify_reference(
    query: SparkQuery, reference: TableReference, namespace: tuple[str, ...]
) -> tuple[str, ...]:
    """Return the parts of a reference. Completes a short name with the `namespace`.

    The name of a WITH clause stays unchanged.
    """
    missing = len(namespace) + 1 - len(reference.parts)
    if missing <= 0 or query.tree is None or reference.node is None:
        return reference.parts
    named = {each.alias.upper() for each in query.tree.find_all(exp.CTE)}
    if len(reference.parts) == 1 and reference.parts[0].upper() in named:
        return reference.parts
    return (*namespace[:missing], *reference.parts)


def list_select_sources(query: SparkQuery, select: exp.Expr) -> list[TableReference]:
    """Return the catalog tables in the FROM clause of this SELECT, excluding subqueries."""
    return [
        reference
        for reference in query.references
        if reference.node is not None and reference.node.parent_select is select
    ]


def replace_references(query: SparkQuery, placeholders: Mapping[int, str]) -> str:
    """Return the statement with the reference at each index of `placeholders` replaced.

    A table without an alias gets its name as alias, in parentheses, because a sample or pivot
    clause may follow. The qualifiers of columns lose database and schema. Braces are doubled,
    because `SparkSession.sql` formats the text.
    """
    replaced = [(query.references[index], name) for index, name in placeholders.items()]
    edits = [_make_edit(reference, name) for reference, name in replaced]
    edits += _make_unqualifying_edits(query, [reference for reference, _ in replaced])
    pieces = []
    position = 0
    for start, end, text in sorted(edits):
        pieces += [_escape_braces(query.text[position:start]), text]
        position = end
    pieces.append(_escape_braces(query.text[position:]))
    return "".join(pieces)


def _make_edit(reference: TableReference, name: str) -> tuple[int, int, str]:
    if reference.is_aliased:
        return reference.start, reference.end, name
    alias = _escape_braces("`" + reference.parts[-1].replace("`", "``") + "`")
    return reference.start, reference.end, f"({name} AS {alias})"


def _escape_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def tokenize_statement(text: str) -> list[Token]:
    """Return the tokens of a statement, including a leading EXPLAIN.

    Raises:
        SqlglotError: If a string or quoted name is unterminated.
    """
    return list(sqlglot.tokenize(text, read=DIALECT))


def tokenize_without_explain(text: str) -> list[Token]:
    """Return the tokens of a statement, without a leading EXPLAIN and its mode.

    Raises:
        SqlglotError: If a string or quoted name is unterminated.
    """
    tokens = tokenize_statement(text)
    if not tokens or tokens[0].text.upper() != "EXPLAIN":
        return tokens
    # sqlglot reads everything after EXPLAIN as one string token.
    end = tokens[0].end + 1
    tokens = list(sqlglot.tokenize(" " * end + text[end:], read=DIALECT))
    has_mode = bool(tokens) and tokens[0].text.upper() in _EXPLAIN_MODES
    return tokens[1:] if has_mode else tokens


def parse_statement(text: str, tokens: Sequence[Token]) -> exp.Expr | None:
    """Parse a statement with these tokens. Return None if it cannot read tables or be parsed."""
    # sqlglot logs a warning for other statements and does not parse them.
    if not tokens or tokens[0].text.upper() not in _QUERY_KEYWORDS:
        return None
    start = tokens[0].start
    try:
        trees = sqlglot.parse(" " * start + text[start:], dialect=DIALECT)
    except (SqlglotError, RecursionError):
        return None
    trees = [tree for tree in trees if tree is not None]
    return trees[0] if len(trees) == 1 and not isinstance(trees[0], exp.Command) else None


def _find_references_in_tree(text: str, tree: exp.Expr) -> dict[int, TableReference] | None:
    """Return the references by position, or None if the positions are unreliable."""
    found = {}
    for table in tree.find_all(exp.Table):
        parts = [part for part in table.parts if isinstance(part, exp.Identifier)]
        if len(parts) != len(table.parts):
            continue
        if isinstance(table.parent, exp.JoinHint):
            continue
        if not all(_is_at_position(text, part) for part in parts):
            # sqlglot generated this node, for example for a pipe step. It is not in the text.
            if len(parts) >= 3:
                return None
            continue
        start, end = parts[0].meta["start"], parts[-1].meta["end"] + 1
        in_from = isinstance(table.parent, exp.From | exp.Join)
        aliased = bool(table.args.get("alias")) or not in_from
        names = tuple(_to_internal_name(part.name, quoted=part.quoted) for part in parts)
        found[start] = TableReference(names, start, end, True, aliased, table)
    return found


def _is_at_position(text: str, identifier: exp.Identifier) -> bool:
    start, end = identifier.meta.get("start"), identifier.meta.get("end")
    if start is None or end is None:
        return False
    written = text[start : end + 1]
    if written.startswith("`"):
        written = written[1:-1].replace("``", "`")
    return written == identifier.name


def _find_references_in_tokens(
    tokens: Sequence[Token], *, only_tables: bool
) -> Iterable[TableReference]:
    """Yield each `a.b.c` where a table may occur, or only those after TABLE if `only_tables`."""
    index = 0
    while index < len(tokens):
        run = read_dotted_name(tokens, index)
        before = _find_word_before(tokens, index)
        wanted = before == "TABLE" if only_tables else True
        if len(run) == 3 and wanted and not _is_call(tokens, index + 5):
            names = to_internal_parts(run)
            certain = before in _RELATION_WORDS
            aliased = before not in ("FROM", "JOIN") or _alias_follows(tokens, index + 5)
            yield TableReference(names, run[0].start, run[-1].end + 1, certain, aliased)
        index += max(1, 2 * len(run) - 1)


def _alias_follows(tokens: Sequence[Token], index: int) -> bool:
    if index >= len(tokens):
        return False
    token = tokens[index]
    return token.token_type in (TokenType.VAR, TokenType.IDENTIFIER, TokenType.ALIAS)


def read_dotted_name(tokens: Sequence[Token], index: int) -> list[Token]:
    """Return the tokens of the names in a dotted name that starts at `index`, or an empty list."""
    run: list[Token] = []
    while index < len(tokens) and _is_name(tokens[index]):
        run.append(tokens[index])
        if index + 1 >= len(tokens) or tokens[index + 1].token_type != TokenType.DOT:
            break
        index += 2
    return run


def to_internal_parts(name_tokens: Sequence[Token]) -> tuple[str, ...]:
    """Return a dotted name's parts as internal names: upper-case unless quoted."""
    return tuple(_to_internal_name(token.text, quoted=_is_quoted(token)) for token in name_tokens)


def _is_name(token: Token) -> bool:
    if token.token_type in (TokenType.STRING, TokenType.NUMBER):
        return False
    return token.token_type == TokenType.IDENTIFIER or token.text.isidentifier()


def _is_quoted(token: Token) -> bool:
    return bool(token.token_type == TokenType.IDENTIFIER)


def _is_call(tokens: Sequence[Token], index: int) -> bool:
    return index < len(tokens) and tokens[index].token_type == TokenType.L_PAREN


def _find_word_before(tokens: Sequence[Token], index: int) -> str:
    before = index - 1
    while before >= 0 and tokens[before].token_type == TokenType.L_PAREN:
        before -= 1
    return tokens[before].text.upper() if before >= 0 else ""


def _to_internal_name(name: str, *, quoted: bool) -> str:
    return name if quoted else name.upper()


def _reject_modifications(references: Sequence[TableReference]) -> None:
    for reference in references:
        if reference.node is not None and isinstance(reference.node.parent, _MODIFYING_NODES):
            raise Unsupported(
                what=f"Changing {'.'.join(reference.parts)} by a query",
                instead="use INSERT INTO, UPDATE, DELETE or MERGE INTO as a statement of its own",
            )


def _has_implicit_columns(tokens: Sequence[Token], tree: exp.Expr) -> bool:
    """Return True if the statement may refer to columns that it does not name."""
    for token, following in pairwise([*tokens, tokens[-1]]):
        word = token.text.upper()
        if word in ("NATURAL", "|>"):
            return True
        if word in ("IDENTIFIER", "COLUMNS") and following.token_type == TokenType.L_PAREN:
            return True
        if _is_quoted(token) and not _PATTERN_CHARACTERS.isdisjoint(token.text):
            return True
    return tree.find(exp.Parameter, exp.Command) is not None


def _needs_all_columns(query: SparkQuery, reference: TableReference) -> bool:
    node = reference.node
    if node is None or not isinstance(node.parent, exp.From | exp.Join):
        return True
    alias = node.args.get("alias")
    if node.args.get("pivots") or (alias is not None and alias.args.get("columns")):
        return True
    select = node.parent_select
    if not isinstance(select, exp.Select) or select.args.get("pivots"):
        return True
    return any(_star_includes(query, star, reference) for star in select.find_all(exp.Star))


def _star_includes(query: SparkQuery, star: exp.Star, reference: TableReference) -> bool:
    if isinstance(star.parent, exp.Count) or star.parent_select is None:
        return False
    select = star.parent_select
    if isinstance(select.parent, exp.Exists):
        return False
    if not any(source is reference for source in list_select_sources(query, select)):
        return False
    if isinstance(star.parent, exp.Column) and star.parent.table:
        return star.parent.table.lower() == reference.alias.lower()
    return True


def _make_unqualifying_edits(
    query: SparkQuery, references: Sequence[TableReference]
) -> list[tuple[int, int, str]]:
    """Return edits that turn `demo.public.t.c` and `public.t.c` into `t.c`."""
    if query.tree is None:
        return []
    tables = {tuple(part.lower() for part in reference.parts) for reference in references}
    edits = []
    for column in query.tree.find_all(exp.Column):
        parts = [part for part in column.parts if isinstance(part, exp.Identifier)]
        if len(parts) < 3 or not all(_is_at_position(query.text, part) for part in parts[:-1]):
            continue
        names = tuple(part.name.lower() for part in parts[:-1])
        if any(names == table[-len(names) :] for table in tables):
            edits.append((parts[0].meta["start"], parts[-2].meta["start"], ""))
    return edits


def parse_dotted_name(text: str) -> tuple[str, ...]:
    """Parse a dotted name into internal names. Return an empty tuple if the text is not one.

    Parts may be quoted with backticks (as in Spark) or with double quotes (as in Snowflake).
    """
    try:
        tokens = list(sqlglot.tokenize(text, read=DIALECT))
    except SqlglotError:
        return ()
    parts, dots = tokens[::2], tokens[1::2]
    if len(parts) != len(dots) + 1 or any(dot.token_type != TokenType.DOT for dot in dots):
        return ()
    return tuple(
        _to_internal_name(part.text, quoted=_is_quoted(part) or part.token_type == TokenType.STRING)
        for part in parts
    )
