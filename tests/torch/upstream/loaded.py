"""Importing this loads what a rank takes long to load: the process from which ranks are forked does it once for all of them."""

import tests.torch.upstream.suite  # noqa: F401
from switchsum.host_agent.prepare import prepare

prepare()
