"""Arguments go where the names of parameters say; the usual order is for names that say nothing."""

from __future__ import annotations

import pytest

from snowmelt.errors import LoadRefused
from snowmelt.load.udx.instance import (
    DESTROY,
    PARSE,
    PARSER_PREPARE,
    PARSER_SETUP,
    PLAN,
    PROCESS,
    PROCESS_RECORDS,
    RETURN_TYPE,
    bound,
)

SIGNATURES = [
    # Documentation and existing code disagree on this one.
    ("process", PROCESS, "srvInterface, inputbuffer, outputbuffer, inputstate", "server input output state"),
    ("process", PROCESS, "srvInterface, inputbuffer, inputstate, outputbuffer", "server input state output"),
    ("process", PROCESS, "srvInterface, input, input_state, output", "server input state output"),
    ("process", PROCESS, "a, b, c, d", "server input state output"),
    ("process", PROCESS, "s, i, o, state", "server input output state"),
    ("process", PROCESS, "inp, out", "input output"),
    ("process", PROCESS, "*everything", "server input state output"),
    ("process", PROCESS, "srv, src_buf, state, out_buf, more=None", "server input state output"),
    ("process", PARSE, "srvInterface, inputbuffer, inputstate, streamwriter", "server input state writer"),
    ("processWithMetadata", PROCESS_RECORDS,
     "srv, input, input_lengths, input_state, output, output_lengths",
     "server input input_lengths state output output_lengths"),
    ("setup", PARSER_SETUP, "srvInterface, returnType", "server returns"),
    ("setup", PARSER_SETUP, "srvInterface", "server"),
    ("destroy", DESTROY, "srvInterface", "server"),
    ("destroy", DESTROY, "srvInterface, udSessionParams", "server session"),
    ("plan", PLAN, "", ""),
    ("prepare", PLAN, "planContext", "plan"),
    ("prepare", PLAN, "serverInterface, planContext", "server plan"),
    ("prepare", PARSER_PREPARE, "srv, perColumnParamReader, planCtxt, returnType",
     "server columns plan returns"),
    ("getParserReturnType", RETURN_TYPE,
     "srv, perColumnParamReader, planContext, argTypes, returnTypes",
     "server columns plan arguments returns"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "roles", "parameters", "given"), SIGNATURES)
def test_arguments_are_bound_by_name(name, roles, parameters, given):
    names = [each.strip().partition("=")[0] for each in parameters.split(",") if each.strip()]
    values = ", ".join(names) if "*" not in parameters else "*everything"
    space: dict = {}
    exec(f"class C:\n def {name}(self, {parameters}):\n  return [{values}]", space)
    got = bound(space["C"](), name, roles)(*roles)
    assert [each for each in got if each is not None] == given.split()


def test_class_methods_and_static_methods_are_bound_as_well():
    class C:
        @classmethod
        def plan(cls, serverInterface, planContext):  # noqa: N803
            return serverInterface, planContext

        @staticmethod
        def prepare(planContext):  # noqa: N803
            return planContext

    assert bound(C(), "plan", PLAN)("s", "p") == ("s", "p")
    assert bound(C(), "prepare", PLAN)("s", "p") == "p"


def test_a_missing_self_is_said_clearly():
    class C:
        def setup(srvInterface, returnType):  # noqa: N803, N805
            pass

    with pytest.raises(LoadRefused, match=r"C.setup: its first parameter is srvInterface; `self`"):
        bound(C(), "setup", PARSER_SETUP)


def test_a_method_that_wants_too_much_or_is_missing_is_refused():
    class C:
        def plan(self, a, b, c):
            pass

    with pytest.raises(LoadRefused, match=r"takes 3 arguments \(a, b, c\), but is given 2"):
        bound(C(), "plan", PLAN)
    with pytest.raises(LoadRefused, match="no such method"):
        bound(C(), "prepare", PLAN)
