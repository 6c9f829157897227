"""Attacks that are tests: how often each is tried, and the table that `make attack` prints.

A test that takes the fixture `attack` is one. It asks for its number of trials, `attack.trials(20)`, which
`make attack` multiplies, and in the end says what it tried and what held:
`attack.tried("damaged files", trials, "refused in words")`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SCALE = "--attack-scale"


class Attack:
    """The trials of one test, and what it reports."""

    def __init__(self, request: pytest.FixtureRequest) -> None:
        self._scale = request.config.getoption(SCALE)
        self._properties = request.node.user_properties

    def trials(self, usual: int) -> int:
        """The number of trials: the usual one in the test suite, more in an attack."""
        return usual * self._scale

    def tried(self, what: str, trials: int, held: str) -> None:
        """Report the attack, once it is over: what was tried, how often, and what held."""
        self._properties.append(("attack", [what, trials, held]))


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(SCALE, type=int, default=1, help="multiply the number of trials of each attack")


def table(reports: list[pytest.TestReport]) -> list[str]:
    """The attacks that were tried, as the rows of a Markdown table."""
    sums: dict[tuple[str, str], int] = {}
    for report in reports:
        for name, value in report.user_properties:
            if name == "attack":
                what, trials, held = value
                sums[what, held] = sums.get((what, held), 0) + trials
    rows = [f"| {what} | {trials:,} | {held} |" for (what, held), trials in sorted(sums.items())]
    return ["| attack | trials | what held |", "|---|---:|---|", *rows] if rows else []


def rows_in(folder: Path) -> Iterator[tuple[str, str]]:
    """What the tests below a folder report, without running them: patterns of what is tried and of what holds."""
    texts = (file.read_text(encoding="utf-8") for file in sorted(folder.rglob("test_*.py")))
    for tree in (ast.parse(text) for text in texts if "attack.tried" in text):
        assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
        constants = {ast.unparse(node.targets[0]): node.value for node in assigned}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "attack.tried":
                what, _, held = node.args
                yield _pattern(what, constants), _pattern(held, constants)


def _pattern(text: ast.expr, constants: dict[str, ast.expr]) -> str:
    if isinstance(text, ast.Name):
        return _pattern(constants[text.id], constants)
    if isinstance(text, ast.JoinedStr):
        return "".join(_pattern(part, constants) for part in text.values)
    return re.escape(str(text.value)) if isinstance(text, ast.Constant) else ".*"
