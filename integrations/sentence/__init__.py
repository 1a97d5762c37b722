"""Sentences: training on sentence-transformers, and the field's two evaluations.

==================  =================================================================================================
:mod:`.data`        scored pairs, labelled texts and corpora, from a folder or from the hub
:mod:`.encode`      models of all kinds as one thing that embeds each distinct text once
:mod:`.sts`         semantic textual similarity, as SimCSE reports it
:mod:`.transfer`    SentEval's classification tasks on frozen embeddings
:mod:`.train`       SimCSE, quick-thought and their kin with any objective
==================  =================================================================================================
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def framework(name: str) -> Any:
    """A module of the frameworks that this integration rests on."""
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        needed = name.partition(".")[0]
        raise ImportError(f'sentences need {needed}: pip install "counterpoint[sentence]"') from error
