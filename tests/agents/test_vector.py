"""Weights as one vector: layouts are told apart."""

from __future__ import annotations

import numpy as np
import pytest

from repertory.agents.vector import Layout
from repertory.errors import UserError


def test_layouts_of_one_size_are_told_apart() -> None:
    def layout(**shapes: tuple[int, ...]) -> Layout:
        return Layout.of({name: np.zeros(shape) for name, shape in shapes.items()})

    one, other, third = layout(a=(2, 3), b=(4,)), layout(a=(3, 2), b=(4,)), layout(a=(2, 3), c=(4,))
    assert one.size == other.size == third.size
    assert len({one.fingerprint, other.fingerprint, third.fingerprint}) == 3
    one.check(layout(a=(2, 3), b=(4,)).fingerprint)
    for wrong in (other.fingerprint, third.fingerprint, None):
        with pytest.raises(UserError, match="network differs"):
            one.check(wrong)
