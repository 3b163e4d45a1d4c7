"""Ranks meet on the addresses that they were given, and nowhere else."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from ir_core import GroupError
from serve_shim.errors import RanksError
from serve_shim.models.shard import Shard
from serve_shim.ranks.meeting import Meeting, StoreHost, join

_RANK = """
import sys
from pathlib import Path
import psutil
import torch
import ir_core as ir
from ir_core import groups
from serve_shim.models.shard import Shard
from serve_shim.ranks.meeting import Meeting, join

store, rank = sys.argv[1], int(sys.argv[2])
place = Path(store) if ":" not in store else (store.split(":")[0], int(store.split(":")[1]))
join(Meeting(None, place, 30.0), Shard(rank, 2))
ir.load_plugins()
total = ir.ops.all_reduce(torch.ones(1) * (rank + 1))
listening = {
    each.laddr.ip for each in psutil.Process().net_connections("tcp") if each.status == "LISTEN"
}
print(total.item(), *sorted(groups.get_group("tp").transports), *sorted(listening))
"""

pytestmark = pytest.mark.skipif(
    not torch.distributed.is_gloo_available(), reason="this torch has no gloo"
)


def outputs(store: str) -> list[str]:
    """What two ranks print that meet there."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, store, str(rank)],
            env=os.environ | {"GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        done = [rank.communicate(timeout=60) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], done
    return [out.strip() for out, _ in done]


def test_ranks_meet_in_a_file_and_listen_on_loopback_only(tmp_path: Path) -> None:
    assert outputs(str(tmp_path / "store")) == ["3.0 gloo 127.0.0.1"] * 2


def test_ranks_of_several_nodes_meet_at_a_store_on_the_address_of_the_first() -> None:
    host = StoreHost("127.0.0.1")
    listening = {
        each.laddr.ip
        for each in psutil.Process().net_connections("tcp")
        if each.status == psutil.CONN_LISTEN and each.laddr.port == host.place[1]
    }
    assert listening == {"127.0.0.1"}
    assert outputs(f"{host.place[0]}:{host.place[1]}") == ["3.0 gloo 127.0.0.1"] * 2


def test_no_way_to_the_others_is_an_error() -> None:
    with pytest.raises(RanksError, match="neither shared memory nor gloo"):
        join(Meeting(None, None, 1.0), Shard(0, 2))


def test_a_segment_that_nobody_else_opens_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serve_shim.ranks.meeting._OPEN_TIMEOUT_S", 0.2)
    with pytest.raises(GroupError, match="rank 1"):
        join(Meeting("/ir-test-meeting-alone", None, 1.0), Shard(0, 2))
