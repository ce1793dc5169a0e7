"""Dense products of a party: torch's own, or oneDNN's where it gives the same numbers in half the time.

torch multiplies float32 on the CPU by MKL, which on AMD's processors leaves the 512-bit units idle. oneDNN uses them, and adds
up a short inner axis in the same order, so that results are equal bit for bit. It compiles a kernel for each number of rows:
products are made in pieces of a few sizes, and what is left over by torch.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from torch import Tensor

PIECES = (4096, 2048, 1024, 512)  # rows of a product at a time; with fewer, the call costs more than it saves
WIDTHS = range(16, 193)  # lengths of the inner axis that MKL adds up in order
MIN_COLUMNS = 16  # below, MKL has kernels of its own
MIN_REST = 16  # likewise for a few rows: the last piece is moved up to cover them, too


def product_into(out: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> None:
    """(n, i) · (i, o), plus (o,), written to `out` (n, o); without gradients."""
    fan_in, fan_out = weight.shape
    start, count = 0, rows.shape[0]
    if count >= PIECES[-1] and rows.is_cpu and rows.dtype == torch.float32 and _is_same(fan_in, fan_out):
        for size in PIECES:
            while count - start >= size:
                _by_onednn(out[start : start + size], rows[start : start + size], weight, bias)
                start += size
        if 0 < count - start < MIN_REST:
            _by_onednn(out[-PIECES[-1] :], rows[-PIECES[-1] :], weight, bias)
            start = count
    if start == count:
        return
    if start:
        rows, out = rows[start:], out[start:]
    if bias is None:
        torch.mm(rows, weight, out=out)
    else:
        torch.addmm(bias, rows, weight, out=out)


def _by_onednn(out: Tensor, rows: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    made = torch.ops.mkldnn._linear_pointwise(rows, weight.t(), bias, "none", [], "")
    if bias is None:
        torch.add(made, 0.0, out=out)  # a sum that underflows from below is −0 here, 0 in MKL
    else:
        out.copy_(made)


@cache
def _is_same(fan_in: int, fan_out: int) -> bool:
    """Whether oneDNN is the faster one here and, as a trial shows, gives MKL's numbers."""
    if fan_in not in WIDTHS or fan_out < MIN_COLUMNS or not _is_faster():
        return False
    draws = torch.Generator().manual_seed(0)
    rows, weight, bias = (torch.randn(*shape, generator=draws) for shape in ((PIECES[-1], fan_in), (fan_in, fan_out), (fan_out,)))
    plain, biased = (rows.new_empty(PIECES[-1], fan_out) for _ in range(2))
    with torch.no_grad():
        _by_onednn(plain, rows, weight, None)
        _by_onednn(biased, rows, weight, bias)
        return torch.equal(plain, torch.mm(rows, weight)) and torch.equal(biased, torch.addmm(bias, rows, weight))


@cache
def _is_faster() -> bool:
    """Whether this is a processor of AMD with 512-bit units, and torch has both libraries."""
    info, libraries = Path("/proc/cpuinfo"), (torch.backends.mkl, torch.backends.mkldnn)
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512" and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    if not wide or not all(library.is_available() for library in libraries):
        return False
    return info.exists() and "AuthenticAMD" in info.read_text(encoding="utf-8", errors="replace")
