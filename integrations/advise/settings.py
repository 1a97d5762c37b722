"""The settings of ``counterpoint advise``; imports neither torch nor a framework."""

from dataclasses import dataclass

from ..domain import known_settings, setting

MODALITIES = ("text", "images", "graphs")


@known_settings
@dataclass(frozen=True)
class Settings:
    """How data is measured."""

    near: float = setting(0.95, "cosine from which on two samples count as near-duplicates", above=-1, below=1)
    limit: int = setting(4000, "samples that are measured at most, drawn at random; texts are all embedded", low=64)
    modality: str | None = setting(None, "data whose evidence is cited for arrays (all)", choices=MODALITIES)
    model: str | None = setting(None, "model for text pairs: the one that you start from, not a trained one", type=str)
