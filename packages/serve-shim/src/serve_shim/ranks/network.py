"""Owns which network interface has an address; refuses to open any port."""

import fcntl
import socket
import struct

from serve_shim.errors import RanksError

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_ADDRESS = slice(20, 24)  # of struct ifreq


def interface_of(address: str) -> str:
    """The name of the interface with this IPv4 address.

    Raises:
        RanksError: it is no IPv4 address, or none of this machine's.
    """
    try:
        wanted = socket.inet_aton(address)
    except OSError as error:
        raise RanksError(f"ranks meet at IPv4 addresses, and {address} is none") from error
    names = [name for _, name in socket.if_nameindex()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for name in names:
            request = struct.pack("256s", name.encode()[:15])
            try:
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[_ADDRESS]
            except OSError:  # it has no IPv4 address
                continue
            if found == wanted:
                return name
    raise RanksError(
        f"no network interface of this node has its address {address}, so its ports would be open "
        f"on all; there are {', '.join(names)}. Start Ray with an address that one of them has."
    )
