"""The public interfaces of a control plane: REST, the event stream and the gRPC JobService.

Requests are parsed, handed to `control`, and answers are encoded. No rule is decided here, and no adapter or runtime is
imported: each runtime mounts these interfaces over its own control plane.
"""
