"""Extreme magnitudes: every score gives finite numbers, or refuses in words; nothing in between."""

import pytest
import torch

import sirc
from sirc import functional
from sirc.deploy.confidence_graph import LOWEST, ConfidenceGraph
from sirc.scores import registry, score

pytestmark = pytest.mark.filterwarnings("ignore:`head` should give the logits")  # whose size is changed alone
CLASSES, FEATURES, ROWS = 3, 6, 60
SIZES = [
    (dtype, size)
    for dtype, sizes in {
        torch.float16: (6e-8, 6e4),
        torch.bfloat16: (1e-39, 1e19, 1e38),
        torch.float32: (1e-39, 1e-20, 1e19, 1e30, 1e38),
        torch.float64: (1e-320, 1e-160, 1e38, 1e154, 1e308),
    }.items()
    for size in sizes
]
SPECS = (
    *("delta_knn(k=5)" if name == "delta_knn" else name for name in registry.names()),  # few rows are wrong
    "vim",
    "sirc(entropy, residual)",
    "sirc(msp, mahalanobis, knn)",
    "sirc(msp, l1, budget=0.5)",
    "additive(msp, residual)",
    "bayes(msp, residual)",
    "linear(energy, l1, c=2)",
    "product(energy, l1)",
    "both(msp, residual)",
)
HEAD = sirc.Head(torch.eye(CLASSES, FEATURES, dtype=torch.float64), torch.tensor([0.1, 0, -0.1], dtype=torch.float64))


def rows(seed, dtype=torch.float64, *, logits=1.0, features=1.0):
    """Rows of one network, whose logits or features have that size."""
    make = torch.Generator().manual_seed(seed)
    z = torch.randn(ROWS, FEATURES, generator=make, dtype=torch.float64)
    v = z[:, :CLASSES] + 0.3 * torch.randn(ROWS, CLASSES, generator=make, dtype=torch.float64)
    labels = (v + torch.randn(ROWS, CLASSES, generator=make)).argmax(-1)
    most = torch.finfo(dtype).max
    v, z = ((x * size).clamp(-most, most).to(dtype) for x, size in ((v, logits), (z, features)))
    return sirc.Outputs(v, z, labels)


def finite(score):
    """Whether a score was computed, and then all its values are finite; a refusal says so in words."""
    try:
        (confidence,) = score().values()
    except ValueError as refusal:
        words = str(refusal)
    else:
        assert confidence.isfinite().all()
        return True
    assert words.startswith("`")
    return False


@pytest.fixture(scope="module")
def scorer():
    """All scores, fitted on ordinary rows."""
    return sirc.fit(SPECS, rows(0), head=HEAD, val=rows(2))


@pytest.mark.parametrize("part", ["features", "logits"])
@pytest.mark.parametrize(("dtype", "size"), SIZES)
@pytest.mark.slow
def test_rows_of_any_size_are_scored_or_refused(scorer, dtype, size, part, attack):
    extreme = rows(1, dtype, **{part: size})
    done = [spec for spec in SPECS if finite(lambda spec=spec: scorer.only(spec)(extreme))]
    assert {"max_logit", "energy"} <= set(done)
    if size < 1:
        assert done == list(SPECS)
    if part == "features":
        assert {"msp", "doctor", "entropy"} <= set(done)
    attack.tried("rows of extreme magnitude, by score", len(SPECS), "finite, or refused in words")


@pytest.mark.parametrize("part", ["features", "logits"])
@pytest.mark.parametrize(("dtype", "size"), SIZES)
@pytest.mark.slow
def test_fits_on_rows_of_any_size_are_done_or_refused(dtype, size, part, attack):
    train, test, val = (rows(seed, dtype, **{part: size}) for seed in range(3))
    done = [spec for spec in SPECS if finite(lambda spec=spec: sirc.fit(spec, train, head=HEAD, val=val)(test))]
    assert "energy" in done
    attack.tried("fits on rows of extreme magnitude, by score", len(SPECS), "finite, or refused in words")


@pytest.mark.parametrize("size", [1e-39, 1e19, 1e37])
def test_what_is_beyond_float32_can_be_had_in_float64(size):
    """The message says so."""
    specs = ["residual", "mahalanobis", "relative_mahalanobis", "react", "nci", "ash", "nnguide", "knn", "l1"]
    train, test = rows(0, torch.float32, features=size), rows(1, torch.float32, features=size)
    scorer = sirc.fit(specs, train, head=sirc.Head(HEAD.weight / size, HEAD.bias))
    with pytest.raises(ValueError, match=r"finite number for every row; got (nan|-?inf) at row \d+, with log"):
        scorer(test)
    with pytest.raises(ValueError, match=r"Pass `outputs.to\(dtype=torch.float64\)`, or leave the row out"):
        scorer(test)
    wide = scorer(test.to(dtype=torch.float64))
    ordinary = sirc.fit(specs, rows(0), head=HEAD)(rows(1))
    torch.testing.assert_close(wide["mahalanobis"], ordinary["mahalanobis"], rtol=1e-3, atol=1e-3)


def test_directions_beyond_float32_are_refused_too(scorer):
    """A length that overflows would make a feature 0, and its distances finite and wrong."""
    for spec in ("knn", "cop", "mahalanobis_pp", "nnguide"):
        with pytest.raises(ValueError, match="must be a finite number"):
            scorer.only(spec)(rows(1, torch.float32, features=1e20))


def test_ordinary_directions_are_torch_s_own():
    from sirc.scores.blocks import unit

    x = rows(0, torch.float32).features.clone()
    x[0], x[1] = 0.0, x[1] * 1e-14
    assert torch.equal(unit(x), torch.nn.functional.normalize(x, dim=-1))


@pytest.mark.parametrize(("dtype", "size"), [pair for pair in SIZES if pair[1] > 1])
def test_a_deployed_score_is_finite_and_never_accepts_what_it_cannot_compute(scorer, dtype, size, attack):
    extreme = rows(1, dtype, features=size)
    for spec in SPECS:
        graph = ConfidenceGraph(scorer, spec, dtype)
        with torch.no_grad():
            confidence = graph(extreme.logits, extreme.features)
            raw = graph.evaluator(extreme.logits, extreme.features).confidence(graph.spec)
        assert confidence.isfinite().all()
        assert torch.equal(confidence == LOWEST, ~raw.isfinite())
    attack.tried("extreme inputs to a deployed score", len(SPECS), "finite, and not accepted if not computable")


def test_the_tuning_rows_are_checked():
    with pytest.raises(ValueError, match="`residual` must be a finite number"):
        sirc.fit("bayes(msp, residual)", rows(0, torch.float32), head=HEAD, val=rows(2, torch.float32, features=1e25))


def test_the_formula_as_printed_is_no_score_and_leaves_no_scorer_as_nan(scratch_registry):
    with pytest.raises(ValueError, match="unknown"):
        sirc.Scorer("sirc_literal(msp, l1)")

    @score(needs="logits")
    def printed(logits):
        """S1 at its most times a factor that overflows: 0·∞."""
        return functional.sirc_literal(functional.msp(logits), torch.full((len(logits),), -1e5), 0.0, 1.0, 1.0)

    logits = torch.tensor([[1e3, 0.0, 0.0], [1.0, 0.0, 0.0]])
    assert printed(logits).isnan().tolist() == [True, False]
    scorer = sirc.Scorer("printed")
    with pytest.raises(ValueError, match="`printed` must be a finite number for every row; got nan at row 0"):
        scorer(sirc.Outputs(logits))
    assert ConfidenceGraph(scorer, "printed", torch.float32)(logits, None).tolist() == [LOWEST, LOWEST]
