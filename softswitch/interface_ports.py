"""Switch ports made of network interfaces, for example the switch's ends of veth pairs. Needs root (CAP_NET_RAW).

Port p is one interface, whose frames enter the dataplane and leave it as they are on the wire: Ethernet without frame check
sequence, and without VLAN tags (tagged frames are counted and dropped). The interface needs no address; give it none, or the
kernel answers beside the switch program.
"""

import contextlib
import errno
import fcntl
import socket
import struct
from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from switchsum.softswitch import frames
from switchsum.softswitch.serving import PacketProcessor, Ports, check_port_numbers, enlarge_buffers

_ETH_P_ALL = 3
_ETHERNET = 14
_SIOCGIFMTU = 0x8921
# linux/if_packet.h; Python's socket module has no names for them
_SOL_PACKET = 263
_ADD_MEMBERSHIP, _STATISTICS, _AUXDATA, _VNET_HDR, _IGNORE_OUTGOING = 1, 6, 8, 15, 23
_MR_PROMISC = 1


class InterfacePorts(Ports):
    """All ports of one switch, as network interfaces."""

    count_names = frames.Count

    def __init__(
        self,
        dataplane_provider: Callable[[], PacketProcessor | None],
        interfaces: Mapping[int, str],
        *,
        offload: bool = True,
    ) -> None:
        """Open one packet socket for each interface, given by port number, in this thread's network namespace.

        `dataplane_provider`: as for UdpPorts. `offload` False: what leaves is never joined into runs, so that every frame lies
        singly on the interface, for captures and for tests that compare bytes.
        Raises OSError naming the interface that cannot be opened and what to do, ValueError for a bad port number.
        """
        check_port_numbers(list(interfaces))
        for number, name in interfaces.items():
            if list(interfaces.values()).count(name) > 1:
                raise ValueError(f"port {number}: interface {name} is the other port's too; each port needs its own")
        self._offload = offload
        sockets: dict[int, socket.socket] = {}
        try:
            for number, name in sorted(interfaces.items()):
                sockets[number] = _packet_socket(number, name)
        except OSError:
            for opened in sockets.values():
                opened.close()
            raise
        self._lost = 0
        super().__init__(dataplane_provider, sockets)

    @property
    def statistics(self) -> dict[str, int]:
        """As of all ports, with the frames that a full receive buffer cost ("dropped_receive_buffer")."""
        for opened in self._sockets.values():
            with contextlib.suppress(OSError):  # closed: what was counted stays
                _, lost = struct.unpack("II", opened.getsockopt(_SOL_PACKET, _STATISTICS, 8))  # the kernel starts anew
                self._lost += lost
        return {**super().statistics, "dropped_receive_buffer": self._lost}

    def _open(self, wake: socket.socket, counts: npt.NDArray[np.int64]) -> tuple[frames.Intake, frames.Outlet]:
        longest = {number: _mtu(opened) + _ETHERNET for number, opened in self._sockets.items()} if self._offload else {}
        return frames.Intake(self._sockets, wake, counts), frames.Outlet(self._sockets, counts, longest)


def _mtu(opened: socket.socket) -> int:
    """Of the interface that a packet socket is bound to; 0 if it is gone, so that nothing is joined for it."""
    try:
        answer = fcntl.ioctl(opened, _SIOCGIFMTU, struct.pack("16si12x", opened.getsockname()[0].encode(), 0))
    except OSError:
        return 0
    return int(struct.unpack("16xi12x", answer)[0])


def _packet_socket(number: int, name: str) -> socket.socket:
    try:
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_NONBLOCK, 0)  # deaf until it is bound
    except PermissionError:
        raise OSError(
            errno.EPERM, f"port {number}: only root may open interface {name}; without root, use ports on UDP sockets"
        ) from None
    try:
        enlarge_buffers(opened)
        for option in (_AUXDATA, _VNET_HDR, _IGNORE_OUTGOING):
            opened.setsockopt(_SOL_PACKET, option, 1)
        opened.bind((name, _ETH_P_ALL))
        index = socket.if_nametoindex(name)
        opened.setsockopt(_SOL_PACKET, _ADD_MEMBERSHIP, struct.pack("iHH8s", index, _MR_PROMISC, 0, b""))
    except OSError as error:
        opened.close()
        hint = {
            errno.ENODEV: "there is no such interface in this network namespace",
            errno.ENETDOWN: f"it is down; bring it up with `ip link set {name} up`",
            errno.ENOPROTOOPT: "this kernel is too old; Linux 4.20 or later is needed",
        }.get(error.errno or 0, str(error))
        raise OSError(error.errno, f"port {number}: cannot open interface {name}: {hint}") from None
    return opened
