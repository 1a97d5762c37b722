"""lightly's transform of a recipe, which the tests and the benchmark compare with ours."""

from __future__ import annotations

from typing import Any

from lightly.transforms.simclr_transform import SimCLRViewTransform

from counterpoint.integrations.image import Recipe


def lightlys(recipe: Recipe) -> Any:
    """Return the transform from a PIL image to one view."""
    bright, contrast, saturation, hue = recipe.jitter
    return SimCLRViewTransform(
        input_size=recipe.sides,
        min_scale=recipe.min_scale,
        hf_prob=recipe.flip,
        cj_prob=recipe.jitter_prob,
        cj_bright=bright,
        cj_contrast=contrast,
        cj_sat=saturation,
        cj_hue=hue,
        random_gray_scale=recipe.grey,
        gaussian_blur=recipe.blur,
        sigmas=recipe.sigmas,
        normalize=None,
    )
