"""Build the documentation site from `docs/`, the changelog and the benchmark results.

`python site/build.py` writes HTML to `build/site`. `python site/build.py serve` then serves it on a free
port of this machine. Links between files of the repository become links between pages; a link to
a file that is no page fails the build. Mermaid diagrams become SVG files, so pages need no network.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import http.server
import os
import posixpath
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BUILD = ROOT / "build"

_LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#|/)([^)#\s]+)(#[^)\s]+)?(?=\))")
_DIAGRAM = re.compile(r"```mermaid\n%% ([^\n]+)\n(.*?)```\n", re.DOTALL)


def pages(root: Path = ROOT) -> dict[str, str]:
    """Return the page of the site for each Markdown file of the repository that has one."""
    found = {
        path.relative_to(root).as_posix(): path.relative_to(root / "docs").as_posix()
        for path in sorted((root / "docs").rglob("*.md"))
    }
    for path in sorted((root / "benchmarks" / "results").glob("*.md")):
        found[path.relative_to(root).as_posix()] = f"explanation/measurements/{path.name}"
    for path in sorted((root / "examples").glob("*/README.md")):
        found[path.relative_to(root).as_posix()] = f"how-to/examples/{path.parent.name}.md"
    for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY", "CODE_OF_CONDUCT"):
        if (root / f"{name}.md").exists():
            found[f"{name}.md"] = f"project/{name.lower().replace('_', '-')}.md"
    return found


def stage(source: Path) -> None:
    """Write the pages as the generator reads them into the folder `source`, replacing it."""
    shutil.rmtree(source, ignore_errors=True)
    known = pages()
    for file, page in known.items():
        text = (ROOT / file).read_text("utf-8")
        text = _LINK.sub(functools.partial(_page_link, file, known), text)
        text = _DIAGRAM.sub(functools.partial(_drawn, page, source), text)
        _write(source / page, text)
    for title, folder in (
        ("Decisions", "explanation/decisions"),
        ("Measurements", "explanation/measurements"),
    ):
        _write(source / folder / "index.md", _index(title, source / folder))
    shutil.copytree(ROOT / "site" / "assets", source / "assets", dirs_exist_ok=True)
    shutil.copytree(ROOT / "docs" / "images", source / "images")


def _page_link(file: str, known: dict[str, str], match: re.Match[str]) -> str:
    target = posixpath.normpath(posixpath.join(posixpath.dirname(file), match[1]))
    anchor = match[2] or ""
    page = known.get(target) or known.get(f"{target}/README.md")
    if page is None and target.startswith("docs/images/") and (ROOT / target).is_file():
        page = target.removeprefix("docs/")
    if page is None and (ROOT / target).is_dir():
        inside = [each for each in known if posixpath.dirname(each) == target]
        page = posixpath.dirname(known[inside[0]]) + "/index.md" if inside else None
    if page is None:
        raise SystemExit(f"{file}: the link to {match[1]} leads to no page of the site.")
    return posixpath.relpath(page, posixpath.dirname(known[file]) or ".") + anchor


def _drawn(page: str, source: Path, match: re.Match[str]) -> str:
    import mmdr  # here, as its library reports objects that live until the exit

    title, diagram = match[1], match[2]
    name = f"{hashlib.sha256(diagram.encode()).hexdigest()[:16]}.svg"
    _write(source / "assets" / "diagrams" / name, mmdr.render(diagram).svg())
    path = posixpath.relpath(f"assets/diagrams/{name}", posixpath.dirname(page) or ".")
    return f"![{title}]({path}){{ .diagram }}\n"


def _index(title: str, folder: Path) -> str:
    lines = [f"# {title}", ""]
    for path in sorted(folder.glob("*.md")):
        heading = path.read_text("utf-8").partition("\n")[0].removeprefix("# ")
        lines.append(f"* [{heading}]({path.name})")
    return "\n".join(lines) + "\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "utf-8")


def build(folder: Path = BUILD) -> Path:
    """Build the site in `folder` and return the folder of its HTML.

    Raises subprocess.CalledProcessError if a link or a reference is wrong; the generator prints which.
    """
    stage(folder / "site-source")
    shutil.rmtree(folder / "site", ignore_errors=True)
    config = (ROOT / "site" / "mkdocs.yml").read_text("utf-8")
    _write(folder / "mkdocs.yml", config.replace("paths: [../src]", f"paths: [{ROOT / 'src'}]"))
    subprocess.run(
        [Path(sys.executable).parent / "zensical", "build", "--strict", "-f", "mkdocs.yml"],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        check=True,
    )
    return folder / "site"


def serve(site: Path) -> None:
    """Serve a built site on a free port of this machine until Ctrl-C."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        print(f"http://127.0.0.1:{server.server_port}/  (Ctrl-C ends)", flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()


if __name__ == "__main__":
    if sys.argv[1:] not in ([], ["serve"]):
        sys.exit("Usage: ./run docs [serve]")
    try:
        built = build()
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    if sys.argv[1:]:
        serve(built)
    else:
        print(built / "index.html")
