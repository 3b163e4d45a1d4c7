"""What engine tests share: async tests run on asyncio."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """The event loop that `pytest.mark.anyio` uses."""
    return "asyncio"
