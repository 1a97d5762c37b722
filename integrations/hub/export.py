"""Write a trained encoder in a format that needs no counterpoint, and check that its outputs are the same."""

import logging
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from counterpoint.install import install

from ..domain import domain
from ..store.run import Run
from .folder import check

TOLERANCE = 1e-4  # of the largest output: other libraries sum in another order
Call = Callable[..., Tensor]


def export(run: Run, format: str, path: Path) -> float:
    """Write the encoder of a finished run, and compare its outputs on two batches of different shape.

    Args:
        run: of sentences, whose encoder maps ``input_ids`` and ``attention_mask`` to embeddings, or of images.
        format: ``onnx``; or ``torch-export``, a program for ``torch.export.load``.
        path: the file, which is only there if the check passes.

    Returns:
        The largest difference of its outputs to the trained encoder's, relative to the largest output.
    """
    check(run, ("sentence", "image"))
    published = domain(run.arguments["domain"]).module("published")
    temporary, disabled = path.with_name(f"{path.name}.tmp"), logging.root.manager.disable
    try:
        module, batches = published.exported(run), published.samples(run)
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")  # exporters remark on their own internals
            logging.disable(logging.WARNING)
            call = WRITE[format](module, batches[0], temporary)
            difference = max(_difference(module(*batch), call(*batch)) for batch in batches)
        if not difference <= TOLERANCE:
            raise ValueError(f"{path}: its outputs differ by {difference:.1e}; expected at most {TOLERANCE:.0e}.")
        os.replace(temporary, path)
    finally:
        logging.disable(disabled)
        temporary.unlink(missing_ok=True)
    return difference


def _difference(expected: Tensor, got: Tensor) -> float:
    if expected.shape != got.shape:
        raise ValueError(f"export: expected outputs of shape {tuple(expected.shape)}, got {tuple(got.shape)}.")
    return float((expected - got).abs().max() / expected.abs().max().clamp(min=1e-12))


def _program(module: nn.Module, batch: tuple[Tensor, ...]) -> Any:
    """Trace the module; the batch, and the length of texts, may change."""
    dynamic = tuple(dict.fromkeys((0, 1) if part.dim() == 2 else (0,), torch.export.Dim.DYNAMIC) for part in batch)
    return torch.export.export(module, batch, dynamic_shapes=dynamic, strict=False)


def _torch_export(module: nn.Module, batch: tuple[Tensor, ...], path: Path) -> Call:
    with path.open("wb") as file:
        torch.export.save(_program(module, batch), file)
    with path.open("rb") as file:
        return torch.export.load(file).module()


def _onnx(module: nn.Module, batch: tuple[Tensor, ...], path: Path) -> Call:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(f"--format onnx needs onnx, onnxruntime and onnxscript: {install('export')}") from error

    names = ["images"] if len(batch) == 1 else ["input_ids", "attention_mask"]
    program = torch.onnx.export(
        _program(module, batch), batch, input_names=names, output_names=["features"], dynamo=True, verbose=False
    )
    assert program is not None
    program.save(str(path))
    onnx.checker.check_model(str(path))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def call(*parts: Tensor) -> Tensor:
        (features,) = session.run(None, {name: part.numpy() for name, part in zip(names, parts, strict=True)})
        return torch.from_numpy(features)

    return call


WRITE = {"torch-export": _torch_export, "onnx": _onnx}
