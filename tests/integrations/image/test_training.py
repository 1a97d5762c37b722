"""Methods on lightly's parts: the same losses with infonce, and runs that outlive kill -9 bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("lightly")
pytest.importorskip("lightning")
from documents import run_blocks
from lightly.loss import NTXentLoss
from lightly.models.utils import batch_shuffle, batch_unshuffle, update_momentum
from PIL import Image
from safetensors.torch import load_file
from torch import nn

from counterpoint.integrations import store
from counterpoint.integrations.image import (
    Encoder,
    ImageSet,
    MoCo,
    Pretraining,
    Settings,
    SimCLR,
    build,
    data,
    evaluation,
    load,
    pretrain,
    pretraining,
    recipe,
    restore,
    train,
    training,
)

SMALL = {"backbone": "conv4", "batch": 64, "subset": 256, "probe": ["knn"], "width": 16}


def views(count: int = 2, size: int = 8, seed: int = 0) -> list[torch.Tensor]:
    return list(torch.rand(count, 12, 3, size, size, generator=torch.Generator().manual_seed(seed)))


def gradients(module: nn.Module) -> dict[str, torch.Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def made(kind, objective="infonce", **settings):
    torch.manual_seed(0)
    return kind(Encoder("conv4", 16, 8), objective, Settings(**settings)).train()


def built(method, objective, size=16, backbone="conv4", **settings):
    return build(Settings(method=method, backbone=backbone, **settings), objective, size)


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        # of the largest one: batch norm leaves some gradients that are zero up to rounding
        assert (value - second[name]).abs().max() <= 1e-6 * max(1.0, float(value.abs().max())), name


@pytest.mark.parametrize("temperature", [0.1, 0.5])
def test_simclr_with_infonce_is_lightlys(temperature):
    ours = made(SimCLR, objective=f"infonce:t={temperature}").double()
    theirs = made(SimCLR).double()
    x = [view.double() for view in views()]
    loss = ours(x)
    loss.backward()
    host = NTXentLoss(temperature=temperature)(*[theirs.head(theirs.encoder(view)) for view in x])
    host.backward()
    assert abs(float((loss - host).detach())) < 1e-6
    same(gradients(ours), gradients(theirs))


def test_moco_with_infonce_is_lightlys_memory_bank_included():
    """Several steps: momentum, the queue's order and its wrap-around are lightly's too."""
    ours, theirs = (made(MoCo, objective="infonce:t=0.2", width=16, queue=30, momentum=0.9).double() for _ in range(2))
    criterion = NTXentLoss(temperature=0.2, memory_bank_size=(30, 16)).double()
    criterion.memory_bank.bank.copy_(ours.criterion.memory_bank.bank)
    sgd = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (ours, theirs)]
    for step in range(5):
        x = [view.double() for view in views(seed=step)]
        torch.manual_seed(step)
        loss = ours(x)
        torch.manual_seed(step)
        update_momentum(theirs.encoder, theirs.key_encoder, 0.9)
        update_momentum(theirs.head, theirs.key_head, 0.9)
        query = theirs.head(theirs.encoder(x[0]))
        with torch.no_grad():
            shuffled, order = batch_shuffle(x[1])
            key = batch_unshuffle(theirs.key_head(theirs.key_encoder(shuffled)), order)
        host = criterion(query, key)
        for one, optimizer in zip((loss, host), sgd, strict=True):
            optimizer.zero_grad()
            one.backward()
        assert abs(float((loss - host).detach())) < 1e-6 * max(1.0, float(host.detach()))
        same(gradients(ours), gradients(theirs))
        assert torch.allclose(ours.criterion.memory_bank.bank, criterion.memory_bank.bank, atol=1e-12)
        assert int(ours.criterion.memory_bank.bank_ptr) == int(criterion.memory_bank.bank_ptr)
        for optimizer in sgd:
            optimizer.step()


def test_moco_keeps_its_queue_in_its_state():
    first, second = made(MoCo, queue=32, width=16), made(MoCo, queue=32, width=16)
    first(views())
    second.load_state_dict(first.state_dict())
    assert torch.equal(first.criterion.memory_bank.bank, second.criterion.memory_bank.bank)
    assert int(second.criterion.memory_bank.bank_ptr) == 12
    assert not any(p.requires_grad for p in second.key_encoder.parameters())


def test_moco_with_several_views_is_arcls_second_algorithm():
    method = made(MoCo, objective="arcl(infonce:t=0.2)", views=3, queue=32, width=16).eval()
    x, bank = views(3), method.criterion.memory_bank.bank.clone()
    unit = nn.functional.normalize
    with torch.no_grad():
        loss = method(x)
        q = [unit(method.head(method.encoder(one))) for one in x]
        k = [unit(method.key_head(method.key_encoder(one))) for one in x]
    pairs = torch.stack([(q[i] * k[j]).sum(1) for i in range(3) for j in range(3) if i != j])
    expected = (-pairs.min(0).values / 0.2 + (q[0] @ bank.T / 0.2).logsumexp(1)).mean()
    assert torch.allclose(loss, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        ("simclr", "adnce:t=0.5,mu=0.7"),
        ("simclr", "arcl(hcl):views=4"),
        ("simclr", "aal(infonce):views=3"),
        ("simclr", "debpos:aggregation=group_mean"),
        ("simclr", "nca"),
        ("simclr", "mixnca:g=g0,lam=0.9"),
        ("simclr", "intcl"),
        ("simclr", "intnacl:base=mixnca + 0.1*dp"),
        ("simclr", "infonce:t=learned(0.2)"),
        ("moco", "hcl:t=0.2"),
    ],
)
def test_every_method_trains_on_a_batch(method, objective):
    torch.manual_seed(0)
    made = built(method, objective, 8, width=16, queue=24, mixed=2).train()
    loss = made(views(made.views))
    loss.backward()
    assert torch.isfinite(loss)
    assert any(p.grad.abs().sum() > 0 for p in made.encoder.parameters())
    assert made.encoder(views()[0]).shape[0] == 12


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v3_small"])
def test_backbones_lose_their_classifier(name):
    encoder = Encoder(name, 32)
    assert encoder.eval()(torch.rand(2, 3, 32, 32)).shape == (2, encoder.width)
    assert encoder.width in (512, 1024)


def test_small_images_get_the_small_stem():
    assert Encoder("resnet18", 32).network.conv1.kernel_size == (3, 3)
    assert Encoder("resnet18", 96).network.conv1.kernel_size == (7, 7)


# ---- batches -----------------------------------------------------------------------------------


def test_every_objective_sees_the_same_views():
    """The first two views do not depend on how many an objective asks for, nor on what it draws itself."""
    seen: dict[str, list[torch.Tensor]] = {}

    def listen(spec):
        method = built("simclr", spec, width=16, mixed=2, epochs=1, batch=64)
        module = Pretraining(method, recipe("digits", 16), seed=3)
        seen[spec] = []
        method.register_forward_pre_hook(lambda _, args: seen[spec].extend(args[0][:2]))
        pretrain(module, load("digits").draw(128))

    for spec in ("infonce", "arcl(infonce):views=4", "mixnca"):
        listen(spec)
    first, *others = seen.values()
    assert len(first) == 4
    for other in others:
        assert all(torch.equal(a, b) for a, b in zip(first, other, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


def test_sogclr_knows_which_image_is_which():
    method = built("simclr", "sogclr:size=128", width=16, epochs=1, batch=64)
    module = Pretraining(method, recipe("digits", 16), seed=3)
    pretrain(module, load("digits").draw(128))
    (log_u,), (before,) = (x.buffers() for x in (method.objective, built("simclr", "sogclr:size=128").objective))
    assert len(log_u) == 256
    assert (log_u != before).all()  # each view of each image has met negatives


@pytest.mark.parametrize("ratio", [0.0, 0.5, 1.0])
def test_false_negatives_are_kept_at_the_ratio(ratio):
    module = Pretraining(built("simclr", "infonce", false_negatives=ratio), recipe("digits", 16))
    y = torch.arange(1000) % 10
    kept = []
    for step in range(20):
        ids = module.ids(y, torch.Generator().manual_seed(step)).get("ids", torch.arange(1000))
        own = torch.eye(1000, dtype=torch.bool)
        pairs = (y.unsqueeze(1) == y) & ~own
        same = ids.unsqueeze(1) == ids
        assert not bool((same & ~pairs & ~own).any())
        kept.append(float((~same)[pairs].float().mean()))
    assert abs(sum(kept) / 20 - ratio) < 0.02


def test_what_cannot_be_trained_is_said_before():
    digits = load("digits").draw(100)
    with pytest.raises(ValueError, match="101 images do not fit into digits with 100"):
        pretraining.batches(digits, Pretraining(built("simclr", "infonce", batch=101), recipe("digits", 16)))
    with pytest.raises(ValueError, match="batch: expected a whole number of at least 2"):
        Settings(batch=1)
    with pytest.raises(ValueError, match="epochs"):
        Settings(epochs=-1)
    with pytest.raises(ValueError, match=r"'resnet19'.*Did you mean 'resnet1"):
        built("simclr", "infonce", backbone="resnet19")
    with pytest.raises(ValueError, match=r"'simclrr'.*Did you mean 'simclr'"):
        Settings(method="simclrr")
    with pytest.raises(ValueError, match="views: expected a whole number of at least 2"):
        Settings(views=1)
    with pytest.raises(ValueError, match="asks for 4 views, got 3"):
        built("simclr", "arcl(infonce):views=4", views=3)
    with pytest.raises(ValueError, match="moco makes no adversarial"):
        built("moco", "intnacl")
    with pytest.raises(ValueError, match="0 < epsilon"):
        Settings(epsilon=-1.0)
    with pytest.raises(ValueError, match=r"'adamm'.*Did you mean 'adam'"):
        Settings(optimizer="adamm")
    with pytest.raises(ValueError, match="weight_decay: expected more than 0"):
        Settings(optimizer="lars", weight_decay=0)
    with pytest.raises(ValueError, match="false_negatives"):
        Settings(method="moco", false_negatives=0.5)
    with pytest.raises(TypeError, match=r"'epoch'.*Did you mean 'epochs'"):
        training.cell("digits", "infonce", 0, epoch=3)


# ---- runs --------------------------------------------------------------------------------------


def grid(cell, root) -> store.Run:
    (done,) = store.run_grid(train, [cell], root, progress=False)
    return done


def tensors(value, at="") -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint by where it is."""
    if isinstance(value, torch.Tensor):
        return {at: value}
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    return {k: v for key, one in items for k, v in tensors(one, f"{at}/{key}").items()}


MOCO = {"method": "moco", "queue": 128, "cosine": True, "warmup": 1, "watch": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "changes", "state"),
    [
        ("adnce:t=schedule(0.5,0.2,9)", MOCO, ["bank"]),
        ("sogclr:size=256,t=0.1", {}, ["log_mean"]),
        ("isogclr:size=256", {}, ["log_mean", "temperatures", "slopes"]),
    ],
)
def test_a_run_that_is_killed_ends_as_if_it_had_not_been(spec, changes, state, tmp_path, monkeypatch):
    """Queue, momentum encoder, schedules of rate and temperature, averages of samples, and log included."""
    cell = training.cell("digits", spec, 1, epochs=4, **SMALL, **changes)
    monkeypatch.setattr(pretraining, "SAVE_EVERY", 0.0)
    whole = grid(cell, tmp_path / "whole")
    code = f"""
import os, signal, torch
torch.set_num_threads(1)
from counterpoint.integrations import store
from counterpoint.integrations.image import pretraining, training
pretraining.SAVE_EVERY, save = 0.0, store.Run.save
def dying(run, state, step):
    save(run, state, step)
    if step == 2:
        run.log(3, loss=0.0)  # logged, but not saved: to be dropped
        os.kill(os.getpid(), signal.SIGKILL)
store.Run.save = dying
store.run_grid(training.train, [{cell!r}], {str(tmp_path / "cut")!r}, progress=False)
"""
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ))
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    equal(whole, grid(cell, tmp_path / "cut"))
    saved = " ".join(tensors(whole.load()))
    assert all(name in saved for name in state), saved


def equal(whole: store.Run, cut: store.Run) -> None:
    assert cut.result == whole.result
    assert cut.metrics() == whole.metrics()
    first, second = tensors(whole.load()), tensors(cut.load())
    assert first.keys() == second.keys()
    assert [name for name, value in first.items() if not torch.equal(value, second[name])] == []


class PowerCut(BaseException):
    """Nothing catches it."""


@pytest.mark.parametrize(
    ("spec", "changes"),
    [
        ("infonce:t=0.2", {"augment": "simclr"}),
        ("intnacl:base=both", {"views": 3}),
        ("adnce:t=schedule(0.5,0.2,3)", MOCO),
    ],
)
def test_what_is_random_goes_on_where_it_was(spec, changes, tmp_path, monkeypatch):
    cell = training.cell("digits", spec, 1, epochs=2, **{**SMALL, "subset": 128}, **changes)
    monkeypatch.setattr(pretraining, "SAVE_EVERY", 0.0)
    whole, save = grid(cell, tmp_path / "whole"), store.Run.save

    def dying(run, state, step):
        save(run, state, step)
        raise PowerCut

    monkeypatch.setattr(store.Run, "save", dying)
    with pytest.raises(PowerCut):
        grid(cell, tmp_path / "cut")
    monkeypatch.setattr(store.Run, "save", save)
    equal(whole, grid(cell, tmp_path / "cut"))


def test_a_finished_training_is_evaluated_when_it_is_resumed(tmp_path, monkeypatch):
    cell = training.cell("digits", "infonce", 0, epochs=1, **SMALL)
    whole = grid(cell, tmp_path / "whole")
    evaluate = training.evaluation.evaluate
    monkeypatch.setattr(training.evaluation, "evaluate", lambda *_: (_ for _ in ()).throw(RuntimeError("power cut")))
    with pytest.raises(store.GridError, match="power cut"):
        grid(cell, tmp_path / "cut")
    monkeypatch.setattr(training.evaluation, "evaluate", evaluate)
    assert grid(cell, tmp_path / "cut").result == whole.result


def test_a_run_can_be_restored(tmp_path, monkeypatch):
    run = grid(training.cell("digits", "infonce:t=0.2", 0, epochs=3, **SMALL), tmp_path)
    monkeypatch.setattr(data, "load", None)  # needs no data
    encoder = restore(run.path).encoder
    exported = load_file(run.path / "encoder.safetensors")
    assert exported.keys() == encoder.state_dict().keys()
    assert all(torch.equal(value, exported[name]) for name, value in encoder.state_dict().items())
    numbers = run.metrics()[-1]
    assert -1 <= numbers["report/negative_mean"] <= numbers["report/positive_mean"] <= 1
    assert 0 < numbers["report/effective_negatives"] <= numbers["report/negatives"]


def test_the_documents_own_network_and_the_encoder_of_a_run(tmp_path):
    run = grid(training.cell("digits", "infonce:t=0.2", 0, epochs=1, **SMALL), tmp_path)
    names = run_blocks("docs/own_models.md", "Images", run.path)
    assert names["z"].shape[0] == len(names["data"])


@pytest.mark.parametrize("dataset", ["digits", "folder", "cifar10"])
@pytest.mark.parametrize("size", [None, 24])
def test_the_size_of_images_is_known_without_them(dataset, size, tmp_path, monkeypatch):
    if dataset == "folder":
        dataset = str(tmp_path)
        for number in range(5):
            Image.new("RGB", (30, 40)).save(tmp_path / f"{number}.png")
    if dataset == "cifar10" and not Path(os.environ.get("COUNTERPOINT_DATA", ""), "cifar10").is_dir():
        pytest.skip("CIFAR-10 is not here")
    assert data.load(dataset, "test", size).size == (data.image_size(dataset, size),) * 2


def test_a_cell_holds_the_own_size_of_a_folder(tmp_path):
    """Which the encoder is rebuilt for after the folder is gone: above 64 pixels, with another stem."""
    Image.new("RGB", (96, 96)).save(tmp_path / "0.png")
    cell = training.cell(str(tmp_path), "infonce", 0, backbone="resnet18")
    (tmp_path / "0.png").unlink()
    assert cell["size"] == 96
    module = training.build(cell, data.image_size(cell["dataset"], cell["size"]))
    assert module.method.encoder.network.conv1.kernel_size == (7, 7)
    assert training.cell("digits", "infonce", 0)["size"] is None


def test_a_set_of_images_prints_in_one_line():
    assert repr(data.load("digits")) == "ImageSet('digits', 1287 images of 16 x 16 pixels, 10 classes)"


def test_one_class_warns_that_accuracies_say_nothing():
    digits = data.load("digits")
    alone = digits[digits.y == 0]
    with pytest.warns(RuntimeWarning, match="digits: all images have the same class"):
        evaluation.check_probes(["knn"], alone, alone)


def test_a_batch_that_does_not_fit_names_the_flag():
    with pytest.raises(ValueError, match=r"give --batch 1287 or less"):
        pretraining.batches(
            data.load("digits"), Pretraining(built("simclr", "infonce", batch=2000), recipe("digits", 16))
        )


def test_the_seed_fixes_the_start_whatever_the_objective():
    one, other = (
        training.build(training.cell("digits", spec, 5, **SMALL), 16).method.encoder.state_dict()
        for spec in ("infonce", "arcl(hcl):views=4")
    )
    assert all(torch.equal(value, other[name]) for name, value in one.items())


def test_tuning_does_not_see_the_test_images(monkeypatch):
    asked = []
    real = data.load
    monkeypatch.setattr(data, "load", lambda *a: asked.append(a[1]) or real(*a))
    found = data.prepare(training.cell("digits", "infonce", 0, part="tune"))
    assert asked == ["train"]
    assert found.test is found.validation


def test_bfloat16_changes_little():
    losses = []
    for precision in ("32-true", "bf16-mixed"):
        torch.manual_seed(0)
        method = built("simclr", "infonce:t=0.1", width=16, epochs=1, batch=64, precision=precision)
        losses.append(pretrain(Pretraining(method, recipe("digits", 16)), load("digits").draw(128)))
    assert losses[0] != losses[1]
    assert abs(losses[0] - losses[1]) < 0.05 * losses[0]


def test_probes_see_the_images_that_have_classes_where_others_have_none(tmp_path, monkeypatch):
    """STL-10's 5000 among 100,000 others."""

    def partly(name, split="train", *_):
        found = load("digits", split)
        without = (torch.arange(len(found)) % 4 > 0) & (split == "train")
        return replace(found, y=found.y.masked_fill(without, -1))

    monkeypatch.setattr(data, "load", partly)
    given = training.cell("stl10-unlabelled", "infonce", 0, **{**SMALL, "subset": None}, epochs=1, watch=1)
    parts = data.prepare(given)
    assert len(parts.train) > 3 * len(parts.labelled) > 0
    assert parts.labelled.labelled
    assert parts.validation.labelled
    done = grid(given, tmp_path)
    assert done.result["knn"] > 20
    assert "validation_knn" in done.metrics()[-1]


def test_lars_leaves_biases_and_normalisation_alone():
    """Neither scaled nor decayed: SimCLR, section B.6; one step is plain SGD's there."""
    method = built("moco", "infonce", queue=64, lr=0.5, optimizer="lars", weight_decay=0.1)
    lars = Pretraining(method, recipe("digits", 16)).optimizer()
    names = {id(p): name for name, p in method.named_parameters()}
    assert {names[id(p)] for group in lars.param_groups for p in group["params"]} == {
        name for name, p in method.named_parameters() if p.requires_grad
    }
    before = {name: p.detach().clone() for name, p in method.named_parameters()}
    method(views(size=16)).backward()
    lars.step()
    for name, p in method.named_parameters():
        if p.grad is not None:
            alone = torch.equal(p, before[name] - 0.5 * p.grad)
            assert alone == (p.dim() == 1), name


def test_labels_are_not_looked_at_unless_asked():
    digits = load("digits").draw(128)
    hidden = ImageSet("digits", digits.x, torch.full_like(digits.y, -1))
    weights = []
    for images in (digits, hidden):
        torch.manual_seed(0)
        module = Pretraining(built("simclr", "infonce", width=16, epochs=1, batch=64), recipe("digits", 16))
        pretrain(module, images)
        weights.append(module.state_dict())
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    method = built("simclr", "infonce", epochs=1, batch=64, false_negatives=0.0)
    with pytest.raises(ValueError, match="every image needs a class"):
        pretrain(Pretraining(method, module.recipe), hidden)


@pytest.fixture
def interruptible():
    """Shells let background jobs ignore Ctrl-C."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_is_ctrl_c(tmp_path, monkeypatch):
    """Lightning alone would exit, and ignore the signal from then on."""
    cell = training.cell("digits", "infonce", 0, epochs=2, **{**SMALL, "subset": 128})
    whole = grid(cell, tmp_path / "whole")
    monkeypatch.setattr(pretraining, "SAVE_EVERY", 0.0)
    save, handler = store.Run.save, signal.getsignal(signal.SIGINT)

    def stopping(run, state, step):
        save(run, state, step)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(store.Run, "save", stopping)
    with pytest.raises(KeyboardInterrupt):
        grid(cell, tmp_path / "cut")
    assert signal.getsignal(signal.SIGINT) is handler
    monkeypatch.setattr(store.Run, "save", save)
    assert grid(cell, tmp_path / "cut").result == whole.result
