"""gRPC services of the control plane, and its client to other control planes.

The only place in this runtime that imports grpc.
"""
