"""Sentence runs as published models and exported files; their transformer has 5,000 random weights."""

from __future__ import annotations

import pytest
import tiny_bert

from counterpoint.integrations import store
from counterpoint.integrations.command.main import main
from counterpoint.integrations.sentence import published, training

st = pytest.importorskip("sentence_transformers")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A run of a transformer, and one of a static model."""
    place = tmp_path_factory.mktemp("sentences")
    tiny_bert.build(place / "bert")
    (place / "texts.txt").write_text("\n".join(tiny_bert.texts(1, 40, seed=2)[0]) + "\n")
    changes = {"model": str(place / "bert"), "batch": 8, "steps": 3, "save": 0, "dev": None, "max_length": 12}
    texts = str(place / "texts.txt")
    cells = [
        training.cell(texts, "infonce:t=0.05", 0, pooling="cls", head="kept", **changes),
        training.cell(texts, "infonce:t=0.05", 0, static=True, **changes),
    ]
    return store.run_grid(training.train, cells, place / "runs", progress=False)


def test_the_folder_that_is_pushed_is_a_sentence_transformer(runs, tmp_path):
    for number, run in enumerate(runs):
        out = tmp_path / str(number)
        assert main(["push", str(run.path), "me/texts", "--folder", str(out)]) == 0
        loaded = st.SentenceTransformer(str(out), device="cpu")
        texts = ["w1 w2", "w3"]
        assert (loaded.encode(texts) == published.publish(run).encode(texts)).all()
        assert 'SentenceTransformer("me/texts")' in (out / "README.md").read_text()
        assert str(tmp_path.parent) not in (out / "README.md").read_text() + (out / "run.json").read_text()
