"""Adam for many users' weights: gradients that are made some rows at a time, and moments per user instead of per weight."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from atoll.device import precise
from atoll.graphs.blocks import row_pieces
from atoll.graphs.user_rows import Entries
from atoll.models.optim import Adam
from atoll.models.party_tensors import MAX_PIECES

MAX_NUMBERS = 1 << 16  # of weights that are stepped at once, so that what is made for them stays in the cache


@torch.no_grad()
def step_by_rows(adam: Adam, gradient: Callable[[slice], Tensor], rows: int) -> None:
    """One step of all rows of a single parameter, bit for bit, with the gradient of about `rows` rows made at a time.

    The gradient as a whole is never in memory, and that of some rows is still in the cache when the step reads it. Where rows
    have taken different numbers of steps, the whole gradient is made.
    """
    (param,), (first,), (second,) = adam.params.values(), adam.first.values(), adam.second.values()
    pieces = row_pieces(slice(0, len(param)), rows, MAX_PIECES)
    if len(pieces) == 1 or not adam.in_step or not param.is_cpu:
        adam.step([gradient(slice(0, len(param)))])
        return
    adam.steps += 1
    options = {"lr": adam.lr, "beta1": adam.betas[0], "beta2": adam.betas[1], "weight_decay": adam.groups[0][0], "eps": adam.eps}
    for some in pieces:
        tensors = ([tensor[some]] for tensor in (first, second))
        adam.kernel([param[some]], [gradient(some)], *tensors, [], [adam.steps[0]], **options, amsgrad=False, maximize=False)


class RankOneAdam(Adam):
    """AdamW for the kept rows w_e (E, h) of users whose gradients are x_e·g_i, with one vector g_i for all rows of user i.

    The moments of such gradients are m_e = x_e·M_i and v_e = x_e²·V_i, where M_i and V_i are those of g_i. So these (N, h) are
    enough, and the step is w_e ← (1 − ηλ)·w_e − η·x_e·M̂_i / (|x_e|·√V̂_i + ε): AdamW's, up to rounding. An L2 penalty would
    add λ·w_e to the gradient, which then has no such form.
    """

    def __init__(self, rows: Tensor, entries: Entries, lr: float, weight_decay: float = 0.0) -> None:
        super().__init__({"user": rows.new_zeros(1, 1).expand(entries.users, rows.shape[1])}, lr, weight_decay)
        self.rows, self.entries = rows, entries

    @torch.no_grad()
    def step_users(self, gradient: Tensor) -> None:
        """One step of every user, from the gradients g (N, h) of its latent vector."""
        first, second = self.first["user"], self.second["user"]
        self.steps += 1
        first.lerp_(gradient, 1 - self.betas[0])
        second.mul_(self.betas[1]).addcmul_(gradient, gradient, value=1 - self.betas[1])
        entries = self.entries
        if not len(self.rows):
            return
        every = slice(0, len(self.rows))
        for some in row_pieces(every, MAX_NUMBERS // self.rows.shape[1], MAX_PIECES) if self.rows.is_cpu else [every]:
            user, users = entries.users_of(some), slice(0, entries.users)
            if self.rows.is_cpu:
                users = slice(int(user[0]), int(user[-1]) + 1)
            lead = precise(self.steps[users, None])
            direction = first[users] * (self.lr / (1 - self.betas[0] ** lead)).float()  # η·M̂
            size = second[users].sqrt() * (1 - self.betas[1] ** lead).rsqrt().float()  # √V̂
            index, value = user - users.start, entries.value[some, None]
            above, below = direction.index_select(0, index).mul_(value), size.index_select(0, index).mul_(value.abs())
            self.rows[some].mul_(1 - self.lr * self.weight_decay).sub_(above.div_(below.add_(self.eps)))
