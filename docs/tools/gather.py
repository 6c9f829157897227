"""Gather the site's pages in one folder: docs, studies, pictures, the gallery, and tutorials with their outputs."""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Callable
from os.path import normpath, relpath
from pathlib import Path

import gallery
import notebooks
import pictures
import torch
from latex2mathml.converter import convert

ROOT = Path(__file__).resolve().parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
# Pages that lie at the root of the checkout, where people look for them.
AT_ROOT = {
    "README.md": "index.md",
    "BENCHMARKS.md": "project/benchmarks.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security-policy.md",
}
_CODE = re.compile(r"(^ *```.*?^ *```|`[^`\n]+`)", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\]\((?!https?:|mailto:|#)([^)\s#]+)(#[^)\s]*)?\)")
_NOTE_FOR_TESTS = re.compile(r"^(```\w+) .*$", re.MULTILINE)  # "```python ray": Markdown wants the language alone
_FORMULA = re.compile(r"^```math\n(.*?)^```", re.DOTALL | re.MULTILINE)
_INLINE_FORMULA = re.compile(r"\$`([^`]+)`\$")


def main() -> None:
    """Read the command line and gather the pages."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="example: python docs/tools/gather.py build/pages")
    parser.add_argument("out", type=Path, help="a folder for the pages, which is made anew")
    torch.set_num_threads(1)  # the tutorials are small, and a sum must not depend on the number of cores
    gather(parser.parse_args().out)


def gather(out: Path) -> None:
    """Write all pages and what they show to `out`, with links that fit the site."""
    if out.exists() and not out.resolve().is_relative_to(ROOT / "build"):
        raise SystemExit(
            f"the folder for the pages is made anew, so it must not be there or lie in build/; got '{out}'"
        )
    shutil.rmtree(out, ignore_errors=True)
    outside = [path for path in map(ROOT.joinpath, AT_ROOT) if path.exists() and path.name != "README.md"]
    for page in [*(ROOT / "docs").rglob("*.md"), *(ROOT / "studies").rglob("*.md"), *outside]:
        write(out, page, page.read_text(encoding="utf-8"))
    for file in (ROOT / "docs" / "assets").iterdir():
        copy(out, file)
    pictures.draw(out / "concepts" / "images")
    for script in sorted(TUTORIALS.glob("*.py")):
        page = script.with_suffix(".md")
        write(out, page, notebooks.page(script, out / "tutorials"))
    gallery.write(out / "gallery")


def write(out: Path, page: Path, text: str) -> None:
    """Write one page for the site: its links lead to the site's pages, its formulas are MathML."""
    here = site_path(page)

    def relink(match: re.Match[str]) -> str:
        target, anchor = match.group(1), match.group(2) or ""
        found = Path(normpath(page.parent / target))
        if (found / "README.md").exists():
            found /= "README.md"
        if found.parent == TUTORIALS and found.suffix == ".py":
            found = found.with_suffix(".md")
        elif found.is_file() and found.suffix != ".md":
            copy(out, found)
        return f"]({relpath(site_path(found), here.parent).replace(chr(92), '/')}{anchor})"

    text = _FORMULA.sub(lambda match: f"\n{convert(match.group(1).strip(), display='block')}\n", text)
    text = _INLINE_FORMULA.sub(lambda match: convert(match.group(1)), text)
    text = _NOTE_FOR_TESTS.sub(r"\1", text)
    text = outside_code(text, lambda prose: _LINK.sub(relink, prose))
    file = out / here
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")


def copy(out: Path, file: Path) -> None:
    """Copy what a page shows or links to and is no page itself."""
    there = out / site_path(file)
    there.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, there)


def site_path(file: Path) -> Path:
    """The place in the site of a file of the checkout: what lies in docs loses that folder, all else keeps its path."""
    path = file.relative_to(ROOT)
    if path.as_posix() in AT_ROOT:
        return Path(AT_ROOT[path.as_posix()])
    if path == Path("docs/README.md"):
        return Path("index.md")
    return path.relative_to("docs") if path.is_relative_to("docs") else path


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change a text where it is not code."""
    parts = _CODE.split(text)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))


if __name__ == "__main__":
    main()
