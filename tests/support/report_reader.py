"""Reads a page as a browser does, in plain NumPy: what it carries, and the metrics that follow from it."""

import base64
import json
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import numpy as np


@dataclass(frozen=True)
class Accepted:
    """What is accepted at the thresholds of one score: the counts of ID✓, ID✗ and each OOD set."""

    thresholds: np.ndarray
    ranks: np.ndarray
    counts: np.ndarray

    @property
    def sizes(self):
        return self.counts[:, -1]

    def reaching(self, level):
        """The place of the strictest threshold with at least this recall."""
        return int(np.flatnonzero(self.counts[0] / self.sizes[0] >= level)[0])

    def risks(self, alpha, beta, weights=()):
        """The risk at every threshold: β·ID✗ + (1−β)·OOD of what is accepted."""
        right, wrong, ood = self._mixed(alpha, weights)
        covered = right + wrong + ood
        return np.divide(beta * wrong + (1 - beta) * ood, covered, out=np.zeros_like(covered), where=covered > 0)

    def coverages(self, alpha, weights=()):
        return np.sum(self._mixed(alpha, weights), axis=0)

    def areas(self, alpha, beta, weights=()):
        """AURR and AURC: between two thresholds the risk rises in as many equal steps as samples make the axis grow."""
        risk = np.append(0.0, self.risks(alpha, beta, weights))
        middle, rise = (risk[1:] + risk[:-1]) / 2, np.diff(risk)
        between = np.diff(self.ranks, prepend=0)

        def area(share, count):
            steps = np.minimum(between, np.diff(count, prepend=0)).clip(min=1)
            return float((np.diff(share, prepend=0.0) * (middle + rise / (2 * steps))).sum())

        inside = self.sizes[0] + self.sizes[1]
        factors = [alpha / inside, alpha / inside, *((1 - alpha) * np.asarray(weights) / self.sizes[2:])]
        aurr = area(self.counts[0] / self.sizes[0], self.counts[0])
        return aurr, sum(area(factor * count, count) for factor, count in zip(factors, self.counts, strict=True))

    def _mixed(self, alpha, weights):
        """ID✓, ID✗ and OOD that are accepted, as shares of all input."""
        inside = self.sizes[0] + self.sizes[1]
        ood = np.zeros(len(self.ranks))
        for weight, count in zip(weights, self.counts[2:], strict=True):
            ood += (1 - alpha) * weight * count / count[-1]
        return alpha * self.counts[0] / inside, alpha * self.counts[1] / inside, ood


def read_score(entry, groups):
    """One score of a run, as the payload packs it; `groups` is 2 + the number of OOD sets."""
    thresholds = np.frombuffer(base64.b64decode(entry["thresholds"]), dtype="<f8")
    growth = np.array(varints(base64.b64decode(entry["counts"])), dtype=np.int64)
    rows = np.cumsum(growth.reshape(1 + groups, entry["size"]), axis=1)
    assert len(thresholds) == entry["size"]
    return Accepted(thresholds, rows[0], rows[1:])


def varints(data):
    """Numbers in groups of seven bits, the lowest first; a set high bit says that more follow."""
    found, value, shift = [], 0, 0
    for byte in data:
        value |= (byte & 0x7F) << shift
        shift += 7
        if not byte & 0x80:
            found.append(value)
            value, shift = 0, 0
    assert shift == 0
    return found


class _Scripts(HTMLParser):
    def __init__(self):
        super().__init__()
        self.policy = None
        self.tags = []
        self.scripts = []

    def handle_starttag(self, tag, attributes):
        known = dict(attributes)
        self.tags.append((tag, known))
        if tag == "script":
            self.scripts.append((known, ""))
        if known.get("http-equiv") == "Content-Security-Policy":
            self.policy = known["content"]

    def handle_data(self, data):
        if self.lasttag == "script" and self.scripts and self.cdata_elem == "script":
            attributes, text = self.scripts[-1]
            self.scripts[-1] = (attributes, text + data)


def parse_page(path):
    """The page's policy, its tags, and its scripts with their attributes."""
    parser = _Scripts()
    parser.feed(Path(path).read_text(encoding="utf-8"))
    parser.close()
    return parser


def read_page(path):
    """What the page carries."""
    (text,) = [text for attributes, text in parse_page(path).scripts if attributes.get("id") == "data"]
    return json.loads(text)
