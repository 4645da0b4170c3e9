# SPDX-License-Identifier: Apache-2.0
"""One BLAS thread unless the user asks for more; imported before NumPy, which reads the variable once.

OpenBLAS threads spin between products: beside another busy process, a decode step takes twenty times as long with two
of them as with one.
"""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
