"""Load any kind of model, and embed each distinct text once."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
import logging as stdlib
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from huggingface_hub import utils as hub
from numpy.typing import ArrayLike, NDArray
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import modules
from sentence_transformers.util import is_sentence_transformer_model
from transformers import AutoModel
from transformers.utils import logging

from ..domain import check_choice
from ..store.progress import track
from .locate import find
from .settings import POOLINGS

Matrix = NDArray[np.floating]
Embeddings = dict[str, Matrix]  # a row by its text
Model: TypeAlias = SentenceTransformer | str | Path | Callable[[list[str]], ArrayLike]


@contextmanager
def quiet() -> Iterator[None]:
    """Hide transformers' progress bars about reading and writing files; those of downloads stay."""
    bars, downloads = logging.is_progress_bar_enabled(), not hub.are_progress_bars_disabled()
    logging.disable_progress_bar()  # of downloads too
    if downloads:
        hub.enable_progress_bars()
    try:
        yield
    finally:
        if bars:
            logging.enable_progress_bar()
        if not downloads:
            hub.disable_progress_bars()


@contextmanager
def complete(name: str | Path) -> Iterator[None]:
    """Refuse a model of which weights are missing, which transformers draws at random. No pooling needs a pooler's."""
    reader, told, missing = stdlib.getLogger("transformers.modeling_utils"), stdlib.Handler(), list[str]()
    level = reader.level
    told.emit = lambda record: missing.extend(  # type: ignore[method-assign]
        re.findall(r"^(?!.*pooler)(\w[^|]*\S)\s*\|.*MISSING", record.getMessage(), re.M)
    )
    reader.addHandler(told)
    reader.setLevel(stdlib.WARNING - 1)  # at WARNING, transformers names all layers as not sharded
    try:
        yield
    finally:
        reader.setLevel(level)
        reader.removeHandler(told)
    if missing:
        why = "these were drawn at random. Does its config.json describe another model?"
        raise ValueError(f"model: the file of {name} has no weights for {', '.join(sorted(missing)[:2])}, ...: {why}")


@quiet()
def load(
    model: str | Path,
    pooling: str | None = None,
    *,
    device: str | None = None,
    revision: str | None = None,
    max_length: int | None = None,
) -> SentenceTransformer:
    """Load a ``SentenceTransformer`` from a folder or by its name on the hub.

    Args:
        model: a SentenceTransformer, a checkpoint of transformers, which needs ``pooling``, or the folder of a run.
        pooling: how tokens become one vector: ``cls``, the first token; ``pooler``, the first token through the
            checkpoint's own dense layer and tanh, as supervised SimCSE expects; ``mean``; ``max``. There is no default,
            as the right one depends on how the checkpoint was trained.
        device: by default the best available.
        revision: of a model on the hub.
        max_length: texts are truncated to this many tokens; by default to the model's own limit.
    """
    name = find(model, revision)
    if pooling is not None:
        check_choice("pooling", pooling, POOLINGS)
    own = has_pooling(name, revision)
    if own and pooling is not None:
        raise ValueError(f"pooling: {name} is a SentenceTransformer with its own pooling; omit pooling.")
    if not own and pooling is None:
        if (folder := Path(name)).is_dir() and not (folder / "config.json").is_file():
            ways = (f"{'*/' * depth}{file}.json" for depth in range(1, 7) for file in ("modules", "config"))
            hint = next((f" Did you mean {file.parent}?" for way in ways for file in sorted(folder.glob(way))), "")
            raise ValueError(f"model: {name} contains neither modules.json nor config.json.{hint}")
        why = f"{name} is not a SentenceTransformer: a plain checkpoint does not define how tokens become one vector"
        raise ValueError(f"{why}. Choose pooling: {', '.join(POOLINGS)}.")
    try:
        with complete(name):
            if pooling is None:
                loaded = SentenceTransformer(name, device=device, revision=revision)
            else:
                loaded = SentenceTransformer(modules=_modules(name, pooling, revision), device=device)
    except (ImportError, OSError, ValueError):
        raise
    except Exception as error:  # of damaged weights, from the reader of their format
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(f"model: {name} cannot be loaded ({reason}).") from error
    special = getattr(getattr(loaded, "tokenizer", None), "all_special_ids", None)
    if special is not None and len(loaded.tokenizer) <= len(special):  # the default one, when its files are missing
        raise ValueError(f"model: {name} has no vocabulary; files of its tokenizer are missing (tokenizer.json, ...).")
    if max_length is not None:
        if isinstance(loaded[0], modules.StaticEmbedding):
            raise ValueError(f"max_length: {name} is a static embedding, which does not truncate; omit max_length.")
        loaded.max_seq_length = max_length
    return loaded


def has_pooling(model: str | Path, revision: str | None = None) -> bool:
    """Return whether the model is a SentenceTransformer, which defines its own pooling."""
    return bool(is_sentence_transformer_model(find(model, revision), revision=revision))


def _modules(name: str, pooling: str, revision: str | None) -> list[torch.nn.Module]:
    options = {"revision": revision} if revision else {}
    transformer = modules.Transformer(name, model_kwargs=options, processor_kwargs=options, config_kwargs=options)
    width = transformer.get_embedding_dimension()
    if pooling != "pooler":
        return [transformer, modules.Pooling(width, pooling)]
    dense = getattr(getattr(transformer.model, "pooler", None), "dense", None)
    _, loading = AutoModel.from_pretrained(name, output_loading_info=True, **options)
    if dense is None or any("pooler" in key for key in loading["missing_keys"]):
        raise ValueError(f"pooling: {name} has no trained pooler; choose cls, mean or max.")
    copy = modules.Dense(width, width, init_weight=dense.weight.detach().clone(), init_bias=dense.bias.detach().clone())
    return [transformer, modules.Pooling(width, "cls"), copy]


def embed(model: Model, texts: Iterable[str], batch_size: int = 64, progress: bool = False) -> Embeddings:
    """Embed each distinct text once.

    Batches contain texts of similar length, the longest first, so that a lack of memory shows at once.

    Args:
        model: a name or folder as in :func:`load`, an object with a method ``encode`` such as a SentenceTransformer,
            or a function from a list of texts to a matrix with one row per text.
        texts: in any order; duplicates are allowed.
        batch_size: texts embedded at a time.
        progress: whether to show it.
    """
    model = load(model) if isinstance(model, (str, Path)) else model
    quietly = {"batch_size": batch_size, "show_progress_bar": False}
    encode = partial(method, **quietly) if (method := getattr(model, "encode", None)) is not None else model
    if not callable(encode):
        raise TypeError(f"model: expected a name, a SentenceTransformer or a function, got {type(model).__name__}.")
    distinct = sorted(set(texts), key=lambda text: (-len(text), text))
    batches = [distinct[start : start + batch_size] for start in range(0, len(distinct), batch_size)]
    shown = track(batches, f"{len(distinct)} distinct texts, batches") if progress else batches
    return {text: row for batch in shown for text, row in zip(batch, _checked(encode(batch), batch), strict=True)}


def rows(embeddings: Embeddings, texts: Sequence[str]) -> Matrix:
    """Return the embeddings of these texts, ``(texts, width)``."""
    return np.stack([embeddings[text] for text in texts])


def _checked(rows: ArrayLike, batch: list[str]) -> Matrix:
    if isinstance(rows, torch.Tensor):  # numpy has no bfloat16
        rows = rows.detach().to("cpu", torch.promote_types(rows.dtype, torch.float32))
    matrix = np.asarray(rows)
    if matrix.ndim != 2 or len(matrix) != len(batch):
        raise ValueError(f"model: expected a row for each of {len(batch)} texts, got an array of shape {matrix.shape}.")
    if not np.isfinite(matrix).all():
        text = batch[int((~np.isfinite(matrix)).any(1).argmax())]
        raise ValueError(f"model: the embedding of {text[:60]!r} has NaN or infinite values.")
    return matrix
