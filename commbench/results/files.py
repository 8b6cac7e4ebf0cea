"""The files of a run directory: names, lock, atomic writes.

Checks before a run starts or resumes there.
"""

import contextlib
import fcntl
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from commbench.errors import CommbenchError, InputError
from commbench.schema import JsonMapping, JsonObject

RUN = "run.json"
SAMPLES = "samples.jsonl"
COMPRESSED_SAMPLES = "samples.jsonl.gz"
SUMMARY = "collectives.csv"
OVERLAP = "overlap.csv"
PAIRS = "pairs.csv"
MODEL = "model.json"
DDP = "ddp.csv"
BUCKETS = "buckets.csv"
LOSSES = "losses.csv"
TIMELINE = "timeline.csv"
EVENTS = "events.csv"
DRIFT = "drift.csv"
RECOMMENDATION = "recommendation.json"
LOCK = ".lock"
#: Files that a run which ended before its first line leaves; they make a directory neither ours nor
#: foreign.
SCAFFOLD = frozenset({LOCK, f".{RUN}.tmp"})


def samples_file(path: Path) -> Path:
    """Return the file of a run's samples: the compressed one where there is no other."""
    plain = path / SAMPLES
    compressed = path / COMPRESSED_SAMPLES
    if os.path.lexists(compressed) and not os.path.lexists(plain):
        return compressed
    return plain


def take_lock(path: Path) -> int:
    """Return a file descriptor that holds the lock of ``path`` for as long as it is open."""
    descriptor = os.open(path / LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 200).decode(errors="replace").strip() or "another process"
        os.close(descriptor)
        raise InputError(
            f"--out {path} is in use by {holder}; wait for it or choose another --out."
        ) from error
    except OSError:
        pass  # some cluster file systems have no locks: then nothing guards against two conductors
    return descriptor


def sign_lock(lock: int) -> None:
    """Write this process and host into the lock; an error message of another process names them."""
    os.ftruncate(lock, 0)
    os.pwrite(lock, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)


def as_json(value: JsonMapping) -> JsonObject:
    """Return a mapping as it will be read back."""
    decoded: JsonObject = json.loads(encode(value))
    return decoded


def encode(value: object) -> str:
    """Return a value as one line of JSON, with numpy's numbers as Python's."""
    return json.dumps(value, separators=(",", ":"), default=as_plain)


def json_text(value: object) -> str:
    """Return a value as the text of a JSON file, with numpy's numbers as Python's."""
    return json.dumps(value, indent=1, default=as_plain) + "\n"


def as_plain(value: Any) -> Any:
    """Return numpy's numbers and arrays as Python's, paths and the rest as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


@contextlib.contextmanager
def refusing(path: Path, error_class: type[CommbenchError]) -> Iterator[None]:
    """Turn an error of the file system into one sentence."""
    try:
        yield
    except OSError as error:
        what = f"{error.filename or path} cannot be used ({error.strerror or error})"
        hint = "choose another path"
        if error_class is not InputError:
            hint = "put that right, then the same command resumes"
        raise error_class(f"{what}; {hint}.") from error


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of ``data``, however little the system takes at a time."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def replace_file(file: Path, text: str, mode: int | None = None) -> None:
    """Replace a file atomically: a reader, also after a crash, finds either the old or the new
    content.

    ``mode`` are its permissions, by default those of the umask.
    """
    temporary = file.with_name(f".{file.name}.tmp")
    try:
        with temporary.open("w", encoding="utf-8", errors="backslashreplace", newline="") as stream:
            stream.write(text)
            stream.flush()
            if mode is not None:
                os.fchmod(stream.fileno(), mode)
            os.fsync(stream.fileno())
        temporary.replace(file)
    except OSError:
        with contextlib.suppress(OSError):  # what it holds of a full disk may be what others need
            temporary.unlink()
        raise


def sync_directory(path: Path) -> None:
    """Make the names of new files survive a crash."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # some file systems cannot, and need not
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
