"""The two figures of the overview: SIRC's cost against the error, and what scores gain and cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import pandas as pd

from sirc.evaluation import MEAN, WRONG
from sirc.experiment.claims import DETECTORS
from sirc.report.figures import method_look
from sirc.report.figures.style import drawn, label_of, new_figure, side_legend
from studies.tools.claims.separation import TOLERANCE
from studies.tools.families import BEST, SECOND
from studies.tools.overview import KEEPS, LETTERS, PAPER, Network, Record
from studies.tools.study import named

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00")  # Okabe and Ito's, one for each study
MARKERS = "osD^v"
SHOWN = ("entropy", "sirc(msp, l1)", "sirc(msp, residual)", "sirc(entropy, l1)", BEST, "scod")
CORNER = (-2.5, 1.0)  # points of ID✗ AUROC that the enlarged panel shows


@drawn
def error_figure(found: Sequence[Record], printed: Sequence[Network], gaps: pd.DataFrame) -> Figure:
    """SIRC's change of ID✗|ID✓ against its S1, by the error of the network: a panel for each S2, with MSP as S1."""
    figure, (axes,) = new_figure(1, len(SECOND), height=3.0, sharey=True)
    for ax, second in zip(axes, SECOND, strict=True):
        score = f"sirc(msp, {second})"
        ax.axhline(0, color="0.6", linewidth=0.6)
        ax.axhline(-TOLERANCE, color="0.6", linewidth=0.6, linestyle=(0, (4, 2)))
        for one, colour, marker in zip(found, COLOURS, MARKERS, strict=False):
            for place, network in enumerate(sorted(one.networks, key=lambda network: network.error)):
                change, interval = network.change(score, WRONG), one.interval(KEEPS, network.name, named(score))
                first = one.name if place == 0 else None
                ax.plot(network.error, change, marker, color=colour, label=first)
                if interval is not None:
                    ax.vlines(network.error, interval.low, interval.high, color=colour, linewidth=1)
                ax.annotate(
                    network.name,
                    (network.error, change),
                    (3 if place % 2 else -3, 3),  # neighbours on different sides
                    textcoords="offset points",
                    fontsize=5,
                    ha="left" if place % 2 else "right",
                )
        for network in printed:
            first = "the paper's networks" if network is printed[0] else None
            ax.plot(network.error, network.change(score, WRONG), "o", color="black", mfc="none", label=first)
        letters = gaps[(gaps["study"] == LETTERS) & (gaps["score"] == score)]
        reach = [letters["change"] - letters["low"], letters["high"] - letters["change"]]
        if len(letters):
            style = {"color": "0.5", "marker": "x", "linewidth": 0.8, "markersize": 4, "elinewidth": 0.8}
            ax.errorbar(letters["error"], letters["change"], reach, label=LETTERS, zorder=0, **style)
        ax.set(title=label_of(score), xlabel="ID %error")
        ax.margins(x=0.1)
    axes[0].set_ylabel("Change of ID✗|ID✓ AUROC, points")
    side_legend(figure, axes[0], columns=5)
    return figure


@drawn
def gain_figure(found: Sequence[Record], printed: Sequence[Network]) -> Figure:
    """What each score gains at OOD|ID✓ against what it costs at ID✗|ID✓, both less MSP; the corner of MSP enlarged."""
    figure, (axes,) = new_figure(1, 2, height=3.6)
    networks = [network for one in found for network in one.networks]
    corner: list[float] = []
    for ax in axes:
        ax.axhline(0, color="0.6", linewidth=0.6)
        ax.axvline(0, color="0.6", linewidth=0.6)
    for score in (*DETECTORS, *SHOWN):
        look = method_look(score)
        name: str | None = label_of(score)
        for network in [*networks, *printed]:
            x, y = network.change(score, WRONG), network.change(score, MEAN)
            if math.isnan(x + y):
                continue
            fill = "none" if network.study == PAPER else look.colour
            for ax in axes:
                ax.plot(x, y, look.marker, color=look.colour, mfc=fill, label=name, clip_on=True, markersize=3.5)
            if CORNER[0] <= x <= CORNER[1]:
                corner.append(y)
            name = None
    room = 0.1 * (max(corner) - min(corner))
    axes[1].set(xlim=CORNER, ylim=(min(corner) - room, max(corner) + room), title="The corner around MSP")
    axes[0].set(title="All", ylabel="Change of OOD|ID✓ AUROC against MSP, points")
    for ax in axes:
        ax.set_xlabel("Change of ID✗|ID✓ AUROC against MSP, points")
    side_legend(figure, axes[0], columns=5)
    return figure
