"""The findings of a study: set-up, the paper's tables beside ours, its claims one by one, and every score."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from sirc.evaluation import MEAN, WRONG
from studies.tools.claims.verdicts import FAILS, HOLDS, NO, OPEN, PARTLY, RULE, UNDECIDED, UNTESTED, YES, Claim, judge
from studies.tools.families import PAPER
from studies.tools.limits import INTERVALS, INTERVALS_OF_IMAGES, short
from studies.tools.measure import EVERY
from studies.tools.scores import best_now, score_sections
from studies.tools.setup import done, networks
from studies.tools.study import Study, named, table

VERDICTS = (HOLDS, PARTLY, FAILS, UNDECIDED, UNTESTED)
_KEPT = "\x00"
# The claims that the paper is about; what became of them stands at the top.
MAIN = (
    "OOD detectors lose ID✗|ID✓ against MSP",
    "OOD detectors are worse than MSP for SCOD",
    "SIRC matches or beats MSP for SCOD",
    "SIRC raises the OOD|ID✓ of its S1",
    "SIRC keeps the ID✗|ID✓ of its S1",
)


def document(study: Study, beside: Path, claims: list[Claim], together: Mapping[str, Claim]) -> str:
    """The whole text, from the tables of a study, its claims, and the files that lie beside the document."""
    parts = [
        f"# Results of {study.folder.resolve().name}",
        _summary(study, claims, together),
        "## What was done",
        *done(study, beside),
        "## The paper's scores",
        *_main_tables(study),
        "## The paper's claims",
        RULE,
        INTERVALS if study.seeds > 1 else INTERVALS_OF_IMAGES,
        _claim_table(claims, together, study.models),
        *(claim.written(number, together.get(claim.title)) for number, claim in enumerate(claims, start=1)),
        "## Every score of the project",
        *score_sections(study),
        "## Where this falls short",
        short(study),
    ]
    return laid_out(parts)


def laid_out(parts: Sequence[str]) -> str:
    """Parts of a document, each block set in lines of 120 characters."""
    return "\n\n".join(_wrapped(block) for block in "\n\n".join(part for part in parts if part).split("\n\n")) + "\n"


def _wrapped(block: str) -> str:
    """Prose in lines of 120 characters; tables, headings, pictures and code as they are."""
    if block.startswith(("|", "#", "![", "```")):
        return block
    indent = "  " if block.startswith("- ") else ""
    whole = re.sub("`[^`]*`", lambda code: code[0].replace(" ", _KEPT), block)  # a spec stays on one line
    lines = (
        textwrap.fill(line, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
        for line in whole.splitlines()
    )
    return "\n".join(lines).replace(_KEPT, " ")


def _summary(study: Study, claims: list[Claim], together: Mapping[str, Claim]) -> str:
    lines = [
        f"Of {len(claims)} claims {told([claim.verdict for claim in claims])}.",
        f"Over all networks together {told([claim.verdict for claim in together.values()])}." if together else "",
        *(f"{model} by itself: {told([judge(claim.outcomes(model)) for claim in claims])}." for model in study.models),
        *best_now(study),
    ]
    return (
        f"Do the claims of the SIRC paper (Xia & Bouganis, 2022) hold for {networks(study)}? "
        "`python -m studies.tools.results write` computes every number below from the results of `sirc run`.\n\n"
        + "\n".join(f"- {line}" for line in lines if line)
        + f"\n\n{_main_table(claims, together)}\n\nIn each cell: comparisons for / against / open."
    )


def _main_table(claims: Sequence[Claim], together: Mapping[str, Claim]) -> str:
    """The claims that the paper is about."""
    main = {claim.title: claim for claim in claims if claim.title in MAIN}
    rows = [
        [title, verdict(main[title].outcomes()), *([_together(together, title)] if together else [])]
        for title in MAIN
        if title in main
    ]
    return words_table(["the paper's main claims", "by network", *([EVERY] if together else [])], rows)


def verdict(outcomes: Sequence[str]) -> str:
    """A verdict with its comparisons for / against / open."""
    counts = [list(outcomes).count(word) for word in (YES, NO, OPEN)]
    return f"{judge(outcomes)} {'/'.join(map(str, counts))}"


def _together(together: Mapping[str, Claim], title: str) -> str:
    return verdict(together[title].outcomes()) if title in together else "–"


def words_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table whose cells are words, in which | is no border."""
    return table(header, [[cell.replace("|", "\\|") for cell in row] for row in rows], "---")


def told(verdicts: Sequence[str]) -> str:
    """How many claims have each verdict, in words."""
    counts = {word: verdicts.count(word) for word in VERDICTS}
    return ", ".join(f"{count} {_plural(word, count)}" for word, count in counts.items() if count)


def _plural(verdict: str, count: int) -> str:
    several = {
        HOLDS: "hold",
        PARTLY: "hold in part",
        FAILS: "do not hold",
        UNDECIDED: "are undecided",
        UNTESTED: "were not tested",
    }
    single = {UNDECIDED: "is undecided", UNTESTED: "was not tested"}
    return several[verdict] if count != 1 else single.get(verdict, verdict)


def _main_tables(study: Study) -> list[str]:
    spread = ": mean ± 2 std over seeds, as the paper prints them" if study.seeds > 1 else ""
    parts = [
        f"With ID✓ as positives, %AUROC ↑ for ID✗, and %AUROC ↑ and %FPR@95 ↓ for OOD (mean over the sets){spread}, "
        "with the paper's own number for the network of the same name on ImageNet-200. The OOD sets differ from the "
        "paper's, so OOD columns can be compared only roughly. The best here is bold."
    ]
    scores = [score for score in PAPER if score in study.scores]
    columns = [(WRONG, "auroc"), (MEAN, "auroc"), (MEAN, "fpr@95")]
    for model in study.models:
        best = {column: _best(study, model, scores, *column) for column in columns}
        rows = []
        for score in scores:
            cells = []
            for column in columns:
                cells.append(_cell(study, model, score, *column, best[column]))
                cells.append(_number(study.paper(model, score, *column)))
            rows.append([named(score), *cells])
        header = ["", "ID✗ AUROC", "paper", "OOD AUROC", "paper", "OOD FPR@95", "paper"]
        parts += [f"### {model}", table(header, rows)]
    return parts


def _best(study: Study, model: str, scores: list[str], negative: str, metric: str) -> str:
    sign = 1 if metric == "auroc" else -1
    return max(scores, key=lambda score: sign * study.mean(model, score, negative, metric))


def _cell(study: Study, model: str, score: str, negative: str, metric: str, best: str) -> str:
    spread = study.two_std(model, score, negative, metric)
    text = f"{study.mean(model, score, negative, metric):.1f}" + ("" if math.isnan(spread) else f" ±{spread:.1f}")
    return f"**{text}**" if score == best else text


def _number(value: float) -> str:
    return "–" if pd.isna(value) else f"{value:.1f}"


def _claim_table(claims: list[Claim], together: Mapping[str, Claim], models: Sequence[str]) -> str:
    """Verdicts over the networks, for each by itself and for all as one, with the counts for / against / open."""
    alone = models if len(models) > 1 else []
    rows = []
    for number, claim in enumerate(claims, start=1):
        cells = [str(number), claim.title, claim.verdict, *map(str, claim.counts)]
        cells += [verdict(claim.outcomes(model)) for model in alone]
        rows.append([*cells, *([_together(together, claim.title)] if together else [])])
    header = ["", "claim", "verdict", YES, NO, OPEN, *alone, *([EVERY] if together else [])]
    return words_table(header, rows)
