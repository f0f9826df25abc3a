"""Program that holds memory of the first visible GPU, through the driver's own library, until it is ended.

Usage: holder.py MIB [SECONDS]     it writes `holds MIB` once it has the memory
"""

import ctypes
import sys
import time


def checked(name: str, status: int) -> None:
    if status:
        sys.exit(f"{name} failed: CUDA error {status}")


def main() -> None:
    cuda = ctypes.CDLL("libcuda.so.1")
    device, context, memory = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    size = ctypes.c_size_t(int(sys.argv[1]) << 20)
    checked("cuInit", cuda.cuInit(0))
    checked("cuDeviceGet", cuda.cuDeviceGet(ctypes.byref(device), 0))
    checked("cuCtxCreate", cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device))
    checked("cuMemAlloc", cuda.cuMemAlloc_v2(ctypes.byref(memory), size))
    checked("cuMemsetD8", cuda.cuMemsetD8_v2(memory, 1, size))
    checked("cuCtxSynchronize", cuda.cuCtxSynchronize())
    print(f"holds {sys.argv[1]}", flush=True)
    time.sleep(float(sys.argv[2]) if len(sys.argv) > 2 else 3_600.0)


if __name__ == "__main__":
    main()
