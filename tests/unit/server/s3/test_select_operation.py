"""Patterns of keys match like a simple recursive matcher, in linear time."""

from __future__ import annotations

import random

import pytest

from snowmelt.server.s3.select_operation import compile_key_pattern


def matches(pattern: str, key: str) -> bool:
    """Return True if a key matches, by trying everything."""
    if not pattern:
        return not key
    if pattern.startswith("**"):
        return any(matches(pattern[2:], key[at:]) for at in range(len(key) + 1))
    if pattern[0] == "*":
        ends = range(key.find("/") + 1 if "/" in key else len(key) + 1)
        return any(matches(pattern[1:], key[at:]) for at in ends)
    is_same = bool(key) and (key[0] != "/" if pattern[0] == "?" else key[0] == pattern[0])
    return is_same and matches(pattern[1:], key[1:])


@pytest.mark.parametrize("seed", range(2))
def test_random_patterns_match_like_a_recursive_matcher(seed: int) -> None:
    chance = random.Random(seed)
    count = 0
    for _ in range(5_000):
        pattern = "".join(
            chance.choices(("a", "b", "/", "*", "**", "?", "."), k=chance.randint(1, 7))
        )
        key = "".join(chance.choices("ab/.", weights=(4, 3, 2, 1), k=chance.randint(0, 8)))
        expected = matches(pattern, key)
        count += expected
        assert (compile_key_pattern(pattern).fullmatch(key) is not None) == expected, (pattern, key)
    assert count > 200


@pytest.mark.timeout(60)
@pytest.mark.parametrize("star", ["*", "**", "*?", "**?*"])
def test_many_stars_take_no_exponential_time(star: str) -> None:
    pattern = compile_key_pattern(f"{star}a" * 100 + "b")
    assert pattern.fullmatch("a" * 1024) is None
    assert pattern.fullmatch("a" * 1023 + "b") is not None
