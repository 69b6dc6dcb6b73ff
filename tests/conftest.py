"""What holds for every test."""

import os

from hypothesis import settings

# No deadline: the first example pays for compiling, and timings are not asserted in tests.
settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")
