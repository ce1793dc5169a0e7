"""Parties behave like a tuple of ints, and find places without a loop."""

from __future__ import annotations

import numpy as np
import pytest

from atoll.parties import Parties


def test_parties_are_equal_to_any_sequence_of_the_same_numbers() -> None:
    """Tuples, lists, ranges and parties compare by their numbers, in order, and hash alike."""
    three = Parties([0, 2, 5])
    assert three == (0, 2, 5) == three
    assert three == [0, 2, 5]
    assert three != (0, 5, 2)
    assert three != (0, 2)
    assert Parties(range(1, 4)) == range(1, 4)
    assert hash(three) == hash((0, 2, 5))
    assert {three: 1}[0, 2, 5] == 1


def test_parties_give_plain_ints() -> None:
    """Party numbers key the randomness by their repr: a numpy int would draw other numbers."""
    assert [type(party) for party in Parties(range(2))] == [int, int]
    assert type(Parties(range(2))[1]) is int
    assert Parties(range(5))[1:3] == (1, 2)


def test_places_are_found_in_any_order_and_strangers_refused() -> None:
    """`places` is the inverse of indexing, whether or not the numbers ascend."""
    for parties in (Parties([1, 4, 9, 12]), Parties([9, 1, 12, 4])):
        assert [parties[place] for place in parties.indices([12, 1])] == [12, 1]
        assert parties.index(9) == parties.indices([9])[0]
        for stranger in (0, 5, 99):
            with pytest.raises(ValueError, match=f"party {stranger}"):
                parties.indices([4, stranger])


def test_without_keeps_the_order_and_itself_where_nobody_goes() -> None:
    """Nothing is copied where nobody leaves."""
    parties = Parties([3, 1, 2])
    assert parties.without({1: "gone"}) == (3, 2)
    assert parties.without({}) is parties
    assert parties.without({7}) is parties


def test_among_keeps_the_order_and_itself_where_all_are_there() -> None:
    """As one would ask for each party by itself."""
    parties, others = Parties([3, 1, 2]), Parties([2, 5, 3])
    assert parties.among(others) == [party for party in parties if party in others] == [3, 2]
    assert parties.among(Parties([3, 1, 2])) is parties
    assert parties.among(Parties([7])) == ()


def test_an_array_of_parties_is_a_copy_where_one_is_asked_for() -> None:
    """The numbers cannot be changed from outside."""
    parties = Parties(range(3))
    copy = np.array(parties)
    copy[0] = 9
    assert parties == (0, 1, 2)
    assert np.asarray(parties, dtype=np.int64) is not None
    with pytest.raises(ValueError, match="read-only"):
        parties.numbers[0] = 1


def test_ascending_is_itself_where_it_is_in_order() -> None:
    """Nothing is copied or sorted where nothing is out of order."""
    parties = Parties([1, 2, 7])
    assert parties.ascending() is parties
    assert Parties([7, 1, 2]).ascending() == (1, 2, 7)
    assert Parties([]).ascending() == ()


def test_equal_parties_share_their_numbers_once_they_were_compared() -> None:
    """Comparing the same two again costs nothing; what is not equal stays apart."""
    one, same, longer, other = Parties([1, 2]), Parties([1, 2]), Parties([1, 2, 3]), Parties([2, 1])
    assert one == same
    assert one.numbers is same.numbers
    assert one != longer
    assert one != other
    assert (list(longer), list(other)) == ([1, 2, 3], [2, 1])
