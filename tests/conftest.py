"""What holds for every test."""

import os
import signal

from hypothesis import settings

# No deadline: the first example pays for compiling, and timings are not asserted in tests.
settings.register_profile("here", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "here")

# A shell that starts the tests in the background makes them ignore SIGINT, and their children would inherit that; a handler, as
# opposed to "ignore", is reset when a child is executed.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
