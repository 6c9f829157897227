"""Results to make tables of: the paper's own figures, and made-up ones of several seeds."""

import numpy as np
import pandas as pd

from support.studies import STUDIES

PAPER = pd.read_csv(STUDIES / "paper" / "tables.csv", keep_default_na=False)
SCHEMA = ["model", "seed", "score", "negative", "metric", "alpha", "beta", "value"]


def schema(rows, seed=0):
    return pd.DataFrame([(m, seed, s, n, k, np.nan, np.nan, v) for m, s, n, k, v in rows], columns=SCHEMA)


def paper_results():
    title = PAPER["model"] + " (" + PAPER["id_data"] + ")"
    value = pd.to_numeric(PAPER["mean"]) / 100
    error = pd.to_numeric(PAPER["id_error"]) / 100
    rows = list(zip(title, PAPER["score"], PAPER["negative"], PAPER["metric"], value, strict=True))
    rows += dict.fromkeys((t, s, "wrong", "error", e) for t, s, e in zip(title, PAPER["score"], error, strict=True))
    return schema(rows)


def several_seeds(seeds=3, models=("net", "other net"), scores=("msp", "energy", "sirc(msp, l1)", "vim"), noise=0.02):
    rng = np.random.default_rng(0)
    rows = []
    for seed in range(seeds):
        for model in models:
            for score in scores:
                for negative in ("wrong", "near", "far", "OOD mean"):
                    for metric, mean in (("auroc", 0.8), ("fpr@95", 0.4)):
                        value = mean + noise * rng.standard_normal()
                        rows.append((model, seed, score, negative, metric, np.nan, np.nan, value))
                rows.append((model, seed, score, "wrong", "error", np.nan, np.nan, 0.15 + 0.01 * seed))
    return pd.DataFrame(rows, columns=SCHEMA)
