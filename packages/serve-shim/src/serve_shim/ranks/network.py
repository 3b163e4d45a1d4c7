"""Owns which network interface has an address; refuses to open any port."""

import fcntl
import socket
import struct

_SIOCGIFADDR = 0x8915  # linux/sockios.h
_ADDRESS = slice(20, 24)  # of struct ifreq


def interface_of(address: str) -> str | None:
    """The name of the interface with this IPv4 address; None where there is none."""
    wanted = socket.inet_aton(address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                found = fcntl.ioctl(probe.fileno(), _SIOCGIFADDR, request)[_ADDRESS]
            except OSError:  # it has no IPv4 address
                continue
            if found == wanted:
                return name
    return None
