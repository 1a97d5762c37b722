"""Local models of random weights in place of those that sentence-transformers' own tests download."""

from __future__ import annotations

import string
import tempfile
from pathlib import Path
from typing import Any

import tiny_bert

WIDTH = 128  # Matryoshka dimensions of up to 128 are asked for
LETTERS = string.ascii_letters + string.digits + string.punctuation


def use() -> None:
    """Load local models whatever the name."""
    import sentence_transformers as st
    import tokenizers
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from sentence_transformers.sparse_encoder.modules import SpladePooling

    base = Path(tempfile.mkdtemp())
    words = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    for name, options in {"bert": {"pooler": False}, "splade": {"mlm": True}}.items():
        (base / name).mkdir()
        tiny_bert.build(base / name, width=WIDTH, words=words, **options)  # type: ignore[arg-type]
    dense, sparse = st.SentenceTransformer.__init__, st.SparseEncoder.__init__

    def init(self: Any, name: Any = None, *args: Any, **options: Any) -> None:
        if name is not None and not Path(str(name)).exists():
            name, options = None, {"modules": [Transformer(str(base / "bert")), Pooling(WIDTH)], "device": "cpu"}
        dense(self, name, *args, **options)

    def init_sparse(self: Any, name: Any = None, *args: Any, **options: Any) -> None:
        if name is not None and not Path(str(name)).exists():
            masked = Transformer(str(base / "splade"), transformer_task="fill-mask")
            name, options = None, {"modules": [masked, SpladePooling("max")], "device": "cpu"}
        sparse(self, name, *args, **options)

    st.SentenceTransformer.__init__ = init  # type: ignore[method-assign]
    st.SparseEncoder.__init__ = init_sparse  # type: ignore[method-assign]
    local = tokenizers.Tokenizer.from_file(str(base / "bert" / "tokenizer.json"))
    tokenizers.Tokenizer.from_pretrained = lambda *args, **options: local  # type: ignore[method-assign]
