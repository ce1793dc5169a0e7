"""Copies of huge tensors on the disk: read like any tensor, but the system can take their pages back when memory is short."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from atoll.errors import AtollError

LARGE = 1 << 30  # bytes from which on a copy is worth a file
MAX_BYTES_AT_ONCE = 1 << 26  # bytes that are written at once


def spilled(tensor: Tensor) -> Tensor:
    """A copy in a file without a name, which is gone with the tensor; the folder is TMPDIR or, without one, /var/tmp.

    The copy may be changed: what is changed is in memory from then on.
    """
    plain = tensor.detach().contiguous()
    data = plain.view(-1).view(torch.uint8).numpy().data
    folder = _folder()
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            for start in range(0, len(data), MAX_BYTES_AT_ONCE):
                file.write(data[start : start + MAX_BYTES_AT_ONCE])
            file.flush()
            mapped = np.memmap(file, np.uint8, mode="c")
    except OSError as error:
        raise AtollError(
            f"A copy of {len(data) / 1e9:.1f} GB cannot be written to {folder} ({error.strerror}); make room, or let TMPDIR "
            "name another folder."
        ) from error
    return torch.from_numpy(mapped).view(plain.dtype).view(plain.shape)


def _folder() -> Path:
    """Where copies go; /tmp is often memory itself."""
    chosen, disk = os.environ.get("TMPDIR"), Path("/var/tmp")
    return Path(chosen) if chosen else disk if os.access(disk, os.W_OK) else Path(tempfile.gettempdir())
