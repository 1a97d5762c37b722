"""Sentences: training on sentence-transformers, and the field's two evaluations.

==================  =================================================================================================
:mod:`.data`        scored pairs and labeled texts, from a folder or from the hub, and the data of a run
:mod:`.corpus`      training data: sentences, pairs, triplets, running text
:mod:`.encode`      loads any kind of model and embeds each distinct text once
:mod:`.model`       SimCSE's head, word dropout, static embeddings, and the loss
:mod:`.noise`       word dropout, and IntNaCl's attacks in embedding space
:mod:`.training`    SimCSE, quick-thought and similar methods with any objective
:mod:`.trainer`     the callbacks and the batches that ``SentenceTransformerTrainer`` needs
:mod:`.presets`     the papers' recipes, with where each setting stands
:mod:`.sts`         semantic textual similarity, as SimCSE reports it
:mod:`.transfer`    SentEval's classification tasks on frozen embeddings
:mod:`.evaluation`  both of them, for a finished model
:mod:`.synthetic`   sentences whose similarity is known, for demonstrations
==================  =================================================================================================
"""
