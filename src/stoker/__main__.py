"""`python -m stoker` is the same as `stoker`.

Until a command runs, Ctrl-C ends the process as it ends any other: an exception out of an import would be a traceback.
Before our first line Python itself answers it, which nothing in here can change.
"""

# The built-in module, for `signal` takes 3 ms to import, of which this is to be the end.
import _signal  # type: ignore[import-not-found]  # typeshed knows `signal` only

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

from stoker.cli.main import main  # the imports are what takes long enough to be interrupted

if __name__ == "__main__":
    main()
