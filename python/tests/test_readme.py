"""The examples of the README, and of the pages of the package and its extension, are what they say."""

import asyncio
import re
from pathlib import Path

import pytest
from agents import RunConfig, Runner
from agents.sandbox import SandboxAgent, SandboxRunConfig
from agents.testing import ScriptedModel, assistant_message

TOP = Path(__file__).parent.parent.parent
README = TOP / "README.md"


def test_the_section_runs_and_is_short(capsys):
    section = README.read_text().split("## From Python\n")[1].split("\n## ")[0]
    assert len(section.strip().splitlines()) <= 25
    with_sdk, without = re.findall(r"```python\n(.*?)```", section, re.S)
    # What is written at the top level of the first example stands for the body of a coroutine.
    lines = with_sdk.splitlines()
    body = "\n".join(f"    {line}" for line in lines)
    model = ScriptedModel([[assistant_message("done", item_id="end")]])
    agent = SandboxAgent(name="worker", model=model)
    scope = {
        "RunConfig": RunConfig,
        "Runner": Runner,
        "SandboxRunConfig": SandboxRunConfig,
        "agent": agent,
    }
    exec(f"async def example():\n{body}\n", scope)
    asyncio.run(scope["example"]())
    assert capsys.readouterr().out.startswith("done\nb'hello\\n' ")
    exec(without, {})
    code, network = capsys.readouterr().out.split()
    # There is nothing to make there.
    assert code != "0" and network == "none"


@pytest.mark.parametrize("page", ["python/README.md", "crates/python/README.md"])
def test_the_first_example_of_a_page_runs(page, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (TOP / page).read_text(), re.S)
    exec(example, {})
    assert capsys.readouterr().err == ""
