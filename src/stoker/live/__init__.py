"""Body one: the control plane, which is REST, gRPC and a single writer around the brain.

Only `main` picks adapters. No rule about jobs lives here: it asks `brain.state.admit` and `brain.cycle`.
"""
