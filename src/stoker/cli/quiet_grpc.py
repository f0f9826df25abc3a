"""How is the gRPC library kept from printing lines of its own?

Its C++ core writes to stderr past any logging, for example before our one clear error about a port in use. Whoever
debugs it sets GRPC_VERBOSITY, which is left alone.
"""

import os


def quiet_grpc() -> None:
    """Call it before gRPC is imported, which is when it looks."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
