"""Table references of a query with their positions in the text, and the columns that it needs.

Spark runs the user's text with the table names replaced in place, because regenerating the text
could lose a part. The tokens determine names, strings and comments. A name in sqlglot's syntax tree
is ignored unless a token is at its position. Queries that sqlglot cannot analyze read all columns,
without pruning. The needed columns also come from the tokens: for a column with the name of a
function (`user`, `date`), the tree has no column.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from snowmelt.catalog.sql.lexer import SqlRules, SqlToken, TokenKind, prepare_for_sqlglot, tokenize
from snowmelt.errors import Unsupported
from snowmelt.spark.sql.cursor import FULL_NAME_PARTS, NAME_KINDS, read_dotted_name

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

    `is_certain` is False if the words may also be a column. `is_relation` is True for a name after
    FROM or JOIN. `node` is None if sqlglot could not parse the statement.
    """

    parts: tuple[str, ...]
    start: int
    end: int
    is_certain: bool
    is_relation: bool
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
    tokens: tuple[SqlToken, ...]
    references: tuple[TableReference, ...]
    tree: exp.Expr | None
    is_opaque: bool

    @property
    def words(self) -> frozenset[str]:
        """The texts of all tokens, in lower case."""
        return frozenset(token.text.lower() for token in self.tokens)


def parse_query(text: str) -> SparkQuery:
    """Find the tables that a statement may read.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
        Unsupported: If the statement would change a table.
    """
    tokens = tokenize(text, SqlRules.SPARK)
    tree = parse_statement(tokens)
    found = _find_references_in_tree(tokens, tree) if tree is not None else None
    if found is None:
        tree, found = None, {}
    for reference in _find_references_in_tokens(tokens, only_tables=tree is not None):
        found.setdefault(reference.start, reference)
    references = tuple(found[start] for start in sorted(found))
    _reject_modifications(references)
    return SparkQuery(
        text,
        tokens,
        references,
        tree,
        is_opaque=tree is None or _has_implicit_columns(tokens, tree),
    )


def list_needed_columns(
    query: SparkQuery, reference: TableReference, columns: Iterable[str]
) -> list[str]:
    """Return the columns among `visible` that the query may need, in the same order."""
    columns = list(columns)
    if query.is_opaque or reference.node is None or _needs_all_columns(query, reference):
        return columns
    words = query.words
    return [name for name in columns if name.lower() in words]


def qualify_reference(reference: TableReference, namespace: tuple[str, ...]) -> tuple[str, ...]:
    """Return the parts of a reference. Completes a short name with the `namespace`.

    The name of a WITH clause in scope stays unchanged.
    """
    missing = len(namespace) + 1 - len(reference.parts)
    if missing <= 0 or reference.node is None:
        return reference.parts
    if len(reference.parts) == 1 and _is_with_name(reference.node):
        return reference.parts
    return (*namespace[:missing], *reference.parts)


def _is_with_name(table: exp.Table) -> bool:
    """Return True if a table is the name of a WITH clause whose scope includes it.

    A definition is in scope in later definitions of its WITH, in the query after it, and with
    RECURSIVE in itself. Spark compares these names without case.
    """
    node: exp.Expr = table
    while (parent := node.parent) is not None:
        if isinstance(parent, exp.With):
            earlier = parent.expressions[: parent.expressions.index(node)]
            names = [*earlier, node] if parent.args.get("recursive") else earlier
        else:
            clause = parent.args.get("with_")
            names = [] if clause is None or clause is node else clause.expressions
        if any(each.alias.lower() == table.name.lower() for each in names):
            return True
        node = parent
    return False


def list_select_sources(query: SparkQuery, select: exp.Expr) -> list[TableReference]:
    """Return the catalog tables in the FROM clause of this SELECT, excluding subqueries."""
    return [
        reference
        for reference in query.references
        if reference.node is not None and reference.node.parent_select is select
    ]


def replace_references(query: SparkQuery, placeholders: Mapping[int, str]) -> str:
    """Return the statement with the reference at each index of `placeholders` replaced.

    A table gets its name as alias, in parentheses, because a sample, a pivot clause or another alias
    may follow. The qualifiers of columns lose database and schema. Braces are doubled, because
    `SparkSession.sql` formats the text.

    Raises:
        Unsupported: If a replaced reference has a version or time.
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
    if reference.node is not None and reference.node.args.get("version"):
        raise Unsupported(
            what=f"AS OF for table {'.'.join(reference.parts)}",
            instead="read it as a DataFrame of format snowmelt, with the option `as_of` or `snapshot`",
        )
    if not reference.is_relation:
        return reference.start, reference.end, name
    alias = _escape_braces("`" + reference.parts[-1].replace("`", "``") + "`")
    return reference.start, reference.end, f"({name} AS {alias})"


def _escape_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")


def parse_statement(tokens: Sequence[SqlToken]) -> exp.Expr | None:
    """Parse a statement with these tokens. Return None if it cannot read tables or be parsed."""
    first = 0
    if tokens[0].unquoted == "EXPLAIN":
        first = 2 if tokens[1].unquoted in _EXPLAIN_MODES else 1
    # sqlglot logs a warning for other statements and does not parse them.
    if tokens[first].unquoted not in _QUERY_KEYWORDS:
        return None
    # sqlglot and Spark differ in their comment syntax.
    try:
        trees = sqlglot.parse(prepare_for_sqlglot(tokens[first:]), dialect=DIALECT)
    except (SqlglotError, RecursionError):
        return None
    trees = [tree for tree in trees if tree is not None]
    return trees[0] if len(trees) == 1 and not isinstance(trees[0], exp.Command) else None


def _find_references_in_tree(
    tokens: Sequence[SqlToken], tree: exp.Expr
) -> dict[int, TableReference] | None:
    """Return the references by position, or None if the positions are unreliable."""
    found = {}
    tokens_by_offset = {token.start_offset: token for token in tokens}
    for table in tree.find_all(exp.Table):
        parts = [part for part in table.parts if isinstance(part, exp.Identifier)]
        if len(parts) != len(table.parts) or isinstance(table.parent, exp.JoinHint):
            continue
        names = [_find_name_token(tokens_by_offset, part) for part in parts]
        known = [name for name in names if name is not None]
        if len(known) < len(names):
            # sqlglot generated this node, for example for a pipe step. It is not in the text.
            if len(parts) >= FULL_NAME_PARTS:
                return None
            continue
        is_relation = isinstance(table.parent, exp.From | exp.Join)
        start, end = known[0].start_offset, known[-1].end_offset
        internal = tuple(name.text for name in known)
        found[start] = TableReference(internal, start, end, True, is_relation, table)
    return found


def _find_name_token(
    tokens_by_offset: Mapping[int, SqlToken], identifier: exp.Identifier
) -> SqlToken | None:
    token = tokens_by_offset.get(identifier.meta.get("start", -1))
    if token is None or token.kind not in NAME_KINDS:
        return None
    name = token.text if token.kind is TokenKind.QUOTED else token.source_text
    return token if name == identifier.name else None


def _find_references_in_tokens(
    tokens: Sequence[SqlToken], *, only_tables: bool
) -> Iterable[TableReference]:
    """Yield each `a.b.c` where a table may occur, or only those after TABLE if `only_tables`."""
    index = 0
    while index < len(tokens):
        run = read_dotted_name(tokens, index)
        after = index + 2 * len(run) - 1
        before = _find_word_before(tokens, index)
        wanted = before == "TABLE" if only_tables else True
        if len(run) == FULL_NAME_PARTS and wanted and tokens[after].unquoted != "(":
            start, end = run[0].start_offset, run[-1].end_offset
            names = tuple(token.text for token in run)
            is_relation = before in ("FROM", "JOIN")
            yield TableReference(names, start, end, before in _RELATION_WORDS, is_relation)
        index = max(after, index + 1)


def _find_word_before(tokens: Sequence[SqlToken], index: int) -> str:
    before = index - 1
    while before >= 0 and tokens[before].unquoted == "(":
        before -= 1
    return tokens[before].unquoted if before >= 0 else ""


def _reject_modifications(references: Sequence[TableReference]) -> None:
    for reference in references:
        if reference.node is not None and isinstance(reference.node.parent, _MODIFYING_NODES):
            raise Unsupported(
                what=f"Changing {'.'.join(reference.parts)} by a query",
                instead="use INSERT INTO, UPDATE, DELETE or MERGE INTO as a statement of its own",
            )


def _has_implicit_columns(tokens: Sequence[SqlToken], tree: exp.Expr) -> bool:
    """Return True if the statement may refer to columns that it does not name."""
    for token, following in pairwise(tokens):
        word = token.unquoted
        if word in ("NATURAL", "|>"):
            return True
        if word in ("IDENTIFIER", "COLUMNS") and following.unquoted == "(":
            return True
        if token.kind is TokenKind.QUOTED and not _PATTERN_CHARACTERS.isdisjoint(token.text):
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
    tokens_by_offset = {token.start_offset: token for token in query.tokens}
    edits = []
    for column in query.tree.find_all(exp.Column):
        parts = [part for part in column.parts if isinstance(part, exp.Identifier)]
        if len(parts) < 3 or None in [_find_name_token(tokens_by_offset, each) for each in parts]:
            continue
        names = tuple(part.name.lower() for part in parts[:-1])
        if any(names == table[-len(names) :] for table in tables):
            edits.append((parts[0].meta["start"], parts[-2].meta["start"], ""))
    return edits
