"""Shims for SimCSE and its forks on today's transformers."""

import functools
import importlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from ..host import Shim


def shims(package: str = "simcse") -> tuple[Shim, ...]:
    """Return the shims for the clone whose ``models.py`` and ``trainers.py`` are in ``package``."""
    library = {
        _batch_encode_plus: "removed from tokenizers; the host's evaluation uses it",
        _evaluation_strategy: "a flag of the host's own scripts, now spelled --eval_strategy",
        _overwrite_output_dir: "transformers 5 has no such flag, and the host reads it",
    }
    clone = {
        _loop: "the host copied an old training loop; the library's replaces it",
        _checkpoint: "the host's checkpoints belong to its loop; the library's replace them",
        _lm_head: "an attribute of that name, here of --do_mlm, is taken for output embeddings",
        _post_init: "models of transformers 5 are incomplete without it, and the host does not call it",
        _second_encoder: "DiffCSE's constructor loads another model, and its edition of the library takes cls_input",
        _arguments: "the library's trainer requires an eval_dataset, and calls tokenizer processing_class",
    }
    return (
        _restore("file_utils", "cached_property", lambda: functools.cached_property, "Python's own replaces it"),
        _restore("file_utils", "torch_required", _setup_devices, "the library's own way to set up devices is used"),
        _restore("file_utils", "is_torch_tpu_available", lambda: lambda *_: False, "no TPU is used"),
        _restore("trainer_utils", "default_hp_space", dict),
        _restore("optimization", "AdamW", lambda: torch.optim.AdamW),
        _restore("trainer", "_model_unwrap", lambda: _library("modeling_utils").unwrap_model, "it has another name"),
        *(Shim(apply.__name__[1:], why, apply) for apply, why in library.items()),
        *(Shim(apply.__name__[1:], why, partial(apply, package)) for apply, why in clone.items()),
    )


def _restore(module: str, name: str, get: Callable[[], Any], why: str = "it is imported but not used") -> Shim:
    """Put a name that the host imports back into one of the library's modules."""

    def apply() -> bool:
        if hasattr(_library(module), name):
            return False
        setattr(_library(module), name, get())
        return True

    return Shim(name, f"removed from transformers.{module}; {why}", apply)


def _setup_devices() -> Any:
    """Return a decorator for the one method that the host decorates: it returns the library's own version of it."""
    method: Any = vars(_training_arguments())["_setup_devices"]
    return lambda _: getattr(method, "func", None) or method.fget


def _batch_encode_plus() -> bool:
    tokenizer: Any = _library("tokenization_utils_base").PreTrainedTokenizerBase
    if hasattr(tokenizer, "batch_encode_plus"):
        return False
    tokenizer.batch_encode_plus = tokenizer.__call__
    return True


def _library(module: str) -> Any:
    return importlib.import_module(f"transformers.{module}")


def _host_trainer(package: str) -> Any:
    return importlib.import_module(f"{package}.trainers").CLTrainer


def _is_version_5() -> bool:
    return int(importlib.import_module("transformers").__version__.split(".")[0]) >= 5


def _loop(package: str) -> bool:
    trainer = _host_trainer(package)

    def train(self: Any, model_path: str | None = None, **options: Any) -> Any:
        # the host passes the pretrained model's folder, which holds a training state only if a run is to be resumed
        resume = model_path is not None and (Path(model_path) / "trainer_state.json").is_file()
        if hasattr(self, "model_args") and hasattr(self.model_args, "masking_ratio"):  # DiffCSE's loop sets this
            self.tokenizer.custom_mlm_prob = self.model_args.masking_ratio
        return super(trainer, self).train(resume_from_checkpoint=model_path if resume else None, **options)

    trainer.train = train
    return True


def _checkpoint(package: str) -> bool:
    for name in {"_save_checkpoint", "_maybe_log_save_evaluate"} & vars(_host_trainer(package)).keys():
        delattr(_host_trainer(package), name)
    return True


def _arguments(package: str) -> bool:
    trainer, renamed = _host_trainer(package), _is_version_5()
    if not renamed and "didn't pass an `eval_dataset`" not in inspect.getsource(_library("trainer")):
        return False

    def init(self: Any, *args: Any, tokenizer: Any = None, **options: Any) -> None:
        named = {"processing_class" if renamed else "tokenizer": tokenizer}
        super(trainer, self).__init__(*args, **{"eval_dataset": [], **named, **options})
        self.tokenizer = tokenizer

    trainer.__init__ = init
    return True


def _post_init(package: str) -> bool:
    if not _is_version_5():
        return False
    models: Any = importlib.import_module(f"{package}.models")
    cl_init = models.cl_init

    @functools.wraps(cl_init)
    def init(model: Any, config: Any) -> None:
        cl_init(model, config)
        model.post_init()

    models.cl_init = init
    return True


def _second_encoder(package: str) -> bool:
    models: Any = importlib.import_module(f"{package}.models")
    if not _is_version_5() or "cls.generator = " not in inspect.getsource(models.cl_init):
        return False
    library, none = models.transformers, SimpleNamespace(from_pretrained=lambda _: None)

    def from_pretrained(class_: Any, *args: Any, **options: Any) -> Any:
        models.transformers = SimpleNamespace(AutoModelForMaskedLM=none, DistilBertForMaskedLM=none)
        try:
            model = super(class_, class_).from_pretrained(*args, **options)
        finally:
            models.transformers = library
        name = model.model_args.generator_name or "distilbert-base-uncased"
        model.generator = library.AutoModelForMaskedLM.from_pretrained(name)
        model.discriminator.register_forward_pre_hook(_condition, with_kwargs=True)
        return model

    for class_ in (models.BertForCL, models.RobertaForCL):
        class_.from_pretrained = classmethod(from_pretrained)
    return True


def _condition(encoder: Any, arguments: Any, options: dict[str, Any]) -> Any:
    """Let ``cls_input`` be the embedding of the first token."""
    first = options.pop("cls_input").unsqueeze(1)

    def put(_module: Any, _inputs: Any, words: torch.Tensor) -> torch.Tensor:
        hook.remove()
        return torch.cat([first, words[:, 1:]], dim=1)

    hook = encoder.embeddings.register_forward_hook(put)
    return arguments, options


def _lm_head(package: str) -> bool:
    models: Any = importlib.import_module(f"{package}.models")
    classes = [models.BertForCL, models.RobertaForCL]
    if "lm_head" not in inspect.getsource(classes[0].get_output_embeddings):
        return False
    for class_ in classes:
        class_.get_output_embeddings = lambda _: None
        if not _is_version_5():  # the head holds its bias twice, and saving fails unless this is known
            class_._tied_weights_keys = ["lm_head.decoder.bias"]
    return True


def _training_arguments() -> Any:
    return _library("training_args").TrainingArguments


def _evaluation_strategy() -> bool:
    old, new = "--evaluation_strategy", "--eval_strategy"
    if hasattr(_training_arguments(), old[2:]) or not any(word.split("=")[0] == old for word in sys.argv):
        return False
    sys.argv[:] = [new + word.removeprefix(old) if word.split("=")[0] == old else word for word in sys.argv]
    return True


def _overwrite_output_dir() -> bool:
    if hasattr(_training_arguments(), "overwrite_output_dir"):
        return False
    flag = "--overwrite_output_dir"
    _training_arguments().overwrite_output_dir = flag in sys.argv
    sys.argv[:] = [word for word in sys.argv if word != flag]
    return True
