"""Losses of SparseEncoder, MultiVectorEncoder and CrossEncoder with in-batch negatives, in unmodified scripts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import tiny_bert
import torch
from injected import differences, launch

os.environ.setdefault("HF_HUB_OFFLINE", "1")
pytest.importorskip("sentence_transformers.multi_vector_encoder")

SCRIPT = """
import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder, SparseEncoder
from sentence_transformers.cross_encoder import losses as cross
from sentence_transformers.multi_vector_encoder import losses as multi
from sentence_transformers.sparse_encoder import losses as sparse
from tiny_bert import texts

torch.manual_seed(0)
model = {model}({folder!r}, device="cpu").double()
loss_fn = {loss}
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for step in range(2):
    columns = texts(3, rows=6, seed=step)
    features = columns if {model} is CrossEncoder else [model.preprocess(column) for column in columns]
    loss = loss_fn(features, None)
    loss = loss if isinstance(loss, torch.Tensor) else sum(loss.values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(float(loss.detach()))
torch.save([p.grad for p in model.parameters() if p.grad is not None], "grads.pt")
"""
WEIGHTS = "document_regularizer_weight=0.1, query_regularizer_weight=0.1"
BASE = "sparse.SparseMultipleNegativesRankingLoss(model)"
LOSSES = {  # calls in two steps, precision
    f"sparse.SpladeLoss(model, {BASE}, {WEIGHTS})": (2, 1e-10),
    f"sparse.CachedSpladeLoss(model, {BASE}, {WEIGHTS}, mini_batch_size=4)": (2, 1e-10),
    "multi.MultiVectorMultipleNegativesRankingLoss(model)": (2, 3e-6),
    "multi.CachedMultiVectorMultipleNegativesRankingLoss(model, mini_batch_size=4)": (4, 3e-6),
    "cross.MultipleNegativesRankingLoss(model)": (2, 1e-10),
    "cross.CachedMultipleNegativesRankingLoss(model, mini_batch_size=4)": (2, 1e-10),
}
MODELS = {"sparse": "SparseEncoder", "multi": "MultiVectorEncoder", "cross": "CrossEncoder"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Folders of a masked language model, and of one without its head; neither has dropout."""
    made = {name: tmp_path_factory.mktemp(name) for name in ("mlm", "bert")}
    for name, folder in made.items():
        tiny_bert.build(folder, dropout=0.0, mlm=name == "mlm")
    return {"sparse": made["mlm"], "multi": made["bert"], "cross": made["bert"]}


def script_of(loss: str, folders: dict[str, Path]) -> str:
    kind = loss.partition(".")[0]
    words = {"{model}": MODELS[kind], "{folder!r}": repr(str(folders[kind])), "{loss}": loss}
    script = SCRIPT
    for word, text in words.items():
        script = script.replace(word, text)
    return script


@pytest.mark.parametrize("loss", LOSSES)
def test_a_loss_with_in_batch_negatives_in_an_unmodified_script(loss, folders, tmp_path, monkeypatch, capsys):
    calls, precision = LOSSES[loss]
    script = script_of(loss, folders)

    def run(objective):
        found = launch(tmp_path, script, monkeypatch, capsys, "sentence_transformers", ["--objective", objective])
        assert (found.code, f"reached {calls} times" in found.err) == (0, True), found.err
        assert max(differences(found.err)) < precision
        return found.numbers, torch.load(tmp_path / "grads.pt")

    launch(tmp_path, script, monkeypatch, capsys, "sentence_transformers")
    own = torch.load(tmp_path / "grads.pt")
    values, same = run("infonce:t=host")
    torch.testing.assert_close(same, own, rtol=10 * precision, atol=precision)
    # HCL is for cosines
    others, other = run("hcl:t=0.5" if loss.startswith("cross.") else "infonce:t=2,denominator=negatives")
    assert others[0] == values[0]  # the script logs its own loss
    assert not all(torch.allclose(a, b, rtol=1e-3) for a, b in zip(other, own, strict=True))


@pytest.mark.parametrize("loss", [loss for loss in LOSSES if loss.startswith("multi.")])
def test_the_finder_follows_maxsim_that_is_masked_in_place(loss, folders, find):
    found = find(script_of(loss, folders), "--steps", "2")
    (each,) = found.losses
    assert (found.code, each["form"], each["ours"], each["scores"]) == (0, "infonce", True, True), found.err
    assert "columns 0, 2, ... in steps of 2" in each["positives"] or "Cached" in loss


@pytest.mark.parametrize("scale", ["", ", scale=None"])
def test_the_command_of_a_cross_encoder(scale, folders, find, tmp_path, monkeypatch, capsys):
    """No product of embeddings leads to its scores, so that the host says what their factor is called."""
    script = script_of(f"cross.MultipleNegativesRankingLoss(model{scale})", folders)
    found = find(script)
    assert (found.code, found.losses) == (0, []), found.err
    assert "known host: sentence_transformers" in found.err
    (command,) = found.data["commands"]
    assert command[2:-2] == ["sentence_transformers", "--objective", "infonce:t=host"]
    done = launch(tmp_path, script, monkeypatch, capsys, command[2], command[3:-2])
    assert (done.code, "reached 2 times" in done.err) == (0, True), done.err
    assert f"its scale, {1 if scale else 10}, was not tested: no product of embeddings leads to" in done.err
