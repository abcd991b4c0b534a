"""Settings for all tests, made before JAX starts: one thread for compiled programs, as a run has."""

import os

os.environ.setdefault("PJRT_NPROC", "1")
