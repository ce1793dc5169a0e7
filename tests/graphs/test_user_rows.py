"""Row-sparse weights: the products of whole matrices; first values that do not depend on what is kept; steps out of step."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "algorithms"))

from users import some_users

from atoll.data.partition import partition
from atoll.data.partition_settings import PartitionSettings
from atoll.graphs import user_rows
from atoll.graphs.features import nonzero_values
from atoll.graphs.user_rows import Entries, Weights
from atoll.models import optim, party_tensors
from atoll.models.parameters import set_parameters
from atoll.models.user_optim import step_by_rows
from atoll.random import Streams


def entries() -> Entries:
    """Those of 24 users."""
    return Entries(partition(some_users(), "node", None, PartitionSettings(), 0))


def test_products_are_those_of_whole_weights() -> None:
    """x_i·W_i and its gradient, against a dense (N, d, h)."""
    kept = entries()
    whole = torch.randn(24, 40, 6, generator=torch.Generator().manual_seed(1), requires_grad=True)
    x = torch.from_numpy(some_users().nonzero_features.toarray())
    rows = whole.detach()[kept.user, kept.feature]
    dense = torch.einsum("nd,ndh->nh", x, whole)
    torch.testing.assert_close(kept.product(rows), dense.detach())
    gradient = torch.randn(24, 6, generator=torch.Generator().manual_seed(2))
    of_whole = torch.autograd.grad(dense, whole, gradient)[0]
    ours = kept.outer(gradient, torch.empty(len(kept.value), 6), slice(0, len(kept.value)))
    torch.testing.assert_close(ours, of_whole[kept.user, kept.feature])
    assert not of_whole[x == 0].any()


@pytest.mark.parametrize("together", [1, 5, 1000])
def test_some_entries_at_a_time_are_all_of_them(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products and users by pieces, in any order, are those of all entries; user 5 has none."""
    whole = entries()
    owners = torch.repeat_interleave(torch.arange(24, dtype=torch.int32), whole.starts.diff())
    rows = torch.randn(len(whole.value), 6, generator=torch.Generator().manual_seed(1))
    product = whole.product(rows)
    monkeypatch.setattr(user_rows, "MAX_TOGETHER", together)
    kept = entries()
    assert (len(kept.pieces) > 1) == (together < 1000)
    assert torch.equal(kept.product(rows), product)
    assert torch.equal(kept.user, owners)
    for start, stop in ((0, 1), (3, 9), (len(owners) - 2, len(owners)), (1, 4), (0, len(owners))):
        assert torch.equal(kept.users_of(slice(start, stop)), owners[start:stop])


def test_users_draw_the_rows_of_their_whole_weights() -> None:
    """Kept rows are those of the matrix a user would draw whole."""
    kept = entries()
    weights = Weights(kept, 6)
    weights.draw(Streams(3, range(24), "weights"), 0.5)
    whole = Streams(3, range(24), "weights").uniform(40, 6, low=-0.5, high=0.5)
    assert torch.equal(weights.rows.detach(), whole[kept.user, kept.feature])


def test_some_users_are_taken_as_if_there_were_no_others() -> None:
    """In any order."""
    kept, users = entries(), torch.tensor([9, 5, 0])
    part = kept.take(users)
    rows = torch.randn(len(kept.value), 6, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(part.product(rows[kept.of(users)]), kept.product(rows)[users])


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
def test_adam_steps_many_parties_out_of_step_at_once(kind: str) -> None:
    """Each of 150 parties by its own count, as torch's Adam does one after the other."""
    source = torch.Generator().manual_seed(4)
    start, gradients = torch.randn(150, 5, generator=source), torch.randn(6, 150, 5, generator=source)
    ours, torchs = getattr(optim, kind), getattr(torch.optim, kind)
    mine = ours({"w": start.clone()}, 0.1, 0.01)
    plain = [start[i].clone().requires_grad_() for i in range(150)]
    theirs = [torchs([p], lr=0.1, weight_decay=0.01) for p in plain]
    for turn, gradient in enumerate(gradients):
        chosen = torch.arange(150)[torch.arange(150) % (turn + 1) == 0]
        part = ours({"w": mine.params["w"][chosen].clone()}, 0.1, 0.01)
        part.restore({name: value[chosen] for name, value in mine.state().items()})
        part.step([gradient[chosen]])
        mine.params["w"][chosen] = part.params["w"]
        mine.restore({name: value.index_copy(0, chosen, part.state()[name]) for name, value in mine.state().items()})
        for i in chosen.tolist():
            plain[i].grad = gradient[i].clone()
            theirs[i].step()
    mine.step([gradients[0]])
    for i in range(150):
        plain[i].grad = gradients[0][i].clone()
        theirs[i].step()
    assert len(torch.unique_consecutive(mine.steps)) > party_tensors.MAX_PIECES
    torch.testing.assert_close(mine.params["w"], torch.stack(plain).detach(), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("kind", ["Adam", "AdamW"])
@pytest.mark.parametrize(("rows", "width", "apart"), [(1000, 16, 1), (1000, 5, 1), (700, 6, 7), (40, 5, 1), (1000, 7, 300)])
def test_steps_by_rows_are_the_steps_of_all_rows(kind: str, rows: int, width: int, apart: int) -> None:
    """Bit for bit, whatever the width, in step, in a few runs of equal counts, and with more counts than are stepped in turn."""
    source = torch.Generator().manual_seed(0)
    start, gradients = torch.randn(rows, width, generator=source), torch.randn(3, rows, width, generator=source)
    whole, pieces = (getattr(optim, kind)({"w": start.clone()}, 0.1, 0.01) for _ in range(2))
    before = whole.state() | {"steps": torch.arange(rows) * apart // rows + 1.0}
    whole.restore(before)
    pieces.restore(before)
    for gradient in gradients:
        whole.step([gradient])
        step_by_rows(pieces, lambda some, gradient=gradient: gradient[some].clone(), 128)
    assert torch.equal(whole.params["w"], pieces.params["w"])
    assert all(torch.equal(value, pieces.state()[name]) for name, value in whole.state().items())


def test_the_product_is_made_again_when_weights_have_changed() -> None:
    """After a step, a new start and a restored state; in between it is the same tensor."""
    kept = entries()
    weights = Weights(kept, 6)
    weights.draw(Streams(3, range(24), "weights"), 0.5)
    adam = optim.Adam(weights, 0.1)

    def step() -> None:
        step_by_rows(adam, lambda rows: weights.backward(torch.ones(24, 6), rows), 128)

    changes = (
        step,
        step,
        lambda: weights.share(torch.ones(40, 6)),
        lambda: set_parameters(weights, {"rows": torch.full((len(kept.value), 6), 0.5)}),
        lambda: weights.draw(Streams(4, range(24), "weights"), 0.5),
    )
    for change in changes:
        before = weights()
        assert weights() is before
        change()
        assert not torch.equal(weights(), before)
        assert torch.equal(weights(), kept.product(weights.rows))


def test_dense_features_are_kept_as_sparse_ones() -> None:
    """As scipy would make them of a dense matrix, with and without zeros."""
    full = torch.randn(5, 3, generator=torch.Generator().manual_seed(0))
    for x in (full, full * (full > 0), full.t(), full[:0], full[:, :0]):
        made, plain = nonzero_values(x), sp.csr_array(x.numpy())
        assert made.shape == plain.shape
        for name in ("indptr", "indices", "data"):
            assert np.array_equal(getattr(made, name), getattr(plain, name)), name
