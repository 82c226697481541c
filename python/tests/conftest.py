"""Every test has the real thing: sandboxes of this machine, in a home of the run's own."""

import asyncio
import os
import shutil
import tempfile

import pytest

_HOME = tempfile.mkdtemp(prefix="bastide-python-")
os.environ["BASTIDE_HOME"] = _HOME


@pytest.fixture
def home():
    return _HOME


@pytest.fixture(scope="session", autouse=True)
def _nothing_left():
    """Whatever the tests do, no session of theirs is left."""
    yield
    from bastide import sync

    left = [info["id"] for info in sync.list_sessions()]
    assert left == []
    shutil.rmtree(_HOME)


def pytest_pyfunc_call(pyfuncitem):
    """Runs tests that are coroutines, each in a loop of its own."""
    import inspect

    if inspect.iscoroutinefunction(pyfuncitem.obj):
        names = pyfuncitem._fixtureinfo.argnames
        arguments = {name: pyfuncitem.funcargs[name] for name in names}
        asyncio.run(asyncio.wait_for(pyfuncitem.obj(**arguments), 120))
        return True
    return None
