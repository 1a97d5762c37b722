"""What ``inject auto`` says that a treatment could be told of: each path works in the command, and no other is said."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest
import torch

from counterpoint.plugins import inject
from counterpoint.plugins.finder.told import _about
from counterpoint.plugins.paths import at_path
from counterpoint.plugins.sites import names_at

SCRIPT = """
import torch
import torch.nn.functional as F
{more}
torch.manual_seed(0)
net, N = torch.nn.Linear(6, 5), 8
norm = lambda x: F.normalize(x, dim=-1)
labels = None


def drawn():
    return torch.cat([torch.tensor([0, 1]), torch.randint(0, 3, (N - 2,))])


def views():
    return net(torch.randn(N, 6)), net(torch.randn(N, 6))

{code}

if __name__ == "__main__":
    main()
"""
CROSS_ENTROPY = """
def loss(a, b):
    return F.cross_entropy(norm(a) @ norm(b).T / 0.1, torch.arange(N))

"""
FUNCTION = """
def loss(a, b, rows):
    own = rows + len(rows)  # the function computes it
    e = torch.exp(norm(a) @ norm(b).T / 0.1)
    return -torch.log(e.diag() / e.sum(1)).mean()

"""
LOOP = """
def main():
    for _ in range(3):
        {values}
        loss({call}).backward()
"""
# of the loss: further imports, the code, and the paths
CASES = {
    "a call of cross entropy, in a loop with a dict, a list of texts, and one of numbers": (
        "",
        CROSS_ENTROPY
        + LOOP.format(
            values="batch = {'doc': drawn(), 'text': list('abcabcab'), 'user': drawn().tolist()}", call="*views()"
        ),
        {"batch['doc']", "batch['text']", "batch['user']"},
    ),
    "in an epoch that is divided beforehand": (
        "",
        CROSS_ENTROPY
        + """
def main():
    epoch = [drawn() for _ in range(5)]  # the other batches are not this one's ids
    for doc, rest in zip(epoch, range(3)):
        loss(*views()).backward()
""",
        {"doc"},
    ),
    "in a loop with data of PyG": (
        "from torch_geometric.data import Data",
        CROSS_ENTROPY + LOOP.format(values="data = Data(y=drawn(), x=torch.randn(N, 6))", call="*views()"),
        {"data.y"},
    ),
    "deep below the loop": (
        "",
        CROSS_ENTROPY
        + "\ndef deeper(n, *z):\n    return deeper(n - 1, *z) if n else loss(*z)\n"
        + LOOP.format(values="y = drawn()", call="*views()").replace("loss(", "deeper(12, "),
        {"y"},
    ),
    "numbers of columns instead of ids": (
        "",
        CROSS_ENTROPY + LOOP.format(values="at, y = torch.arange(N) * 3, drawn()", call="*views()"),
        {"y"},
    ),
    "a name that nearer callers have, too": (
        "",
        CROSS_ENTROPY
        + "\ndef outer(y, z):\n    return inner(y + 5, z)\n\n\ndef inner(y, z):\n    return loss(*z)\n"
        + LOOP.format(values="y, other = drawn(), drawn()", call="y, views()").replace("loss(", "outer("),
        {"y", "other"},
    ),
    "a function, which computes something like it": (
        "",
        FUNCTION + LOOP.format(values="y = drawn()", call="*views(), y"),
        {"rows"},
    ),
    "a function of two views below one another": (
        "",
        """
def loss(z):
    e = torch.exp(norm(z) @ norm(z).T / 0.1).masked_fill(torch.eye(len(z)).bool(), 0)
    return -torch.log(e[torch.arange(16), torch.arange(16).roll(8)] / e.sum(1)).mean()

"""
        + LOOP.format(values="y = drawn(); twice = y.repeat(2)", call="torch.cat(views())"),
        {"y"},
    ),
    "a product outside of the loss, which computes something like it": (
        "",
        """
def product(z):
    return norm(z[0]) @ norm(z[1]).T


def loss(s, y):
    own = y + 1
    return -torch.log((s / 0.1).diag().exp() / (s / 0.1).exp().sum(1)).mean()

"""
        + LOOP.format(values="y = drawn(); s = product(views())", call="s, y"),
        {"y"},
    ),
    "two products, and ids of sampled negatives, whose similarities are in neither": (
        "",
        """
def loss(z, y):
    a, b = (norm(x) for x in z)
    return -torch.log(torch.exp((a * b).sum(1) / 0.1) / torch.exp(a @ b.T / 0.1).sum(1)).mean()

"""
        + LOOP.format(values="y, neg_ids = drawn(), drawn()", call="views(), y"),
        {"y"},
    ),
    "tokens of three columns, the last of hard negatives": (
        "",
        CROSS_ENTROPY
        + LOOP.format(
            values="x = [{'tokens': drawn().view(-1, 1) + torch.arange(2)} for _ in 'qdn']; last = x[2]",
            call="views()[0], torch.cat(views())",
        ),
        {"x[0]['tokens']", "x[1]['tokens']"},
    ),
    "two losses, of which one has its own": (
        "",
        CROSS_ENTROPY
        + "\ndef other(a, b):\n    own = drawn()\n    x = norm(b) @ norm(a).T\n"
        + "    return F.cross_entropy(x / 0.1, torch.arange(N))\n"
        + LOOP.format(values="y, ids = drawn(), drawn(); a, b = views()", call="a, b").replace(
            "loss(a, b)", "(loss(a, b) + other(a, b))"
        ),
        {"y", "ids"},
    ),
    "keys of each anchor's own, with the positive in column 0": (
        "",
        """
def loss(a, b):
    x = torch.cat([(norm(a) * norm(b)).sum(1, keepdim=True), norm(a) @ norm(views()[0].detach()).T], 1)
    return F.cross_entropy(x / 0.1, torch.zeros(N).long())

"""
        + LOOP.format(values="own = drawn(); a, b = views()", call="a[own], b[own]"),  # nor the equal embeddings
        set(),
    ),
    "keys of each anchor's own, in a batch of products": (
        "",
        """
def loss(a, b):
    x = torch.cat([b.unsqueeze(1), views()[0].detach().expand(N, N, 5)], 1) @ a.unsqueeze(2)
    return F.cross_entropy(x / 0.1, torch.zeros(N, 1).long())

"""
        + LOOP.format(values="own = drawn()", call="*views()"),
        set(),
    ),
    "a name that is assigned after the loss was computed": (
        "",
        CROSS_ENTROPY.replace("return", "value =")
        + "    own = drawn()\n    return value\n"
        + LOOP.format(values="y = drawn()", call="*views()"),
        {"y"},
    ),
    "data of a library that calls the script": (
        "import os, sys; sys.path.insert(0, os.path.abspath('site-packages')); import library",
        CROSS_ENTROPY
        + "\ndef main():\n    for _ in range(3):\n        y = drawn()\n        library.fit(loss, views)\n",
        {"y"},
    ),
}


def run(words, monkeypatch, capsys):
    monkeypatch.setattr(torch.nn.functional, "cross_entropy", torch.nn.functional.cross_entropy)
    try:
        return inject.main([*words, "--", "toy.py"]), capsys.readouterr().err
    finally:
        for name in ("toy", "library"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize("name", CASES)
def test_what_is_said_works(find, tmp_path, monkeypatch, capsys, name):
    more, code, paths = CASES[name]
    wrongs = ["batch.nope", *(name for name in ("own", "twice") if f"{name} =" in code)]
    library = tmp_path / "site-packages" / "library.py"
    library.parent.mkdir()
    library.write_text("def fit(loss, views):\n    rows = list('aabbccdd')\n    loss(*views()).backward()\n")
    found = find(SCRIPT.replace("{more}", more).replace("{code}", code))
    assert {each["path"] for each in found.data["told"]} == paths, found.err
    assert '"host; duplicates"' not in found.err
    assert not found.data["errors"]
    (command,) = found.data["commands"]
    at = command.index("--objective") + 1
    for told in found.data["told"]:
        spec = f"{command[at]}; {told['kind']}={told['path']}"
        code, said = run([*command[2:at], spec, *command[at + 1 : -2]], monkeypatch, capsys)
        assert code == 0, said
    for wrong in wrongs:
        code, said = run([*command[2:at], f"{command[at]}; ids={wrong}", *command[at + 1 : -2]], monkeypatch, capsys)
        assert code == 2, said


@pytest.mark.parametrize("compiled", [False, True])
def test_the_nearest_caller_is_taken(tmp_path, monkeypatch, capsys, compiled):
    """Also of a compiled encoder, and of losses that are accumulated."""
    code = CROSS_ENTROPY + (
        "\ndef near(y):\n    return sum(loss(*views()) / 2 for _ in range(2))\n\n\ndef main():\n"
        "    for _ in range(3):\n        y = torch.zeros(N).long()  # of these, no key would be left\n"
        "        near(torch.arange(N) // 2).backward()\n"
    )
    more = "torch._dynamo.config.suppress_errors = True" * compiled
    script = SCRIPT.replace("{more}", more).replace("{code}", code)
    if compiled:
        script = script.replace("net, N = torch.nn.Linear(6, 5), 8", "N, net = 8, torch.nn.Linear(6, 5)").replace(
            "norm = lambda", "net = torch.compile(net, backend='eager')\nnorm = lambda"
        )
    monkeypatch.chdir(tmp_path)
    for name in ("argv", "path"):
        monkeypatch.setattr(sys, name, list(getattr(sys, name)))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    (tmp_path / "toy.py").write_text(script)
    site = f"toy.py:{next(i for i, line in enumerate(script.splitlines(), 1) if 'F.cross_entropy' in line)}"
    words = ["logits", "--site", site, "--objective", "hcl:t=0.1; ids=y"]
    code, said = run(words, monkeypatch, capsys)
    assert (code, "left out 1 keys on average" in said) == (0, True), said


def test_names_of_a_script_in_a_folder_that_is_named_like_a_module_of_python(tmp_path):
    file = tmp_path / "runpython" / "train.py"
    names: dict[str, object] = {"names_at": names_at, "frame": sys._getframe}
    exec(compile("doc_ids = [1, 2]\nseen = names_at(frame())", str(file), "exec"), names)
    assert names["seen"]["doc_ids"] == [1, 2]


def test_names_of_what_starts_the_script_are_not_its_own(find):
    """``python -m cProfile train.py`` has a list, too, in a frame that no path leads to."""
    lines = "def started(run, script):\n    run_globals = {'__all__': list('abcabcab')}\n    return run(script)\n"
    names: dict = {}
    exec(compile(lines, "<frozen runpy>", "exec"), names)
    loop = CROSS_ENTROPY + LOOP.format(values="", call="*views()")
    found = names["started"](find, SCRIPT.replace("{more}", "").replace("{code}", loop))
    assert found.data["errors"] == []
    assert not [loss for loss in found.losses if "run_globals" in str(loss)]


@pytest.mark.parametrize(
    ("path", "distinct", "classes"),
    [("batch[1]", 10, True), ("batch[1]", 16, False), ("batch['doc_id']", 10, False), ("g.batch", 10, False)],
)
def test_few_numbers_of_a_batch_may_be_its_classes(path, distinct, classes):
    """CIFAR-10's labels come without a name; a loss that is told of them is supervised."""
    assert _about(path, torch.arange(64) % distinct, {64})["classes"] == classes


def test_many_labels_are_no_classes_and_offsets_no_ids():
    labels = torch.randperm(64, generator=torch.Generator().manual_seed(0)).clamp(max=61)
    about = _about("labels", labels, {64})
    assert about is not None
    assert not about["classes"]
    assert _about("features['offsets']", torch.arange(64) ** 2, {64}) is None


def test_labels_are_named_though_other_names_are_closer():
    names = {"labels": torch.arange(4), **{f"pid{i}": [i] for i in range(9)}, "inputs": {"label": torch.arange(4)}}
    with pytest.raises(ValueError, match=r"Also: labels\."):
        at_path("pid", names)
    with pytest.raises(ValueError, match=r"""Did you mean 'labels' or inputs\["label"\]\?"""):
        at_path("label", names)
    dataset = SimpleNamespace(targets=torch.arange(9))  # as lightly's scripts have: of all images, not of a batch
    with pytest.raises(ValueError, match=r"Did you mean 'target' or dataset\.targets\?"):
        at_path("targets", {"target": torch.arange(4), "dataset": dataset})
