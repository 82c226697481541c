"""Runs the SDK's own tests with our client in the place of its local one.

    python run_upstream.py FOLDER       # the unpacked source distribution, without its `src`

`docs/upstream-python.toml` lists the tests that differ, each with its reason. A listed test that passes fails the run,
so that the list cannot grow stale.
"""

import os
import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
LIST = HERE.parent.parent / "docs" / "upstream-python.toml"


def differs() -> dict[str, str]:
    """The tests that differ, with their reasons: the few forms of TOML that the list has."""
    found = {}
    for line in LIST.read_text().splitlines():
        pair = re.fullmatch(r'"?([\w.:/\[\]-]+)"? = "(.*)"', line.strip())
        if pair is not None:
            found[pair[1]] = pair[2]
    return found


class Exchange:
    """Exchanges the names that tests import, before a test module is imported."""

    def __init__(self) -> None:
        self.listed = differs()

    def pytest_configure(self, config) -> None:
        import agents.sandbox.sandboxes as package
        import agents.sandbox.sandboxes.unix_local as module

        from bastide.openai_agents import unix_local as ours

        for name in ours.__all__:
            for place in (module, package):
                if hasattr(place, name):
                    setattr(place, name, getattr(ours, name))

    def pytest_collection_modifyitems(self, config, items) -> None:
        for item in items:
            reason = self.listed.get(getattr(item, "originalname", item.name))
            if reason is not None:
                item.add_marker(pytest.mark.xfail(reason=reason, strict=True))


TESTS = """
tests/sandbox/capabilities/test_filesystem_capability.py
tests/sandbox/integration_tests/test_runner_pause_resume.py
tests/sandbox/test_bounded_read.py
tests/sandbox/test_exposed_ports.py
tests/sandbox/test_extract.py
tests/sandbox/test_memory.py
tests/sandbox/test_posix_tool_paths.py
tests/sandbox/test_recursive_removal_compatibility.py
tests/sandbox/test_run_cwd.py
tests/sandbox/test_runtime.py
tests/sandbox/test_session_manager.py
tests/sandbox/test_session_sinks.py
tests/sandbox/test_unix_local.py
tests/sandbox/test_unix_local_create.py
tests/sandbox/test_unix_local_file_io.py
tests/sandbox/test_unix_local_special_files.py
tests/sandbox/test_unix_local_user_file_io.py
tests/sandbox/test_workspace_jsonl_sink.py
tests/test_run_state.py
""".split()

if __name__ == "__main__":
    *options, folder = sys.argv[1:]
    os.chdir(folder)
    sys.path.insert(0, folder)
    arguments = ["-p", "no:cacheprovider", "-x" if "-x" in options else "--tb=short", *options, *TESTS]
    sys.exit(pytest.main(arguments, plugins=[Exchange()]))
