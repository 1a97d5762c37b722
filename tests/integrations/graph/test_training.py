"""Pre-training of graph encoders: GraphCL's loss, every objective, and runs that survive what interrupts them."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import signal
import time
from pathlib import Path

import pytest
import torch

pytest.importorskip("torch_geometric")

from documents import run_blocks
from processes import fresh
from safetensors.torch import load_file
from torch_geometric.nn import GCN, global_add_pool

import counterpoint as cp
from counterpoint.install import install
from counterpoint.integrations import graph
from counterpoint.integrations.command.main import main
from counterpoint.integrations.graph import data as data_module
from counterpoint.integrations.graph import training
from counterpoint.integrations.graph.data import part
from counterpoint.integrations.graph.presets import preset
from counterpoint.integrations.report.papers import paper_settings
from counterpoint.integrations.store.files import signature, signed
from counterpoint.integrations.store.grid import run_grid
from counterpoint.integrations.store.run import Run

TU = Path(os.environ.get("COUNTERPOINT_DATA", "."), "tu")
needs_tu = pytest.mark.skipif(
    not (os.environ.get("COUNTERPOINT_DATA") and TU.is_dir()), reason="COUNTERPOINT_DATA with TU data sets is not set"
)
EVERY = [
    name if not issubclass(kind, cp.Wrapper) else f"{name}(hcl){':views=3' * issubclass(kind, cp.ArCL)}"
    for name, kind in cp.registry.items()
]
EVERY = [spec for spec in EVERY if not cp.objective(spec).needs]


@pytest.fixture(scope="module")
def data():
    return graph.demo(60)


def model_of(data, objective, seed=0, **how):
    torch.manual_seed(seed)
    augment = graph.augmentation(how.pop("augment", "random4"), seed)
    return graph.Pretraining(graph.Encoder(data.x.shape[1]), objective, augment, **how)


def test_sogclr_knows_which_graph_is_which(data):
    model = model_of(data, "sogclr:size=60")
    chosen = torch.tensor([3, 41, 17, 58])
    model(data.batch(chosen)).backward()
    (log_u,) = model.criterion.objective.buffers()
    assert (log_u[:60] != log_u[0]).nonzero().flatten().tolist() == sorted(chosen.tolist())


def official_graphcl(x, x_aug, t):
    """The formula of GraphCL's loss_cal, on the exponentials themselves."""
    cosine = (x @ x_aug.T) / (x.norm(dim=1).unsqueeze(1) * x_aug.norm(dim=1))
    e = (cosine / t).exp()
    positive = e.diagonal()
    return -(positive / (e.sum(1) - positive)).log().mean()


def official_adnce(x, x_aug, t, mu, sigma):
    """The formula of its fork's loss_cal with --mode adnce: weights of mean one, the mean over negatives."""
    cosine = (x @ x_aug.T) / (x.norm(dim=1).unsqueeze(1) * x_aug.norm(dim=1))
    n = len(x)
    negative = cosine[~torch.eye(n, dtype=torch.bool)].view(n, n - 1)
    weight = (-((negative - mu) ** 2) / (2 * sigma**2)).exp().detach()
    weight = weight / weight.mean(1, keepdim=True)
    return -((cosine.diagonal() / t).exp() / (weight * (negative / t).exp()).mean(1)).log().mean()


@pytest.mark.parametrize(
    ("spec", "official"),
    [
        (preset("graphcl", "MUTAG").objective, lambda x, y: official_graphcl(x, y, 0.2)),
        (preset("adnce", "MUTAG").objective, lambda x, y: official_adnce(x, y, 0.15, 0.7, 1.0)),
        (preset("adnce", "PROTEINS").objective, lambda x, y: official_adnce(x, y, 0.05, 1.5, 1.0)),
    ],
)
def test_presets_are_the_official_losses_on_the_real_encoder(data, spec, official):
    model = model_of(data, spec).double()
    batch = data.batch(torch.arange(40))
    batch.x = batch.x.double()
    view = graph.augmentation("random4", 0)(batch)
    model(batch)  # the running statistics of batch norm aside, a call changes nothing
    model.augment = [lambda _: view]
    results = []
    for loss in (model(batch), official(model.project(batch), model.project(view))):
        model.zero_grad()
        loss.backward()
        results.append((loss.item(), torch.cat([p.grad.flatten() for p in model.parameters()])))
    (ours, our_gradient), (theirs, their_gradient) = results
    assert ours == pytest.approx(theirs, rel=1e-9, abs=1e-9)
    assert (our_gradient - their_gradient).norm() < 1e-6 * their_gradient.norm()
    assert their_gradient.norm() > 0


@pytest.mark.parametrize("pairing", ["one_way", None])
@pytest.mark.parametrize("spec", EVERY)
def test_every_objective_trains(data, spec, pairing):
    model = model_of(data, spec, pairing=pairing)
    before = [p.clone() for p in model.parameters()]
    graph.pretrain(model, data, epochs=1, batch=32)
    assert all(bool(p.isfinite().all()) for p in model.parameters())
    assert not all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert bool(torch.tensor(graph.embed(model.encoder, data)).isfinite().all())


@pytest.mark.parametrize("spec", ["intnacl:t=0.5,base=both", "intcl:t=0.5", "mixnca:t=0.5"])
def test_objectives_of_adversarial_and_mixed_images_are_refused(data, spec):
    with pytest.raises(ValueError, match=r"needs (adversarial|mixed).* views of images"):
        model_of(data, spec)


def test_arcl_gets_as_many_views_as_it_asks_for(data):
    model = model_of(data, "arcl(infonce:t=0.2):views=4")
    assert len(model.augment) == 3
    seen = []
    model.encoder.register_forward_hook(lambda module, args, out: seen.append(args[0]))
    model(data.batch(torch.arange(20)))
    assert len(seen) == 4
    assert torch.equal(seen[0], data.batch(torch.arange(20)).x)
    with pytest.raises(ValueError, match="4 views need 3 augmentations, got 1"):
        graph.Pretraining(graph.Encoder(1), "arcl(infonce):views=4", [graph.DropNodes()])


def test_views_are_the_same_whatever_the_objective(data):
    """What pairs the seeds of a comparison: start, order, and the first augmented view."""
    found = []
    for spec in ("infonce:t=0.2", "arcl(hcl):views=4", "dcl"):
        model = training.build(training.cell("demo", spec, 3), data.x.shape[1])
        found.append((model.encoder.state_dict(), model.augment[0](data.batch(torch.arange(30)))))
    for state, view in found[1:]:
        assert all(torch.equal(state[k], found[0][0][k]) for k in state)
        assert torch.equal(view.edge_index, found[0][1].edge_index)
        assert torch.equal(view.x, found[0][1].x)


def test_training_helps_and_the_seed_repeats_it(data):
    data = graph.demo(180)
    accuracies, states = {}, []
    for epochs in (0, 10, 10):
        model = model_of(data, "infonce:t=0.2,denominator=negatives", augment="random2")
        graph.pretrain(model, data, epochs=epochs, seed=1)
        states.append(model.state_dict())
        if epochs not in accuracies:
            accuracies[epochs] = graph.evaluate(graph.embed(model.encoder, data), data.y, folds=5).accuracy
    assert all(torch.equal(states[1][k], states[2][k]) for k in states[1])
    chance = 100 / 6
    assert accuracies[0] > chance + 15
    assert accuracies[10] > accuracies[0] + 5


class Own(torch.nn.Module):
    """An encoder of one's own, of a model of nodes."""

    def __init__(self, width):
        super().__init__()
        self.model = GCN(width, 16, 2)

    def forward(self, x, edge_index, batch, batch_size=None):
        return global_add_pool(self.model(x, edge_index), batch, batch_size)


def test_the_width_of_ones_own_model_can_be_an_argument(data):
    own = Own(data.x.shape[1])
    with pytest.raises(
        ValueError, match=r"out_channels: expected the number of columns of Own's output, got None; pass"
    ):
        graph.Pretraining(own)
    with pytest.raises(ValueError, match=r"out_channels: expected 16, the encoder's columns, got 32\."):
        graph.Pretraining(own, out_channels=32)(data.batch(torch.arange(8)))
    model = graph.Pretraining(own, out_channels=16)
    assert torch.isfinite(model(data.batch(torch.arange(8))))
    assert graph.embed(own, data).shape == (60, 16)


class Usual(Own):
    """As most models of PyG, it gets no number of graphs."""

    def forward(self, x, edge_index, batch):
        return super().forward(x, edge_index, batch, None)


def test_a_forward_of_three_arguments_is_enough(data):
    usual, own = Usual(data.x.shape[1]), Own(data.x.shape[1])
    usual.load_state_dict(own.state_dict())
    assert (graph.embed(usual, data) == graph.embed(own, data)).all()
    assert bool(graph.Pretraining(usual, out_channels=16)(data.batch(torch.arange(4))).isfinite())
    with pytest.raises(TypeError, match="expected a GraphSet, got list"):
        graph.embed(usual, [data])


def test_the_documents_own_model_and_the_encoder_of_a_run(tmp_path, monkeypatch):
    """Without the data: the set of the run is gone when its encoder is taken out."""
    monkeypatch.chdir(tmp_path)
    cell = training.cell("demo", "infonce:t=0.2", 0, epochs=1, folds=2, hidden=8, features="degree")
    (run,) = run_grid(training.train, [cell], tmp_path / "runs", progress=False)
    z = graph.embed(graph.restore(run).encoder, graph.demo(features="degree"))
    monkeypatch.setattr(data_module, "load", None)
    data_module.load_cached.cache_clear()
    encoder = graph.restore(run.path).encoder
    assert (graph.embed(encoder, graph.demo(features="degree")) == z).all()
    exported = load_file(run.path / "encoder.safetensors")
    assert exported.keys() == encoder.state_dict().keys()
    assert all(torch.equal(exported[name], value) for name, value in encoder.state_dict().items())


def test_the_documents_own_graph_model_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cell = training.cell("demo", "infonce:t=0.2", 0, epochs=1, folds=2, hidden=8)
    (run,) = run_grid(training.train, [cell], tmp_path / "runs", progress=False)
    names = run_blocks("docs/own_models.md", "Graphs", run.path)
    assert names["z"].shape == (60, 24)
    assert (tmp_path / "encoder.pt").exists()


def test_a_set_of_graphs_prints_in_one_line(data):
    sizes = f"{len(data.x)} nodes of 1 features, {data.edge_index.shape[1]} edges"
    assert repr(data) == f"GraphSet('demo', 60 graphs of 6 classes, {sizes})"


def test_embedding_leaves_the_modes_as_they_were_and_needs_no_batches(data):
    encoder = graph.Encoder(data.x.shape[1])
    encoder.norms[1].eval()
    whole, parts = graph.embed(encoder, data), graph.embed(encoder, data, batch=7)
    assert whole == pytest.approx(parts, rel=1e-5, abs=1e-5)
    assert encoder.training
    assert [norm.training for norm in encoder.norms] == [True, False, True]


def test_an_encoder_that_does_not_pool_is_told_so(data):
    class Nodes(torch.nn.Linear):
        def forward(self, x, edge_index, batch):
            return super().forward(x)

    with pytest.raises(ValueError, match=f"a row for each of {len(data)} graphs, got {len(data.x)}: pool its nodes"):
        graph.embed(Nodes(data.x.shape[1], 4), data)


class WithData(torch.nn.Linear):
    def forward(self, data):
        return super().forward(data.x)


class WithNodes(torch.nn.Linear):
    def forward(self, x, edge_index, batch):
        z = super().forward(x)
        return z, z


@pytest.mark.parametrize(
    ("encoder", "said"),
    [
        (WithData, r"expected forward\(x, edge_index, batch\), but that of WithData: too many"),
        (WithNodes, r"expected one tensor \(graphs, width\), got tuple"),
    ],
)
def test_an_encoder_of_another_form_is_told_so(data, encoder, said):
    with pytest.raises(TypeError, match=said):
        graph.embed(encoder(data.x.shape[1], 4), data)


def test_embeddings_with_a_gradient_are_evaluated(data):
    z = torch.randn(len(data), 4, requires_grad=True)
    assert graph.evaluate(z, data.y, folds=2).folds == graph.evaluate(z.detach().numpy(), data.y, folds=2).folds


def test_a_last_graph_alone_is_left_out_of_an_epoch():
    generator = torch.Generator().manual_seed(0)
    seen = [index.tolist() for index in training.batches(9, 4, generator)]
    assert [len(index) for index in seen] == [4, 4]
    assert torch.cat(list(training.batches(10, 4, generator))).sort().values.tolist() == list(range(10))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda d: graph.pretrain(model_of(d, "infonce"), d, batch=1), "at least 2 graphs"),
        (lambda d: graph.pretrain(model_of(d, "infonce"), d, lr=0), "expected lr > 0"),
        (lambda d: model_of(d, "infonce")(d.batch(torch.tensor([3]))), "a batch of 1 graph has nothing to compare"),
        (lambda d: model_of(d, "infonce", pairing="oneway"), "unknown pairing 'oneway'. Did you mean 'one_way'?"),
        (lambda d: graph.Encoder(0), "width must be a whole number of at least 1, got 0"),
        (lambda d: preset("adnce", "MUTAGG"), "no settings for 'MUTAGG'. Did you mean 'MUTAG'?"),
        (lambda d: preset("ADNC", "MUTAG"), "unknown preset"),
        (lambda d: part(d, "test"), "unknown part 'test'"),
    ],
)
def test_wrong_arguments_are_named(data, wrong, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        wrong(data)


# ---- runs --------------------------------------------------------------------------------------

SHORT = {"epochs": 3, "folds": 3, "batch": 64}
GRID = [
    cell
    for seed in range(2)
    for cell in (
        training.bag("demo", seed, **SHORT),
        training.untrained("demo", seed, **SHORT),
        training.cell("demo", "hcl", seed, **SHORT),
        training.cell("demo", "arcl(infonce + 0.1*dp):views=3", seed, **SHORT),
    )
]


def results(done):
    return [(run.name, run.arguments["seed"], run.result, run.details, run.metrics()) for run in done]


def test_parts_are_stratified_and_do_not_meet(data):
    tune, report = (part(data, name) for name in ("tune", "report"))
    assert not set(tune) & set(report)
    assert sorted([*tune, *report]) == list(range(60)) == list(part(data, "all"))
    assert type(tune) is type(report) is type(part(data, "all"))  # arrays, as of all
    assert data.y[tune].bincount().tolist() == [3] * 6


def test_what_is_tuned_on_is_not_reported_and_the_reverse(tmp_path, monkeypatch):
    """Spoiling the classes of the one part changes nothing of what a run finds on the other."""
    clean = graph.demo(60)
    for kept, spoiled in (("tune", "report"), ("report", "tune")):
        cell = training.cell("demo", "hcl", 0, part=kept, **SHORT)
        y = clean.y.clone()
        y[part(clean, spoiled)] = torch.randperm(len(part(clean, spoiled))) % 6
        found = []
        for name, classes in (("clean", clean.y), ("spoiled", y)):
            changed = graph.GraphSet("demo", clean.x, clean.edge_index, classes, clean.nodes, clean.edges)
            rows = part(clean, kept)
            monkeypatch.setattr(data_module, "load_cached", lambda *_, d=changed: d)
            monkeypatch.setattr(data_module, "part", lambda *_, r=rows: r)
            (run,) = run_grid(training.train, [cell], tmp_path / kept / name, progress=False)
            found.append(run.result)
            monkeypatch.undo()
        assert found[0] == found[1]


@pytest.mark.slow
def test_the_official_protocol_takes_the_last_epoch_and_says_what_choosing_would_add(tmp_path):
    cell = training.cell("demo", "hcl", 0, **{**SHORT, "epochs": 21, "protocol": "official", "probe": "knn"})
    (run,) = run_grid(training.train, [cell], tmp_path, progress=False)
    assert all(0 < line["report/effective_negatives"] <= line["report/negatives"] for line in run.metrics())
    looks = {line["step"]: line["accuracy"] for line in run.metrics() if "accuracy" in line}
    assert set(looks) == {10, 20, 21}
    assert run.result == {"accuracy": looks[21], "best look": max(looks.values())}
    assert run.details["epoch"] == 21
    assert run.record["axis"] == "epoch"
    assert sum(run.details["folds"]) / 3 == pytest.approx(run.result["accuracy"])


def _grid_that_saves_often(root):
    training.SAVE_EVERY = 0.0
    run_grid(training.train, GRID, root, progress=False)


@pytest.mark.slow
def test_killed_at_random_moments_a_grid_ends_in_the_same_table(tmp_path):
    """SIGKILL again and again, with a checkpoint after every epoch: the same results, details and logs."""
    undisturbed = run_grid(training.train, GRID, tmp_path / "calm", progress=False)
    root, random, kills = tmp_path / "killed", torch.Generator().manual_seed(0), 0
    for _ in range(20):
        process = multiprocessing.get_context("fork").Process(target=_grid_that_saves_often, args=(root,))
        begun = {path: path.stat().st_mtime_ns for path in root.rglob("checkpoint.pt")}
        process.start()
        # not before it has come a step further, so that this ends; then at any moment
        while process.is_alive() and begun == {p: p.stat().st_mtime_ns for p in root.rglob("checkpoint.pt")}:
            time.sleep(0.01)
        process.join(timeout=0.5 * float(torch.rand(1, generator=random)))
        if process.is_alive():
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
        if process.exitcode == 0:
            break
    assert kills >= 3
    assert process.exitcode == 0
    assert results(run_grid(training.train, GRID, root, progress=False)) == results(undisturbed)


def test_the_command_trains_compares_and_evaluates(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(data_module, "load", lambda name, features: graph.demo(60, features=features))
    data_module.load_cached.cache_clear()
    words = ["--epochs", "2", "--folds", "2", "--seeds", "2", "--out", str(tmp_path)]
    assert main(["train", "graph", "--objective", "hcl", "dcl:t=0.2", *words]) == 0
    table = capsys.readouterr().out
    for row in (training.BAG, training.UNTRAINED, "hcl", "dcl:t=0.2"):
        assert re.search(rf"^{re.escape(row)}.* \d+\.\d+ ± \d+\.\d+ \(2\)", table, re.M)
    assert main(["train", "graph", "--objective", "hcl", *words, "--json"]) == 0
    known = {(one["name"], one["seed"]): one["accuracy"] for one in json.loads(capsys.readouterr().out)}
    assert len(known) == 3 * 2

    words = ["--folds", "2", "--seeds", "1", "--probe", "svm", "knn", "--json"]
    assert main(["eval", "graph", str(tmp_path), *words]) == 0
    evaluated = json.loads(capsys.readouterr().out)
    # the bag once, the untrained encoder once a seed, each run once; by two probes
    assert len(evaluated) == (1 + 2 + 4) * 2
    for one in evaluated:
        if one["probe"] == "svm" and one["name"].startswith("hcl") and f"seed{one['seed']}" in one["which"]:
            assert one["accuracy"] == known[one["name"], one["seed"]]
    data_module.load_cached.cache_clear()


@pytest.mark.slow
def test_runs_of_another_machine_are_evaluated(tmp_path, capsys):
    """What a GPU has trained, where there is none."""
    (run,) = run_grid(training.train, [training.cell("demo", "hcl", 0, **SHORT)], tmp_path, progress=False)
    record = json.loads((run.path / "run.json").read_text())
    record["arguments"]["device"] = "cuda:7"
    (run.path / "run.json").write_text(json.dumps(signed(record)))
    checkpoint = torch.load(run.path / "checkpoint.pt", weights_only=True)
    torch.save({**checkpoint, "run": signature(record["arguments"])}, run.path / "checkpoint.pt")
    assert main(["eval", "graph", str(tmp_path), "--folds", "3", "--seeds", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[-1]["accuracy"] == run.result["accuracy"]


@needs_tu
def test_a_shortened_preset_has_no_number_of_the_paper_beside_it(tmp_path, capsys):
    words = ["--data", "MUTAG", "--preset", "adnce", "--epochs", "1", "--out", str(tmp_path), "--probe", "knn"]
    assert main(["train", "graph", *words]) == 0
    out = capsys.readouterr().out
    assert "adnce:t=0.15,denominator=mean" in out
    assert "Table 10" not in out
    runs = [Run.read(path.parent) for path in tmp_path.rglob("run.json")]
    assert len({run.record["data"] for run in runs}) == 1
    assert {run.arguments["augment"] for run in runs} == {"random2"}
    assert main(["eval", "graph", str(tmp_path), "--data", "demo"]) == 2
    assert "does not fit demo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "graph", "--data", "demo", "--folds", "80"], "class 0 has 50 graphs, 80 folds need 80"),
        (["train", "graph", "--data", "a/b"], "'a/b' is not the name of a data set"),
        (["train", "graph", "--root", "/nowhere"], "/nowhere is not a folder"),
        (["train", "graph", "--preset", "adnce"], "the paper has no settings for 'demo'"),
        (["eval", "graph", "/nowhere"], "/nowhere: no such folder"),
    ],
)
def test_commands_say_what_is_wrong_in_one_line(capsys, words, says):
    assert main(words) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith(f"counterpoint {words[0]} {words[1]}: ")
    assert error.count("\n") == 1


@pytest.mark.parametrize("flag", ["--batch=1", "--layers=0", "--hidden=-3", "--hops=0", "--folds=1"])
def test_wrong_numbers_are_refused_before_anything_is_trained(tmp_path, capsys, flag):
    with pytest.raises(SystemExit) as stopped:
        main(["train", "graph", "--epochs", "1", "--out", str(tmp_path / "runs"), flag])
    assert stopped.value.code == 2
    assert f"{flag.partition('=')[0]}: expected a whole number of at least" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_the_adnce_preset_is_the_papers_table():
    recipe = preset("adnce", "PROTEINS")
    assert recipe.objective == "adnce:t=0.05,mu=1.5,sigma=1.0,denominator=mean"
    assert recipe.settings == {"augment": "random4"}
    augments = {"NCI1": "random3", "COLLAB": "random4", "DD": "random2", "MUTAG": "random2", "IMDB-BINARY": "random2"}
    augments |= {"PROTEINS": "random4", "REDDIT-BINARY": "random2", "REDDIT-MULTI-5K": "random2"}
    for dataset, augment in augments.items():
        known = paper_settings("graph", dataset)
        recipe = preset("adnce", dataset)
        assert cp.objective(recipe.objective) == cp.ADNCE(known["t"], known["mu"], known["sigma"], denominator="mean")
        assert recipe.settings == preset("graphcl", dataset).settings == {"augment": augment}


@pytest.mark.parametrize("package", ["torch_geometric", pytest.param("safetensors", marks=pytest.mark.slow)])
def test_a_missing_framework_is_one_error_that_names_the_extra(package):
    """Also one that a run would need only when its training has ended."""
    code = (
        f"import sys; sys.modules[{package!r}] = None\n"
        "from counterpoint.integrations.command.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit as stopped: assert not stopped.code\n"
        "try: main(['train', 'graph', '--help'])\n"
        "except SystemExit as stopped: assert not stopped.code\n"
        "print(main(['train', 'graph']))"
    )
    *helped, said, ended = fresh(code).splitlines()
    assert ended == "2"
    assert said == f"counterpoint train graph: graphs need {package}: {install('graph')}"
    assert any("train graph" in line for line in helped)
