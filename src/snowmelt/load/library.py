"""Libraries of user code: sets of named files, each imported as a package with a unique name.

Two libraries may have files of the same name. Within a library, `import x` prefers the library's
`x` to any other module, and `vertica_sdk` is `snowmelt.load.udx.vertica_sdk`.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import PurePosixPath
from types import ModuleType
from typing import Any

from snowmelt.errors import LoadRefused
from snowmelt.load.phase_definition import PhaseDefinition
from snowmelt.load.phase_protocols import (
    Filter,
    Parser,
    RecordFilter,
    RecordParser,
    RecordSource,
    Source,
)
from snowmelt.load.udx import vertica_sdk as vertica
from snowmelt.load.udx.instance import LIBRARY_MODULE_PREFIX
from snowmelt.load.udx.phase_definitions import (
    make_filter_definition,
    make_load_error,
    make_parser_definition,
    make_source_definition,
)
from snowmelt.load.udx.shared_progress_page import is_ctrl_c

_SDK_MODULE_NAME = "vertica_sdk"


class Library:
    """A loaded library of user code. Picklable: unpickling loads it again.

    Lookups search `files` in order. `name` appears in messages.
    """

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        self.name = name
        self.files = dict(files)
        self._root = _finder.register_library(name, self.files)
        self._top_level_files = [path for path in self.files if _is_top_level_file(path)]
        self._broken: dict[str, LoadRefused] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return load_library, (self.name, self.files)

    def filter(
        self, name: str, display_name: str | None = None
    ) -> PhaseDefinition[Filter | RecordFilter]:
        """Return the definition of a filter from a factory, class or function.

        `display_name` is the filter's name in statements and messages. Default: `name`.

        Raises:
            LoadRefused: If `name` is not found, is not a filter, or its file fails to import.
        """
        return make_filter_definition(display_name or name, self.find_object(name))

    def parser(
        self, name: str, display_name: str | None = None
    ) -> PhaseDefinition[Parser | RecordParser]:
        """Return the definition of a parser. Arguments and errors are those of `filter`."""
        return make_parser_definition(display_name or name, self.find_object(name))

    def source(
        self, name: str, display_name: str | None = None
    ) -> PhaseDefinition[Source | RecordSource]:
        """Return the definition of a source. Arguments and errors are those of `filter`."""
        return make_source_definition(display_name or name, self.find_object(name))

    def find_object(self, name: str) -> Any:
        """Return an object of the library. An exact match precedes a case-insensitive one.

        Raises:
            LoadRefused: If it is not found, or its file fails to import.
        """
        offered: dict[str, None] = {}
        for same in (str.__eq__, lambda one, other: one.lower() == other.lower()):
            for path in self._top_level_files:
                module = self._import_file(path)
                for each in () if module is None else vars(module):
                    if same(each, name):
                        return getattr(module, each)
                offered.update(dict.fromkeys(() if module is None else _list_defined_names(module)))
        for refusal in self._broken.values():
            raise refusal
        raise LoadRefused(
            what=f"Library {self.name}",
            reason=f"{name} not found. Defined names: {', '.join(offered) or 'none'}",
        )

    def get_defined_objects(self) -> dict[str, Any]:
        """Return the classes and functions of the first file.

        Raises:
            LoadRefused: If the file fails to import.
        """
        module = self._import_file(self._top_level_files[0])
        if module is None:
            raise self._broken[self._top_level_files[0]]
        return {name: getattr(module, name) for name in _list_defined_names(module)}

    def _import_file(self, path: str) -> ModuleType | None:
        if path in self._broken:
            return None
        try:
            module = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            return importlib.import_module(f"{self._root}.{module}")
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            # Continue: `find_object` raises this error if no other file defines the name.
            what = f"Library {self.name}, {path}"
            self._broken[path] = make_load_error(what, error)
            return None


def load_library(name: str, files: Mapping[str, bytes]) -> Library:
    """Return a library of files by name, such as `filters.py` or `package/module.py`.

    The first lookup imports the files. Libraries with equal names and files share modules.

    Raises:
        LoadRefused: If there is no Python file at the top level.
    """
    if not any(_is_top_level_file(path) for path in files):
        raise LoadRefused(what=f"Library {name}", reason="no file ends with .py")
    # User files import the SDK by this name, when they are loaded and during calls.
    sys.modules[_SDK_MODULE_NAME] = vertica
    return Library(name, files)


class _LibraryFinder:
    """Import finder for modules of libraries."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[str, dict[str, bytes]]] = {}

    def register_library(self, name: str, files: dict[str, bytes]) -> str:
        """Return the root package of a library's modules."""
        digest = hashlib.sha256(repr((name, list(files.items()))).encode()).hexdigest()
        root = f"{LIBRARY_MODULE_PREFIX}{digest[:16]}"
        self._files[root] = (name, files)
        if self not in sys.meta_path:
            sys.meta_path.append(self)
        return root

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - Python's signature
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return the spec of a library's module, or None for other modules."""
        root, _, dotted = fullname.partition(".")
        if root not in self._files:
            return None
        name, files = self._files[root]
        stem = dotted.replace(".", "/")
        for file, is_package in ((f"{stem}.py", False), (f"{stem}/__init__.py", True)):
            if dotted and file in files:
                loader = _LibraryFileLoader(root, name, file, files)
                return ModuleSpec(fullname, loader, origin=f"{name}/{file}", is_package=is_package)
        if not dotted or any(file.startswith(f"{stem}/") for file in files):
            return ModuleSpec(
                fullname, _LibraryFileLoader(root, name, None, files), is_package=True
            )
        return None

    def has_module(self, root: str, top_module: str) -> bool:
        """Return True if a library has this module. Ignores a copy of the SDK in the library."""
        return top_module != _SDK_MODULE_NAME and self.find_spec(f"{root}.{top_module}") is not None


class _LibraryFileLoader(Loader):
    """Import loader of one file of a library."""

    def __init__(
        self, root: str, library: str, file: str | None, files: Mapping[str, bytes]
    ) -> None:
        self._root = root
        self._library = library
        self._file = file
        self._files = files
        self._code = b"" if file is None else files[file]

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's file, if it has one."""
        module.__dict__["__builtins__"] = _make_library_builtins(self._root)
        if self._file is not None:
            module.__file__ = f"{self._library}/{self._file}"
            code = compile(self._code, module.__file__, "exec", dont_inherit=True)
            exec(code, module.__dict__)  # noqa: S102 - the purpose of a library

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - Python's signature
        """Return the source text, for tracebacks."""
        return self._code.decode(errors="replace")

    def get_data(self, path: str) -> bytes:
        """Return another file of the library, for `pkgutil.get_data`.

        Raises:
            FileNotFoundError: If it does not exist.
        """
        name = PurePosixPath(path).relative_to(self._library).as_posix()
        if name not in self._files:
            raise FileNotFoundError(path)
        return self._files[name]


_finder = _LibraryFinder()


def _make_library_builtins(root: str) -> dict[str, Any]:
    """Return builtins whose `__import__` prefers the library's modules, also after loading."""
    import builtins

    def importing(
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - Python's signature
        locals: Mapping[str, object] | None = None,  # noqa: A002
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> ModuleType:
        top = name.partition(".")[0]
        if level or not _finder.has_module(root, top):
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        module = importlib.import_module(f"{root}.{name}")
        if not fromlist:
            return sys.modules[f"{root}.{top}"]
        return builtins.__import__(module.__name__, globals, locals, fromlist, 0)

    return {**vars(builtins), "__import__": importing}


def _is_top_level_file(path: str) -> bool:
    """Return True for a Python file at the top level, which lookups search."""
    parts = PurePosixPath(path)
    return parts.suffix == ".py" and (
        len(parts.parts) == 1 or (len(parts.parts) == 2 and parts.name == "__init__.py")
    )


def _list_defined_names(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
