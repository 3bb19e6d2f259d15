"""Links from a page to files outside `docs/` lead to pages of the site.

Some Markdown files are pages themselves (`PAGES`); every other file, and every folder, is shown as it is.
"""

import os
import re
from html import escape
from pathlib import Path

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.addnodes import download_reference, pending_xref
from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
PAGES = {
    "contributing": "CONTRIBUTING.md",
    "changelog": "CHANGELOG.md",
    "reference/measurements": "benchmarks/RESULTS.md",
}
"""Page of `docs/` → the file of the repository whose text it has on the site."""
LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")
IGNORED = {"__pycache__", ".git"}
END_OF_DOCTEST = re.compile(r"\n\n```$", re.MULTILINE)
LONGEST_BYTES = 200_000


def source_of(docname: str, text: str) -> str:
    """The text of a page for the site, with links to other files written relative to the page."""
    origin = ROOT / PAGES[docname] if docname in PAGES else DOCS / f"{docname}.md"
    pages = {ROOT / path: DOCS / f"{name}.md" for name, path in PAGES.items()}

    def rewritten(match: re.Match[str]) -> str:
        target = (origin.parent / match[1]).resolve()
        if not target.exists():
            return match[0]
        return "](" + os.path.relpath(pages.get(target, target), (DOCS / docname).parent)

    shown = origin.read_text() if docname in PAGES else text
    return LINK.sub(rewritten, END_OF_DOCTEST.sub("\n```", shown))


def target_of(node: nodes.Element, docname: str) -> Path | None:
    """The file or folder that a link leads to, where that is no page; None: it is a page or an anchor."""
    target = str(node["reftarget"]).partition("#")[0]
    if not target or node.get("reftype") != "myst":
        return None
    path = ((DOCS / docname).parent / target).resolve()
    is_page = node.get("refdomain") == "doc"
    path = path.with_name(path.name + ".md") if is_page and Path(target).is_absolute() else path
    return path if path.exists() and path.is_relative_to(ROOT) else None


def page_of(path: Path) -> str:
    """Name of the page that shows a file."""
    return f"source/{path.relative_to(ROOT).as_posix()}"


def show_files(app: Sphinx, doctree: nodes.document) -> None:
    """Replace links to files by links to the pages that show them."""
    docname = app.env.docname
    for node in [*doctree.findall(download_reference), *doctree.findall(pending_xref)]:
        if (path := target_of(node, docname)) is not None:
            app.shown_files.add(path)  # pyright: ignore[reportAttributeAccessIssue]
            uri = app.builder.get_relative_uri(docname, page_of(path))
            node.replace_self(nodes.reference("", "", *node.children, refuri=uri, internal=True))


def write_file_pages(app: Sphinx, exception: Exception | None) -> None:
    """Write a page for every file that is linked to, and for everything in a folder that is."""
    waiting = [] if exception else sorted(app.shown_files)  # pyright: ignore[reportAttributeAccessIssue]
    made: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in made:
            continue
        made.add(path)
        waiting += filter(is_shown, entries_of(path))
        page = app.outdir / f"{page_of(path)}.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(folder_page(path) if path.is_dir() else file_page(path))


def entries_of(path: Path) -> list[Path]:
    """What lies in a folder; nothing for a file."""
    return sorted(entry for entry in path.iterdir() if entry.name not in IGNORED) if path.is_dir() else []


def is_shown(path: Path) -> bool:
    """True for a folder and for a text of a readable length; a page of a model's weights would help nobody."""
    return path.is_dir() or (path.stat().st_size < LONGEST_BYTES and b"\0" not in path.read_bytes())


def file_page(path: Path) -> str:
    """The text of a file, highlighted."""
    formatter = HtmlFormatter(full=True, title=path.relative_to(ROOT).as_posix(), style="friendly")
    try:
        lexer = get_lexer_for_filename(path.name)
    except ClassNotFound:
        lexer = TextLexer()
    return highlight(path.read_text(), lexer, formatter)


def folder_page(path: Path) -> str:
    """A list of what lies in a folder."""
    name = escape(path.relative_to(ROOT).as_posix())
    links = {entry: f'<a href="{path.name}/{entry.name}.html">{escape(entry.name)}</a>' for entry in entries_of(path)}
    items = "".join(f"<li>{link if is_shown(entry) else escape(entry.name)}</li>" for entry, link in links.items())
    return f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{name}</title><h2>{name}</h2><ul>{items}</ul>'


def setup(app: Sphinx) -> dict[str, bool]:
    """Register with Sphinx."""
    app.shown_files = set()  # pyright: ignore[reportAttributeAccessIssue]

    def read(_: Sphinx, docname: str, source: list[str]) -> None:
        source[0] = source_of(docname, source[0])

    app.connect("source-read", read, priority=900)  # after what other extensions have added
    app.connect("doctree-read", show_files, priority=100)  # before Sphinx collects downloads
    app.connect("build-finished", write_file_pages)
    return {"parallel_read_safe": False}
