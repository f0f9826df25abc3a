"""The clocks of one process, moved while it runs: its machine has slept, or its wall clock was set."""

import subprocess
from pathlib import Path
from typing import Final

_LIBRARY: Final = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static void moved_s(long *wall, long *boot) {
    char text[64] = {0}, *rest = text;
    int fd = open(getenv("CLOCKS_MOVED_FILE"), O_RDONLY);
    if (fd < 0) return;
    if (read(fd, text, sizeof text - 1) < 0) text[0] = 0;
    close(fd);
    *wall = strtol(rest, &rest, 10);
    *boot = strtol(rest, &rest, 10);
}

int clock_gettime(clockid_t which, struct timespec *now) {
    int (*real)(clockid_t, struct timespec *) = dlsym(RTLD_NEXT, "clock_gettime");
    int said = real(which, now);
    long wall = 0, boot = 0;
    if (said || (which != CLOCK_REALTIME && which != CLOCK_BOOTTIME)) return said;
    moved_s(&wall, &boot);
    now->tv_sec += which == CLOCK_REALTIME ? wall : boot;
    return said;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
"""


class MovedClocks:
    """Those of a process that is started with `environ`."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        source, library, self._file = folder / "clocks.c", folder / "clocks.so", folder / "moved"
        source.write_text(_LIBRARY)
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        self.environ = {"LD_PRELOAD": str(library), "CLOCKS_MOVED_FILE": str(self._file)}

    def correct(self, by_s: int) -> None:
        self._say(by_s, 0)

    def suspend(self, for_s: int) -> None:
        self._say(for_s, for_s)

    def _say(self, wall_s: int, boot_s: int) -> None:
        new = self._file.with_suffix(".new")
        new.write_text(f"{wall_s} {boot_s}")
        new.replace(self._file)
