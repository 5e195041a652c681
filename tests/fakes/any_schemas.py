"""Objects that stand where a schema may: a few are schemas, most are nearly that."""

from __future__ import annotations

from hypothesis import strategies as st

from gateway.constraints.schemas import TYPE_NAMES

KEYWORDS = (
    *("type", "enum", "examples", "required", "multipleOf", "items", "properties", "allOf"),
    *("dependentRequired", "minimum", "maxLength", "uniqueItems", "title", "pattern", "$ref"),
    *("prefixItems", "$defs", "dependentSchemas", "not", "unevaluatedItems", "contains"),
)
SCALARS = st.one_of(
    *(
        st.none(),
        st.booleans(),
        st.integers(-3, 3),
        st.floats(allow_nan=False, allow_infinity=False),
    ),
    *(st.text(max_size=3), st.sampled_from((*TYPE_NAMES, "any", "#", "#/properties", "["))),
)
NAMES = st.one_of(st.sampled_from(KEYWORDS), st.text(max_size=2))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
    max_leaves=12,
)
SCHEMAS = st.dictionaries(NAMES, VALUES, max_size=4)
