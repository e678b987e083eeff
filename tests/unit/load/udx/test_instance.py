"""Arguments go where the names of parameters say; the usual order is for names that say nothing."""

from __future__ import annotations

from typing import Any

import pytest

from snowmelt.errors import LoadRefused
from snowmelt.load.udx.instance import (
    DESTROY_ROLES,
    PARSE_ROLES,
    PARSER_PREPARE_ROLES,
    PARSER_SETUP_ROLES,
    PLAN_ROLES,
    PROCESS_RECORDS_ROLES,
    PROCESS_ROLES,
    RETURN_TYPE_ROLES,
    bind_method,
)

SIGNATURES = [
    # Documentation and existing code disagree on this one.
    ("process", PROCESS_ROLES, "srvInterface, inputbuffer, outputbuffer, inputstate", "server input output state"),
    ("process", PROCESS_ROLES, "srvInterface, inputbuffer, inputstate, outputbuffer", "server input state output"),
    ("process", PROCESS_ROLES, "srvInterface, input, input_state, output", "server input state output"),
    ("process", PROCESS_ROLES, "a, b, c, d", "server input state output"),
    ("process", PROCESS_ROLES, "s, i, o, state", "server input output state"),
    ("process", PROCESS_ROLES, "inp, out", "input output"),
    ("process", PROCESS_ROLES, "*everything", "server input state output"),
    ("process", PROCESS_ROLES, "srv, src_buf, state, out_buf, more=None", "server input state output"),
    ("process", PARSE_ROLES, "srvInterface, inputbuffer, inputstate, streamwriter", "server input state writer"),
    ("processWithMetadata", PROCESS_RECORDS_ROLES,
     "srv, input, input_lengths, input_state, output, output_lengths",
     "server input input_lengths state output output_lengths"),
    ("setup", PARSER_SETUP_ROLES, "srvInterface, returnType", "server returns"),
    ("setup", PARSER_SETUP_ROLES, "srvInterface", "server"),
    ("destroy", DESTROY_ROLES, "srvInterface", "server"),
    ("destroy", DESTROY_ROLES, "srvInterface, udSessionParams", "server session"),
    ("plan", PLAN_ROLES, "", ""),
    ("prepare", PLAN_ROLES, "planContext", "plan"),
    ("prepare", PLAN_ROLES, "serverInterface, planContext", "server plan"),
    ("prepare", PARSER_PREPARE_ROLES, "srv, perColumnParamReader, planCtxt, returnType",
     "server columns plan returns"),
    ("getParserReturnType", RETURN_TYPE_ROLES,
     "srv, perColumnParamReader, planContext, argTypes, returnTypes",
     "server columns plan arguments returns"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "roles", "parameters", "given"), SIGNATURES)
def test_arguments_are_bound_by_name(
    name: str, roles: tuple[str, ...], parameters: str, given: str
) -> None:
    names = [each.strip().partition("=")[0] for each in parameters.split(",") if each.strip()]
    values = ", ".join(names) if "*" not in parameters else "*everything"
    space: dict[str, Any] = {}
    exec(f"class C:\n def {name}(self, {parameters}):\n  return [{values}]", space)
    got = bind_method(space["C"](), name, roles)(*roles)
    assert [each for each in got if each is not None] == given.split()


def test_class_methods_and_static_methods_are_bound_as_well() -> None:
    class C:
        @classmethod
        def plan(cls, serverInterface: Any, planContext: Any) -> tuple[Any, Any]:  # noqa: N803
            return serverInterface, planContext

        @staticmethod
        def prepare(planContext: Any) -> Any:  # noqa: N803
            return planContext

    assert bind_method(C(), "plan", PLAN_ROLES)("s", "p") == ("s", "p")
    assert bind_method(C(), "prepare", PLAN_ROLES)("s", "p") == "p"


def test_a_missing_self_is_said_clearly() -> None:
    class C:
        def setup(srvInterface, returnType: Any) -> None:  # noqa: N803, N805
            pass

    with pytest.raises(
        LoadRefused, match=r"C.setup: expected first parameter `self`, got srvInterface"
    ):
        bind_method(C(), "setup", PARSER_SETUP_ROLES)


def test_a_method_that_wants_too_much_or_is_missing_is_refused() -> None:
    class C:
        def plan(self, a: Any, b: Any, c: Any) -> None:
            pass

    with pytest.raises(LoadRefused, match=r"requires 3 arguments \(a, b, c\), expected at most 2"):
        bind_method(C(), "plan", PLAN_ROLES)
    with pytest.raises(LoadRefused, match="method not found"):
        bind_method(C(), "prepare", PLAN_ROLES)
