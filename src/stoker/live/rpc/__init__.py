"""gRPC: decode, hand over to sessions or the writer, answer.

The only place in this body that imports grpc.
"""
