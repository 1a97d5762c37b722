"""Sentences: training on sentence-transformers, and the field's two evaluations.

=================  ==================================================================================================
:mod:`.data`       scored pairs and labelled texts, from a folder or from the hub
:mod:`.corpus`     what is trained on: sentences, pairs, triplets, running text
:mod:`.encode`     models of all kinds as one thing that embeds each distinct text once
:mod:`.training`   SimCSE, quick-thought and their kin with any objective
:mod:`.noise`      dropped words, and IntNaCl's attacks in embedding space
:mod:`.presets`    the papers' recipes, with where each setting stands
:mod:`.sts`        semantic textual similarity, as SimCSE reports it
:mod:`.transfer`   SentEval's classification tasks on frozen embeddings
=================  ==================================================================================================
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


framework("numpy")
