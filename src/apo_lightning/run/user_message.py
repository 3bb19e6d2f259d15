"""What a user is told of an error."""

from apo_lightning.errors import ConfigError, DoesNotFitError, NonfiniteError, StaleWeightsError, VerifierError

SHOWN = (ConfigError, DoesNotFitError, NonfiniteError, StaleWeightsError, VerifierError)


def user_message(error: BaseException) -> str | None:
    """The one line for the user, where this or what caused it is the user's to mend; None: a bug, show it whole."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, SHOWN):
            return str(cause)
        cause = cause.__cause__
    return None
