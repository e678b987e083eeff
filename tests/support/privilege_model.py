"""Model of privileges: objects, owners and grants as the SQL reference describes them.

It shares no code with the service. `Model.run` returns the outcome that a statement must have.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from enum import StrEnum

ADMINISTRATOR, PUBLIC = "ACCOUNTADMIN", "PUBLIC"
ROLES = ("R1", "R2", "R3")
USERS = ("U1", "U2")
DATABASES = ("D1", "D2")
SCHEMAS = ("PUBLIC", "S")
TABLES = ("T1", "T2")
PRIVILEGES = {
    "DATABASE": ("USAGE", "CREATE SCHEMA", "MONITOR"),
    "SCHEMA": ("USAGE", "CREATE TABLE", "CREATE FUNCTION", "CREATE PIPE", "MONITOR"),
    "TABLE": ("INSERT", "UPDATE", "DELETE", "SELECT", "EVOLVE SCHEMA", "MONITOR"),
    "BUCKET": ("READ", "WRITE"),
}


class Outcome(StrEnum):
    """Outcome of a statement. HIDDEN: the object is reported as missing."""

    OK = "ok"
    HIDDEN = "hidden"
    DENIED = "denied"
    CONFLICT = "conflict"
    ROLE_NOT_GRANTED = "role not granted"


@dataclass(eq=False)
class Node:
    """Object with its owner, its grants, and the contained objects by name."""

    kind: str
    owner: str
    grants: dict[str, set[str]] = field(default_factory=dict)
    children: dict[str, Node] = field(default_factory=dict)
    # Dropped objects with their names, oldest first.
    dropped: list[tuple[str, Node]] = field(default_factory=list)
    future: set[tuple[str, str, str]] = field(default_factory=set)

    def held(self, role: str) -> set[str]:
        """Return the privileges of a role, with those of PUBLIC."""
        if role == ADMINISTRATOR or self.owner in {role, PUBLIC}:
            return {"OWNERSHIP", *PRIVILEGES.get(self.kind, ())}
        return self.grants.get(role, set()) | self.grants.get(PUBLIC, set())

    def walk(self) -> Iterator[Node]:
        """Yield this object and all objects in it, including dropped ones."""
        yield self
        for child in (*self.children.values(), *(node for _, node in self.dropped)):
            yield from child.walk()


@dataclass(frozen=True)
class Step:
    """Statement with its user, its role, and its effect on the model."""

    user: str
    role: str
    verb: str
    text: str
    kind: str = ""
    path: tuple[str, ...] = ()
    target: tuple[str, ...] = ()
    privilege: str = ""
    grantee: str = ""
    child_kind: str = ""


class Refused(Exception):
    """Exception that ends a step of the model."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


class Model:
    """Users, roles and objects. `run` applies statements to them."""

    def __init__(self) -> None:
        self.root = Node("ACCOUNT", ADMINISTRATOR)
        self.buckets = Node("ACCOUNT", ADMINISTRATOR)
        self.roles = {ADMINISTRATOR, PUBLIC}
        self.members: dict[str, set[str]] = {user: set() for user in USERS}

    def run(self, step: Step) -> Outcome:
        """Apply a statement to the model, and return the outcome that the service must have."""
        if step.role not in self.members[step.user] | {PUBLIC}:
            return Outcome.ROLE_NOT_GRANTED
        try:
            getattr(self, f"_{step.verb}")(step)
        except Refused as refused:
            return refused.outcome
        return Outcome.OK

    def find(self, role: str, path: tuple[str, ...]) -> Node:
        """Return an object that a role may see, and whose containers it may use."""
        node = self.root
        for depth, name in enumerate(path):
            if name not in node.children:
                raise Refused(Outcome.HIDDEN)
            node = node.children[name]
            held = node.held(role)
            is_last = depth == len(path) - 1
            if not held or not (is_last or held & {"USAGE", "OWNERSHIP"}):
                raise Refused(Outcome.HIDDEN)
        return node

    def may(self, role: str, path: tuple[str, ...], *privileges: str) -> bool:
        """Return True if a role has one of the privileges on an object, or owns it."""
        try:
            return bool(self.find(role, path).held(role) & {"OWNERSHIP", *privileges})
        except Refused:
            return False

    def list_tables(self) -> list[tuple[str, ...]]:
        """Return the paths of all tables."""
        return [
            (database, schema, table)
            for database, one in sorted(self.root.children.items())
            for schema, two in sorted(one.children.items())
            for table, node in sorted(two.children.items())
            if node.kind == "TABLE"
        ]

    def list_grants(self, role: str) -> set[tuple[str, str, str]]:
        """Return (privilege, kind, name) of what SHOW GRANTS TO ROLE must list."""
        found = {(word, "ACCOUNT", "") for word in self.buckets.grants.get(role, ())}
        waiting: list[tuple[Node, tuple[str, ...]]] = [(self.root, ()), (self.buckets, ())]
        while waiting:
            parent, path = waiting.pop()
            for name, node in parent.children.items():
                waiting.append((node, (*path, name)))
                if node.kind == "PIPE":
                    continue
                held = set(node.grants.get(role, ()))
                held |= {"OWNERSHIP"} if node.owner == role else set()
                found |= {(word, node.kind, ".".join((*path, name))) for word in held}
        return found

    def _require(self, node: Node, role: str, *privileges: str) -> None:
        if not node.held(role) & {"OWNERSHIP", *privileges}:
            raise Refused(Outcome.DENIED)

    def _require_administrator(self, step: Step) -> None:
        if step.role != ADMINISTRATOR:
            raise Refused(Outcome.DENIED)

    def _require_role(self, name: str) -> None:
        if name not in self.roles:
            raise Refused(Outcome.HIDDEN)

    def _parent(self, step: Step, path: tuple[str, ...]) -> Node:
        """Return the container of an object, in which the role may create."""
        if len(path) == 1:
            self._require_administrator(step)
            return self.root
        parent = self.find(step.role, path[:-1])
        if step.kind == "PIPE":
            self._require(parent, step.role, "CREATE PIPE")
        else:
            self._require(parent, step.role, f"CREATE {step.kind}")
        return parent

    def _owned(self, step: Step) -> Node:
        node = self.find(step.role, step.path)
        self._require(node, step.role)
        return node

    def _container(self, path: tuple[str, ...]) -> Node:
        node = self.root
        for name in path[:-1]:
            node = node.children[name]
        return node

    def _create(self, step: Step) -> None:
        parent = self._parent(step, step.path)
        name = step.path[-1]
        there = parent.children.get(name)
        replaces = step.privilege == "OR REPLACE"
        if there is not None and not replaces:
            raise Refused(Outcome.CONFLICT)
        if there is not None:
            self._require(there, step.role)
            self._drop_from(parent, name)
        self._add(step, parent, step.path)

    def _add(self, step: Step, parent: Node, path: tuple[str, ...]) -> None:
        node = Node(step.kind, step.role)
        parent.children[path[-1]] = node
        if step.kind == "DATABASE":
            node.children["PUBLIC"] = Node("SCHEMA", step.role)
        self._apply_future(node, path)

    def _apply_future(self, node: Node, path: tuple[str, ...]) -> None:
        """Apply the future grants of the innermost container that has any for this kind."""
        chain = [self.root]
        for name in path[:-1]:
            chain.append(chain[-1].children[name])
        for container in reversed(chain):
            found = [each for each in container.future if each[0] == node.kind]
            for _, privilege, role in found:
                node.grants.setdefault(role, set()).add(privilege)
            if found:
                return

    def _drop_from(self, parent: Node, name: str) -> None:
        node = parent.children.pop(name)
        parent.dropped.append((name, node))

    def _drop(self, step: Step) -> None:
        self._owned(step)
        self._drop_from(self._container(step.path), step.path[-1])

    def _undrop(self, step: Step) -> None:
        if step.kind == "DATABASE":
            self._require_administrator(step)
            parent = self.root
        else:
            parent = self.find(step.role, step.path[:-1])
            if step.kind == "TABLE" and not parent.held(step.role):
                raise Refused(Outcome.HIDDEN)
        name = step.path[-1]
        found = [each for each in parent.dropped if each[0] == name and each[1].kind == step.kind]
        if not found or "OWNERSHIP" not in found[-1][1].held(step.role):
            raise Refused(Outcome.HIDDEN)
        if step.kind != "DATABASE":
            self._require(parent, step.role, f"CREATE {step.kind}")
        if name in parent.children:
            raise Refused(Outcome.CONFLICT)
        parent.dropped.remove(found[-1])
        parent.children[name] = found[-1][1]

    def _rename(self, step: Step) -> None:
        node = self._owned(step)
        parent = self._parent(step, step.target)
        if step.target[-1] in parent.children:
            raise Refused(Outcome.CONFLICT)
        del self._container(step.path).children[step.path[-1]]
        parent.children[step.target[-1]] = node

    def _truncate(self, step: Step) -> None:
        node = self._owned(step)
        parent = self._container(step.path)
        self._drop_from(parent, step.path[-1])
        new = Node("TABLE", node.owner, deepcopy(node.grants))
        parent.children[step.path[-1]] = new

    def _comment(self, step: Step) -> None:
        self._owned(step)

    def _evolve(self, step: Step) -> None:
        self._require(self.find(step.role, step.path), step.role, "EVOLVE SCHEMA")

    def _describe(self, step: Step) -> None:
        self.find(step.role, step.path)

    def _grant(self, step: Step) -> None:
        node = self._owned(step)
        self._require_role(step.grantee)
        self._write_grant(node, step)

    def _revoke(self, step: Step) -> None:
        self._grant(step)

    def _write_grant(self, node: Node, step: Step) -> None:
        revokes = step.verb.startswith("revoke")
        if step.privilege == "OWNERSHIP":
            if not revokes:
                node.owner = step.grantee
            elif node.owner == step.grantee:
                node.owner = ADMINISTRATOR
            return
        words = PRIVILEGES[node.kind] if step.privilege == "ALL" else (step.privilege,)
        held = node.grants.setdefault(step.grantee, set())
        if revokes:
            held -= set(words)
        else:
            held |= set(words)

    def _grant_all(self, step: Step) -> None:
        scope = self._owned(step)
        self._require_role(step.grantee)
        inside = list(scope.children.values())
        if step.child_kind == "TABLE" and scope.kind == "DATABASE":
            inside = [table for schema in inside for table in schema.children.values()]
        for node in inside:
            if node.kind == step.child_kind:
                self._write_grant(node, step)

    def _revoke_all(self, step: Step) -> None:
        self._grant_all(step)

    def _grant_future(self, step: Step) -> None:
        scope = self._owned(step)
        self._require_role(step.grantee)
        entry = (step.child_kind, step.privilege, step.grantee)
        if step.verb == "revoke_future":
            scope.future.discard(entry)
        else:
            scope.future.add(entry)

    def _revoke_future(self, step: Step) -> None:
        self._grant_future(step)

    def _create_role(self, step: Step) -> None:
        self._require_administrator(step)
        if step.grantee in self.roles:
            raise Refused(Outcome.CONFLICT)
        self.roles.add(step.grantee)

    def _drop_role(self, step: Step) -> None:
        self._require_administrator(step)
        self._require_role(step.grantee)
        self.roles.discard(step.grantee)
        for roles in self.members.values():
            roles.discard(step.grantee)
        for node in (*self.root.walk(), *self.buckets.walk()):
            if node.owner == step.grantee:
                node.owner = ADMINISTRATOR
            node.grants.pop(step.grantee, None)
            node.future = {each for each in node.future if each[2] != step.grantee}

    def _grant_role(self, step: Step) -> None:
        self._require_administrator(step)
        self._require_role(step.grantee)
        if step.verb == "revoke_role":
            self.members[step.target[0]].discard(step.grantee)
        else:
            self.members[step.target[0]].add(step.grantee)

    def _revoke_role(self, step: Step) -> None:
        self._grant_role(step)

    # Pipes have an owner and no grants.

    def _create_pipe(self, step: Step) -> None:
        parent = self._parent(step, step.path)
        self._require(self.find(step.role, step.target), step.role, "INSERT")
        if step.path[-1] in parent.children:
            raise Refused(Outcome.CONFLICT)
        parent.children[step.path[-1]] = Node("PIPE", step.role)

    def _use_pipe(self, step: Step) -> None:
        """DESCRIBE, ALTER or DROP a pipe, which only its owner sees."""
        node = self.find(step.role, step.path)
        if "OWNERSHIP" not in node.held(step.role):
            raise Refused(Outcome.HIDDEN)
        if step.privilege == "DROP":
            del self._container(step.path).children[step.path[-1]]

    # Buckets.

    def _create_bucket(self, step: Step) -> None:
        self._require(self.buckets, step.role, "CREATE BUCKET")
        if step.path[0] in self.buckets.children:
            raise Refused(Outcome.CONFLICT)
        self.buckets.children[step.path[0]] = Node("BUCKET", step.role)

    def _bucket(self, step: Step) -> Node:
        node = self.buckets.children.get(step.path[0])
        if node is None or not node.held(step.role):
            raise Refused(Outcome.HIDDEN)
        self._require(node, step.role)
        return node

    def _drop_bucket(self, step: Step) -> None:
        self._bucket(step)
        del self.buckets.children[step.path[0]]

    def _grant_bucket(self, step: Step) -> None:
        node = self._bucket(step)
        self._require_role(step.grantee)
        self._write_grant(node, step)

    def _revoke_bucket(self, step: Step) -> None:
        self._grant_bucket(step)

    def _grant_account(self, step: Step) -> None:
        self._require_administrator(step)
        self._require_role(step.grantee)
        held = self.buckets.grants.setdefault(step.grantee, set())
        if step.verb == "revoke_account":
            held.discard(step.privilege)
        else:
            held.add(step.privilege)

    def _revoke_account(self, step: Step) -> None:
        self._grant_account(step)


def make_setup() -> list[Step]:
    """Return statements that create the roles, grants and database of random steps."""
    steps = [_make("create_role", f"CREATE ROLE {role}", grantee=role) for role in ROLES]
    steps += [
        _make("grant_role", f"GRANT ROLE {role} TO USER {user}", grantee=role, target=(user,))
        for user, roles in (("U1", ROLES), ("U2", ROLES[:1]))
        for role in roles
    ]
    steps.append(_make("create", "CREATE DATABASE D1", kind="DATABASE", path=("D1",)))
    for role, words in (("R1", "USAGE"), ("R2", "OWNERSHIP"), ("R3", "USAGE")):
        for kind, path in (("DATABASE", ("D1",)), ("SCHEMA", ("D1", "PUBLIC"))):
            text = f"GRANT {words} ON {kind} {'.'.join(path)} TO ROLE {role}"
            steps.append(_make("grant", text, path=path, privilege=words, grantee=role))
    return steps


def _make(verb: str, text: str, **values: object) -> Step:
    return Step("U1", ADMINISTRATOR, verb, text, **values)  # type: ignore[arg-type]


def choose_step(chance: random.Random, model: Model) -> Step:
    """Return a random statement of a random user and role.

    In half of the cases, the model must execute the statement, if one of eight tries succeeds.
    """
    candidates = [_make_step(chance) for _ in range(8)]
    if chance.random() < 0.5:
        for step in candidates:
            if deepcopy(model).run(step) is Outcome.OK:
                return step
    return candidates[0]


def _make_step(chance: random.Random) -> Step:
    user = chance.choice(USERS)
    role = chance.choice((*ROLES * 4, ADMINISTRATOR, ADMINISTRATOR, PUBLIC))
    values = chance.choice(_MAKERS)(chance)
    if role == ADMINISTRATOR or "role" in str(values["verb"]):
        user, role = USERS[0], ADMINISTRATOR
    return Step(user, role, **values)  # type: ignore[arg-type]


def _random_path(chance: random.Random, kind: str) -> tuple[str, ...]:
    full = (chance.choice(DATABASES[:1] * 3 + DATABASES), chance.choice(SCHEMAS))
    names = {"TABLE": TABLES, "PIPE": ("P1",)}
    if kind in names:
        return (*full, chance.choice(names[kind]))
    return full[: {"DATABASE": 1, "SCHEMA": 2}[kind]]


def _random_kind(chance: random.Random) -> str:
    return chance.choice(("DATABASE", "SCHEMA", "SCHEMA", "TABLE", "TABLE", "TABLE"))


_COLUMNS = {"TABLE": " (A NUMBER)"}
# Probability of a drop. A dropped database loses all objects of the model.
_DROPS = {"DATABASE": 0.1, "SCHEMA": 0.3, "TABLE": 1.0}


def _make_create(chance: random.Random) -> dict[str, object]:
    kind = _random_kind(chance)
    path = _random_path(chance, kind)
    mode = "OR REPLACE" if chance.random() < _DROPS[kind] / 4 else ""
    text = f"CREATE {mode} {kind} {'.'.join(path)}{_COLUMNS.get(kind, '')}"
    return {"verb": "create", "text": text, "kind": kind, "path": path, "privilege": mode}


def _make_plain(chance: random.Random) -> dict[str, object]:
    kind = _random_kind(chance)
    path = _random_path(chance, kind)
    name = ".".join(path)
    verb, text = chance.choice(
        [
            ("undrop", f"UNDROP {kind} {name}"),
            ("comment", f"COMMENT ON {kind} {name} IS 'x'"),
            ("describe", f"DESCRIBE {kind} {name}"),
            ("describe", f"SHOW GRANTS ON {kind} {name}"),
        ]
        + ([("drop", f"DROP {kind} {name}")] if chance.random() < _DROPS[kind] else [])
        + (
            [
                ("truncate", f"TRUNCATE TABLE {name}"),
                ("evolve", f"ALTER TABLE {name} ADD COLUMN IF NOT EXISTS B NUMBER"),
                ("describe", f"SHOW CHANNELS IN TABLE {name}"),
                ("describe", f"SHOW LOADS IN TABLE {name}"),
            ]
            if kind == "TABLE"
            else []
        )
    )
    return {"verb": verb, "text": text, "kind": kind, "path": path}


def _make_rename(chance: random.Random) -> dict[str, object]:
    kind = _random_kind(chance)
    path, target = _random_path(chance, kind), _random_path(chance, kind)
    text = f"ALTER {kind} {'.'.join(path)} RENAME TO {'.'.join(target)}"
    return {"verb": "rename", "text": text, "kind": kind, "path": path, "target": target}


def _make_grant(chance: random.Random) -> dict[str, object]:
    kind = _random_kind(chance)
    path = _random_path(chance, kind)
    privilege = chance.choice((*PRIVILEGES[kind], "OWNERSHIP", "ALL"))
    grantee = chance.choice((*ROLES, *ROLES, PUBLIC))
    verb, word = chance.choice((("grant", "TO"), ("grant", "TO"), ("revoke", "FROM")))
    text = f"{verb} {privilege} ON {kind} {'.'.join(path)} {word} ROLE {grantee}"
    return {"verb": verb, "text": text, "path": path, "privilege": privilege, "grantee": grantee}


def _make_grant_on_many(chance: random.Random) -> dict[str, object]:
    child, kind = chance.choice(
        (("TABLE", "SCHEMA"), ("TABLE", "DATABASE"), ("SCHEMA", "DATABASE"))
    )
    path = _random_path(chance, kind)
    privilege = chance.choice(PRIVILEGES[child])
    grantee = chance.choice((*ROLES, PUBLIC))
    verb, word = chance.choice((("grant", "TO"), ("grant", "TO"), ("revoke", "FROM")))
    which = chance.choice(("ALL", "FUTURE"))
    text = (
        f"{verb} {privilege} ON {which} {child}S IN {kind} {'.'.join(path)} {word} ROLE {grantee}"
    )
    return {
        "verb": f"{verb}_{which.lower()}",
        "text": text,
        "path": path,
        "privilege": privilege,
        "grantee": grantee,
        "child_kind": child,
    }


def _make_role_step(chance: random.Random) -> dict[str, object]:
    role, user = chance.choice(ROLES), chance.choice(USERS)
    verb, text = chance.choice(
        (
            ("create_role", f"CREATE ROLE {role}"),
            ("drop_role", f"DROP ROLE {role}"),
            *(("grant_role", f"GRANT ROLE {role} TO USER {user}") for _ in range(4)),
            ("revoke_role", f"REVOKE ROLE {role} FROM USER {user}"),
        )
    )
    return {"verb": verb, "text": text, "grantee": role, "target": (user,)}


_STREAM = "FROM (SELECT $1:A FROM TABLE(DATA_SOURCE(TYPE => 'STREAMING')))"


def _make_pipe_step(chance: random.Random) -> dict[str, object]:
    path, table = _random_path(chance, "PIPE"), _random_path(chance, "TABLE")
    name = ".".join(path)
    verb, text = chance.choice(
        (
            (
                "create_pipe",
                f"CREATE PIPE {name} AS COPY INTO {'.'.join(table)} {_STREAM}",
            ),
            ("use_pipe", f"DESCRIBE PIPE {name}"),
            ("use_pipe", f"ALTER PIPE {name} SET COMMENT = 'x'"),
            ("use_pipe", f"DROP PIPE {name}"),
        )
    )
    word = text.partition(" ")[0]
    return {
        "verb": verb,
        "text": text,
        "kind": "PIPE",
        "path": path,
        "target": table,
        "privilege": word,
    }


def _make_bucket_step(chance: random.Random) -> dict[str, object]:
    name, role = chance.choice(("one-bucket", "two-bucket")), chance.choice((*ROLES, PUBLIC))
    privilege = chance.choice((*PRIVILEGES["BUCKET"], "OWNERSHIP"))
    verb, text = chance.choice(
        (
            ("create_bucket", f"CREATE BUCKET '{name}'"),
            ("drop_bucket", f"DROP BUCKET '{name}'"),
            ("grant_bucket", f"GRANT {privilege} ON BUCKET '{name}' TO ROLE {role}"),
            ("revoke_bucket", f"REVOKE {privilege} ON BUCKET '{name}' FROM ROLE {role}"),
            ("grant_account", f"GRANT CREATE BUCKET ON ACCOUNT TO ROLE {role}"),
            ("revoke_account", f"REVOKE CREATE BUCKET ON ACCOUNT FROM ROLE {role}"),
        )
    )
    if verb.endswith("account"):
        privilege = "CREATE BUCKET"
    return {
        "verb": verb,
        "text": text,
        "path": (name,),
        "privilege": privilege,
        "grantee": role,
    }


_MAKERS = (
    *(_make_create, _make_create, _make_create, _make_plain, _make_plain, _make_plain),
    *(_make_grant, _make_grant, _make_grant, _make_grant_on_many, _make_rename),
    *(_make_pipe_step, _make_pipe_step, _make_bucket_step, _make_role_step),
)
