"""Lightning's callback logs how well a score does in each validation, and leaves a guard when the training is over."""

import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sirc

pytestmark = pytest.mark.slow  # Lightning takes seconds to import


def data(count, seed):
    make = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, 4, (count,), generator=make)
    return TensorDataset(3 * torch.eye(4, 6)[labels] + torch.randn(count, 6, generator=make), labels)


TRAIN, VAL, FAR = data(300, 0), data(200, 1), TensorDataset(5 * torch.randn(80, 6))


@pytest.fixture
def fit(tmp_path):
    """Train for two epochs with a callback; what was logged after each validation, and the module."""
    import lightning

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.network = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 4))
            self.modes = []

        def forward(self, x):
            return self.network(x)

        def training_step(self, batch, _):
            self.modes.append(self.network[2].training)
            return nn.functional.cross_entropy(self(batch[0]), batch[1])

        def validation_step(self, batch, _):
            pass

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), 0.03)

    class Logged(lightning.Callback):
        def __init__(self):
            self.seen = []

        def on_validation_end(self, trainer, module):
            if not trainer.sanity_checking:
                self.seen.append({name: float(value) for name, value in trainer.callback_metrics.items()})

    def run(*callbacks):
        torch.manual_seed(0)
        logged, module = Logged(), Lit()
        trainer = lightning.Trainer(
            max_epochs=2,
            callbacks=[*callbacks, logged],
            accelerator="cpu",
            logger=False,
            enable_checkpointing=len(callbacks) > 1,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=tmp_path,
        )
        trainer.fit(module, DataLoader(TRAIN, batch_size=50, shuffle=True), DataLoader(VAL, batch_size=50))
        return logged.seen, module

    return run


def test_figures_are_logged_and_a_guard_is_left(fit, tmp_path):
    from sirc.deploy.lightning import GuardCallback

    callback = GuardCallback(TRAIN, VAL, ood={"far": FAR}, path=tmp_path / "guard.safetensors", recall=0.9)
    seen, module = fit(callback)
    assert len(seen) == 2
    assert seen[0] != seen[1]
    assert set(seen[1]) == {f"sirc/{m}/{n}" for m in ("auroc", "aurr") for n in ("wrong", "far", "OOD mean")}
    assert all(module.modes)  # a validation leaves the training as it was

    # The weights have not changed since the last validation: the same by hand.
    head = sirc.find_head(module, VAL.tensors[0][:2])
    scorer = sirc.fit("scod", sirc.extract(module, TRAIN), head=head)
    val, far = sirc.extract(module, VAL), sirc.extract(module, FAR)
    confidence, right = scorer(val)["scod"], val.correct
    ranking = sirc.Ranking(confidence[right], confidence[~right], scorer(far)["scod"])
    assert seen[1]["sirc/auroc/wrong"] == pytest.approx(ranking.auroc("wrong"))
    assert seen[1]["sirc/auroc/far"] == pytest.approx(ranking.auroc("ood"))
    assert seen[1]["sirc/aurr/far"] == pytest.approx(ranking.aurr(0.5, 0.5))

    guard = sirc.load_guard(tmp_path / "guard.safetensors", module)
    assert guard.threshold == callback.guard.threshold
    assert guard.threshold.target == 0.9
    assert torch.equal(guard.calibration, confidence)


def test_the_best_weights_are_guarded_where_asked(fit, tmp_path):
    from lightning.pytorch.callbacks import ModelCheckpoint

    from sirc.deploy.lightning import GuardCallback

    # What is best is set here: the weights of the first epoch.
    callback = GuardCallback(TRAIN, VAL, path=tmp_path / "guard.safetensors", best=True)
    falling = iter([0.9, 0.5])
    callback.measure = lambda _: {"sirc/auroc/wrong": next(falling)}
    checkpoint = ModelCheckpoint(tmp_path, monitor="sirc/auroc/wrong", mode="max", save_top_k=-1, filename="{epoch}")
    _, module = fit(callback, checkpoint)
    first, last = (torch.load(tmp_path / f"epoch={i}.ckpt", weights_only=True)["state_dict"] for i in (0, 1))
    assert checkpoint.best_model_path.endswith("epoch=0.ckpt")
    assert all(torch.equal(module.state_dict()[name], value) for name, value in first.items())
    assert not torch.equal(first["network.0.weight"], last["network.0.weight"])
    guard = sirc.load_guard(tmp_path / "guard.safetensors", module)  # refused with other weights
    assert guard.threshold == callback.guard.threshold

    # One that knows the best may stand behind one that does not; where it saved nothing, the last weights stay.
    callback = GuardCallback(TRAIN, VAL, path=tmp_path / "last.safetensors", score="msp", best=True)
    never = ModelCheckpoint(tmp_path, monitor="sirc/auroc/wrong", save_top_k=0)
    with pytest.warns(sirc.DataWarning, match="of the last weights, not of the best: the trainer saved none"):
        fit(callback, ModelCheckpoint(tmp_path / "all"), never)
    assert callback.guard.threshold is not None

    with pytest.raises(ValueError, match="no checkpoint callback of the trainer monitors a metric"):
        fit(GuardCallback(TRAIN, VAL, path=tmp_path / "other.safetensors", best=True))


def test_a_guard_is_made_on_the_device_of_the_training(fit, tmp_path, monkeypatch):
    from sirc.deploy import lightning as ours

    # By the end of a training Lightning has moved the network to the CPU.
    devices, make = [], ours.guard
    monkeypatch.setattr(
        ours, "guard", lambda *data, device, **options: devices.append(device) or make(*data, device=device, **options)
    )
    fit(ours.GuardCallback(TRAIN, VAL, path=tmp_path / "1.safetensors", score="msp"))
    fit(ours.GuardCallback(TRAIN, VAL, path=tmp_path / "2.safetensors", score="msp", device="cpu:0"))
    assert devices == [torch.device("cpu"), "cpu:0"]


def test_a_score_of_the_logits_needs_no_pass_over_the_training_data(fit, tmp_path):
    from sirc.deploy.lightning import GuardCallback

    callback = GuardCallback([], VAL, path=tmp_path / "guard.safetensors", score="msp")
    measured = callback.measure(nn.Sequential(nn.Linear(6, 4)))
    assert set(measured) == {"sirc/auroc/wrong", "sirc/aurr/wrong"}


def test_what_would_fail_after_the_training_fails_before_it(fit, tmp_path):
    from sirc.deploy.lightning import GuardCallback

    path = tmp_path / "guard.safetensors"
    with pytest.raises(ValueError, match="at least 59"):
        fit(GuardCallback(TRAIN, data(40, 2), path=path))
    path.write_bytes(b"of an earlier training")
    with pytest.raises(FileExistsError):
        fit(GuardCallback(TRAIN, VAL, path=path))
    for wrong in ("photos", 3, iter([VAL[:50]])):
        with pytest.raises(ValueError, match="`val` must be a dataset or a loader; got"):
            GuardCallback(TRAIN, wrong)
    with pytest.raises(ValueError, match="`ood` must be a dict of OOD sets"):
        GuardCallback(TRAIN, VAL, ood=[FAR])


def test_a_network_that_breaks_is_told_and_does_not_stop_the_training(tmp_path):
    from types import SimpleNamespace

    from sirc.deploy.lightning import GuardCallback

    model = nn.Sequential(nn.Linear(6, 4))
    nn.init.constant_(model[0].weight, torch.nan)
    trainer = SimpleNamespace(sanity_checking=False, world_size=1)
    with pytest.warns(sirc.DataWarning, match="nothing is logged of `msp` in this validation: .*NaN"):
        GuardCallback(TRAIN, VAL, score="msp").on_validation_epoch_end(trainer, model)


def test_the_callback_is_of_the_package_that_is_used(monkeypatch):
    import lightning.pytorch
    import pytorch_lightning

    from sirc.deploy.lightning import _callback

    assert _callback() is lightning.pytorch.Callback
    monkeypatch.delitem(sys.modules, "lightning.pytorch")
    assert _callback() is pytorch_lightning.Callback
    for name in ("lightning.pytorch", "pytorch_lightning"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=r"the callback needs lightning: pip install 'torch-sirc\[companions\]'"):
        _callback()
