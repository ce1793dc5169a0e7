"""The two ways atoll says no: bad input from a person, and a party that could not answer; and how it says mind."""


class AtollError(Exception):
    """Bad input: one clear sentence that says what, where and what to do. The command line prints it and exits with 2."""


class AtollWarning(UserWarning):
    """Input that is taken, but not as a person might think. The command line prints it as one line."""


class PartyFailure(Exception):
    """A party did not answer a message; `reason` says why in a few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
