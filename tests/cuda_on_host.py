"""cupy in host memory, with CUDA source compiled for the host: results of kernels, not their
speed.
"""

import atexit
import ctypes.util
import hashlib
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, NoReturn

import numpy as np
import pytest
from launching import assert_code
from typing_extensions import Self

HEADER = Path(__file__).parent / "cuda_on_host.h"
#: What `launch` in the header hands to every kernel.
MOST_ARGUMENTS = 12
#: Few threads in a block, so that a test is quick, but more than one warp.
THREADS = 64
#: Blocks that a processor holds of a kernel, by its registers; of all others two.
RESIDENT = {"divide": 3, "emit": 1}
#: The header holds one block; hooks select on one thread and add up on others.
_ONE_AT_A_TIME = threading.Lock()


def find_compiler() -> str | None:
    """Return the C++ compiler of this machine, or None."""
    return shutil.which("g++") or shutil.which("c++")


needs_compiler = pytest.mark.skipif(not find_compiler(), reason="needs a C++ compiler")


@cache
def _folder() -> Path:
    folder = tempfile.mkdtemp(prefix="commbench-cuda-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@cache
def compile_for_host(code: str, options: tuple[str, ...]) -> ctypes.CDLL:
    """Compile a kernel's source; every warning is an error."""
    name = hashlib.sha256("\0".join((code, *options)).encode()).hexdigest()[:16]
    source, target = (_folder() / f"{name}.{kind}" for kind in ("cu", "so"))
    source.write_text(code)
    warnings = ("-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-unused-parameter")
    flags = ("-O1", "-shared", "-fPIC", *warnings, "-include", str(HEADER))
    command = [str(find_compiler()), *options, *flags, "-x", "c++", str(source), "-o", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert_code(done, 0)
    return ctypes.CDLL(str(target))


class Launches(list[tuple[str, int]]):
    """The launched kernels with their numbers of blocks."""


class _Kernel:
    """A kernel as cupy's RawKernel."""

    def __init__(self, library: ctypes.CDLL, name: str, launches: Launches) -> None:
        self._library, self._name, self._launches = library, name, launches
        self._address = ctypes.cast(getattr(library, name), ctypes.c_void_p)
        self.kernel = SimpleNamespace(ptr=name)

    def __call__(
        self, grid: tuple[int], block: tuple[int], arguments: Sequence[Any], *, stream: Any
    ) -> None:
        assert all(isinstance(each, (np.uint32, np.uint64)) for each in arguments), (
            "cupy would guess the type"
        )
        assert isinstance(stream.ptr, int)
        self._launches.append((self._name, grid[0]))
        values = [int(each) for each in arguments]
        words = (ctypes.c_longlong * MOST_ARGUMENTS)(*values)
        with _ONE_AT_A_TIME:
            self._library.launch(
                self._address, ctypes.c_uint(grid[0]), ctypes.c_uint(block[0]), words
            )


class _Device:
    """The device of host memory."""

    def __init__(self, _: object = None) -> None:
        self.attributes = {"MultiProcessorCount": 1}

    def __enter__(self) -> Self:
        """Enter the device."""
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the device."""


def without_headers(**_: object) -> NoReturn:
    """Raise as cupy's ``RawModule`` does without CUDA's headers."""
    raise RuntimeError(
        "Failed to auto-detect CUDA root directory. Please specify `CUDA_PATH` environment"
        " variable."
    )


def simulated(launches: Launches) -> dict[str, ModuleType]:
    """Return modules in place of cupy; ``launches`` records launches."""

    class RawModule:
        def __init__(self, *, code: str, options: tuple[str, ...]) -> None:
            self._library = compile_for_host(code, options)

        def get_function(self, name: str) -> _Kernel:
            return _Kernel(self._library, name, launches)

    def occupancy(kernel: str, threads: int, _: int) -> int:
        assert threads in {THREADS, 256, 1024}
        return RESIDENT.get(kernel, 2)

    cuda = ModuleType("cupy.cuda")
    driver = SimpleNamespace(occupancyMaxActiveBlocksPerMultiprocessor=occupancy)
    vars(cuda).update(Device=_Device, driver=driver)
    cupy = ModuleType("cupy")
    vars(cupy).update(cuda=cuda, RawModule=RawModule)
    return {"cupy": cupy, "cupy.cuda": cuda}


@contextmanager
def installed() -> Iterator[Launches]:
    """Serve hooks by a simulated cupy with small thread blocks; yield its launches."""
    from commbench.hooks import compilers, quantisers, selectors

    launches = Launches()
    with pytest.MonkeyPatch.context() as patch:
        for simulation, module in simulated(launches).items():
            patch.setitem(sys.modules, simulation, module)
        patch.setattr(compilers, "stream_of", lambda _: 7)
        patch.setattr(selectors, "THREADS", THREADS)
        patch.setattr(quantisers, "THREADS", THREADS)
        compilers._compile.cache_clear()
        yield launches
    compilers._compile.cache_clear()


def find_nvrtc() -> str | None:
    """Return CUDA's compiler library, which needs no GPU, from pip's packages or the system."""
    roots = [Path(folder) for folder in sys.path]
    paths = [
        path for root in roots for path in sorted(root.glob("nvidia/*/lib/libnvrtc.so.[0-9]*"))
    ]
    return str(paths[0]) if paths else ctypes.util.find_library("nvrtc")


def compile_for_gpu(library: str, code: str, options: Sequence[str]) -> tuple[int, str]:
    """Return NVRTC's status for a source, 0 on success, and its log."""
    for builtins in Path(library).parent.glob(
        "libnvrtc-builtins.so.[0-9]*"
    ):  # that of CUDA 13 does not look beside it
        ctypes.CDLL(str(builtins))
    nvrtc, program, size = ctypes.CDLL(library), ctypes.c_void_p(), ctypes.c_size_t()
    assert 0 == nvrtc.nvrtcCreateProgram(
        ctypes.byref(program), code.encode(), b"kernels.cu", 0, None, None
    )
    words = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    status = nvrtc.nvrtcCompileProgram(program, len(options), words)
    assert 0 == nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
    log = ctypes.create_string_buffer(size.value)
    assert 0 == nvrtc.nvrtcGetProgramLog(program, log)
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))
    return int(status), log.value.decode()


def registers_on_gpu(module: ModuleType, architecture: str, threads: int) -> list[int]:
    """Compile a module's kernels for a GPU without a warning or a spill.

    Return each one's registers.
    """
    library = find_nvrtc()
    if library is None:
        pytest.skip("needs NVRTC, which pip has for Linux alone (nvidia-cuda-nvrtc)")
    options = (
        "-std=c++17",
        f"-DTHREADS={threads}",
        f"--gpu-architecture={architecture}",
        "-ftz=true",
    )  # as cupy does
    from commbench.hooks.compilers import source_of

    source = source_of(module.SOURCE)
    assert (0, "") == compile_for_gpu(library, source, options)
    _, log = compile_for_gpu(library, source, (*options, "--ptxas-options=-v"))
    registers = [int(count) for count in re.findall(r"Used (\d+) registers", log)]
    assert len(module.KERNELS) == len(registers)
    assert ["0"] * 2 * len(registers) == re.findall(r"(\d+) bytes spill", log)
    return registers
