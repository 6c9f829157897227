"""Everything runs where its tensors are, and a GPU gives the CPU's numbers."""

import copy
import gc

import pytest
import torch

import sirc
from sirc import functional
from sirc._utils import fused
from sirc._utils.graphs import Recorded, Repeats, record
from sirc._utils.precision import Convolutions, full_products
from sirc.metrics.bootstrap import bootstrap_metrics, draw_counts
from sirc.scores import row_sums
from sirc.scores.formulas.softmax import Softmax
from sirc.scores.products import product
from support.repeating import repeating, shares, small_resnet

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

SPECS = ["msp", "doctor", "entropy", "max_logit", "energy", "l1", "residual", "gradnorm", "vim", "mahalanobis", "knn"]
SPECS += ["sirc(msp, l1)", "sirc(entropy, residual)", "sirc(doctor, mahalanobis, knn, vim)", "product(msp, l1)"]
SPECS += ["margin", "tempered_msp(temperature=2)", "tempered_entropy", "max_logit_pnorm", "gen", "mahalanobis_pp"]
SPECS += ["relative_mahalanobis", "react", "scale", "ash", "nci", "fdbd", "cop", "nnguide", "sirc(gen, cop, nnguide)"]
SPECS += ["sirc(msp, mahalanobis_pp, relative_mahalanobis, fdbd, nci, react)"]
SPECS += ["additive(msp, residual)", "bayes(msp, residual, knn)", "bayes(entropy, l1, alpha=0.9, metric=aurr)"]


@pytest.fixture(scope="module")
def data():
    torch.manual_seed(0)
    n, L, K = 3000, 96, 20
    labels = torch.randint(0, K, (n,))
    features = (2 * torch.randn(K, L)[labels] + torch.randn(n, L)).relu().double()
    head = sirc.Head(torch.randn(K, L).double() / 8, torch.randn(K).double())
    return sirc.Outputs(features @ head.weight.T + head.bias, features, labels), head


@pytest.mark.parametrize("crossfit", [0, 5])
def test_a_gpu_fits_and_scores_as_a_cpu_does(data, crossfit):
    outputs, head = data
    here = sirc.fit(SPECS, outputs, head=head, crossfit=crossfit)
    there = sirc.fit(SPECS, outputs.to("cuda"), head=head.to("cuda"), crossfit=crossfit)
    expected, got = here(outputs), there(outputs.to("cuda"))
    for spec in SPECS:
        assert got[spec].device.type == "cuda"
        torch.testing.assert_close(got[spec].cpu(), expected[spec], rtol=1e-7, atol=1e-9)


def test_a_gpu_tunes_as_a_cpu_does(data):
    outputs, head = data
    train, val = outputs[:2000], outputs[2000:2600]
    strange = sirc.Outputs(outputs.logits[2600:] * 0.3, outputs.features[2600:] * 0.3 + 1)
    specs = ["tempered_msp", "max_logit_pnorm", "sirc(max_logit_pnorm, residual, budget=0.5)", "bayes(msp, residual)"]
    specs += ["both(msp, residual)", "delta_knn(k=5)", "sirc(msp, delta_mahalanobis)"]
    here = sirc.fit(specs, train, head=head, val=val, ood=strange)
    there = sirc.fit(specs, train, head=head, val=val, ood=strange, device="cuda")
    for spec, part in here.parameters.items():
        for name, value in part.items():
            if value.numel() < 50:
                torch.testing.assert_close(there.parameters[spec][name].cpu(), value, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_recorded_step_trains_to_the_same_weights(precision):
    from torchvision.models import resnet18

    from sirc.training.batches import Batch
    from sirc.training.loop import CapturedStep

    def trained(record):
        torch.manual_seed(0)
        model = resnet18(num_classes=7).cuda().train()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
        generator = torch.Generator("cuda").manual_seed(1)
        step = None

        def logits(images):
            with torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"):
                return model(images).float()

        for _ in range(5):
            images = torch.randn(16, 3, 32, 32, device="cuda", generator=generator)
            labels = torch.randint(0, 7, (16,), device="cuda", generator=generator)
            batch = Batch(images, labels, 16)
            if record and step is None:
                step = CapturedStep(logits, model, batch, 1 / 16, False)
                assert step.takes(batch)
                assert not step.takes(Batch(images[:3], labels[:3], 3))
            if step is not None:
                loss, out = step(batch)
            else:
                optimizer.zero_grad()
                out = logits(images)
                loss = torch.nn.functional.cross_entropy(out, labels, reduction="sum")
                (loss / 16).backward()
            optimizer.step()
        return model.state_dict(), loss.item()

    # Kernels that add in any order would make two runs differ, with a graph or without.
    with torch.backends.cudnn.flags(deterministic=True, benchmark=False, allow_tf32=False):
        (eager, loss), (graph, recorded) = trained(False), trained(True)
    assert recorded == pytest.approx(loss, rel=1e-3)
    for name, value in eager.items():
        torch.testing.assert_close(graph[name], value, rtol=1e-2, atol=1e-3)


def test_a_scorer_fitted_on_a_gpu_is_saved_and_scores_on_a_cpu(data, tmp_path):
    outputs, head = data
    scorer = sirc.fit(SPECS, outputs.to("cuda"), head=head)
    scorer.save(tmp_path / "scorer.safetensors")
    loaded = sirc.Scorer.load(tmp_path / "scorer.safetensors")
    for spec, value in scorer(outputs).items():
        assert torch.equal(loaded(outputs)[spec], value)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_compiled_pass_gives_the_eager_numbers(dtype):
    logits = (torch.randn(500, 1000, device="cuda") * 5).to(dtype)
    logits[:100, 0] += 400
    eager, compiled = Softmax.of(logits, compile=False), Softmax.of(logits, compile=True)
    assert torch.equal(eager.prediction, compiled.prediction)
    for name in ("top", "second", "t", "w", "q", "deviation"):
        torch.testing.assert_close(getattr(compiled, name), getattr(eager, name), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("classes", [2, 10, 100, 1000, 1001, 5000, 21_841])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_kernel_gives_the_eager_numbers(dtype, classes, monkeypatch):
    monkeypatch.setattr(fused, "_unusable", set())
    generator = torch.Generator("cuda").manual_seed(classes)
    logits = torch.randn(400, classes, device="cuda", generator=generator, dtype=torch.float64) * 5
    logits[:100, 0] += torch.linspace(0, 400, 100, device="cuda", dtype=torch.float64)
    logits[100:110], logits[110:120, -2:] = 1.5, 60.0
    logits = logits.to(dtype)
    eager, kernel = Softmax.of(logits, compile=False), Softmax.of(logits)
    assert not fused._unusable, "it fell back, so nothing was compared"
    for name in ("prediction", "top", "second"):
        assert torch.equal(getattr(kernel, name), getattr(eager, name))
    small = 1e-12 if dtype == torch.float64 else 5e-7
    for name in ("t", "w", "q"):
        error = (getattr(kernel, name) - getattr(eager, name)) / (eager.t + eager.q)
        assert float(error.abs().max()) < small, name
    assert float((kernel.deviation - eager.deviation).abs().max()) < small
    for name in ("msp", "doctor", "entropy"):
        error = functional.log_gap(kernel, name) - functional.log_gap(eager, name)
        assert float(error.abs().max()) < small, name


def test_the_kernel_keeps_extreme_logits_finite_and_reads_any_layout():
    big = float(torch.finfo(torch.float32).max)
    extreme = torch.tensor([[big, -big, 0.0], [big, big, big], [-big, -big, -big], [0.0, 0.0, -big]], device="cuda")
    for name in ("msp", "doctor", "entropy"):
        assert bool(functional.log_gap(extreme, name).isfinite().all())
    whole = torch.randn(300, 77, device="cuda", dtype=torch.float64)
    for part in (whole.T.contiguous().T, whole[::3], whole[:, 5:60], whole[7:8], whole[:0]):
        torch.testing.assert_close(Softmax.of(part).t, Softmax.of(part.cpu()).t.cuda(), rtol=1e-12, atol=0)


def test_a_row_scores_the_same_in_any_batch():
    logits = torch.randn(2000, 1000, device="cuda")
    whole = Softmax.of(logits)
    for name in ("t", "w", "q", "deviation"):
        assert torch.equal(getattr(whole, name)[700:705], getattr(Softmax.of(logits[700:705]), name))


def test_more_classes_than_the_kernel_reads_are_compiled_or_read_eagerly(monkeypatch):
    monkeypatch.setattr(row_sums, "_WIDEST", 500)
    logits = torch.randn(40, 1000, device="cuda")
    assert torch.equal(Softmax.of(logits).t, Softmax.of(logits, compile=False).t)


def test_without_a_kernel_the_numbers_are_those_of_float64(monkeypatch):
    monkeypatch.setattr(fused, "_unusable", set())

    def missing(logits):
        raise ImportError("no Triton here")

    monkeypatch.setattr(row_sums, "_kernel_sums", missing)
    logits = torch.randn(40, 1000, device="cuda")
    assert torch.equal(Softmax.of(logits).t, Softmax.of(logits, compile=False).t)
    assert fused._unusable == {"the kernel of the pass over the logits"}


@pytest.mark.parametrize("size", [1.0, 1e-25, 1e25])
def test_products_by_halves_have_about_the_error_of_float32(size):
    generator = torch.Generator("cuda").manual_seed(0)
    rows = torch.randn(3000, 300, device="cuda", generator=generator) * size
    rows[:, ::7] *= 1e-6  # within a row, large and small
    rows[5], rows[6, 1:] = 0, 0
    matrix = torch.randn(300, 400, device="cuda", generator=generator) * torch.logspace(-5, 5, 400, device="cuda")
    exact = rows.double() @ matrix.double()
    scale = torch.linalg.vector_norm(rows.double(), dim=1)[:, None] * torch.linalg.vector_norm(matrix.double(), dim=0)
    scale[5] = 1
    with full_products():
        plain = rows @ matrix
    made = product(rows, matrix)
    assert not torch.equal(made, plain), "the product was not split"
    error, usual = (((found.double() - exact).abs() / scale).max() for found in (made, plain))
    assert float(error) < 4 * float(usual)
    assert torch.equal(made[5], torch.zeros_like(made[5]))
    assert torch.equal(product(rows, matrix, plus=matrix[0]), made + matrix[0])
    other_batch = (product(rows[1000:2100], matrix) - made[1000:2100]).abs().double() / scale[1000:2100]
    assert float(other_batch.max()) < 4 * float(usual)


def test_a_product_that_cannot_be_split_is_plain(monkeypatch):
    monkeypatch.setattr(fused, "_unusable", set())
    rows, matrix = torch.randn(2000, 300, device="cuda"), torch.randn(300, 400, device="cuda")
    assert product(rows.clone().requires_grad_(), matrix).requires_grad
    monkeypatch.setattr("sirc.scores.products._by_halves", lambda *given: torch.empty(-1))
    assert torch.equal(product(rows, matrix), rows @ matrix)
    assert fused._unusable


def test_the_kernel_of_areas_gives_the_plain_sums(monkeypatch):
    monkeypatch.setattr(fused, "_unusable", set())
    generator = torch.Generator().manual_seed(0)
    sizes = [(1, 0, 0), (3, 1, 2), (5000, 700, 9001), (40, 3, 0)]
    for decimals in (1, 9):
        for numbers in sizes:
            groups = [torch.randn(n, generator=generator).double().round(decimals=decimals) for n in numbers]
            weights = torch.rand(numbers[2], generator=generator).double() + 0.1 if numbers[2] > 2 else None
            alpha = torch.linspace(0, 1, 7) if numbers[2] else torch.ones(1)
            here = sirc.Ranking(*groups, ood_weights=weights)
            there = sirc.Ranking(*(g.cuda() for g in groups), ood_weights=None if weights is None else weights.cuda())
            for metric in ("aurr", "aurc", "augrc"):
                found, expected = (getattr(r, metric)(alpha, [0, 0.3, 1]).cpu() for r in (there, here))
                torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-13)
    assert not fused._unusable, "it fell back, so nothing was compared"


@pytest.mark.filterwarnings("ignore::sirc.errors.DataWarning")
def test_switching_tf32_on_changes_no_score():
    generator = torch.Generator("cuda").manual_seed(0)
    features = torch.randn(4096, 512, device="cuda", generator=generator).relu_()
    head = sirc.Head(torch.randn(64, 512, device="cuda", generator=generator) / 16)
    outputs = sirc.Outputs(features @ head.weight.T, features, torch.arange(4096, device="cuda") % 64)
    specs = ["residual", "mahalanobis", "knn", "vim", "sirc(msp, residual)"]

    def fitted():
        return sirc.fit(specs, outputs, head=head, crossfit=0)

    expected, product = fitted()(outputs), features @ features.T
    torch.set_float32_matmul_precision("high")
    try:
        rounded, found = features @ features.T, fitted()(outputs)
    finally:
        torch.set_float32_matmul_precision("highest")
    assert not torch.equal(rounded, product), "TF32 was not on"
    for spec in specs:
        assert torch.equal(found[spec], expected[spec]), spec


def test_resamples_are_the_same_on_every_device():
    sizes = {"correct": 700, "wrong": 90, "ood": 0}
    here = list(draw_counts(sizes, 70, 5, torch.device("cpu")))
    there = list(draw_counts(sizes, 70, 5, torch.device("cuda")))
    for name in sizes:
        assert torch.equal(
            torch.cat([block[name].cpu() for block in there], 1), torch.cat([block[name] for block in here], 1)
        )


def test_ranking_and_bootstrap_on_a_gpu_are_those_of_a_cpu():
    generator = torch.Generator().manual_seed(0)
    groups = [torch.randn(n, generator=generator).round(decimals=1).double() for n in (900, 300, 700)]
    here, there = sirc.Ranking(*groups), sirc.Ranking(*(g.cuda() for g in groups))
    grid = torch.linspace(0.1, 1, 5)
    for metric in ("aurr", "aurc", "augrc", "eaurc"):
        torch.testing.assert_close(getattr(there, metric)(grid, grid).cpu(), getattr(here, metric)(grid, grid))
    assert there.auroc("ood") == pytest.approx(here.auroc("ood"), abs=1e-12)
    assert there.threshold(recall=0.95) == here.threshold(recall=0.95)
    assert there.threshold(risk=0.3, alpha=0.5, beta=0.5) == here.threshold(risk=0.3, alpha=0.5, beta=0.5)
    correct = torch.arange(1200) < 900
    settings = {"equal_sets": False, "recall": 0.95, "alpha": 0.4, "beta": 0.6, "draws": 20, "seed": 3}
    found = [
        bootstrap_metrics(
            {"s": torch.cat(groups[:2]).to(d)}, correct.to(d), {"o": {"s": groups[2].to(d)}}, {"o": ["o"]}, **settings
        )
        for d in ("cpu", "cuda")
    ]
    for key, values in found[0].items():
        torch.testing.assert_close(found[1][key], values, rtol=1e-5, atol=1e-6)


def test_evaluation_of_gpu_outputs(data):
    made, head = data
    outputs = sirc.Outputs(made.logits, made.features, (made.logits + torch.randn_like(made.logits)).argmax(-1))
    scorer = sirc.fit(["msp", "sirc(msp, residual)"], outputs, head=head)
    ev = sirc.evaluate(
        scorer, outputs.to("cuda"), ood={"shifted": sirc.Outputs(outputs.logits / 3, outputs.features).to("cuda")}
    )
    here = sirc.evaluate(scorer, outputs, ood={"shifted": sirc.Outputs(outputs.logits / 3, outputs.features)})
    assert ev.table["value"].to_numpy() == pytest.approx(here.table["value"].to_numpy(), abs=1e-9)
    assert len(ev.compare("msp", draws=10)) == 24


def test_rows_of_outputs_on_a_gpu_are_held_out():
    torch.manual_seed(0)
    model, inputs = torch.nn.Linear(8, 3).cuda(), torch.randn(500, 8, device="cuda")
    logits = model(inputs).detach()
    with pytest.warns(sirc.DataWarning, match="of the 500 rows of `train` set the threshold"):
        guard = sirc.guard(model, sirc.Outputs(logits, labels=logits.argmax(1)), score="msp", progress=False)
    assert 95 < len(guard.calibration) < 105


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_selective_classifier_decides_on_the_gpu_as_on_the_cpu(dtype):
    model, scorer, images = _small_classifier()
    cpu = sirc.SelectiveClassifier(model, scorer, "sirc(entropy, residual)", head="2").set_threshold(0.5)
    expected = cpu(images)
    gpu = cpu.to("cuda", dtype)
    assert gpu.scoring.parameter_0.dtype == torch.float32
    found = gpu(images.to("cuda", dtype))
    assert found.confidence.device.type == "cuda"
    tolerance = 1e-3 if dtype == torch.float32 else 0.3
    torch.testing.assert_close(found.confidence.cpu(), expected.confidence, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("calibrated_on", ["cpu", "cuda"])
def test_inputs_that_repeat_are_accepted_on_the_device_that_did_not_set_the_threshold(calibrated_on):
    served_on = "cpu" if calibrated_on == "cuda" else "cuda"
    changed = 0
    for seed in range(12):
        made, x = repeating(small_resnet(seed), device=calibrated_on)
        before = made(x).confidence.cpu()
        made.to(served_on)
        x = x.to(served_on)
        changed += not torch.allclose(made(x).confidence.cpu(), before, rtol=1e-4, atol=0)
        assert min(shares(lambda rows, made=made: made(rows).accepted.cpu().numpy(), x)) >= 0.95, seed
    assert changed, "TF32 was not on"


def test_convolutions_are_rounded_as_the_gpu_rounds_them():
    torch.manual_seed(0)
    x, w = torch.randn(8, 32, 16, 16, device="cuda"), torch.randn(64, 32, 3, 3, device="cuda")
    exact = torch.nn.functional.conv2d(x.double(), w.double(), padding=1)
    with Convolutions(rounded=False):
        torch.testing.assert_close(torch.nn.functional.conv2d(x, w, padding=1).double(), exact, rtol=1e-6, atol=1e-5)
    with Convolutions(rounded=True):
        rounded = torch.nn.functional.conv2d(x, w, padding=1).double()
    error = (rounded - exact).abs().mean()
    assert 1e-4 < error / exact.abs().mean() < 1e-2
    on_gpu = torch.nn.functional.conv2d(x, w, padding=1).double()
    assert (on_gpu - exact).abs().mean() < 3 * error


def test_decisions_about_single_inputs_are_recorded_and_stay_the_same(monkeypatch):
    made = []
    plain = Recorded.__init__
    monkeypatch.setattr(Recorded, "__init__", lambda self, *a, **k: (plain(self, *a, **k), made.append(self))[0])
    model, scorer, images = _small_classifier()
    images = images.cuda()
    for spec in ("msp", "sirc(entropy, residual)", "sirc(msp, l1, residual)"):
        made.clear()
        sel = sirc.SelectiveClassifier(model.cuda(), scorer, spec, head="2").cuda().set_threshold(0.5)
        before = [sel(images[i : i + 1]) for i in range(4)]
        assert not made
        with torch.inference_mode():
            after = [sel(images[i : i + 1]) for i in range(4)]
        after = [sel(images[i : i + 1]) for i in range(4)]
        assert len(made) == 1
        for one, other in zip(before, after, strict=True):
            assert all(map(torch.equal, one, other))
        sel.set_threshold(float(before[0].confidence) + 1)  # a graph reads the threshold that is set
        assert not sel(images[:1]).accepted
        copied = copy.deepcopy(sel)
        assert torch.equal(copied(images[:1]).confidence, before[0].confidence)
        moved = sel.cpu().cuda()  # its tensors are elsewhere now
        junk = torch.full((1 << 20,), torch.nan, device="cuda")
        for _ in range(8):
            assert torch.equal(moved(images[:1]).confidence, before[0].confidence)
        del junk


def test_a_function_that_waits_for_the_device_goes_on_without_a_graph():
    calls = Repeats(third_party=True)
    for i in range(8):
        x = torch.full((3,), float(i), device="cuda")
        (found,) = calls(lambda x: (x * float(x.sum()),), x)
        assert found.tolist() == [3.0 * i * i] * 3
    assert not calls._graphs
    assert gc.isenabled()
    assert torch.cuda.get_sync_debug_mode() == 0
    torch.randn(3, device="cuda")  # the generator is not left in the middle of a recording


def test_graphs_of_third_party_functions_go_when_another_size_comes():
    own, calls = Repeats(), Repeats(third_party=True)
    for n in [5] * 6 + [4] + [5] * 3:
        x = torch.arange(n, device="cuda", dtype=torch.float32)
        for repeats in (own, calls):
            (found,) = repeats(lambda x: (x * 2,), x)
            assert found.tolist() == [2.0 * i for i in range(n)]
    assert len(own._graphs) == 1
    assert not calls._graphs
    assert calls._patience == 8


@pytest.mark.filterwarnings("ignore:The CUDA Graph is empty")
def test_what_a_graph_does_not_record_is_found_out():
    side = torch.cuda.Stream()
    kept = torch.zeros(3, device="cuda")

    def elsewhere(x):
        with torch.cuda.stream(side):
            kept.copy_(x)
        return (kept,)

    with pytest.raises(RuntimeError):
        Recorded(elsewhere, torch.ones(3, device="cuda"))
    torch.cuda.synchronize()
    assert gc.isenabled()


def test_a_caller_may_record_decisions_in_a_graph_of_their_own():
    model, scorer, images = _small_classifier()
    sel = sirc.SelectiveClassifier(model.cuda(), scorer, "sirc(entropy, residual)", head="2").cuda().set_threshold(0.5)
    x = images[:1].cuda()
    expected = [sel(x) for _ in range(6)][-1]
    graph, made = record(lambda: sel(x), lambda: sel(x))
    graph.replay()
    assert torch.equal(made.confidence, expected.confidence)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_extraction_by_graphs_and_side_streams_gives_what_batches_give(tmp_path, precision, monkeypatch):
    from torchvision.models import resnet18

    made = []
    plain = Recorded.__init__
    monkeypatch.setattr(Recorded, "__init__", lambda self, *a, **k: (plain(self, *a, **k), made.append(self))[0])
    torch.manual_seed(0)
    model = resnet18(num_classes=9).cuda().eval()
    images = torch.randn(320, 3, 32, 32)
    data = torch.utils.data.TensorDataset(images, torch.arange(320) % 9)
    settings = {"batch_size": 16, "shard_size": 160, "precision": precision}
    store = sirc.extract(model, data, tmp_path / "store", **settings)
    assert made, "no graph was recorded"
    memory = sirc.extract(model, data, **settings)
    in_order = sirc.extract(model, iter(torch.utils.data.DataLoader(data, batch_size=16)), precision=precision)
    features, logits = [], []
    with (
        torch.no_grad(),
        torch.autocast("cuda", torch.bfloat16, enabled=precision == "bf16"),
        model.fc.register_forward_pre_hook(lambda _, given: features.append(given[0].clone())),
    ):
        for batch in images.cuda().split(16):
            logits.append(model(batch))
    if precision == "bf16":
        logits = [model.fc(part.float()) for part in features]
    for outputs in (store.load(), memory, in_order):
        assert torch.equal(outputs.features, torch.cat(features).cpu())
        torch.testing.assert_close(outputs.logits, torch.cat(logits).detach().cpu(), rtol=1e-6, atol=1e-6)
        assert outputs.labels.tolist() == [i % 9 for i in range(320)]
    assert not memory.logits.is_pinned()


def test_hooks_of_others_see_each_batch_once():
    model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Linear(5, 3)).cuda()
    seen = []
    with model[0].register_forward_hook(lambda *given: seen.append(given[2][:, 0].tolist())):
        sirc.extract(model, torch.utils.data.TensorDataset(torch.randn(80, 4)), batch_size=8, head="1")
    assert len(seen) == 10


@pytest.mark.filterwarnings("ignore")  # of torch, about itself
def test_a_compiled_selective_classifier_gives_the_same_on_the_gpu():
    model, scorer, images = _small_classifier()
    gpu = sirc.SelectiveClassifier(model, scorer, "sirc(msp, l1, residual)", head="2").set_threshold(0.5).to("cuda")
    expected = gpu(images.cuda())
    found = torch.compile(gpu, fullgraph=True)(images.cuda())
    torch.testing.assert_close(found.confidence, expected.confidence, rtol=1e-4, atol=1e-4)
    assert torch.equal(found.label, expected.label)


def _small_classifier():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 5)).eval()
    images = torch.randn(500, 20)
    with torch.no_grad():
        features = model[:2](images)
        train = sirc.Outputs(model[2](features), features)
    head = sirc.find_head(model, images[:2])
    specs = ["msp", "sirc(entropy, residual)", "sirc(msp, l1, residual)"]
    return model, sirc.fit(specs, train, head=head), images


def test_images_held_on_a_gpu_are_decoded_once_and_normalised_as_on_a_cpu(tmp_path, monkeypatch):
    from sirc.data import device_cache, image_folder
    from sirc.data.preprocess import Preprocess
    from sirc.extraction import from_device
    from sirc.progress import SILENT
    from support.tiny_images import write_images

    preprocess = Preprocess(resize=12, crop=12)
    images = image_folder(write_images(tmp_path / "images", count=50), transform=preprocess.test())
    plain = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(432, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3))

    def load(cache, device):
        options = {"workers": 2, "on_unreadable": lambda lost: None, "progress": SILENT}
        return cache.pixels(images, preprocess, device=torch.device(device), **options)

    with device_cache.DeviceCache() as cache:
        cached = load(cache, "cuda")
        assert load(cache, "cuda:0").pixels.data_ptr() == cached.pixels.data_ptr()
        reading = from_device.CachedSet(images, preprocess, lambda: cached, 16)
        seen = torch.cat([got.batch[0].cpu() for got in reading.read([range(20), range(20, 50)])])
        assert torch.equal(seen, torch.stack([images[i][0] for i in range(50)]))
        expected = sirc.extract(plain, images)
        got = sirc.extract(
            plain.cuda(), from_device.CachedSet(images, preprocess, lambda: cached), tmp_path / "store", head="3"
        )
        torch.testing.assert_close(got.load().logits, expected.logits, rtol=1e-3, atol=1e-3)
        assert torch.equal(got.load().labels, images.labels)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 1000))
        with pytest.raises(
            ValueError, match=r'`cache = "device"` needs 0.0 GiB for `images`; 0.0 GiB are free on cuda:0'
        ):
            cache.pixels(
                images, Preprocess(8, 8), device=cached.pixels.device, workers=0, on_unreadable=print, progress=SILENT
            )
        assert not cache._entries
