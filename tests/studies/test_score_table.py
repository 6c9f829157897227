"""The tables of docs/scores.md: the script's figures are those of `sirc.evaluate`, and the page has every score."""

import importlib
import re

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

import sirc
from sirc.scores import registry
from support.studies import ROOT

K, L = 5, 12
DOCS = ROOT / "docs" / "scores.md"
pytestmark = pytest.mark.filterwarnings(
    "ignore:typical training rows",  # `ash` has a long tail here
    "ignore:left out. `delta_knn`",  # it needs more wrong rows than there are
)


@pytest.fixture(scope="module")
def script():
    return importlib.import_module("studies.tools.score_table")


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """Two runs of a small network, as `sirc run` lays them out."""
    folder = tmp_path_factory.mktemp("study")
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        weight = rng.normal(size=(K, L)).astype(np.float32)

        def outputs(n, size, rng=rng, weight=weight, *, labelled=True):
            labels = rng.integers(0, K, n)
            z = np.maximum(size * weight[labels] + rng.normal(size=(n, L)), 0).astype(np.float32)
            return sirc.Outputs(z @ weight.T / 4, z, labels if labelled else None)

        run = folder / f"seed-{seed}"
        parts = {"train": outputs(400, 0.8), "test": outputs(300, 0.8)}
        parts |= {"near": outputs(120, 0.4, labelled=False), "far": outputs(90, 0.0, labelled=False)}
        for name, part in parts.items():
            sirc.OutputStore.from_outputs(run / "outputs" / name, part)
        save_file({"weight": torch.tensor(weight / 4)}, run / "head.safetensors")
    return folder


@pytest.fixture(scope="module")
def tables(script, study):
    return script.markdown({"Small": [study]}, tune=100, draws=20)


def cells(text):
    """The rows of all tables: the first cell, and the others."""
    rows = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("| `")]
    return [(row[0].strip(" `"), [cell.strip() for cell in row[1:]]) for row in rows]


@pytest.mark.slow
def test_every_score_has_a_row_alone_and_in_each_role(script, tables):
    found = [spec for spec, _ in cells(tables)]
    leaves = [*(name for name in registry.names() if not registry.get(name).val), "vim"]
    assert set(leaves) <= set(found)
    assert {f"sirc(msp, {name})" for name in leaves if name != "msp"} <= set(found)
    assert {f"sirc({name}, residual)" for name in leaves[:-1] if registry.get(name).log_gap} <= set(found)
    for name in ("residual", "knn"):
        assert {f"bayes(msp, {name})", f"additive(msp, {name}, kappa=1)", f"sirc(msp, {name}, budget=0.1)"} <= set(
            found
        )
    assert re.search(r"^- Small: 2 runs; ID error [\d.]+%, [\d.]+%; tuned T [\d.]+, [\d.]+; tuned p ", tables)


@pytest.mark.slow
def test_figures_are_the_means_of_what_evaluate_gives(study, tables):
    specs = ["max_logit_pnorm", "sirc(entropy, residual)", "sirc(msp, knn)", "bayes(msp, residual)"]
    found = []
    for seed in (1, 2):
        run = study / f"seed-{seed}"
        stores = {name: sirc.OutputStore(run / "outputs" / name).load() for name in ("train", "test", "near", "far")}
        order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
        head = sirc.Head(sirc.Head.load(run / "head.safetensors").weight)
        scorer = sirc.fit(specs, stores["train"], head=head, val=stores["test"][order[:100]])
        ood = {name: stores[name] for name in ("near", "far")}
        table = sirc.evaluate(scorer, stores["test"][order[100:]], ood=ood).table
        found.append(table.set_index(["score", "negative", "metric"])["value"])
    shown = dict(cells(tables.partition(", set by set")[0]))
    wanted = (("wrong", "auroc", 1), ("OOD mean", "auroc", 1), ("OOD mean", "aurr", 2), ("OOD mean", "aurc", 2))
    for spec in specs:
        for cell, (negative, metric, digits) in zip(shown[spec], wanted, strict=True):
            values = [100 * float(run[spec, negative, metric]) for run in found]
            text = f"{np.mean(values):.{digits}f} ± {2 * np.std(values, ddof=1):.{digits}f}"
            assert cell.rstrip(" ▲▽") == text


@pytest.mark.slow
def test_each_ood_set_has_a_column(study, tables):
    by_set = tables.partition(", set by set")[2]
    assert "|  | far | near |" in by_set
    found = []
    for seed in (1, 2):
        rows = {n: sirc.OutputStore(study / f"seed-{seed}" / "outputs" / n).load() for n in ("test", "far", "near")}
        order = torch.randperm(300, generator=torch.Generator().manual_seed(0))[100:]
        table = sirc.evaluate(sirc.Scorer("l1"), rows.pop("test")[order], ood=rows).table
        found.append(table[table["metric"] == "auroc"].set_index("negative")["value"])
    means = [f"{100 * np.mean([run[name] for run in found]):.1f}" for name in ("far", "near")]
    assert dict(cells(by_set))["l1"] == means


def test_a_mark_needs_the_same_verdict_in_every_run(script):
    rows = [
        ("a", "wrong", "auroc", 0.9, 0.01, 0.03),
        ("a", "wrong", "auroc", 0.8, 0.02, 0.03),
        ("b", "wrong", "auroc", 0.9, 0.01, 0.03),
        ("b", "wrong", "auroc", 0.8, -0.02, 0.03),
        ("c", "OOD mean", "aurr", 0.1, 0.01, 0.03),
        ("d", "OOD mean", "aurr", 0.1, -0.03, -0.01),
        ("msp", "wrong", "auroc", 0.7, np.nan, np.nan),
    ]
    columns = ["score", "negative", "metric", "value", "low", "high"]
    marks = script.judged(pd.DataFrame(rows, columns=columns))["mark"].droplevel([1, 2]).to_dict()
    assert marks == {"a": "▲", "b": "", "c": "▽", "d": "▲", "msp": ""}


def test_only_what_is_between_the_markers_is_replaced(script, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"before\n{script.START}\nold\n{script.END}\nafter\n", encoding="utf-8")
    script.write(page, r"new \1")
    assert page.read_text(encoding="utf-8") == f"before\n{script.START}\n\nnew \\1\n\n{script.END}\nafter\n"
    page.write_text("no markers", encoding="utf-8")
    with pytest.raises(ValueError, match="score_table: start"):
        script.write(page, "new")


def test_a_run_without_test_rows_or_with_too_few_is_refused(script, study, tmp_path):
    with pytest.raises(ValueError, match="fewer than the 300 test rows, and some; got 300"):
        script.measure(study / "seed-1", ["msp"], tune=300, draws=20)
    train = sirc.OutputStore(study / "seed-1" / "outputs" / "train").load()
    sirc.OutputStore.from_outputs(tmp_path / "outputs" / "train", train)
    with pytest.raises(ValueError, match="must hold outputs/test; it holds train"):
        script.measure(tmp_path, ["msp"], tune=10, draws=20)


def test_a_folder_without_runs_is_named(script, tmp_path):
    with pytest.raises(ValueError, match="SEED/outputs/train"):
        script.runs_of([tmp_path])


def test_the_page_has_measured_rows_in_the_order_of_the_registry_and_no_others(script):
    measured = DOCS.read_text(encoding="utf-8").partition(script.START)[2].partition(script.END)[0]
    groups = script.specs_by_table()
    wanted = [*(spec for group in groups.values() for spec in group), *groups["Alone"], *groups["Alone"]]
    shown = [spec for spec, _ in cells(measured)]
    assert shown == [spec for spec in wanted if spec in shown], "run studies.tools.score_table, see the page"


@pytest.fixture(scope="module")
def columns(study, tmp_path_factory):
    folder = tmp_path_factory.mktemp("columns")
    tool = importlib.import_module("studies.tools.witnesses")
    tool.main(["columns", str(study), "--out", str(folder)])
    return tool, sorted(folder.iterdir())


@pytest.mark.slow
def test_rules_made_of_kept_columns_are_those_that_fit_makes(study, columns):
    tool, files = columns
    store = {path.name: sirc.OutputStore(path).load() for path in (study / "seed-1" / "outputs").iterdir()}
    order = torch.randperm(300, generator=torch.Generator().manual_seed(0))
    val, test = store["test"][order[:75]], store["test"][order[75:]]
    specs = {"sirc(msp, knn)": "sirc(msp, knn)", "scod": "scod(alpha=0.3, beta=0.7)", "both(msp, l1)": "both(msp, l1)"}
    head = sirc.Head(sirc.Head.load(study / "seed-1" / "head.safetensors").weight)
    scorer = sirc.fit(list(specs.values())[:2], store["train"], head=head)
    tuned = sirc.fit(["both(msp, l1)", "scod(alpha=0.3, beta=0.7)"], store["train"], head=head, val=val)
    network = tool.Network.load(files[0])
    found = tool.measure(network)
    at = found[(found["alpha"] == 0.3) & (found["beta"] == 0.7)].set_index(["rule", "metric"])["value"]
    for fitted, names in (
        (scorer, {k: specs[k] for k in ("sirc(msp, knn)", "scod")}),
        (tuned, {"both(msp, l1)": "both(msp, l1)", "scod, val": "scod(alpha=0.3, beta=0.7)"}),
    ):
        ood = {name: store[name] for name in ("near", "far")}
        table = sirc.evaluate(fitted, test, ood, alpha=0.3, beta=0.7, pool="datasets").table
        for rule, spec in names.items():
            row = table[(table["score"] == spec) & (table["negative"] == "pooled") & (table["metric"] == "aurr")]
            assert at[rule, "aurr"] == pytest.approx(row["value"].item(), rel=1e-3), rule


@pytest.mark.slow
def test_the_tables_of_witnesses_have_every_rule_and_what_is_sure(columns, capsys):
    tool, files = columns
    tool.main(["table", *map(str, files)])
    printed = capsys.readouterr().out
    known = list(tool.rules(tool.Network.load(files[0])))
    assert [spec for spec, _ in cells(printed)] == known
    assert printed.count("comparisons: surely worse, one by one") == 4
    assert printed.count("g learnt against none") == 2
    assert printed.count("AURR, change by scod less twice that by sirc(msp, residual): ") == 1
    assert dict(cells(printed))["msp"][0].startswith("0.0")


def test_the_doubling_is_paired_by_network():
    tool = importlib.import_module("studies.tools.witnesses")
    values = {"one": (0.4, 0.3, 0.1), "two": (0.2, 0.19, 0.15)}  # AURR of MSP, SIRC and `scod`
    rules = ("msp", "sirc(msp, residual)", "scod")
    rows = [
        (network, rule, metric, 0.5, beta, value * beta)
        for network, found in values.items()
        for rule, value in zip(rules, found, strict=True)
        for metric in ("aurr", "aurc")
        for beta in (0.3, 0.5)
    ]
    table = pd.DataFrame(rows, columns=["network", "rule", "metric", "alpha", "beta", "value"])
    each = [100 * (np.log(scod / msp) - 2 * np.log(sirc / msp)) for msp, sirc, scod in values.values()]
    half = 12.706 * np.std(each, ddof=1) / np.sqrt(2)
    assert tool.doubled(table) == f"−{-np.mean(each):.1f} ± {half:.1f}"


@pytest.mark.slow
def test_the_row_of_scod_stands_beside_the_best_single_s2(columns, capsys):
    tool, files = columns
    tool.main(["half", *map(str, files)])
    rows = dict(cells(capsys.readouterr().out))
    assert list(rows)[:2] == ["msp", "sirc(msp, residual)"]
    assert list(rows)[-1] == "scod"
    assert {spec.partition("(")[0] for spec in list(rows)[2:-1]} >= {"bayes"}
    aurr = {spec: float(figures[2].split()[0]) for spec, figures in rows.items()}
    assert min(aurr[spec] for spec in rows if spec.startswith("sirc")) <= aurr["sirc(msp, residual)"]


def test_comparisons_are_sure_together_by_holms_rule():
    tool = importlib.import_module("studies.tools.witnesses")
    p = np.array([0.02, 0.004, 0.9, 0.005, 0.3, 0.009])
    sure, left = set(), sorted(range(6), key=lambda i: p[i])
    while left and p[left[0]] <= 0.025 / len(left):
        sure.add(left.pop(0))
    assert sure == {1, 3}
    assert set(tool.sure_together(p).nonzero()[0]) == sure
