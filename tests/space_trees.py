"""Observation spaces of every supported kind, nested: for Hypothesis."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

shapes = st.lists(st.integers(1, 3), min_size=0, max_size=3).map(tuple)
starts = st.integers(-5, 300)
leaves = st.one_of(
    shapes.map(lambda s: spaces.Box(-9, 9, s, np.float32)),
    shapes.map(lambda s: spaces.Box(0, 255, s, np.uint8)),
    shapes.map(lambda s: spaces.Box(-1000, 1000, s, np.int32)),
    shapes.map(lambda s: spaces.Box(0, 1, s, np.bool_)),
    st.integers(1, 5).map(spaces.MultiBinary),
    st.tuples(st.integers(1, 400), starts).map(lambda a: spaces.Discrete(a[0], start=a[1])),
    st.lists(st.tuples(st.integers(1, 400), starts), min_size=1, max_size=4).map(
        lambda a: spaces.MultiDiscrete([n for n, _ in a], start=[s for _, s in a])
    ),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(spaces.Tuple),
        st.dictionaries(st.sampled_from("abc"), inner, min_size=1, max_size=3).map(spaces.Dict),
    ),
    max_leaves=5,
)
