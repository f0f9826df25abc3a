"""The web pages: templates and assets, rendered on the server and kept alive by a stream of ticks.

A page is a client of REST inside the same process: it asks as its reader, is refused what REST refuses, and shows what
REST answers. No rule lives here and none is repeated; what a page changes, its script asks of REST itself. Only
composition roots may import it.
"""
