"""Libraries of user code: files by name, imported as packages with unique names.

Two libraries may hold files of the same name. Within a library, `import x` finds the library's own
`x` before any other module, and `vertica_sdk` is `snowmelt.load.udx.vertica_sdk`.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import PurePosixPath
from types import CodeType, ModuleType
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
    """User code that was loaded; it can be pickled, and is then loaded again.

    `name` is how messages call it. The first of `files` is where names are looked for first.
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
        """Return the filter that a factory, class or function of this name makes.

        `display_name` is how statements and messages call it.

        Raises:
            LoadRefused: There is none, or its file cannot be run.
        """
        return make_filter_definition(display_name or name, self.find_object(name))

    def parser(
        self, name: str, display_name: str | None = None
    ) -> PhaseDefinition[Parser | RecordParser]:
        """Return the parser that a factory or class of this name makes.

        Raises:
            LoadRefused: There is none, or its file cannot be run.
        """
        return make_parser_definition(display_name or name, self.find_object(name))

    def source(
        self, name: str, display_name: str | None = None
    ) -> PhaseDefinition[Source | RecordSource]:
        """Return the source that a factory or class of this name makes.

        Raises:
            LoadRefused: There is none, or its file cannot be run.
        """
        return make_source_definition(display_name or name, self.find_object(name))

    def find_object(self, name: str) -> Any:
        """Return what a file of the library calls so; the case counts only if two differ in it.

        Raises:
            LoadRefused: There is none, or its file cannot be run.
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
            reason=f"it has no {name}; it has {', '.join(offered) or 'nothing'}",
        )

    def get_defined_objects(self) -> dict[str, Any]:
        """Return the classes and functions that its first file defines.

        Raises:
            LoadRefused: The file cannot be run.
        """
        module = self._import_file(self._top_level_files[0])
        if module is None:
            raise self._broken[self._top_level_files[0]]
        return {name: getattr(module, name) for name in _list_defined_names(module)}

    def _import_file(self, path: str) -> ModuleType | None:
        if path in self._broken:
            return None
        try:
            return importlib.import_module(f"{self._root}.{_to_module_name(path)}")
        except BaseException as error:
            if is_ctrl_c(error):
                raise
            # It is said when a name is asked for.
            what = f"Library {self.name}, {path}"
            self._broken[path] = make_load_error(what, error)
            return None


def load_library(name: str, files: Mapping[str, bytes]) -> Library:
    """Return a library of files by name, such as `filters.py` or `package/module.py`.

    Nothing runs before a name of it is asked for. The same name and files are loaded once.

    Raises:
        LoadRefused: No file of it is Python's.
    """
    if not any(_is_top_level_file(path) for path in files):
        raise LoadRefused(what=f"Library {name}", reason="it has no file that ends with .py")
    # What an unchanged file imports in the middle of a call finds it, too.
    sys.modules[_SDK_MODULE_NAME] = vertica
    return Library(name, files)


class _LibraryFinder:
    """Finds modules of libraries, as Python's import asks for them."""

    def __init__(self) -> None:
        self._files: dict[str, tuple[str, dict[str, bytes]]] = {}

    def register_library(self, name: str, files: dict[str, bytes]) -> str:
        """Return the name under which a library's modules are imported."""
        digest = hashlib.sha256(repr((name, list(files.items()))).encode()).hexdigest()
        root = f"{LIBRARY_MODULE_PREFIX}{digest[:16]}"
        self._files[root] = (name, files)
        if self not in sys.meta_path:
            sys.meta_path.append(self)
        return root

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002 - as Python calls it
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return how a module is loaded, None where it is none of ours."""
        root, _, dotted = fullname.partition(".")
        if root not in self._files:
            return None
        name, files = self._files[root]
        if not dotted:
            return ModuleSpec(
                fullname, _LibraryFileLoader(root, name, None, files), is_package=True
            )
        stem = dotted.replace(".", "/")
        for file, is_package in ((f"{stem}.py", False), (f"{stem}/__init__.py", True)):
            if file in files:
                loader = _LibraryFileLoader(root, name, file, files)
                return ModuleSpec(fullname, loader, origin=f"{name}/{file}", is_package=is_package)
        if any(file.startswith(f"{stem}/") for file in files):
            return ModuleSpec(
                fullname, _LibraryFileLoader(root, name, None, files), is_package=True
            )
        return None

    def has_module(self, root: str, top_module: str) -> bool:
        """Tell whether a library has a module of this name; its copy of the SDK is none."""
        return top_module != _SDK_MODULE_NAME and self.find_spec(f"{root}.{top_module}") is not None


class _LibraryFileLoader(Loader):
    """Runs one file of a library."""

    def __init__(
        self, root: str, library: str, file: str | None, files: Mapping[str, bytes]
    ) -> None:
        self._root = root
        self._library = library
        self._file = file
        self._files = files
        self._code = b"" if file is None else files[file]

    def create_module(self, spec: ModuleSpec) -> None:
        """Let Python make the module."""

    def exec_module(self, module: ModuleType) -> None:
        """Run the file."""
        module.__dict__["__builtins__"] = _make_library_builtins(self._root)
        if self._file is not None:
            module.__file__ = f"{self._library}/{self._file}"
            exec(self._compile_file(), module.__dict__)  # noqa: S102 - it is what a library is for

    def get_source(self, fullname: str) -> str:  # noqa: ARG002 - as Python calls it
        """Return the text, for tracebacks."""
        return self._code.decode(errors="replace")

    def get_data(self, path: str) -> bytes:
        """Return another file of the library, as `pkgutil.get_data` asks for it.

        Raises:
            FileNotFoundError: There is none.
        """
        name = PurePosixPath(path).relative_to(self._library).as_posix()
        if name not in self._files:
            raise FileNotFoundError(path)
        return self._files[name]

    def _compile_file(self) -> CodeType:
        return compile(self._code, f"{self._library}/{self._file}", "exec", dont_inherit=True)


_finder = _LibraryFinder()


def _make_library_builtins(root: str) -> dict[str, Any]:
    """Return builtins whose import looks into the library first, also in the middle of a call."""
    import builtins

    def importing(
        name: str,
        globals: Mapping[str, object] | None = None,  # noqa: A002 - as Python calls it
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
    """Tell whether names are looked for in this file."""
    parts = PurePosixPath(path)
    return parts.suffix == ".py" and (
        len(parts.parts) == 1 or (len(parts.parts) == 2 and parts.name == "__init__.py")
    )


def _to_module_name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _list_defined_names(module: ModuleType) -> list[str]:
    return [
        name
        for name, value in vars(module).items()
        if callable(value) and getattr(value, "__module__", None) == module.__name__
    ]
