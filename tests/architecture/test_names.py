"""Names are the field's words: one word for one thing, and a class name means one class."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "snowmelt"
SOURCES = sorted(PACKAGE.rglob("*.py"))

# Each with the word that takes its place.
REPLACED = {
    **dict.fromkeys(("desk", "door", "house", "room", "rooms", "lane", "lanes"), "service, path"),
    **dict.fromkeys(("ask", "asks", "asked", "asking", "asker"), "request, check"),
    **dict.fromkeys(("told", "tell", "tells", "say", "says", "said", "saying"), "report, return"),
    **dict.fromkeys(("answer", "answers", "answered", "reply", "replies"), "response"),
    **dict.fromkeys(("refuse", "refused", "refusal", "refusals"), "reject, rejection"),
    **dict.fromkeys(("moment", "moments"), "timestamp"),
    **dict.fromkeys(("verdict", "verdicts", "judge"), "decision, call log"),
    **dict.fromkeys(("doubt", "doubts", "doubtful"), "fallback, ambiguous"),
    **dict.fromkeys(("bury", "burial", "sight", "sights"), "tombstone, visibility"),
    **dict.fromkeys(("guest", "guests"), "instance"),
    **dict.fromkeys(("patience", "pace", "mailbox"), "backoff, queue"),
    **dict.fromkeys(("settle", "settled", "undone", "aside"), "reconcile, fallback, quarantine"),
    **dict.fromkeys(("whoever", "somebody", "nobody"), "caller, client"),
    **dict.fromkeys(("likeness", "likenesses", "handing", "handout"), "pattern, location"),
    **dict.fromkeys(("kept", "keeper", "gone", "dead", "brought"), "retained, missing, loaded"),
    **dict.fromkeys(("tidy", "sweep"), "garbage collection"),
}
# Names that others know: exported classes and their attributes, options, columns, Python's own.
KNOWN = {
    "ChannelGone": "the public error and its code",
    "EvolutionRefused": "the public error and its code",
    "LoadRefused": "the public error and its code",
    "OutputRefused": "the public error and its code",
    "PathRefused": "the public error and its code",
    "RegistrationRefused": "the public error and its code",
    "RequestRefused": "the public error and its code",
    "RowRefused": "an exception of the kit",
    "UrlRefused": "the public error and its code",
    "SIBLING_REFUSED": "a code of the wire",
    "CHANNEL_GONE": "a code of the wire",
    "refused_rows": "an attribute of a channel's status",
    "refused": "an attribute of results of the SDK, and options of commands",
    "on_refused": "an argument of `snowmelt.stream`",
    "_on_refused": "that argument",
    "kept_until": "a column of the catalog",
    "reply_timeout_s": "an option of callers of functions",
    "reply_bytes": "a limit of services of functions",
    "tell": "a method of Python's files",
    **dict.fromkeys(
        ("DeadLetterTopic", "dead_letters", "_dead_letters", "dead_letter_topic"),
        "the word of Kafka Connect",
    ),
}
# Words with another meaning in one place.
ELSEWHERE = {
    ("buckets/checksums", "lanes"): "of bytes in parallel, as processors have them",
    ("buckets/checksums", "_LANE_BYTES"): "of bytes in parallel, as processors have them",
    ("buckets/checksums", "_LANE_COUNTS"): "of bytes in parallel, as processors have them",
    ("cli/flights_demo/scenario", "kept"): "of a promise",
    ("table/load_commit", "retry_until_settled"): "until the outcome of a commit is known",
}


def identifiers(path: Path) -> set[str]:
    """Names that a module gives: its own, of classes, functions, arguments, fields, constants."""
    found = {path.stem}
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                found.add(node.name)
                given = node.args
                every = (*given.posonlyargs, *given.args, *given.kwonlyargs)
                found |= {each.arg for each in (*every, given.vararg, given.kwarg) if each}
            case ast.ClassDef():
                found.add(node.name)
                found |= _targets(node.body)
            case ast.Attribute(value=ast.Name(id="self"), ctx=ast.Store()):
                found.add(node.attr)
    return found | _targets(tree.body)


def _targets(body: list[ast.stmt]) -> set[str]:
    targets = [
        target
        for node in body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return {
        each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)
    }


def words(identifier: str) -> set[str]:
    return {word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", identifier)}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_names_have_no_word_that_another_replaced(path: Path) -> None:
    module = str(path.relative_to(PACKAGE).with_suffix(""))
    found = {
        name: {word: REPLACED[word] for word in words(name) & REPLACED.keys()}
        for name in identifiers(path)
        if name not in KNOWN and (module, name) not in ELSEWHERE
    }
    assert {name: better for name, better in found.items() if better} == {}


def test_a_class_name_means_one_class() -> None:
    """The vendored names of `vertica_sdk` are Vertica's."""
    places = defaultdict(list)
    for path in SOURCES:
        if path.parent.name == "vertica_sdk":
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in places.items() if len(found) > 1} == {}
