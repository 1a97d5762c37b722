"""Equal texts of tokenized columns, and a guide that reads them."""

from __future__ import annotations

import pytest
import torch
from tiny_bert import load, texts

pytest.importorskip("sentence_transformers")

from counterpoint.integrations.sentence.model import static
from counterpoint.plugins.texts import Guide, equal_texts, tokens


@pytest.fixture
def model(bert):
    return load(bert).eval()


@pytest.mark.parametrize("make", [lambda model: model, static])
def test_tokens_are_those_of_single_texts(model, make):
    model = make(model)
    (column,) = texts(1, 6)
    single = [tokens(model.preprocess([text]))[0] for text in column]
    assert tokens(model.preprocess(column)) == single
    assert len(set(single)) == len(set(column))


@pytest.mark.parametrize("make", [lambda model: model, static])
def test_samples_that_share_a_text_have_one_number(model, make):
    model = make(model)
    anchors = ["w1", "w2", "w1", "w4", "w5"]
    answers = ["w11", "w12", "w13", "w14", "w12"]
    hard = ["w12", "w20", "w4", "w20", "w13"]
    columns = [model.preprocess(column) for column in (anchors, answers)]
    ids, none = equal_texts(columns)
    assert none is None
    groups = [{j for j in range(5) if ids[j] == ids[i]} for i in range(5)]
    assert groups == [{0, 2}, {1, 4}, {0, 2}, {3}, {1, 4}]
    ids, negative_ids = equal_texts(columns, [model.preprocess(hard)])
    assert negative_ids.shape == (5, 1)
    assert [negative_ids[i, 0] for i in (0, 2, 4)] == [ids[1], ids[3], ids[0]]
    assert negative_ids[1, 0] == negative_ids[3, 0] or negative_ids[1, 0] not in ids
    assert not {int(negative_ids[1, 0]), int(negative_ids[3, 0])} & set(ids.tolist())


def test_sharing_is_transitive(model):
    columns = [model.preprocess(column) for column in (["w1", "w1", "w3"], ["w4", "w5", "w5"])]
    ids, _ = equal_texts(columns)
    assert len(set(ids.tolist())) == 1


def test_a_guide_with_other_tokens_reads_the_same_texts(model):
    """The static model's tokenizer is another class, so its texts are decoded and read anew."""
    columns = texts(2, 5)
    for trained, guide in ((static(model), model), (model, static(model)), (model, model)):
        judge = Guide(guide, trained)
        embedded = judge([trained.preprocess(column) for column in columns])
        for z, column in zip(embedded, columns, strict=True):
            expected = torch.as_tensor(guide.encode(column, convert_to_tensor=True))
            torch.testing.assert_close(z, expected.to(z.dtype), rtol=1e-5, atol=1e-6)
            assert not z.requires_grad
    with pytest.raises(
        TypeError, match="guide: expected a SentenceTransformer or another model with a tokenizer, got Identity"
    ):
        Guide(torch.nn.Identity(), model)
    with pytest.raises(TypeError, match=r"got str: SentenceTransformer\('org/judge'\)"):
        Guide("org/judge", model)


def test_a_model_that_guides_itself_is_trained(model):
    model.train().requires_grad_(True)
    guide = Guide(model, model)
    guide([model.preprocess(["w1 w2", "w3"])])
    assert model.training
    assert all(p.requires_grad for p in model.parameters())
