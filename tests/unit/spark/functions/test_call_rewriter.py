"""Calls of external functions are found by tokens and replaced in place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from snowmelt.spark.functions.call_rewriter import (
    CallArgument,
    CallMalformed,
    FunctionCall,
    find_calls,
    rewrite_calls,
)


def rewritten(text: str, names: tuple[str, str] = ("F", "G")) -> str:
    calls = find_calls(text)
    chosen = {call.start: call for call in calls.calls if call.parts[-1] in names}

    def render(call: FunctionCall, given: Sequence[CallArgument]) -> str:
        texts = [each.text if each.name is None else f"{each.name}={each.text}" for each in given]
        return f"<{'.'.join(call.parts)}|{'|'.join(texts)}>"

    return rewrite_calls(calls, chosen, render)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select 1 + f(x) as a from t", "select 1 + <F|x> as a from t"),
        ("select f() as a", "select <F|> as a"),
        ("select F( x ,'y') as a", "select <F|x|'y'> as a"),
        ("select demo.public.f(x) as a", "select <DEMO.PUBLIC.F|x> as a"),
        ("select `f`(x) as a", "select `f`(x) as a"),
        ("select f(g(x), g(g(1))) as a", "select <F|<G|x>|<G|<G|1>>> as a"),
        ("select f(a => 1, `b` => g()) as a", "select <F|A=1|b=<G|>> as a"),
        ("select f(array(1, 2)[0], {'a': 1}) as a", "select <F|array(1, 2)[0]|{'a': 1}> as a"),
        ("select 'f(x)', \"g(x)\" -- f(x)", "select 'f(x)', \"g(x)\" -- f(x)"),
        ("select /* f(x) */ f from f", "select /* f(x) */ f from f"),
        ("with f(x) as (select 1) select x from f", "with f(x) as (select 1) select x from f"),
        ("select x from (select 1) f(x)", "select x from (select 1) f(x)"),
        ("select x from t as f(x)", "select x from t as f(x)"),
        ("select x from t f(x)", "select x from t f(x)"),
        ("select ??? from t f(x)", "select ??? from t f(x)"),
        ("select ??? from t as f(x)", "select ??? from t as f(x)"),
        ("select ??? from `t` `F`(x), g(1)", "select ??? from `t` `F`(x), <G|1>"),
        ("with f(x) as (select ???), g(y) as (select 1) select 1", None),
        ("select 1 from t join f(x) as g(y)", "select 1 from t join <F|x> as g(y)"),
        ("select $$f(x)$$ from r where r'f(x)\\' = 'f(''x)'", None),
        ("select /* /* f(x) */ f(x) */ 1", None),
        ("insert into f (a) values (g(1))", "insert into f (a) values (<G|1>)"),
        ("select a.b.c.f(x)", "select a.b.c.f(x)"),
        ("explain select f(x) as a", "explain select <F|x> as a"),
        (
            "select a from t where f(x) in (select g(y) as b from u) order by f(1)",
            "select a from t where <F|x> in (select <G|y> as b from u) order by <F|1>",
        ),
    ],
)
def test_what_is_called_is_replaced_and_nothing_else(text: str, expected: str | None) -> None:
    assert rewritten(text) == (expected or text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("select f(x)", "select <F|x> AS `f(x)`"),
        ("select f( x\n ) + 1, y from t", "select <F|x> + 1 AS `f( x ) + 1`, y from t"),
        ("select distinct f(`a`) from t", "select distinct <F|`a`> AS `f(``a``)` from t"),
        ("select demo.s.f(x) from t", "select <DEMO.S.F|x> AS `demo.s.f(x)` from t"),
        (
            "select f(x) is distinct from y from t",
            "select <F|x> is distinct from y AS `f(x) is distinct from y` from t",
        ),
        (
            "select y is not distinct from f(x) from t",
            "select y is not distinct from <F|x> AS `y is not distinct from f(x)` from t",
        ),
        (
            "select t.* except (y), f(x) from t except select f(y)",
            "select t.* except (y), <F|x> AS `f(x)` from t except select <F|y> AS `f(y)`",
        ),
        (
            "from t |> extend f(x) |> select f(y), z |> where f(z)",
            "from t |> extend <F|x> AS `f(x)` |> select <F|y> AS `f(y)`, z |> where <F|z>",
        ),
        ("select f(x) b, f(x):city, f(x).a", "select <F|x> b, <F|x>:city, <F|x>.a AS `f(x).a`"),
        (
            "select /*+ BROADCAST(t) */ f(x) from t union all select f(y)",
            "select /*+ BROADCAST(t) */ <F|x> AS `f(x)` from t union all select <F|y> AS `f(y)`",
        ),
    ],
)
def test_columns_without_a_name_keep_the_one_they_would_have(text: str, expected: str) -> None:
    assert rewritten(text) == expected


@pytest.mark.parametrize("text", ["select f(,1)", "select f(1,)", "select f(*)", "select f(a=>)"])
def test_missing_arguments_are_refused(text: str) -> None:
    with pytest.raises(CallMalformed, match="an argument is missing"):
        rewritten(text)


def test_distinct_is_refused() -> None:
    with pytest.raises(CallMalformed, match="no aggregate"):
        rewritten("select f(distinct x)")
