"""Runs the SDK's own tests with our client in the place of its local one (see `upstream_swap.py`).

    python run_upstream.py [OPTIONS OF PYTEST] FOLDER       # the unpacked source distribution, without its `src`
"""

import os
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent

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
    os.environ["PYTHONPATH"] = f"{HERE}:{folder}"
    # As in an environment that was activated: what is on the search path works inside.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    sys.path[:0] = [str(HERE), folder]
    plugins = ["-p", "no:cacheprovider", "-p", "upstream_swap"]
    sys.exit(pytest.main([*plugins, "--tb=short", "--timeout=30", *options, *TESTS]))
