"""Going back, forking, and sandboxes that end by themselves."""

from datetime import timedelta

import pytest

import bastide
from bastide import errors, sync


async def test_commands_are_undone_and_redone():
    async with await bastide.Sandbox.create(journal=True) as box:
        await box.run("echo one > a")
        await box.run("echo two > a; echo new > b")
        changed = await box.diff()
        assert sorted((file["path"], file["change"]) for file in changed["files"]) == [
            ("a", "changed"),
            ("b", "added"),
        ]
        done = await box.undo()
        assert done["changes"]["removed"] == 1
        assert await box.read("a") == b"one\n"
        with pytest.raises(errors.BastideError):
            await box.read("b")
        await box.redo()
        assert await box.read("b") == b"new\n"
        log = await box.log()
        assert [point["kind"] for point in log["points"]] == ["command", "command"]
        assert all(point["applied"] for point in log["points"])
        await box.undo(2)
        assert [entry.path for entry in await box.ls()] == []
        with pytest.raises(errors.NotFound) as refused:
            await box.undo()
        assert "`Sandbox.checkpoint`" in refused.value.hint
        with pytest.raises(errors.BastideError):
            await box.undo(0)


async def test_checkpoints_are_gone_back_to_by_name():
    async with await bastide.Sandbox.create() as box:
        await box.write("a", "first")
        made = await box.checkpoint("green")
        assert made["name"] == "green" and made["entries"] >= 1
        await box.write("a", "second")
        await box.write("b", "kept")
        assert [file["path"] for file in (await box.diff("green"))["files"]] == ["a", "b"]
        await box.restore_path("a", "green")
        assert await box.read("a") == b"first" and await box.read("b") == b"kept"
        with pytest.raises(errors.Conflict):
            await box.checkpoint("green")
        with pytest.raises(errors.NotFound):
            await box.diff("red")


async def test_forks_go_their_own_ways_and_come_home():
    async with await bastide.Sandbox.create() as box:
        await box.write("a", "1\n2\n3\n4\n5\n")
        one, other = await box.fork(2)
        async with one, other:
            assert len({box.id, one.id, other.id}) == 3
            await one.run("sed -i s/1/one/ a")
            await other.run("sed -i s/5/five/ a; echo more > b")
            assert await box.read("a") == b"1\n2\n3\n4\n5\n"
            assert (await box.merge(one))["conflicts"] == []
            assert (await box.merge(other))["conflicts"] == []
        assert await box.read("a") == b"one\n2\n3\n4\nfive\n"
        assert await box.read("b") == b"more\n"
        # What was forked from this one goes with its own end.
        assert [info["id"] for info in await bastide.list_sessions()] == [box.id]
        async with await bastide.Sandbox.create() as stranger:
            with pytest.raises(errors.BastideError):
                await box.merge(stranger)
        with pytest.raises(errors.BastideError):
            await box.fork(0)


def test_undo_without_a_loop():
    with sync.Sandbox.create(journal=True) as box:
        box.checkpoint("start")
        box.run("echo hi > a")
        [fork] = box.fork(at="start")
        with fork:
            assert fork.ls() == []
            fork.write("b", "of the fork")
            box.merge(fork)
        assert box.read("b") == b"of the fork"
        assert [file["path"] for file in box.diff("start")["files"]] == ["a", "b"]
        box.undo()
        assert {entry.path.rsplit("/", 1)[-1] for entry in box.ls()} == {"a"}
        box.redo()
        assert len(box.log()["points"]) >= 2


async def test_a_sandbox_ends_with_its_lease():
    box = await bastide.Sandbox.create(ttl=timedelta(hours=1), then="delete")
    lease = await box.lease()
    assert 3500 < lease["remaining"] <= 3600 and lease["then"] == "delete" and lease["idle"] is None
    lease = await box.change_lease(ttl=0.5, then="stop")
    assert lease["remaining"] <= 0.5
    with pytest.raises(errors.BastideError, match="expired"):
        await box.run("sleep 60")
    await box.delete()
    assert await bastide.list_sessions() == []


async def test_a_lease_can_be_taken_back():
    async with await bastide.Sandbox.create(idle=3600, ttl=3600) as box:
        assert (await box.lease())["idle"] == 3600
        lease = await box.change_lease(forget=True)
        assert lease["remaining"] is None and lease["idle"] is None


@pytest.mark.parametrize(
    "wrong",
    [{"ttl": 0}, {"ttl": -1}, {"idle": float("nan")}, {"ttl": "soon"}, {"ttl": 1, "then": "burn"}],
)
async def test_a_lease_of_no_time_is_refused(wrong):
    with pytest.raises(errors.InvalidInput):
        await bastide.Sandbox.create(**wrong)
    assert await bastide.list_sessions() == []
