"""Reports of long preparations reach whoever listens, and nobody else."""

from atoll import stages
from atoll.data.csbm import CsbmSettings, generate


def test_reports_reach_the_listener_inside_the_block() -> None:
    """Inside, every item is reported; outside, nothing is, and the items are the same."""
    heard: list[tuple[str, int, int]] = []
    with stages.listening(lambda *words: heard.append(words)):
        assert list(stages.tracked("ab", "Reading", 2)) == ["a", "b"]
    assert heard == [("Reading", 0, 2), ("Reading", 1, 2), ("Reading", 2, 2)]
    assert list(stages.tracked("ab", "Reading", 2)) == ["a", "b"]
    assert len(heard) == 3


def test_a_listener_ends_with_an_error() -> None:
    """An exception inside the block ends the listening as well."""
    heard: list[str] = []
    try:
        with stages.listening(lambda what, done, total: heard.append(what)):
            raise ValueError
    except ValueError:
        stages.report("Reading", 0, 1)
    assert not heard


def test_a_generated_training_set_is_reported() -> None:
    """The connected training set of a large graph is what takes long."""
    heard: list[tuple[str, int, int]] = []
    with stages.listening(lambda *words: heard.append(words)):
        generate(CsbmSettings(nodes=200, degree=8, classes=2, communities=0, connected_train_share=0.1))
    assert ("Growing the training set", 7, 20) in heard
