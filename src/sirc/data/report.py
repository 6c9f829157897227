"""What a look at a dataset found, as plain text."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import final

from sirc.data.decode import printable


@final
@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: whether it is well, what it is, and what to do if it is not."""

    ok: bool
    text: str
    advice: str = ""


@final
@dataclass(frozen=True)
class Report:
    """What `check` found: `counts` are images and `classes` class folders, for each part that is there."""

    name: str
    path: Path | None
    findings: tuple[Finding, ...]
    counts: Mapping[str, int]
    classes: Mapping[str, int]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return all(finding.ok for finding in self.findings)

    @property
    def problems(self) -> tuple[Finding, ...]:
        """The findings that need a hand."""
        return tuple(finding for finding in self.findings if not finding.ok)

    def __str__(self) -> str:
        wrong = len(self.problems)
        verdict = f"{wrong} problem{'s' if wrong != 1 else ''}" if wrong else "ready"
        where = "" if self.path is None else f" in '{printable(self.path)}'"
        lines = [f"{self.name}{where}: {verdict}"]
        for finding in self.findings:
            lines.append(f"  {'ok     ' if finding.ok else 'problem'}  {finding.text}")
            lines += [f"           {line}" for line in finding.advice.splitlines()]
        return "\n".join(lines)
