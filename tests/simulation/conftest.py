"""Settings of the simulation's tests."""

import logging

import pytest


@pytest.fixture(autouse=True)
def quiet():
    """Thousands of deaths are logged nowhere."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)
