"""A store that failed is opened again only if it is the same one, with all that was acknowledged;
any other store in its place is refused."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from messaging.engines.leveldb import LevelDbOpener
from tests.messaging.world import World, polled, publish
from tuff.protocol.errors import StorageUnavailableError


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "messages"


@pytest.fixture
def world(directory: Path) -> World:
    """A server that keeps its messages in LevelDB."""
    stores = LevelDbOpener(directory)
    return World(lambda: stores())


def make_nothing(directory: Path) -> None:
    """As where a volume is not mounted any more."""
    directory.mkdir()


def leave_nothing(directory: Path) -> None:
    assert not directory.exists()


@pytest.mark.parametrize("put_there", [make_nothing, leave_nothing])
async def test_no_new_store_is_created_in_place_of_one_that_was_moved(
    world: World, directory: Path, put_there: Callable[[Path], None]
) -> None:
    async with world.running(audit={}) as service:
        await publish(service, b"first")
        away = directory.rename(directory.with_name("away"))
        put_there(directory)

        for _ in range(2):
            with pytest.raises(StorageUnavailableError, match="holds no messages any more"):
                await publish(service, b"refused")
            await service.tick()

        assert service.status[0] == "down"
        assert not directory.exists() or not any(directory.iterdir())

        shutil.rmtree(directory, ignore_errors=True)
        away.rename(directory)
        await service.tick()
        await publish(service, b"second")
        assert await polled(service) == [b"first", b"second"]


async def test_an_older_copy_is_refused_while_the_server_runs(
    world: World, directory: Path
) -> None:
    async with world.running(audit={}) as service:
        shutil.copytree(directory, directory.with_name("copy"))
        await publish(service, b"first")
        away = directory.rename(directory.with_name("away"))
        directory.with_name("copy").rename(directory)

        with pytest.raises(StorageUnavailableError, match="may or may not be there"):
            await publish(service, b"second")
        await service.tick()

        assert service.status[0] == "down"
        assert "ends with batch 1, and the one" in str(service.status[1])
        assert "ends with batch 2 or 3: put that one back" in str(service.status[1])
        with pytest.raises(StorageUnavailableError, match="can't be used now: the store that is"):
            await polled(service)

        shutil.rmtree(directory)
        away.rename(directory)
        await service.tick()
        assert service.status == ("ok", None)
        assert await polled(service) == [b"first"]


async def test_the_next_start_accepts_an_older_copy(world: World, directory: Path) -> None:
    async with world.running(audit={}) as service:
        await publish(service, b"in the copy")
        shutil.copytree(directory, directory.with_name("copy"))
        await publish(service, b"lost")
    shutil.rmtree(directory)
    directory.with_name("copy").rename(directory)

    async with world.running() as service:
        assert await polled(service) == [b"in the copy"]


async def test_a_lock_file_that_was_removed_is_created_again(world: World, directory: Path) -> None:
    async with world.running(audit={}) as service:
        (directory / "tuff.lock").unlink()

        with pytest.raises(StorageUnavailableError, match="proven not to be there"):
            await publish(service, b"refused")

        await publish(service, b"taken")
        assert await polled(service) == [b"taken"]
