"""Tutorials as scripts in cells (`# %%`): run each, and give it as a page and as a notebook with its outputs."""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import sys
import tempfile
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.figure import Figure


@dataclass
class Cell:
    """A piece of a tutorial, and what it showed when it ran."""

    source: str
    markdown: bool = False
    outputs: list[tuple[str, str | bytes]] = field(default_factory=list)
    """Type (`text/plain`, `text/html` or `image/png`) and content."""


def cells(script: Path) -> list[Cell]:
    """Split a script at its `# %%`; the comments of a `# %% [markdown]` are its text."""
    found = []
    for kind, source in re.findall(r"^# %%(.*)\n((?:(?!# %%).*\n)*)", script.read_text(encoding="utf-8"), re.MULTILINE):
        markdown = "[markdown]" in kind
        text = re.sub(r"^# ?", "", source, flags=re.MULTILINE) if markdown else source
        found.append(Cell(text.strip("\n"), markdown))
    return found


def run(script: Path) -> list[Cell]:
    """Run the cells of a script in one namespace and an empty folder, and keep what a notebook would show."""
    all_cells = cells(script)
    names = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, _inside(folder):
        for cell in all_cells:
            if not cell.markdown:
                _run_cell(cell, names, str(script))
    return all_cells


@contextlib.contextmanager
def _inside(folder: str) -> Iterator[None]:
    before, backend = Path.cwd(), plt.get_backend()
    os.chdir(folder)
    plt.switch_backend("agg")
    try:
        yield
    finally:
        plt.close("all")
        plt.switch_backend(backend)
        os.chdir(before)


def _run_cell(cell: Cell, names: dict[str, object], name: str) -> None:
    tree = ast.parse(cell.source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, name, "exec"), names)
        value = eval(compile(ast.Expression(last.value), name, "eval"), names) if isinstance(last, ast.Expr) else None
    if printed.getvalue():
        cell.outputs.append(("text/plain", printed.getvalue().rstrip()))
    open_figures = [plt.figure(number) for number in plt.get_fignums()]
    if isinstance(value, Figure) and value not in open_figures:
        open_figures.append(value)
    cell.outputs += [("image/png", _png(figure)) for figure in open_figures]
    plt.close("all")
    if value is None or open_figures:  # a cell that drew shows its drawing alone
        return
    html = getattr(value, "_repr_html_", None)
    cell.outputs.append(("text/html", html()) if html else ("text/plain", repr(value)))


def _png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=160, bbox_inches="tight")
    return out.getvalue()


def page(script: Path, folder: Path) -> str:
    """Run a script, leave it, its notebook and its pictures in `folder`, and return its page."""
    folder.mkdir(parents=True, exist_ok=True)
    done = run(script)
    (folder / f"{script.stem}.ipynb").write_text(json.dumps(notebook(done), indent=1), encoding="utf-8")
    (folder / script.name).write_bytes(script.read_bytes())
    parts, pictures = [], 0
    for cell in done:
        parts.append(cell.source if cell.markdown else f"```python\n{cell.source}\n```")
        for kind, content in cell.outputs:
            if kind == "image/png":
                pictures += 1
                name = f"{script.stem}-{pictures}.png"
                (folder / name).write_bytes(content)
                parts.append(f"![What this cell draws]({name}){{ .drawn }}")
            elif kind == "text/html":
                parts.append(f'<div class="shown">\n{_plain_table(content)}\n</div>')
            else:
                parts.append(f'<pre class="shown">{escape(content)}</pre>')
    title, rest = parts[0].split("\n", 1)
    downloads = f"[Notebook]({script.stem}.ipynb){{ download }} · [script]({script.name}){{ download }}"
    return "\n\n".join([title, downloads, rest.strip(), *parts[1:]]) + "\n"


def _plain_table(html: str) -> str:
    """A table of pandas without its own style, in one block of HTML."""
    html = re.sub(r"<style.*?</style>", "", html, flags=re.DOTALL)
    html = re.sub(r"<(table|tr)[^>]*>", r"<\1>", html)
    return re.sub(r"\n\s*", "\n", html).strip()


def notebook(done: list[Cell]) -> dict[str, object]:
    """The cells as a Jupyter notebook, with their outputs."""

    def entry(number: int, cell: Cell) -> dict[str, object]:
        common = {"id": f"cell-{number}", "metadata": {}, "source": cell.source.splitlines(keepends=True)}
        if cell.markdown:
            return {"cell_type": "markdown", **common}
        outputs = [
            {
                "output_type": "display_data",
                "metadata": {},
                "data": {kind: b64encode(content).decode() if isinstance(content, bytes) else content},
            }
            for kind, content in cell.outputs
        ]
        return {"cell_type": "code", "execution_count": None, "outputs": outputs, **common}

    language = {"name": "python", "version": f"{sys.version_info.major}.{sys.version_info.minor}"}
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return {
        "nbformat": 4,
        "nbformat_minor": 5,
        "metadata": {"language_info": language, "kernelspec": kernel},
        "cells": [entry(number, cell) for number, cell in enumerate(done)],
    }
