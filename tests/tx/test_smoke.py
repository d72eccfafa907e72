from tests.tx.harness import Service, entry, turns


async def test_smoke(service: Service) -> None:
    tx = await service.begin()
    await service.manager.can_commit(tx.transaction_id, [b"k"])
    other = await service.begin()
    out = await service.manager.commit(tx.transaction_id, publish=[entry(b"x")])
    print(out)
    print(await service.state_of(other.transaction_id))
    s = await service.restart()
    print(s.manager.status, s.manager.notes)
    print(await s.state_of(tx.transaction_id))
    print(await s.manager.abort(other.transaction_id))
    s2 = await s.crash()
    print(s2.manager.status, s2.manager.notes, len((await s2.manager.overview()).open), (await s2.manager.overview()).invalid_count)
    await s2.kill()
