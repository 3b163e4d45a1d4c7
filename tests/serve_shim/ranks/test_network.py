from serve_shim.ranks.network import interface_of


def test_loopback_has_its_interface() -> None:
    assert interface_of("127.0.0.1") == "lo"


def test_an_address_of_another_machine_has_none() -> None:
    assert interface_of("198.51.100.7") is None
