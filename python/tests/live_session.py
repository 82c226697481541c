"""A started session for tests of the SDK's contract."""

import io


class Live:
    """A started session that goes at the end."""

    def __init__(self, client, **arguments):
        self.client, self.arguments = client, arguments

    async def __aenter__(self):
        self.session = await self.client.create(**{"options": None, **self.arguments})
        await self.session.start()
        return self.session

    async def __aexit__(self, *_):
        await self.session.shutdown()
        await self.client.delete(self.session)


def content(text):
    return io.BytesIO(text.encode())
