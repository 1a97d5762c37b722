"""Treatments in unmodified scripts: odd values at their paths work, or are one clear error."""

from __future__ import annotations

import sys
from collections import defaultdict
from types import SimpleNamespace

import pytest
import torch
from torch import distributed, multiprocessing

import counterpoint as cp
from counterpoint.plugins import inject
from counterpoint.plugins.paths import at_path, look_up

SCRIPT = """
import torch, torch.nn.functional as F
torch.manual_seed(0)
net, centers = torch.nn.Linear(20, 8), torch.randn(4, 20)


class Bad:
    @property
    def labels(self):
        raise RuntimeError("no labels yet")


def loss(a, b, ids):
    logits = a @ b.T / 0.1
    return F.cross_entropy(logits, torch.arange(8))


for _ in range(2):
    y, bad = torch.arange(8) % 4, Bad()
    a, b = (F.normalize(net(x), dim=1) for x in (centers[y] + torch.randn(8, 20), centers[y]))
    loss(a, b, {ids}).backward()
"""
IDS = torch.tensor([0, 1, 2, 0, 4, 5])
LINE = next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if "return F.cross_entropy" in line)
AT_LOGITS = ["logits", "--site", f"toy.py:{LINE}"]
AT_FUNCTION = ["function", "--replace", "toy.py:loss(a, b)", "--as", "pairing=one_way", "--own", "infonce:t=0.1"]


@pytest.fixture
def train(tmp_path, monkeypatch, capsys):
    """Runs the script with a treatment; returns the exit code and what was said."""

    def run(words, ids, objective="infonce:t=0.1; ids=ids", script=SCRIPT):
        monkeypatch.chdir(tmp_path)
        monkeypatch.setattr(sys, "argv", sys.argv)
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        (tmp_path / "toy.py").write_text(script.replace("{ids}", ids))
        try:
            code = inject.main([*words, "--objective", objective, "--", "toy.py"])
        finally:
            sys.modules.pop("toy", None)
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize("ids", ["y", "y.tolist()", "[str(int(i)) for i in y]", "y.numpy()"])
@pytest.mark.parametrize("words", [AT_LOGITS, AT_FUNCTION], ids=["logits", "function"])
def test_ids_of_many_kinds(train, words, ids):
    code, said = train(words, ids)
    assert code == 0, said
    assert words is AT_FUNCTION or "left out 1 keys on average" in said


@pytest.mark.parametrize("words", [AT_LOGITS, AT_FUNCTION], ids=["logits", "function"])
def test_ids_of_the_next_batch_in_the_same_buffer(train, words):
    """A loader may fill it between a loss and its backward pass; then all samples would be one."""
    script = SCRIPT.replace(", {ids}).backward()", ", ids := y.clone()) * (1 + 0 * len(ids.zero_()))).backward()")
    code, said = train(words, "", script=script.replace("    loss(a, b", "    (loss(a, b"))
    assert code == 0, said
    assert words is AT_FUNCTION or "left out 1 keys on average" in said


def test_ids_that_change_nothing_are_said(train):
    code, said = train(AT_LOGITS, "torch.arange(8)")
    assert (code, "left out 0 keys on average: it did nothing" in said) == (0, True), said


def test_duplicates_that_are_none_are_said(train):
    dropout = SCRIPT.replace("centers[y]))", "centers[y] + torch.randn(8, 20)))")
    code, said = train(AT_LOGITS, "y", "infonce:t=0.1; duplicates", dropout)
    explained = "it did nothing; with dropout or augmentation, equal samples do not embed equally: name them" in said
    assert (code, explained) == (0, True), said


@pytest.mark.parametrize("words", [AT_LOGITS, AT_FUNCTION], ids=["logits", "function"])
def test_log_probabilities_of_the_keys(train, words):
    code, said = train(words, "torch.linspace(-3, 0, 8)", "hcl:t=0.1; log_q=ids")
    assert (code, "did nothing" in said) == (0, False), said
    code, said = train(words, "torch.linspace(-3, 0, 5)", "hcl:t=0.1; log_q=ids")
    assert (code, "log_q: expected a number per key, 8 in all, got shape (5)" in said) == (2, True), said


@pytest.mark.parametrize(
    ("ids", "why"),
    [
        ("y.float()", "expected whole numbers or rows, got torch.float32 of shape (8,)"),
        ("y[0]", "expected whole numbers or rows, got torch.int64 of shape ()"),
        ("'abcdefgh'", "a list of texts or whole numbers, got str"),
        ("dict.fromkeys(range(8))", "a list of texts or whole numbers, got dict"),
        ("(int(i) for i in y)", "a list of texts or whole numbers, got generator"),
        ("[None] * 8", "a list of texts or whole numbers, got list"),
        ("5", "a list of texts or whole numbers, got int"),
        ("y[:5]", "expected one value for each of 8 anchors or 8 keys, got 5"),
        ("None", "ids=ids: it is None"),
    ],
)
def test_other_ids_are_one_clear_error(train, ids, why):
    code, said = train(AT_LOGITS, ids)
    assert (code, why in said) == (2, True), said
    assert "no cross entropy was called" not in said
    assert "the loss was reached" not in said  # nothing stands behind the error


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("bad.labels", "bad has no .labels: no labels yet"),
        ("yy", "no such name here or in the callers. Did you mean 'y'? Known: y"),
    ],
)
def test_paths_that_lead_nowhere(train, path, why):
    code, said = train(AT_LOGITS, "y", f"host; ids={path}")
    assert (code, why in said) == (2, True), said
    assert "__name__" not in said
    assert "torch," not in said
    assert len(said) < 1000


GRAPHS = """
import torch, torch.nn.functional as F
from types import SimpleNamespace
net = torch.nn.Linear(20, 8)


class Batch(SimpleNamespace):  # as PyG's, which can be called
    def __call__(self):
        return self

    def __len__(self):
        return 3


def loss(a, b):
    return F.cross_entropy(a @ b.T / 0.1, torch.arange(8))


for _ in range(3):
    b = Batch(x=torch.randn(8, 20), y=torch.arange(8) % 2, doc=torch.arange(8) % 5)
    loss(*(F.normalize(net(b.x + torch.randn(8, 20)), dim=1) for _ in range(2))).backward()
"""


def test_a_parameter_does_not_hide_the_data_of_a_caller(train):
    code, said = train(AT_FUNCTION, "", "infonce:t=0.1; labels=b.y", GRAPHS)
    assert (code, "trained in 3 of them" in said) == (0, True), said


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("b.z", "b has no .z: 'Tensor' object has no attribute 'z', in toy.py:loss, nor in its callers"),
        ("y", "no such name here or in the callers. Did you mean b.y?"),
        ("data.y", "no such name here or in the callers. Did you mean b.y?"),
        ("graphs", "`counterpoint inject auto` lists the paths that fit."),
    ],
)
def test_a_wrong_path_is_an_error_in_the_first_step(train, path, why):
    """Not once the steps that compare the losses are over."""
    code, said = train([*AT_FUNCTION, "--verify", "2"], "", f"infonce:t=0.1; labels={path}", GRAPHS)
    assert (code, why in said) == (2, True), said


def test_looks_up_names_attributes_and_items_and_nothing_else():
    names = {"batch": {"doc": [IDS]}, "self": SimpleNamespace(y=IDS)}
    assert look_up(cp.treatment("hcl; ids=batch['doc'][0]"), names)["ids"] is IDS
    assert look_up(cp.treatment('hcl; ids=batch["doc"][-1]'), names)["ids"] is IDS
    assert look_up(cp.treatment("hcl; labels=self.y"), names)["labels"] is IDS
    with pytest.raises(ValueError, match=r"batch has no \['id'\]: Known: doc\."):
        look_up(cp.treatment("hcl; ids=batch['id']"), names)
    with pytest.raises(ValueError, match=r"no such name .* Known: y2, self, data\."):  # a module that keeps the labels
        look_up(cp.treatment("hcl; ids=y"), {"self": torch.nn.Linear(2, 2), "data": [], "f": len, "y2": IDS})
    with pytest.raises(ValueError, match=r"self has no \.lables: .* no attribute 'lables'\. Did you mean 'labels'\?"):
        look_up(cp.treatment("hcl; ids=self.lables"), {"self": SimpleNamespace(labels=IDS)})
    for path in ("bacth['doc']", "batch['docs']", "batch['doc'][1]", "self.z"):
        with pytest.raises(ValueError, match=r"no such name|has no"):
            look_up(cp.treatment(f"hcl; ids={path}"), names)


def test_looking_up_a_path_makes_no_entry():
    """Of a ``defaultdict``, whose every key would else be one that is there."""
    names = {"qrels": defaultdict(dict), "doc": torch.arange(4)}
    with pytest.raises(ValueError, match="Did you mean 'doc'"):
        at_path("dco", names)
    with pytest.raises(ValueError, match=r"qrels has no \['a'\]: Known: \."):
        at_path("qrels['a']", names)
    assert not names["qrels"]


def test_auto_says_which_of_its_offers_are_class_labels(train):
    graphs = GRAPHS.replace("doc=", "sample=torch.arange(8) ** 2, doc=")
    code, said = train(["auto"], "", "host", graphs)
    assert code == 0, said
    classes = "8 values, 2 distinct: probably class labels; with them, training is supervised"
    assert f'"host; ids=b.y", {classes}' in said
    assert '"host; ids=b.doc", 8 values, 5 distinct\n' in said
    assert '"host; ids=b.sample", 8 values, 8 distinct in this step, where it changes nothing\n' in said


def test_auto_says_that_the_entries_that_are_left_out_are_the_diagonal(train):
    loss = """z = F.normalize(torch.cat([a, b]), dim=1)
    e = torch.exp(z @ z.T / 0.2)
    return -torch.log(torch.cat([e.diagonal(8), e.diagonal(-8)]) / (e.sum(1) - e.diagonal())).mean()"""
    code, said = train(
        ["auto"], "", "host", GRAPHS.replace("return F.cross_entropy(a @ b.T / 0.1, torch.arange(8))", loss)
    )
    assert code == 0, said
    assert "InfoNCE, each sample's own entry is left out (NT-Xent), all samples of a batch with each other" in said


def _gathered(rank, file):
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    rows = torch.eye(4)[[0, 1]] if rank == 0 else torch.eye(4)[[2, 0]]  # the first and the last of all are one
    treatment, logits = cp.treatment("infonce:t=1; duplicates=rows"), torch.zeros(2, 4, requires_grad=True)
    treatment.from_logits(logits, torch.arange(2) + 2 * rank, duplicates=rows).backward()
    assert (logits.grad == 0).tolist() == ([[False] * 3 + [True], [False] * 4], [[False] * 4, [True] + [False] * 3])[
        rank
    ]
    ids = torch.tensor([[3, 4], [4, 3]])[rank]
    for masked, columns in ((0, torch.arange(2)), (4, torch.arange(4).roll(2))):  # keys, as many, of one process alone
        s = torch.zeros(len(columns), 4, requires_grad=True)
        own_entries = torch.eye(len(columns), 4).bool() & bool(masked)
        cp.treatment("infonce:t=1; ids=y").from_logits(
            s.masked_fill(own_entries, -torch.inf), columns, ids=ids
        ).backward()
        assert int((s.grad == 0).sum()) == masked
    g = torch.Generator().manual_seed(0)
    z1, z2 = torch.randn(2, 4, 8, generator=g, dtype=torch.float64)
    z2[3], y, own = z2[0], torch.tensor([0, 1, 1, 2]), slice(2 * rank, 2 * rank + 2)
    loss = cp.treatment("infonce:t=0.5; ids=y; duplicates")(z1[own], z2[own], ids=y[own], gather=True)
    torch.testing.assert_close(loss, cp.InfoNCE(0.5)(z1, z2, ids=torch.tensor([0, 1, 1, 0])))
    z1, z2 = torch.randn(2, 4, 2, generator=g.manual_seed(7), dtype=torch.float64)
    one, told = cp.treatment("infonce:t=0.5; margin=-0.1"), cp.treatment("infonce:t=0.5; margin=-0.1")
    torch.testing.assert_close(told(z1[own], z2[own], gather=True, pairing="one_way"), one(z1, z2, pairing="one_way"))
    assert (float(told.counts["without_negatives"]), float(one.counts["without_negatives"])) == (1 - rank, 1)
    distributed.destroy_process_group()


@pytest.mark.slow
def test_rows_are_compared_with_those_of_other_processes(tmp_path):
    multiprocessing.spawn(_gathered, (str(tmp_path / "store"),), nprocs=2)
