"""`load`: mistakes in a name or an option."""

from collections.abc import Callable

import pytest

from atoll.data import load
from atoll.errors import AtollError


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: load("pubmde"), "did you mean 'pubmed'"),
        (lambda: load("csbm", node=5), "'csbm' has no option 'node'; did you mean 'nodes'"),
        (lambda: load("cora", direct=True), "'cora' has no option 'direct'; did you mean 'directed'"),
        (lambda: load("csbm", fold=1), "there is no fold 1"),
        (lambda: load("no/such/folder"), "no folder or file no/such/folder"),
    ],
)
def test_typing_mistakes(call: Callable[[], object], said: str) -> None:
    """What is unknown gets the nearest known word."""
    with pytest.raises(AtollError, match=said):
        call()
