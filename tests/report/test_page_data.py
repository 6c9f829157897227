"""The page: what it carries is exact at its thresholds, close between them, small, inert and the same every time."""

import base64
import hashlib
import importlib
import re
from importlib.resources import files
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import Phase, given
from hypothesis import strategies as st

import sirc
from sirc.metrics import registry
from sirc.report.page import report
from sirc.report.page.grid import make_grid
from sirc.report.page.payload import payload
from support.examples import examples
from support.report_reader import parse_page, read_page, read_score

ALPHAS, BETAS = [0.001, 0.01, 0.1, 0.5, 0.9, 0.99, 0.999], [0.0, 0.05, 0.5, 0.95, 1.0]
HOSTILE = "</script><img src=x onerror=alert(1)>"
payloads = importlib.import_module("sirc.report.page.payload")  # `sirc.report.page.payload` is its function


def evaluation(scores, **options):
    """An evaluation from {score: [ID✓, ID✗, OOD sets …]}."""
    right, wrong, *sets = next(iter(scores.values()))
    correct = torch.arange(len(right) + len(wrong)) < len(right)
    names = options.pop("names", [f"set {i}" for i in range(len(sets))])
    return sirc.evaluate(
        {score: (np.concatenate(values[:2]), correct) for score, values in scores.items()},
        ood={name: {score: values[2 + i] for score, values in scores.items()} for i, name in enumerate(names)},
        **options,
    )


def run(ev, model="net", seed=0):
    return SimpleNamespace(model=model, seed=seed, evaluation=ev)


def normal(sizes=(3000, 700, 900, 1200, 40), seed=0):
    rng = np.random.default_rng(seed)
    return [rng.normal(2 - 0.7 * i, 1 + 0.3 * i, size) for i, size in enumerate(sizes)]


def varied():
    """Scores of several kinds: plain, tied, with infinities, few values, all the same."""
    plain = normal()
    infinite = [
        np.where(np.arange(len(x)) % 9 == 0, np.inf, np.where(np.arange(len(x)) % 7 == 0, -np.inf, x)) for x in plain
    ]
    return {
        "plain": plain,
        "tied": [np.round(x, 2) for x in plain],
        "infinite": infinite,
        "few": [np.round(x) for x in plain],
        "constant": [np.full(len(x), 0.25) for x in plain],
        "zeros": [np.where(x > 1, -0.0, np.where(x > 0, 0.0, x)) for x in plain],
    }


def carried(content, groups, model=0, seed=0):
    entries = content["models"][model]["runs"][seed]["scores"]
    return [read_score(entry, groups) for entry in entries]


def ranked(groups, weights):
    weighed = [np.full(len(x), w / len(x)) for x, w in zip(groups[2:], weights, strict=True)]
    return sirc.Ranking(groups[0], groups[1], np.concatenate(groups[2:]), ood_weights=np.concatenate(weighed))


def test_counts_are_those_of_plain_comparisons_at_every_threshold():
    groups = varied()
    content = payload([run(evaluation(groups))], "")
    assert content["models"][0]["runs"][0]["sizes"] == [3000, 700, 900, 1200, 40]
    for (score, values), found in zip(groups.items(), carried(content, 5), strict=True):
        everything = np.concatenate(values)
        assert found.thresholds[0] == everything.max(), score
        assert found.thresholds[-1] == everything.min(), score
        assert (np.diff(found.thresholds) < 0).all(), score
        assert len(found.thresholds) == min(512, len(set(everything.tolist()))), score
        expected = [[(x >= t).sum() for t in found.thresholds] for x in values]
        np.testing.assert_array_equal(found.counts, expected)
        distinct = np.array(sorted(set(everything.tolist())))
        np.testing.assert_array_equal(found.ranks, [(distinct >= t).sum() for t in found.thresholds])


@pytest.mark.slow
@pytest.mark.parametrize("recall", [0.95, 0.9755])
def test_at_every_level_threshold_risk_and_coverage_are_the_ranking_s(recall):
    groups = varied()
    content = payload([run(evaluation(groups, recall=recall))], "")
    levels = content["levels"]
    assert recall in levels
    assert levels == sorted(levels)
    assert levels[-1] == 1
    assert content["start"]["recall"] == recall
    alphas, betas = [0.01, 0.5, 0.97], [0.0, 0.3, 1.0]
    for values, found in zip(groups.values(), carried(content, 5), strict=True):
        places = [found.reaching(level) for level in levels]
        for weights in ([1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0.9, 0.1]):
            ranking = ranked(values, weights)
            thresholds = [ranking.threshold(recall=level) for level in levels]
            np.testing.assert_array_equal(found.thresholds[places], thresholds)
            covered = [ranking.coverage(threshold, 0.3) for threshold in thresholds]
            np.testing.assert_allclose(found.coverages(0.3, weights)[places], covered, rtol=0, atol=1e-12)
            got = [[found.risks(alpha, beta, weights)[places] for beta in betas] for alpha in alphas]
            risks = [ranking.risk_at_recall(level, alphas, betas) for level in levels]
            np.testing.assert_allclose(got, torch.stack(risks, dim=-1), rtol=0, atol=1e-12)


NOISE = ["standard_normal", "standard_cauchy", "standard_exponential"]
GROUP = st.tuples(
    st.sampled_from([1, 2, 6, 30, 300, 3000, 20_000]), st.floats(-4, 4), st.sampled_from([0.03, 0.3, 1.0, 3.0])
)


def confidences(groups, noise, ties, seed):
    """Groups of all sizes, near and far apart, with long tails or none, with ties of every kind."""
    rng = np.random.default_rng(seed)
    made = [centre + width * getattr(rng, noise)(size) for size, centre, width in groups]
    if ties == "rounded":
        made = [np.round(x, 2) for x in made]
    if ties == "coarse":
        made = [np.round(x) for x in made]
    if ties == "constant":
        made[seed % len(made)][:] = 0.5
    if ties == "infinite":
        for x in made:
            x[: len(x) // 10], x[len(x) - len(x) // 8 :] = np.inf, -np.inf
    return made


# The same examples every time: 0.5% is what the placement of the thresholds achieves, and not a theorem.
@pytest.mark.slow
@examples(40, derandomize=True, phases=[Phase.explicit, Phase.generate])
@given(
    st.lists(GROUP, min_size=2, max_size=12),
    st.sampled_from(NOISE),
    st.sampled_from(["none", "rounded", "coarse", "constant", "infinite"]),
    st.integers(0, 2**32),
)
def test_areas_are_within_half_a_percent_of_the_ranking_s(groups, noise, ties, seed):
    values = confidences(groups, noise, ties, seed)
    found = read_score(payloads._pack(make_grid(values)), len(values))
    assert len(found.ranks) <= 512
    number = len(values) - 2
    if not number:
        compare_areas(found, sirc.Ranking(*values), [1.0], [])
        return
    sizes = np.array([len(x) for x in values[2:]])
    some = np.random.default_rng(seed).random(number) ** 3
    for weights in (sizes / sizes.sum(), np.full(number, 1 / number), np.eye(number)[seed % number], some / some.sum()):
        compare_areas(found, ranked(values, weights), ALPHAS, weights)


def compare_areas(found, ranking, alphas, weights):
    expected = torch.stack([ranking.aurr(alphas, BETAS), ranking.aurc(alphas, BETAS)], dim=-1).numpy()
    got = np.array([[found.areas(alpha, beta, weights) for beta in BETAS] for alpha in alphas])
    # An area below one in a million is made by a few samples between two thresholds: there a share says nothing.
    np.testing.assert_allclose(got, expected, rtol=0.005, atol=1e-8)


@pytest.fixture
def large(monkeypatch):
    """Five runs of 16 scores on 50,000 ID and ten times 10,000 OOD samples; four scores, seen again and again."""
    rng = np.random.default_rng(0)
    centres = [3, 1, *np.linspace(0, 2, 10)]
    four = [
        [
            rng.normal(centre, 1 + j / 4, size) ** (1 if j % 2 else 3)
            for centre, size in zip(centres, sizes, strict=True)
        ]
        for j, sizes in enumerate([[40_000, 10_000, *[10_000] * 10]] * 4)
    ]
    known = {}

    def remembered(groups, levels, points):
        key = (float(groups[0][0]), points)
        if key not in known:
            known[key] = make_grid(groups, levels, points)
        return known[key]

    monkeypatch.setattr(payloads, "make_grid", remembered)
    ev = evaluation({f"score {i}": four[i % 4] for i in range(16)})
    return [run(ev, seed=seed) for seed in range(5)]


@pytest.mark.slow
def test_sixteen_scores_on_ten_sets_and_five_seeds_are_at_most_two_megabytes(large, tmp_path):
    path = report(large, tmp_path / "large.html")
    library = files("sirc.report.page").joinpath("vendor/plotly-cartesian.min.js").read_bytes()
    assert path.stat().st_size - len(library) <= 2_000_000
    content = read_page(path)
    assert len(content["models"][0]["runs"]) == 5
    assert all(
        entry["size"] == 512 for one in content["models"][0]["runs"] for entry in one["scores"]
    )  # all that there may be


@pytest.mark.slow
def test_more_scores_and_runs_have_fewer_thresholds_each_and_all_levels_still(large, monkeypatch):
    (first, *_) = large
    ranking = first.evaluation.ranking("score 0")
    sizes = []
    for limit in (200_000, 20_000):
        monkeypatch.setattr(payloads, "LIMIT", limit)
        content = payload([first], "")
        found = carried(content, 12)[0]
        sizes.append(len(found.ranks))
        for level in content["levels"]:
            assert found.thresholds[found.reaching(level)] == ranking.threshold(recall=level)
        entries = content["models"][0]["runs"][0]["scores"]
        assert limit < 200_000 or sum(len(e["counts"]) + len(e["thresholds"]) for e in entries) <= limit
    assert 256 < sizes[0] < 512
    assert sizes[1] == 256  # however many there are, no fewer


@pytest.mark.slow
@pytest.mark.parametrize("score", ["plain", "tied", "infinite", "zeros"])
@pytest.mark.parametrize("size", [1, 8])
def test_fewer_points_are_those_that_would_have_been_placed(score, size):
    groups = [np.unique(x)[: 160 * size] for x in varied()[score]]
    for most in (512, 400):
        grid = make_grid(groups, points=most)
        for points in (511, 400, 333, 257, 256):
            fewer, expected = grid.fewer(points), make_grid(groups, points=min(points, most))
            for name in ("thresholds", "ranks", "counts"):
                np.testing.assert_array_equal(getattr(fewer, name), getattr(expected, name))


@pytest.mark.slow
def test_thresholds_are_placed_once_however_small_the_page_must_be(monkeypatch):
    calls = []
    monkeypatch.setattr(payloads, "make_grid", lambda *given: calls.append(given) or make_grid(*given))
    monkeypatch.setattr(payloads, "LIMIT", 20_000)
    content = payload([run(evaluation(varied()))], "")
    assert 256 <= content["points"] < 512
    assert len(calls) == len(varied())


def hostile_runs():
    groups = {HOSTILE: normal((30, 9, 20)), "msp": normal((30, 9, 20), seed=1)}
    ev = evaluation(groups, names=[HOSTILE + "\u2028\x00"], groups={HOSTILE: [HOSTILE + "\u2028\x00"]})
    return [run(ev, model=HOSTILE, seed=seed) for seed in (1, 2)]


def test_names_are_data_and_nothing_else(tmp_path):
    path = report(hostile_runs(), tmp_path / "page.html", title=HOSTILE)
    text = path.read_text(encoding="utf-8")
    assert "<img" not in text.replace(library_text(), "")
    assert HOSTILE not in text
    assert HOSTILE[9:] not in text
    page = parse_page(path)
    assert len(page.scripts) == 3
    assert not [tag for tag, attributes in page.tags if tag == "img" or any(key.startswith("on") for key in attributes)]
    content = read_page(path)
    (model,) = content["models"]
    assert content["title"] == model["name"] == HOSTILE
    assert model["scores"][0]["spec"] == HOSTILE
    assert model["sets"] == [HOSTILE + "  "]
    assert model["groups"] == {HOSTILE: [0]}


def library_text():
    return files("sirc.report.page").joinpath("vendor/plotly-cartesian.min.js").read_text(encoding="utf-8")


def test_the_page_allows_its_own_scripts_only_and_asks_nothing_of_any_network(tmp_path):
    path = evaluation({"msp": normal()}).report(tmp_path / "page.html")
    page = parse_page(path)
    rules = {name: values for name, *values in map(str.split, page.policy.split(";"))}
    assert rules["default-src"] == ["'none'"]
    data, *scripts = page.scripts
    assert data[0] == {"type": "application/json", "id": "data"}
    hashes = [f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'" for _, text in scripts]
    assert rules["script-src"] == hashes
    assert scripts[0][1] == library_text()
    assert rules["img-src"] == ["data:", "blob:"]
    assert rules["form-action"] == rules["base-uri"] == ["'none'"]
    assert not {"connect-src", "font-src", "frame-src", "media-src", "object-src", "worker-src"} & set(rules)
    for tag, attributes in page.tags:
        assert tag not in ("link", "iframe", "object", "embed"), tag
        assert not attributes.get("src", "").startswith(("http", "//")), attributes
        assert tag == "a" or "href" not in attributes, attributes
    style = re.search(r"<style>(.*?)</style>", path.read_text(encoding="utf-8"), re.DOTALL)[1]
    assert "@import" not in style
    assert not re.search(r"url\((?!['\"]?data:)", style)
    own = scripts[1][1]
    assert not re.search(r"\b(fetch|XMLHttpRequest|WebSocket|sendBeacon|importScripts|import)\b *\(", own)


def test_the_plotting_library_is_the_one_that_was_published():
    vendor = files("sirc.report.page") / "vendor"
    digest = hashlib.sha256((vendor / "plotly-cartesian.min.js").read_bytes()).hexdigest()
    assert digest == "79542150855a52c567260e3137095dbe2b744e6d702a5cabe67da246942fba7a"
    assert digest in (vendor / "README.md").read_text(encoding="utf-8")
    assert "MIT" in (vendor / "LICENSE.plotly").read_text(encoding="utf-8")


@pytest.mark.slow
def test_two_pages_of_the_same_are_the_same_bytes(tmp_path):
    ev = evaluation({"msp": normal(), "energy": normal(seed=3)}, groups={"Close": ["set 0"], "Far": ["set 1", "set 2"]})
    first = ev.report(tmp_path / "first.html", title="A")
    assert ev.report(tmp_path / "second.html", title="A").read_bytes() == first.read_bytes()
    again = evaluation({"msp": normal(), "energy": normal(seed=3)}, groups=ev.groups)
    assert again.report(tmp_path / "third.html", title="A").read_bytes() == first.read_bytes()


@pytest.mark.slow
def test_a_page_says_what_it_was_made_from(tmp_path):
    ev = evaluation(
        {"energy": normal(), "sirc(msp, l1)": normal(seed=3), "msp": normal(seed=4)},
        groups={"Close": ["set 0"], "Far": ["set 1", "set 2"]},
        alpha=[0.3, 0.7],
        beta=0.2,
        pool="datasets",
    )
    path = ev.report(tmp_path / "page.html")
    assert path == tmp_path / "page.html"
    content = read_page(path)
    assert content["version"] == sirc.__version__
    assert content["start"] == {"alpha": 0.3, "beta": 0.2, "recall": 0.95, "pool": "datasets", "baseline": "msp"}
    (model,) = content["models"]
    assert [score["spec"] for score in model["scores"]] == ["energy", "sirc(msp, l1)", "msp"]
    assert model["sets"] == ["set 0", "set 1", "set 2"]
    assert model["groups"] == {"Close": [0], "Far": [1, 2]}
    both = report([run(ev, "A", 3), run(ev, "B", 1), run(ev, "A", 1)], tmp_path / "both.html")
    content = read_page(both)
    assert content["title"] == "A, B"
    assert [[one["seed"] for one in model["runs"]] for model in content["models"]] == [[3, 1], [1]]


def test_a_page_is_not_replaced_unless_asked_for(tmp_path):
    ev = evaluation({"msp": normal((5, 5, 5))})
    path = tmp_path / "folder" / "page.html"
    ev.report(path)
    path.write_text("mine", encoding="utf-8")
    with pytest.raises(FileExistsError, match=r"exists already. Pass `overwrite=True`"):
        ev.report(path)
    assert path.read_text(encoding="utf-8") == "mine"
    ev.report(path, overwrite=True)
    assert read_page(path)["models"]


def test_one_note_may_be_a_plain_text(tmp_path):
    ev = evaluation({"msp": normal((5, 5, 5))})
    assert read_page(ev.report(tmp_path / "page.html", notes="measured on a phone"))["notes"] == ["measured on a phone"]


def test_a_metric_that_an_evaluation_did_not_know_has_no_value(tmp_path, monkeypatch):
    ev = evaluation({"msp": normal((5, 5, 5))})
    error = float(ev.table.query("metric == 'error'")["value"].iloc[0])
    monkeypatch.setattr(registry, "REGISTRY", dict(registry.REGISTRY))

    @registry.metric(title="Accuracy", lower_is_better=False, unit="%")
    def accuracy(ranking):
        return ranking.accuracy

    (run,) = read_page(ev.report(tmp_path / "page.html"))["models"][0]["runs"]
    assert run["ofId"] == {"error": error, "accuracy": None}


def test_runs_that_do_not_belong_together_are_refused(tmp_path):
    ev = evaluation({"msp": normal((5, 5, 5))})
    other = evaluation({"msp": normal((5, 5, 5))}, names=["elsewhere"])
    with pytest.raises(ValueError, match="at least one run to show; got none"):
        report([], tmp_path / "page.html")
    with pytest.raises(ValueError, match="runs of one model must have different seeds; 'net' has 0, 0"):
        report([run(ev), run(ev)], tmp_path / "page.html")
    with pytest.raises(ValueError, match="the same scores, OOD sets and groups; seeds 0, 1 of 'net' differ"):
        report([run(ev), run(other, seed=1)], tmp_path / "page.html")
    with pytest.raises(ValueError, match=r"a list of runs such as `sirc.experiment.load_runs` gives; got str"):
        report(["runs/tiny"], tmp_path / "page.html")
    with pytest.raises(ValueError, match=r"a list of runs such as `sirc.experiment.load_runs` gives; got int"):
        report(3, tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()


@pytest.mark.parametrize(
    "sizes", [(400, 90), (400, 0, 50), (1, 0), (1, 1, 1)], ids=["no OOD", "none wrong", "one sample", "one of each"]
)
def test_a_page_needs_no_more_than_one_right_prediction(sizes, tmp_path):
    values = normal(sizes)
    content = read_page(evaluation({"msp": values}).report(tmp_path / "page.html"))
    assert content["start"]["alpha"] == (0.5 if len(sizes) > 2 else 1.0)
    assert content["models"][0]["runs"][0]["sizes"] == list(sizes)
    (found,) = carried(content, len(sizes))
    np.testing.assert_array_equal(found.counts, [[(x >= t).sum() for t in found.thresholds] for x in values])
    weights = [1.0] if len(sizes) > 2 else []
    compare_areas(found, sirc.Ranking(*values), ALPHAS if len(sizes) > 2 else [1.0], weights)


def test_a_page_carries_where_inputs_are_first_accepted():
    plain = normal()
    groups = {"one": plain, "again": plain, "other": normal(seed=1)}
    data = payload([run(evaluation(groups))], "")
    entries = data["models"][0]["runs"][0]["scores"]
    places = [np.frombuffer(base64.b64decode(entry["firsts"]), "<u2") for entry in entries]
    sizes = [min(size, data["inputs"]) for size in (3000, 700, 900, 1200, 40)]
    assert [len(one) for one in places] == [sum(sizes)] * 3
    np.testing.assert_array_equal(places[0], places[1])  # the same inputs for each score
    for entry, points in zip(entries, places, strict=True):
        score = read_score(entry, 5)
        assert points.min() >= 1
        assert points.max() <= score.counts.shape[1]
        shares = score.counts / np.array([[3000], [700], [900], [1200], [40]])
        for group, part in enumerate(np.split(points, np.cumsum(sizes)[:-1])):
            found = (part[:, None] <= np.arange(1, shares.shape[1] + 1)).mean(0)
            # All of a group, or a random part of it.
            assert np.abs(found - shares[group]).max() < (1e-12 if sizes[group] == 40 else 0.08)


@pytest.mark.slow
def test_runs_that_tell_of_noise_themselves_carry_no_inputs():
    several = [run(evaluation(varied()), seed=seed) for seed in (0, 1)]
    models = payload([*several, run(evaluation(varied()), "alone")], "")["models"]
    carried_by = [["firsts" in entry for one in model["runs"] for entry in one["scores"]] for model in models]
    assert [all(some) for some in carried_by] == [False, True]
    assert not any(carried_by[0])
