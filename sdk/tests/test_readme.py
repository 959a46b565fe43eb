"""The provider that the README shows is one that works."""

import re
from pathlib import Path
from typing import Any

import pytest

from sandport_sdk.testing import HostInMemory, new_id
from sandport_sdk.v1 import errors, types

README = Path(__file__).parents[1] / "README.md"


def shown_provider() -> Any:
    text = README.read_text(encoding="utf-8")
    found = re.search(r"<!-- this block is run by tests/test_readme.py -->\n```python\n(.*?)```", text, re.DOTALL)
    assert found
    names: dict[str, Any] = {"__name__": "my_provider.provider"}
    exec(found[1], names)
    return names["MyProvider"]


@pytest.mark.anyio
async def test_the_provider_of_the_readme_works(tmp_path: Path) -> None:
    async with HostInMemory(shown_provider(), state_dir=tmp_path) as host:
        sandbox_id = new_id()
        lease = await host.call("acquireLease", types.AcquireLeaseParams(sandbox_id=sandbox_id, ttl_ms=60_000))
        assert lease.handle == "box-" + sandbox_id
        listed = await host.call("listLeases")
        assert [found.sandbox_id for found in listed.leases] == [sandbox_id]
        live = types.ExecuteParams(sandbox_id=sandbox_id, argv=("echo", "hi"), live=True)
        request = host.start("execute", live)
        result = await request.result()
        assert (result.exit_code, result.stdout.total_bytes) == (0, 3)
        assert request.stdout == b"hi\n"
        kept = types.ExecuteParams(sandbox_id=sandbox_id, argv=("cat",), stdin=b"in and out")
        assert (await host.call("execute", kept)).stdout.data == b"in and out"
        killed = types.ExecuteParams(sandbox_id=sandbox_id, argv=("sh", "-c", "kill -9 $$"))
        assert (await host.call("execute", killed)).signal == 9
        with pytest.raises(errors.CommandNotFound):
            await host.call("execute", types.ExecuteParams(sandbox_id=sandbox_id, argv=("no-such-program",)))
        assert (await host.call("destroyLease", {"sandboxId": sandbox_id})).state == "destroyed"
        assert (await host.call("destroyLease", {"sandboxId": sandbox_id})).state == "gone"
        attach = types.AttachLeaseParams(sandbox_id=sandbox_id, handle=lease.handle)
        assert (await host.call("attachLease", attach)).state == "gone"
