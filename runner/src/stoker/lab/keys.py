"""The keys of servers, which variables of this process hold."""

from __future__ import annotations

import os

from stoker.contract import variables
from stoker.contract.exits import RunError
from stoker.lab.errors import LabError


def key_in(variable: str) -> str:
    """Return the key in a variable; empty if there is none.

    Raises:
        LabError: no header can have it.
    """
    try:
        return variables.key_in(variable, os.environ)
    except RunError as error:
        raise LabError(error.message, error.code) from error
