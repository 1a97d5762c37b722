"""The checks of :mod:`fuzz`: what is drawn, and what must hold for it."""
