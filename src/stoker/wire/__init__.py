"""The contracts with the outside: REST shapes, protobuf codecs, the error table, the Python client.

No behaviour lives here. Runtimes and the command line import it; it imports the brain's nouns and no runtime.
"""
