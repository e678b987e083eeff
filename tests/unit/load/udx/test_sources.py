"""Sources of users: prepared by a factory, or a generator; with records, if they know them."""

from __future__ import annotations

import pytest

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.load.phase_protocols import RecordSource
from snowmelt.load.portion import InputFile, Portion
from support.phases import built
from support.user_code import library

FACTORY = """
class Counter(vertica_sdk.UDSource):
    def __init__(self, name, upto):
        self.name, self.upto = name, upto
    def getUri(self):
        return self.name
    def getSize(self):
        return 0
    def setup(self, srvInterface):
        self.at = 0
    def process(self, srvInterface, output):
        output.write(self.name.encode() if self.at == 0 else b".")
        self.at += 1
        return StreamState.DONE if self.at > self.upto else StreamState.OUTPUT_NEEDED

class Factory(vertica_sdk.SourceFactory):
    def getParameterType(self, srvInterface, parameterTypes):
        parameterTypes.addInt("upto")
    def plan(self, srvInterface, planCtxt):
        if not srvInterface.getParamReader().containsParameter("upto"):
            raise ValueError("upto is missing")
        planCtxt.getWriter().setInt("doubled", 2 * srvInterface.getParamReader().getInt("upto"))
        planCtxt.setTargetNodes(planCtxt.getClusterNodes())
    def prepareUDSources(self, srvInterface, planCtxt):
        upto = planCtxt.getReader().getInt("doubled")
        return [Counter("a", upto), Counter("", 1), Counter("a", 0)]
"""


def test_each_prepared_source_is_an_input() -> None:
    definition = library(FACTORY).source("Factory", "counter")
    planned = definition.compute_planned_values({"UPTO": 2})
    source = built(definition, {"upto": 2, **planned})
    files = source.files()
    # What getSize says is an estimate, by the SDK's rules; nothing is compared with it.
    assert files == [InputFile(path) for path in ("a", "counter#2", "a#3")]
    read = [b"".join(source.read(Portion(each))) for each in files]
    assert read == [b"a....", b".", b"a"]
    assert b"".join(source.read(Portion(files[0]))) == b"a...."
    with pytest.raises(PhaseFailed, match="input gone no longer exists"):
        list(source.read(Portion(InputFile("gone"))))


def test_what_plan_refuses_refuses_the_load() -> None:
    with pytest.raises(LoadRefused, match=r"source counter\(\): ValueError: upto is missing"):
        library(FACTORY).source("Factory", "counter").compute_planned_values({})


def test_sources_of_an_iterator_are_created_one_after_the_other() -> None:
    code = (
        FACTORY
        + """
class Iterator:
    def setup(self, srvInterface):
        self.left = ["x#3", "x", "x"]
    def createNextSource(self, srvInterface):
        return Counter(self.left.pop(0), 0) if self.left else None

class Iterative(vertica_sdk.SourceFactory):
    def prepare(self, srvInterface, planCtxt):
        return Iterator()
"""
    )
    source = built(library(code).source("Iterative"), {})
    files = source.files()
    assert [each.path for each in files] == ["x#3", "x", "x#3#3"]
    assert [list(source.read(Portion(each))) for each in files] == [[b"x#3"], [b"x"], [b"x"]]


def test_a_source_of_records_begins_the_side_channel() -> None:
    code = """
    class Messages(vertica_sdk.UDSource):
        def useSideChannel(self):
            return True
        def processWithMetadata(self, srvInterface, output, output_lengths):
            for message in (b"one", b"", b"three"):
                output.write(message)
                output_lengths.write(len(message))
            return StreamState.DONE
    """
    source = built(library(code).source("Messages", "messages"), {})
    assert isinstance(source, RecordSource)
    (file,) = source.files()
    records = [r for batch in source.read_records(Portion(file)) for r in batch.to_pylist()]
    assert records == [b"one", b"", b"three"]


def test_a_generator_is_a_source_of_one_input() -> None:
    code = """
    def numbers(*, upto: int = 3):
        for number in range(upto):
            yield b"%d\\n" % number

    class Words:
        def __init__(self, text: str):
            self.text = text
        def run(self):
            yield from (word.encode() for word in self.text.split())

    def broken():
        yield b"a"
        yield "b"
    """
    lib = library(code)
    file = InputFile("none")
    for source, data in (
        (built(lib.source("numbers"), {"upto": 2}), b"0\n1\n"),
        (built(lib.source("Words"), {"text": "a b"}), b"ab"),
    ):
        (file,) = source.files()
        assert b"".join(source.read(Portion(file))) == data
    with pytest.raises(PhaseFailed, match="yielded str, not bytes"):
        list(built(lib.source("broken"), {}).read(Portion(file)))
    with pytest.raises(LoadRefused, match="missing parameter text"):
        built(lib.source("Words"), {})


def test_a_source_that_never_comes_to_anything_fails() -> None:
    code = """
    class S:
        def process(self, srv, output):
            return StreamState.INPUT_NEEDED
    """
    source = built(library(code).source("S"), {})
    with pytest.raises(PhaseFailed, match="INPUT_NEEDED, which is not allowed here"):
        list(source.read(Portion(source.files()[0])))
