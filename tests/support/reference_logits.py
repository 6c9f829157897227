"""The softmax-side scores beyond the paper, as NumPy loops and with many digits; nothing of sirc is imported here."""

import mpmath
import numpy as np

from support.reference import entropy, msp, softmax

NAMES = ("margin", "tempered_msp", "tempered_entropy", "max_logit_pnorm", "gen")


def margin(v):
    return np.array([np.sort(row)[-1] - np.sort(row)[-2] for row in np.asarray(v, dtype=np.float64)])


def tempered_msp(v, temperature=1.0):
    return msp(np.asarray(v, dtype=np.float64) / temperature)


def tempered_entropy(v, temperature=1.0):
    return entropy(np.asarray(v, dtype=np.float64) / temperature)


def max_logit_pnorm(v, p=4):
    """(v₁ − v̄)/‖v − v̄‖_p; p = 0 without the norm; p = −1 the softmax's maximum; equal logits the least value."""
    if p == -1:
        return msp(v)
    out = []
    for row in np.asarray(v, dtype=np.float64):
        k = len(row)
        centred = row - sum(row) / k
        if p == 0:
            out.append(max(centred))
        elif max(row) == min(row):
            out.append((k - 1 + (k - 1.0) ** p) ** (-1 / p))
        else:
            out.append(max(centred) / sum(abs(x) ** p for x in centred) ** (1 / p))
    return np.array(out)


def gen(v, gamma=0.1, m=100):
    return np.array([-sum((x * (1 - x)) ** gamma for x in np.sort(p)[::-1][:m]) for p in softmax(v)])


def values(data, rows):
    """Plain value of each new score on rows = (logits, features), by its default options; nothing is fitted on data."""
    logits, _ = rows
    return {name: globals()[name](logits) for name in NAMES}


def log_gaps(row, temperature=1.0, p=4, gamma=0.1, m=100):
    """log(S1max − S1) of each new score from one row of logits, with all the digits it takes."""
    second, first = (float(x) for x in sorted(row)[-2:])
    with mpmath.workdps(60 + int(0.45 * (first - second) * max(1, 1 / temperature))):
        v = [mpmath.mpf(float(x)) for x in row]
        pi = _softmax(v, 1)
        warm = _softmax(v, mpmath.mpf(temperature))
        return {
            "margin": float(mpmath.log(1 - 1 / (1 + mpmath.exp(sorted(v)[-2] - max(v))))),
            "tempered_msp": float(mpmath.log(1 - max(warm))),
            "tempered_entropy": float(mpmath.log(-mpmath.fsum(x * mpmath.log(x) for x in warm))),
            "max_logit_pnorm": log_below_bound(v, p),
            "gen": float(mpmath.log(mpmath.fsum((x * (1 - x)) ** mpmath.mpf(gamma) for x in sorted(pi)[::-1][:m]))),
        }


def _softmax(v, temperature):
    e = [mpmath.exp((x - max(v)) / temperature) for x in v]
    total = mpmath.fsum(e)
    return [x / total for x in e]


def log_below_bound(v, p):
    """log(S1max − S1) of `max_logit_pnorm` in the digits at hand, −inf where the row reaches the bound."""
    left = _bound(len(v), p) - _pnorm(v, p)
    return float(mpmath.log(left)) if left > mpmath.mpf(10) ** (10 - mpmath.mp.dps) else -np.inf


def _bound(k, p):
    return (1 + mpmath.mpf(k - 1) ** (1 - p)) ** (-mpmath.mpf(1) / p)


def _pnorm(v, p):
    if max(v) == min(v):
        return (len(v) - 1 + mpmath.mpf(len(v) - 1) ** p) ** (-mpmath.mpf(1) / p)
    mean = mpmath.fsum(v) / len(v)
    return (max(v) - mean) / mpmath.fsum(abs(x - mean) ** p for x in v) ** (mpmath.mpf(1) / p)
