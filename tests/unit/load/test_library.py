"""Libraries: a namespace each, files that import each other, and names in any case."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import pytest

from snowmelt.errors import LoadRefused
from snowmelt.load.library import Library, load_library
from support.user_code import HEAD, filtered

PASS = """
class Pass:
    def process(self, srv, inp, state, out):
        out.write(inp.read() + MARK)
        return StreamState.DONE
class PassFactory(vertica_sdk.FilterFactory):
    def prepare(self, srv, planContext):
        return Pass()
"""


def one(name: str, mark: bytes) -> Library:
    code = f"{HEAD}\nfrom marks import MARK\n{PASS}"
    return load_library(name, {"x.py": code.encode(), "marks.py": b"MARK = %r" % mark})


def run(library: Library, name: str = "PassFactory", **given: Any) -> bytes:
    return filtered(library.filter(name).build_phase(given), b"a")


def test_two_libraries_may_hold_files_of_the_same_names() -> None:
    first, second = one("first", b"1"), one("second", b"2")
    assert (run(first), run(second), run(first)) == (b"a1", b"a2", b"a1")


def test_modules_and_packages_of_the_library_are_found_also_in_the_middle_of_a_call() -> None:
    code = (
        HEAD
        + """
class F:
    def process(self, srv, inp, state, out):
        import package.inner
        from package import inner as again
        from package.inner import VALUE
        import package.deep.more as more
        import json
        assert json.dumps([1]) == "[1]" and again is package.inner
        out.write(VALUE + more.VALUE + package.NAME)
        return StreamState.DONE
"""
    )
    library = load_library("lib", {
        "x.py": code.encode(),
        "package/__init__.py": b"NAME = b'p'\nfrom . import inner\n",
        "package/inner.py": b"from .deep.more import VALUE as MORE\nVALUE = b'i' + MORE\n",
        "package/deep/more.py": b"VALUE = b'm'\n",
    })  # fmt: skip
    assert run(library, "F") == b"immp"


def test_other_files_of_the_library_are_read_as_package_data() -> None:
    code = (
        HEAD
        + """
import pkgutil
def add(data):
    return data + pkgutil.get_data(__name__, "words.txt")
"""
    )
    library = load_library("lib", {"x.py": code.encode(), "words.txt": b" words"})
    assert run(library, "add") == b"a words"


def test_a_name_is_found_in_any_case_unless_two_differ_in_it() -> None:
    assert run(one("lib", b"!"), "PASSfactory") == b"a!"
    library = load_library("lib", {"x.py": b"def f(d): return b'f'\ndef F(d): return b'F'"})
    assert (run(library, "F"), run(library, "f")) == (b"F", b"f")


@pytest.mark.slow
def test_a_library_is_pickled_with_its_files_for_another_process() -> None:
    spec = pickle.dumps(one("lib", b"?"))
    code = (
        "import pickle, sys; from snowmelt.load.phase_protocols import ByteReader; "
        "library = pickle.loads(sys.stdin.buffer.read()); "
        "made = library.filter('PassFactory').build_phase({}); "
        "print(b''.join(made.run(ByteReader([b'a']))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=spec, capture_output=True, check=False
    )  # fmt: skip
    assert done.stdout.strip() == b"b'a?'", done.stderr


def test_wrong_bases_of_published_skeletons_do_no_harm() -> None:
    code = (
        HEAD
        + """
class PyUDFilter(vertica_sdk.UDFilter):
    def process(self, srvInterface, inputbuffer, outputbuffer, inputstate):
        outputbuffer.write(inputbuffer.read())
        return StreamState.DONE
class PyFilterFactory(vertica_sdk.SourceFactory):
    def plan(self):
        pass
    def prepare(self, planContext):
        return PyUDFilter()
class PyUDParser(vertica_sdk.UDSource):
    pass
"""
    )
    assert run(load_library("lib", {"x.py": code.encode()}), "PyFilterFactory") == b"a"


def test_a_file_of_that_name_in_a_library_does_not_hide_the_sdk() -> None:
    files = {"x.py": (HEAD + PASS).encode(), "vertica_sdk.py": b"", "marks.py": b""}
    library = load_library("lib", {**files, "x.py": files["x.py"].replace(b"MARK", b"b''")})
    assert run(library) == b"a"


def test_code_that_does_not_run_is_refused_with_the_line() -> None:
    for code, reason in (
        (b"x = 1\ny = 1 / 0\n", r"Library lib, x.py: ZeroDivisionError: .* \(lib/x.py, line 2\)"),
        (b"def f(:\n", r"Library lib, x.py: SyntaxError"),
        (b"import nowhere_at_all\n", r"No module named 'nowhere_at_all'"),
        (b"raise SystemExit\n", r"SystemExit"),
    ):
        with pytest.raises(LoadRefused, match=reason):
            load_library("lib", {"x.py": code}).find_object("F")
    with pytest.raises(LoadRefused, match=r"no file ends with \.py"):
        load_library("lib", {"readme.txt": b""})


def test_parameters_that_are_not_declared_are_warned_of_and_ignored() -> None:
    code = (
        HEAD
        + """
class Mark(vertica_sdk.UDFilter):
    def setup(self, srvInterface):
        reader = srvInterface.getParamReader()
        self.mark = reader.getString("Mark") if reader.containsParameter("mark") else "none"
        assert not reader.containsParameter("other")
    def process(self, srvInterface, inputbuffer, inputstate, outputbuffer):
        outputbuffer.write(self.mark.encode())
        return StreamState.DONE
class Factory(vertica_sdk.FilterFactory):
    def getParameterType(self, srvInterface, parameterTypes):
        parameterTypes.addVarchar(10, "mark")
    def prepare(self, srvInterface, planContext):
        return Mark()
"""
    )
    library = load_library("lib", {"x.py": code.encode()})
    assert run(library, "Factory", MARK="x") == b"x"
    assert run(library, "Factory") == b"none"
    with pytest.warns(UserWarning, match="filter Factory declares no parameter other"):
        planned = library.filter("Factory").compute_planned_values({"mark": 5, "other": 1})
    # Which is said once, where the load is planned.
    assert run(library, "Factory", mark=5, other=1, **planned) == b"5"


def test_values_that_may_be_secret_are_not_shown() -> None:
    code = (
        HEAD
        + """
class Factory(vertica_sdk.FilterFactory):
    def getParameterType(self, srvInterface, parameterTypes):
        parameterTypes.addVarchar(10, "password")
    def prepare(self, srvInterface, planContext):
        raise ValueError("no")
"""
    )
    definition = load_library("lib", {"x.py": code.encode()}).filter("Factory", "f")
    with pytest.raises(LoadRefused, match=r"filter f\(password=…\): prepare\(\) raised ValueError"):
        definition.build_phase({"password": "hunter2"})


def test_what_is_planned_once_is_what_tasks_see() -> None:
    code = (
        HEAD
        + """
class Factory(vertica_sdk.FilterFactory):
    plans = 0
    def plan(self, srvInterface, planContext):
        Factory.plans += 1
        planContext.getWriter().setInt("number", Factory.plans)
    def prepare(self, srvInterface, planContext):
        self.number = planContext.getReader().getInt("number")
        return self
    def process(self, srv, inp, state, out):
        out.write(b"%d" % self.number)
        return StreamState.DONE
"""
    )
    definition = load_library("lib", {"x.py": code.encode()}).filter("Factory", "f")
    planned = pickle.loads(pickle.dumps(definition.compute_planned_values({})))
    for _ in range(2):
        assert filtered(definition.build_phase(planned)) == b"1"
