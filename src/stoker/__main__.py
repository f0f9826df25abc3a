"""`python -m stoker` is the same as `stoker`.

Until a command runs, Ctrl-C ends the process as it ends any other: an exception out of an import would be a traceback.
"""

import signal

if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from stoker.cli.main import main  # the imports are what takes long enough to be interrupted

if __name__ == "__main__":
    main()
