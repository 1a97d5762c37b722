"""Find a model: a folder, that of a run, its URL, or a name on the Hugging Face hub; imports no transformers."""

from . import frameworks  # noqa: F401  names the extra to install  # isort: skip
from pathlib import Path

import huggingface_hub as hub
from huggingface_hub import constants

from counterpoint.names import nearest


def find(model: str | Path, revision: str | None = None) -> str:
    """Resolve a model to its folder, which may be inside a run's folder or URL, or to its name on the hub.

    A name may begin with ``hf://``, as those of runs on the hub do.

    Raises ``FileNotFoundError``, which lists the models on this machine, if the model does not exist, or if it is not
    cached and the hub cannot be reached.
    """
    name = str(model).removeprefix("hf://")
    if "://" in name:  # a run in an object store
        from ..store.run import Run

        name = str(Run.read(name).file("model").parent)
    looks_local = isinstance(model, Path) or name.startswith((".", "/", "~")) or name.count("/") > 1
    folder = Path(name).expanduser() if looks_local else Path(name)
    if folder.is_dir():
        inner = folder / "model"
        return str(inner if (inner / "modules.json").is_file() else folder)
    if looks_local:
        raise FileNotFoundError(f"model: {name} is not a folder.")
    candidates = [name] if "/" in name else [name, f"sentence-transformers/{name}"]
    for candidate in candidates:
        for file in ("modules.json", "config.json"):  # of a SentenceTransformer, and of any checkpoint
            if isinstance(hub.try_to_load_from_cache(candidate, file, revision=revision), str):
                return candidate
    for candidate in candidates:
        try:
            hub.HfApi().model_info(candidate, revision=revision, timeout=10)
            return candidate
        except Exception as error:  # of the network, HF_HUB_OFFLINE, or that there is none
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
    cached = [path.parents[2].name for path in Path(constants.HF_HUB_CACHE).glob("models--*/snapshots/*/config.json")]
    local = [*dict.fromkeys(name.removeprefix("models--").replace("--", "/") for name in cached)]
    local += [path.parent.name for path in Path().glob("*/modules.json")]
    known = nearest(name, local).replace("Known:", "On this machine:") if local else " No model is on this machine."
    raise FileNotFoundError(f"model: {name} was not found: it is neither a folder nor on the hub ({reason}).{known}")
