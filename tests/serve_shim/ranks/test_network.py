import pytest

from serve_shim.errors import RanksError
from serve_shim.ranks.network import interface_of


def test_loopback_has_its_interface() -> None:
    assert interface_of("127.0.0.1") == "lo"


def test_an_address_of_another_machine_is_told_with_the_interfaces_there_are() -> None:
    with pytest.raises(RanksError, match=r"198\.51\.100\.7.*there are .*lo"):
        interface_of("198.51.100.7")


def test_another_kind_of_address_is_refused() -> None:
    with pytest.raises(RanksError, match="IPv4 addresses, and ::1 is none"):
        interface_of("::1")
