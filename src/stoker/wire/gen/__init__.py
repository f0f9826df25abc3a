"""Generated from `proto/stoker/v1` by `tools/gen_proto.py`; never edited, never linted.

A test regenerates these files and compares. Only codecs and the gRPC modules of `api`, `agent` and `live` import them.
"""
