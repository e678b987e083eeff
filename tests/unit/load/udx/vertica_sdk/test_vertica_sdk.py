"""A filter and a parser as a user writes them walk through every member of the SDK's module."""

from __future__ import annotations

import datetime as dt
import logging
from decimal import Decimal

import pytest

from snowmelt.load.library import load_library
from snowmelt.load.phase_protocols import ByteReader, ColumnOptions
from snowmelt.load.udx import vertica_sdk as vertica
from snowmelt.load.udx.phase_definitions import make_filter_definition, make_parser_definition
from snowmelt.schema.types import Column, LogicalType
from support.phases import built
from support.user_code import HEAD, parsed, target

CLASSES = [
    "BlockReader",
    "BlockWriter",
    "ColumnTypes",
    "FilterFactory",
    "InputBuffer",
    "InputState",
    "MultiPhaseTransformFunctionFactory",
    "OutputBuffer",
    "ParamReader",
    "ParamWriter",
    "ParserFactory",
    "PartitionReader",
    "PartitionWriter",
    "PerColumnParamReader",
    "PlanContext",
    "RejectedRecord",
    "ScalarFunction",
    "ScalarFunctionFactory",
    "ServerInterface",
    "SessionParamWriterMap",
    "SizedColumnTypes",
    "StreamState",
    "StreamWriter",
    "TransformFunction",
    "TransformFunctionFactory",
    "TransformFunctionPhase",
    "UDFilter",
    "UDParser",
    "UDXFactory",
    "UDXObject",
    "UDXType",
    "VerticaType",
    "UDSource",
    "SourceFactory",
    "LengthBuffer",
    "UDChunker",
]

FILTER = """
from vertica_sdk import *
import datetime, decimal
GETTERS = ["getBool", "getDate", "getFloat", "getInt", "getInterval", "getIntervalYM", "getNumeric",
           "getString", "getTime", "getTimeTz", "getTimestamp", "getTimestampTz"]
seen = []

class Walk(vertica_sdk.UDFilter):
    def __init__(self):
        super().__init__()
    def setup(self, srvInterface):
        srvInterface.log("set up")
        srvInterface.log("%s of %d", "one", 2)
        reader = srvInterface.getParamReader()
        assert reader.containsParameter("AN_INT") and not reader.containsParameter("nothing")
        assert reader.getInt("an_int") == 5 and reader.getFloat("an_int") == 5.0
        assert reader.getString("a_text") == "word" and reader.getBool("a_truth") is True
        assert reader.getNumeric("a_numeric") == decimal.Decimal("1.25")
        assert reader.getDate("a_date") == datetime.date(2024, 2, 29)
        assert reader.getTime("a_time") == datetime.time(1, 2, 3)
        assert reader.getTimestamp("a_stamp") == datetime.datetime(2024, 2, 29, 1, 2, 3)
        assert reader.getInterval("an_interval") == datetime.timedelta(seconds=90)
        assert reader.getIntervalYM("months") == 14
        assert sorted(reader.getParamNames()) == sorted(seen[0])
        for name in GETTERS:
            try:
                getattr(reader, name)("nothing")
            except KeyError:
                continue
            raise AssertionError(name)
        assert srvInterface.getUDSessionParamReader("library").getParamNames() == []
        for name in ("getNodeName", "getCurrentNodeName", "getDatabaseName", "getUserName",
                     "getLocale"):
            assert getattr(srvInterface, name)()
        assert not self.isCanceled() and not self.useSideChannel()
    def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
        assert inputstate == InputState.END_OF_FILE and inputstate != InputState.OK
        assert inputstate == "END_OF_FILE" and repr(inputstate) == "END_OF_FILE"
        inputbuffer.setEncoding("utf-8")
        assert (inputbuffer.getOffset(), inputbuffer.getSize()) == (0, 7)
        assert inputbuffer.peek() == "\\u00e4bcdefg" and inputbuffer.peek(1) == "\\u00e4"
        assert inputbuffer.read(2) == "\\u00e4b" and inputbuffer.advance(1) == 3
        assert inputbuffer.read(length=2) == "de" and inputbuffer.advance() == 7
        assert inputbuffer.read() == "" and inputbuffer.read(5) == ""
        outputbuffer.setEncoding("latin-1")
        assert not outputbuffer.write("\\u00e4")
        assert not outputbuffer.write(b"raw")
        assert not outputbuffer.write(bytearray(b"-")) and not outputbuffer.write(memoryview(b"."))
        return StreamState.DONE
    def destroy(self, srvInterface, udSessionParams):
        udSessionParams.getUDSessionParamWriter("library").setString("left", "this")
    def cancel(self, srvInterface):
        pass

class WalkFactory(vertica_sdk.FilterFactory):
    def getParameterType(self, serverInterface, parameterTypes):
        parameterTypes.addInt("an_int")
        parameterTypes.addVarchar(10, "a_text")
        parameterTypes.addBool("a_truth")
        parameterTypes.addNumeric(10, 2, "a_numeric")
        parameterTypes.addDate("a_date")
        parameterTypes.addTime("a_time")
        parameterTypes.addTimestamp("a_stamp")
        parameterTypes.addInterval("an_interval")
        parameterTypes.addIntervalYM("months")
        parameterTypes.addFloat("a_float")
        for add in ("Any", "Bool", "TimeTz", "TimestampTz"):
            getattr(parameterTypes, "add" + add)("x_" + add)
        for add in ("Char", "LongVarchar", "Binary", "Varbinary", "LongVarbinary"):
            getattr(parameterTypes, "add" + add)(20, "x_" + add)
            getattr(parameterTypes, "add" + add)("y_" + add, 20)
        parameterTypes.addColumn(parameterTypes.getColumnType(0), "z")
        parameterTypes.addOrderColumn(VerticaType("Int"), "o")
        parameterTypes.addPartitionColumn(VerticaType("Int"), "p")
        last = parameterTypes.getColumnCount() - 1
        assert parameterTypes.getColumnName(last) == "p"
        assert parameterTypes.getColumnType(last).isInt()
        assert parameterTypes.getColumnType(1).getStringLength() == 10
        assert parameterTypes.getColumnType(1).isStringType()
        numeric = parameterTypes.getColumnType(3)
        assert (numeric.getNumericPrecision(), numeric.getNumericScale()) == (10, 2)
        words = "Int Float Bool Date Time TimeTz Timestamp TimestampTz Interval IntervalYM Numeric"
        words += " Char Varchar LongVarchar Binary Varbinary LongVarbinary"
        for word in words.split():
            told = [each for each in words.split() if getattr(VerticaType(word), "is" + each)()]
            assert told == [word]
        assert numeric.isNumeric() and numeric.getTypeStr() == "Numeric(10,2)"
    def plan(self, serverInterface, planContext):
        assert planContext.getClusterNodes()
        writer = planContext.getWriter()
        seen.append(serverInterface.getParamReader().getParamNames())
        for name, value in (("Bool", True), ("Date", datetime.date(2024, 1, 1)), ("Float", 0.5),
                            ("Int", 3), ("Interval", datetime.timedelta(1)), ("IntervalYM", 2),
                            ("Numeric", decimal.Decimal("1.5")), ("String", "s"),
                            ("Time", datetime.time(1)), ("TimeTz", datetime.time(2)),
                            ("Timestamp", datetime.datetime(2024, 1, 1)),
                            ("TimestampTz", datetime.datetime(2024, 1, 2))):
            getattr(writer, "set" + name)("p_" + name, value)
            assert getattr(writer, "get" + name)("p_" + name) == value
    def prepare(self, serverInterface, planContext):
        assert planContext.getReader().getInt("p_int") == 3
        assert self.getUDXFactoryType() == UDXType.LOAD_FILTER == "LOAD_FILTER"
        self.getPerInstanceResources(serverInterface, None)
        self.getPrototype(serverInterface, None, None)
        self.getReturnType(serverInterface, None, None)
        return Walk()
"""

PARSER = """
import datetime, decimal
class Walk(vertica_sdk.UDParser):
    def __init__(self):
        super().__init__()
    def setup(self, srvInterface, returnType):
        assert returnType.getColumnCount() == 9
    def process(self, srvInterface, inputbuffer, inputstate, streamwriter):
        raw = inputbuffer.read(3)
        if raw == b"bad":
            record = vertica_sdk.RejectedRecord("it is bad", raw, "\\n")
            assert (record.getReason(), record.getData(), record.getTerminator()) == (
                "it is bad", b"bad", "\\n")
            answer = StreamState.REJECT(record)
            assert repr(answer) == "REJECT" and answer != StreamState.DONE
            return answer
        writer = streamwriter
        assert writer.getNumCols() == 9
        assert writer.getTypeMetadata().getColumnName(0) == "I"
        assert writer.getTypeMetaData().getColumnType(4).isBool()
        before = writer.getTotalRowCount()
        writer.setInt(0, 7)
        writer.setFloat(1, 0.5)
        writer.setNumeric(2, decimal.Decimal("1.25"))
        writer.setString(3, "text")
        writer.setBool(4, True)
        writer.setBinary(5, b"\\x00\\x01")
        writer.setDate(6, datetime.date(2024, 2, 29))
        writer.setTime(7, datetime.time(1, 2, 3))
        writer.setTimestamp(8, datetime.datetime(2024, 2, 29, 1, 2, 3))
        assert writer.next() is True
        writer.setTimeTz(7, datetime.time(4))
        writer.setTimestampTz(8, datetime.datetime(2024, 1, 1))
        writer.setNull(0)
        writer.setInterval(3, None)
        writer.setIntervalYM(0, 14)
        writer.next()
        assert writer.getTotalRowCount() == before + 2
        return StreamState.DONE

class WalkFactory(vertica_sdk.ParserFactory):
    def plan(self, serverInterface, perColumnParamReader, planContext):
        planContext.getWriter().setInt("n", 1)
    def getParserReturnType(self, serverInterface, perColumnParamReader, planContext, argTypes,
                            returnTypes):
        assert perColumnParamReader.containsColumns("d")
        assert perColumnParamReader.containsColumn("D")
        assert perColumnParamReader.getColumnNames() == ["D"]
        assert perColumnParamReader.getColumnParamReader("D").getString("format") == "YYYY"
        assert planContext.getReader().getInt("n") == 1
        super().getParserReturnType(serverInterface, perColumnParamReader, planContext, argTypes,
                                    returnTypes)
    def prepare(self, serverInterface, perColumnParamReader, planContext, returnType):
        assert self.getUDXFactoryType() == vertica_sdk.UDXType.LOAD_PARSER
        return Walk()
    def canApportionParser(self):
        return True
"""

COLUMNS = (
    Column("I", LogicalType.FIXED, 1, precision=38, scale=0),
    Column("F", LogicalType.REAL, 2),
    Column("N", LogicalType.FIXED, 3, precision=10, scale=2),
    Column("S", LogicalType.TEXT, 4, length=10, byte_length=40),
    Column("B", LogicalType.BOOLEAN, 5),
    Column("X", LogicalType.BINARY, 6, byte_length=10),
    Column("D", LogicalType.DATE, 7),
    Column("T", LogicalType.TIME, 8, scale=6),
    Column("TS", LogicalType.TIMESTAMP_NTZ, 9, scale=6),
)


def test_the_module_has_every_name() -> None:
    assert [name for name in CLASSES if not hasattr(vertica, name)] == []
    assert set(vertica.__all__) >= set(CLASSES)
    for name in ("INPUT_NEEDED", "OUTPUT_NEEDED", "DONE", "KEEP_GOING", "CHUNK_ALIGNED", "REJECT"):
        assert hasattr(vertica.StreamState, name)
    for name in ("OK", "END_OF_FILE", "END_OF_CHUNK", "START_OF_PORTION", "END_OF_PORTION"):
        assert getattr(vertica.InputState, name) == name
    for name in ["AGGREGATE", "ANALYTIC", "FILESYSTEM", "INVALID_UDX", "LOAD_FILTER", "LOAD_PARSER", "LOAD_SOURCE", "MULTI_TRANSFORM", "SCALAR", "TRANSFORM", "TYPE"]:  # fmt: skip
        assert getattr(vertica.UDXType, name) == name


def test_a_filter_walks_through_every_member(caplog: pytest.LogCaptureFixture) -> None:
    library = load_library("walk", {"walk.py": (HEAD + FILTER).encode()})
    given = {
        "an_int": 5, "A_Text": "word", "a_truth": "t", "a_numeric": 1.25, "a_date": "2024-02-29",
        "a_time": "01:02:03", "a_stamp": "2024-02-29 01:02:03",
        "an_interval": dt.timedelta(seconds=90), "months": 14,
    }  # fmt: skip
    definition = make_filter_definition("walk", library.find_object("WalkFactory"))
    planned = definition.compute_planned_values(given)
    with caplog.at_level(logging.INFO, "snowmelt.load"):
        made = built(definition, {**given, **planned})
        assert (
            b"".join(made.run(ByteReader(["äbcdefg".encode()]))) == "ä".encode("latin-1") + b"raw-."
        )
    assert "one of 2" in caplog.text


def test_a_parser_walks_through_every_member() -> None:
    library = load_library("walk", {"walk.py": (HEAD + PARSER).encode()})
    made = built(make_parser_definition("walk", library.find_object("WalkFactory")), {})
    into = target(*COLUMNS, options={"D": ColumnOptions(format="YYYY")})
    rows, rejects = parsed(made, [b"badgood"], into)
    assert made.splittable
    assert [(each.record, each.offset, each.data, each.reason) for each in rejects] == [
        (1, 0, b"bad", "it is bad")
    ]
    assert rows[0] == {
        "I": Decimal(7), "F": 0.5, "N": Decimal("1.25"), "S": "text", "B": True,
        "X": b"\x00\x01", "D": dt.date(2024, 2, 29), "T": dt.time(1, 2, 3),
        "TS": dt.datetime(2024, 2, 29, 1, 2, 3),
    }  # fmt: skip
    assert (rows[1]["I"], rows[1]["T"], rows[1]["S"]) == (14, dt.time(4), None)
