# SPDX-License-Identifier: Apache-2.0
"""The checks that all constructors share."""

from __future__ import annotations

import numpy as np
import pytest

from llm_runtime._validation import positive_int, require_bool, require_instance


def test_good_values_pass_through():
    assert positive_int(3, name="rows") == 3
    assert require_bool(False, name="flag") is False
    require_instance(True, int, name="count")


@pytest.mark.parametrize("value", [0, -1, True, 1.0, "1", None, np.int64(1)])
def test_only_plain_positive_integers_pass(value):
    with pytest.raises(ValueError, match="rows must be a positive integer"):
        positive_int(value, name="rows")


@pytest.mark.parametrize("value", [0, 1, None, "yes", np.bool_(True)])
def test_only_bools_pass(value):
    with pytest.raises(TypeError, match="flag must be a bool"):
        require_bool(value, name="flag")


def test_a_foreign_type_is_named():
    with pytest.raises(TypeError, match="reader must be a dict, got list"):
        require_instance([], dict, name="reader")
