"""A cache holds what was used last, within its bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from snowmelt.functions.caller.request_deduplication import CACHE_MISS, ValueCache, get_value_cache
from snowmelt.functions.definition import Translator, TranslatorLanguage
from support.call_plans import plan

_ENTRY = 201  # what an entry with a key of one byte and an empty value counts as


def test_values_come_back_and_null_is_a_value():
    cache = ValueCache(10_000)
    cache.put_many([b"a", b"b"], ["1", None], [1, 4])
    assert cache.get_many([b"b", b"c", b"a"]) == [None, CACHE_MISS, "1"]


def test_what_was_used_least_recently_goes_first():
    cache = ValueCache(10 * _ENTRY)
    keys = [bytes([at]) for at in range(10)]
    cache.put_many(keys, keys, [0] * 10)
    cache.get_many(keys[:3])
    cache.put_many([b"x", b"y"], [1, 2], [0, 0])
    assert [at for at, found in enumerate(cache.get_many(keys)) if found is CACHE_MISS] == [3, 4]


def test_a_value_that_would_push_out_much_else_is_not_kept():
    cache = ValueCache(8_000)
    cache.put_many([b"a", b"b"], ["large", "small"], [1_000, 100])
    assert cache.get_many([b"a", b"b"]) == [CACHE_MISS, "small"]


def test_a_function_without_cache_has_none_and_a_changed_one_another():
    assert get_value_cache(plan()) is None
    first, changed = (plan(cache_bytes=size) for size in (1_000, 2_000))
    assert get_value_cache(first) is get_value_cache(plan(cache_bytes=1_000))
    assert get_value_cache(first) is not get_value_cache(changed)


def test_a_replaced_translator_another_zone_and_other_headers_have_another_cache():
    first = plan(cache_bytes=3_000)
    translators = [
        Translator("db.s.t", TranslatorLanguage.JAVASCRIPT, "event", f"return {{body: {body}}}")
        for body in ("1", "2")
    ]
    others = [
        *(replace(first, response_translator=each) for each in translators),
        *(replace(first, request_translator=each) for each in translators),
        replace(first, zone="Asia/Tokyo"),
        *(replace(first, context={"current_user": each}) for each in ("A", "B")),
    ]
    caches = [get_value_cache(each) for each in (first, *others)]
    assert len({id(each) for each in caches}) == len(caches)
    again = replace(first, response_translator=replace(translators[0]))
    assert get_value_cache(again) is caches[1]


@given(
    st.lists(
        st.tuples(st.booleans(), st.lists(st.integers(0, 15), min_size=1, max_size=4)),
        max_size=60,
    )
)
def test_it_is_what_a_plain_model_is(steps):
    cache = ValueCache(8 * _ENTRY)
    model: OrderedDict[bytes, int] = OrderedDict()
    for at, (put, numbers) in enumerate(steps):
        keys = [bytes([number]) for number in numbers]
        if put:
            cache.put_many(keys, [at] * len(keys), [0] * len(keys))
            for key in keys:
                model[key] = at
                model.move_to_end(key)
            while len(model) > 8:
                model.popitem(last=False)
        else:
            assert cache.get_many(keys) == [model.get(key, CACHE_MISS) for key in keys]
            for key in keys:
                if key in model:
                    model.move_to_end(key)
        assert cache.size_bytes == len(model) * _ENTRY
