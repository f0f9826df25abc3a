"""The runtime in simulated time: a trace of jobs goes through a cluster whose hours pass in seconds.

Here live the readers of traces, the run of a whole cluster by the brain's own `propose` and `settle`, and the counting
models that published tables are made with. Nothing here reads a clock, and nothing decides where the brain could: a
counting model knows numbers of GPUs only, and is never used live. The command line imports this package; it imports
only the brain.
"""
