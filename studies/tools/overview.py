"""Overview of all studies: the paper's claims with a column for each study, and what the error of a network does."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import numpy as np
import pandas as pd

from sirc.evaluation import MEAN, WRONG
from sirc.experiment.claims import DETECTORS
from studies.tools.claims.record import FILE, read_record
from studies.tools.claims.verdicts import HOLDS, NO, PARTLY, YES, judge
from studies.tools.document import MAIN, laid_out, told, verdict, words_table
from studies.tools.families import BASELINE, BEST, SECOND, SIRC, first_of
from studies.tools.measure import EVERY
from studies.tools.study import PAPER_TABLES, Interval, named, signed, span, table

PAPER = "paper"
SPLIT = 35.0  # % error: between the networks of ImageNet and those of small images
SIDES = ((f"less than {SPLIT:.0f}%", True), (f"{SPLIT:.0f}% or more", False))
BORNE_OUT = (HOLDS, PARTLY)
COMMAND = "python -m studies.tools.results page"
KEEPS = "SIRC keeps the ID✗|ID✓ of its S1"
WORSE = "OOD detectors are worse than MSP for SCOD"
MATCHES = "SIRC matches or beats MSP for SCOD"
SHOWN = ("scod", BEST, "sirc(msp, residual)", "sirc(msp, l1)", "entropy", "doctor", "vim", "energy")
RULE = (
    "In each cell: comparisons for / against / open, each of one network with its 95% interval. A claim holds if all "
    "are for it, is undecided if more than half are open, and otherwise holds in part if more are for than against it."
)
ERROR_CAPTION = (
    "SIRC's change of the ID✗|ID✓ AUROC against its S1, by the ID error of the network; the line of a point is its 95% "
    "interval, the paper's points have none. Above the dashed line is what the paper calls negligible. Joined points "
    "are one network on letters of several sizes."
)
GAIN_CAPTION = (
    "The change of the ID✗|ID✓ AUROC against MSP, and that of the OOD|ID✓ AUROC, mean over OOD sets; one point for "
    "each score and network, hollow for the paper's. On the right the corner around MSP, enlarged."
)
SURE = "How sure a network is counts more than how often it errs."
NOTES = {
    "tiny_imagenet_100": "its rows of `bayes` show an earlier version of that score; for `scod` on the same networks, "
    "trained again, see [scod.md](tiny_imagenet_100/scod.md) and [docs/bayes.md](../docs/bayes.md#what-it-gains)"
}
PLANNED = {"imagenet_20": "twenty classes of ImageNet, trained as the paper trains; not run yet, since it needs a GPU"}
LETTERS = "letters"  # one network on images of several sizes: only the error differs


@dataclass(frozen=True)
class Network:
    """One network of a study or of the paper: its error and what each score does, in percent."""

    study: str
    name: str
    error: float
    runs: int
    figures: Mapping[tuple[str, str, str], float]
    """By score, negative and metric; the mean over runs."""

    def change(self, score: str, negative: str, metric: str = "auroc", *, to: str = BASELINE) -> float:
        """A figure minus that of another score; NaN where one was not measured."""
        own, other = (self.figures.get((name, negative, metric), math.nan) for name in (score, to))
        return own - other

    def sirc(self, negative: str, second: str) -> float:
        """What SIRC with an S2 does to the AUROC of its S1, mean over the paper's three S1."""
        pairs = [(score, str(first_of(score))) for score in SIRC if score.endswith(f", {second})")]
        return fmean(self.change(score, negative, to=first) for score, first in pairs)


@dataclass(frozen=True)
class Record:
    """What a study keeps: its comparisons, and the figures of its networks."""

    name: str
    claims: pd.DataFrame
    networks: list[Network]

    @classmethod
    def read(cls, folder: Path) -> Record:
        """Read claims.csv and summary.csv."""
        claims, summary = read_record(folder / FILE), pd.read_csv(folder / "summary.csv")
        networks = []
        for model in dict.fromkeys(claims["model"][claims["model"] != EVERY]):
            own = summary[summary["model"] == model]
            error = own[own["metric"] == "error"].iloc[0]
            figures = _figures(own.assign(mean=100 * own["mean"]))
            networks.append(Network(folder.name, model, 100 * error["mean"], int(error["seeds"]), figures))
        return cls(folder.name, claims, networks)

    def outcomes(self, title: str, networks: Iterable[Network] | None = None) -> list[str]:
        """What each comparison of single networks says of a claim."""
        names = [network.name for network in (self.networks if networks is None else networks)]
        found = self.claims[(self.claims["claim"] == title) & self.claims["model"].isin(names)]
        return list(found["outcome"])

    def interval(self, claim: str, model: str, what: str) -> Interval | None:
        """The interval of one comparison."""
        t = self.claims
        found = t[(t["claim"] == claim) & (t["model"] == model) & (t["what"] == what)]
        return None if found.empty else Interval(*found.iloc[0][["value", "low", "high"]])


def records(studies: Path) -> list[Record]:
    """The studies in a folder that have a record, from the lowest mean error on."""
    found = [Record.read(path.parent) for path in sorted(studies.glob(f"*/{FILE}"))]
    if not found:
        raise ValueError(f"'{studies}' must have studies with a {FILE}; it has none. Make it with `write`.")
    return sorted(found, key=lambda one: fmean(network.error for network in one.networks))


def paper_networks() -> list[Network]:
    """The paper's networks, as its tables have them."""
    printed = pd.read_csv(PAPER_TABLES).groupby(["model", "id_data", "id_error"], sort=False)
    return [Network(PAPER, f"{model}, {data}", error, 0, _figures(own)) for (model, data, error), own in printed]


def page(found: Sequence[Record], gaps: pd.DataFrame) -> str:
    """The whole page."""
    titles = list(dict.fromkeys(title for one in found for title in one.claims["claim"]))
    return laid_out(
        [
            "# What the studies found",
            f"Do the claims of the SIRC paper (Xia & Bouganis, 2022) hold in the networks of {len(found)} "
            f"{'studies' if len(found) > 1 else 'study'}? `{COMMAND}` writes this page from the {FILE} and summary.csv "
            "of each study, and from the paper's own tables.",
            _studies_table(found),
            "\n".join(f"- {line}" for line in [*_in_short(found, titles), *_sureness(gaps)]),
            claim_table(found, [title for title in MAIN if title in titles]),
            RULE,
            "## What the error of a network does",
            *_what_the_error_does(found, titles),
            *_why(gaps),
            "## What a score gains, and what it costs",
            *_gains(found),
            "## Every claim",
            claim_table(found, titles),
            "## Where things are",
            *_where(found),
        ]
    )


def claim_table(found: Sequence[Record], titles: Iterable[str]) -> str:
    """A row for each claim, with the verdict in each study and over the networks of all."""
    rows = []
    for title in titles:
        each = [one.outcomes(title) for one in found]
        every = [[outcome for own in each for outcome in own]] if len(found) > 1 else []
        rows.append([title, *(verdict(own) if own else "–" for own in [*each, *every])])
    return words_table(["the paper's claim", *map(_link, found), *["all studies"][: len(found) - 1]], rows)


def _in_short(found: Sequence[Record], titles: Sequence[str]) -> list[str]:
    """What was found, in a few sentences."""
    networks, printed = [network for one in found for network in one.networks], paper_networks()
    every = {title: [outcome for one in found for outcome in one.outcomes(title)] for title in titles}
    lost, theirs = ([n.change(score, WRONG) for n in some for score in DETECTORS] for some in (networks, printed))
    worse, matches = every.get(WORSE, []), every.get(MATCHES, [])
    changes = []
    for second in reversed(SECOND):
        own, paper = (
            [span([n.sirc(negative, second) for n in some]) for negative in (MEAN, WRONG)]
            for some in (networks, printed)
        )
        changes.append(f"with {named(second)} by {own[0]} and {own[1]} (in the paper by {paper[0]} and {paper[1]})")
    return [
        f"Of the paper's {len(titles)} claims, over all networks, {told([judge(every[title]) for title in titles])}.",
        f"**OOD detectors pay with ID✗.** They change the AUROC of ID✗|ID✓ by {span(lost)} points against MSP (in the "
        f"paper by {span(theirs)}). With half of the input OOD, their risk (AURR) is surely higher than MSP's in "
        f"{worse.count(YES)} of {len(worse)} comparisons, and surely lower in {worse.count(NO)}.",
        f"**SIRC is as good as its S2.** It changes the AUROC of OOD|ID✓ and of ID✗|ID✓ against its S1, in points and "
        f"the mean over three S1, {'; '.join(changes)}. Its AURR is surely no more than 0.1 above MSP's in "
        f"{matches.count(YES)} of {len(matches)} comparisons, and surely more in {matches.count(NO)}.",
        *_default(found),
    ]


def _default(found: Sequence[Record]) -> list[str]:
    """What the library's default does, where it was measured."""
    lines = []
    for one in found:
        changes = _changes(one)
        if "scod" in changes:
            order = sorted(changes, key=lambda score: fmean(changes[score]))
            lines.append(
                f"**`scod`, the default, needs no choice of S2.** On {_link(one)} it changes AURR ×10² by "
                f"{_mean_and_span(changes['scod'])} against MSP, and is number {order.index('scod') + 1} of "
                f"{len(order)} scores and combinations; the paper's {named(BEST)} changes it by "
                f"{_mean_and_span(changes[BEST])}."
            )
    return lines


def _changes(one: Record) -> dict[str, list[float]]:
    """AURR ×10² at α = β = ½, mean over OOD sets, of every score minus that of MSP, network by network."""
    scores = dict.fromkeys(score for network in one.networks for score, *_ in network.figures)
    own = {score: [network.change(score, MEAN, "aurr") for network in one.networks] for score in scores}
    return {score: values for score, values in own.items() if not any(map(math.isnan, values))}


def _what_the_error_does(found: Sequence[Record], titles: Sequence[str]) -> list[str]:
    """SIRC's cost in ID✗ against the error, and the claims whose verdict turns with it."""
    networks = [*(network for one in found for network in one.networks), *paper_networks()]
    errors = [network.error for network in networks]
    lines = []
    for second in SECOND:
        costs = [network.sirc(WRONG, second) for network in networks]
        fit = float(np.corrcoef(errors, costs)[0, 1])
        sides = []
        for words, side in SIDES:
            own = [cost for error, cost in zip(errors, costs, strict=True) if (error < SPLIT) == side]
            if own:
                sides.append(f"{signed(fmean(own), 2)} ({span(own, 2)}) for {len(own)} networks that err on {words}")
        lines.append(f"- with {named(second)}: {', and '.join(sides)}; correlation with the error {signed(fit, 2)}")
    parts = [
        "Below is SIRC's change of the ID✗|ID✓ AUROC against its S1 in points, as the mean over three S1 and over "
        "networks, including the paper's, and in brackets the range:",
        "\n".join(lines),
        "Networks of different error also differ in images, classes and training, so this is a correlation, not proof "
        "of what the error causes.",
        _picture("error.png", ERROR_CAPTION),
    ]
    rows = []
    for title in titles:
        low, high = (
            [o for one in found for o in one.outcomes(title, [n for n in one.networks if (n.error < SPLIT) == side])]
            for side in (True, False)
        )
        if low and high and (judge(low) in BORNE_OUT) != (judge(high) in BORNE_OUT):
            rows.append([title, verdict(low), verdict(high)])
    if rows:
        parts.append(words_table(["verdicts that turn with the error", *(words for words, _ in SIDES)], rows))
    return parts


def _sureness(gaps: pd.DataFrame) -> list[str]:
    """Whether how sure a network is tells more of SIRC's change than how often it errs."""
    by_error, by_share = _correlations(gaps) if len(gaps) else (math.nan, math.nan)
    words = "What SIRC does to ID✗|ID✓ goes with what S2 adds relative to the spread of log(S1max − S1)"
    correlations = f"rank correlation {signed(by_share, 2)}), more than with the error ({signed(by_error, 2)})"
    return [f"**{SURE}** {words} ({correlations}."] if by_share > abs(by_error) else []


def _correlations(gaps: pd.DataFrame) -> tuple[float, float]:
    """Rank correlations of the size of SIRC's change with the error, and with what S2 adds relative to the spread."""
    size = gaps["change"].abs()
    by_error, by_share = (size.corr(other, method="spearman") for other in (gaps["error"], gaps["added"] / gaps["gap"]))
    return float(by_error), float(by_share)


def _why(gaps: pd.DataFrame) -> list[str]:
    """What S2 adds, beside the spread of what it is added to; on letters nothing but the error differs."""
    if gaps.empty:
        return []
    rows = []
    for (study, model), own in gaps.groupby(["study", "model"], sort=False):
        cells = [
            f"{row.alone:.0f}, {row.added / row.gap:.2f}: {signed(row.change, 2)} [{signed(row.low, 2)}, "
            f"{signed(row.high, 2)}]"
            for row in own.itertuples()
        ]
        rows.append([f"{model}, {study}", f"{own['error'].iloc[0]:.1f}", f"{own['gap'].iloc[0]:.1f}", *cells])
    by_error, by_share = _correlations(gaps)
    sure = gaps[(gaps["low"] > 0) | (gaps["high"] < 0)]
    agree = int(((sure["change"] > 0) == (sure["alone"] > 50)).sum())
    scores = list(dict.fromkeys(gaps["score"]))
    parts = [
        "SIRC's confidence is −log(S1max − S1) minus what S2 adds. The less sure a network is, the less "
        "log(S1max − S1) spreads, and the same S2 moves a row past more others. Whether that helps depends on how S2 "
        f"ranks right and wrong predictions. In the table, the size of the change has a rank correlation of "
        f"{signed(by_error, 2)} with the error and of {signed(by_share, 2)} with what S2 adds "
        f"relative to that spread, and {agree} of {len(sure)} sure "
        "changes have the sign that S2 alone has, above or below an AUROC of 50%.",
        "The table has, for each S2, the %AUROC of ID✗|ID✓ of S2 alone, the standard deviation of what it adds divided "
        "by that of log(1 − MSP), and the change of the ID✗|ID✓ AUROC with its 95% interval.",
        table(["", "ID %error", "std of log(1 − MSP)", *map(named, scores)], rows),
    ]
    letters = gaps[(gaps["study"] == LETTERS) & (gaps["score"] == scores[-1])]
    if len(letters) > 1:
        first, last = letters.iloc[0], letters.iloc[-1]
        parts.insert(
            1,
            f"[{LETTERS}]({LETTERS}/README.md) is one network on letters of {first['model']} to {last['model']}, and "
            f"nothing else differs: the error goes from {first['error']:.0f} to {last['error']:.0f}%, the spread of "
            f"log(1 − MSP) from {first['gap']:.1f} to {last['gap']:.1f}, and the change of the ID✗|ID✓ AUROC by "
            f"{named(scores[-1])} from {signed(first['change'], 2)} to {signed(last['change'], 2)} points.",
        )
    return parts


def _gains(found: Sequence[Record]) -> list[str]:
    """The figure of gains and costs, and the AURR of a few scores and of each study's best."""
    changes = [_changes(one) for one in found]
    best = [min(own, key=lambda score, own=own: fmean(own[score])) for own in changes]
    rows = [[f"`{score}`", *(_mean_and_span(own.get(score)) for own in changes)] for score in SHOWN]
    last = [f"`{score}` {_mean_and_span(own[score])}" for score, own in zip(best, changes, strict=True)]
    return [
        _picture("gain.png", GAIN_CAPTION),
        "The table has AURR ×10² at α = β = ½, mean over OOD sets, minus that of MSP: the mean over networks, and in "
        "brackets the range; below 0 is better than MSP. The best of a study was chosen on the data that it is "
        "measured on, so it looks a little better than it is.",
        words_table(["ΔAURR ×10²", *map(_link, found)], [*rows, ["the best of all", *last]]),
    ]


def _where(found: Sequence[Record]) -> list[str]:
    tool, names = "python -m studies.tools", [one.name for one in found]
    lines = [
        "[`paper/`](paper/README.md): the five experiments of the paper, on ImageNet-200 and ImageNet-1k, and its "
        "tables",
        *(
            f"[`{one.name}/`]({one.name}/README.md): {NOTES.get(one.name, 'its TOMLs, findings and commands')}"
            for one in found
        ),
        *(f"[`{name}/`]({name}/README.md): {what}" for name, what in PLANNED.items() if name not in names),
        f"[`{LETTERS}/`]({LETTERS}/README.md): one network on letters of several sizes, to see what the error does",
        "`folder.toml`: a template for your own folders of images",
        f"`tools/`: the scripts that write a study's README and {FILE}, and this page (`{tool}.results --help`), and "
        f"the tables of [docs/scores.md](../docs/scores.md) and [docs/bayes.md](../docs/bayes.md) "
        f"(`{tool}.score_table`, `{tool}.witnesses`)",
    ]
    return [
        "\n".join(f"- {line}" for line in lines),
        'A TOML may begin with `extends = "base.toml"` and then state only what differs; see '
        "[experiments](../docs/experiments.md). `sirc run TOML…` runs it and writes to `runs/`.",
    ]


def _studies_table(found: Sequence[Record]) -> str:
    rows = []
    for one in found:
        runs, errors = ([getattr(network, name) for network in one.networks] for name in ("runs", "error"))
        seeds = f"{min(runs)}" if min(runs) == max(runs) else f"{min(runs)} to {max(runs)}"
        names = ", ".join(network.name for network in one.networks)
        rows.append([_link(one), names, seeds, f"{min(errors):.1f} … {max(errors):.1f}"])
    return words_table(["study", "networks", "runs of each", "ID %error"], rows)


def _figures(rows: pd.DataFrame) -> dict[tuple[str, str, str], float]:
    return dict(zip(zip(rows["score"], rows["negative"], rows["metric"], strict=True), rows["mean"], strict=True))


def _link(one: Record) -> str:
    return f"[{one.name}]({one.name}/README.md)"


def _picture(file: str, caption: str) -> str:
    return f"![{caption.partition(';')[0]}](figures/{file})\n\n{caption}"


def _mean_and_span(values: Sequence[float] | None) -> str:
    return "–" if values is None else f"{signed(fmean(values), 2)} ({span(values, 2)})"
