"""What the doctor makes of addresses and of the kernel's table of sockets."""

from stoker.cli.doctor.finding import Level
from stoker.cli.doctor.network import listening, node_address

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 31337 1 0000 100 0 0 10 0
   1: 0100007F:1F90 0100007F:C350 01 00000000:00000000 00:00000000 00000000     0        0 31338 1 0000 20 4 30 10 -1
   2: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 999 1 0000 100 0 0 10 0
"""


def test_only_sockets_that_listen_on_the_port_are_its_holders() -> None:
    assert listening(TABLE, 8080) == ["31337"]
    assert listening(TABLE, 22) == ["999"]
    assert listening(TABLE, 80) == []
    assert listening("", 80) == []


def test_a_loopback_address_is_doubtful_and_says_why_it_was_taken() -> None:
    (said,) = node_address("", lambda: "127.0.0.1")
    assert said.level is Level.WARNING
    assert "control.addresses are loopback" in said.what
    (said,) = node_address("127.0.0.1", lambda: "never asked")
    assert "control.addresses" not in said.what


def test_an_address_of_another_machine_is_doubtful() -> None:
    (said,) = node_address("192.0.2.7", lambda: "")
    assert said.level is Level.WARNING
    assert "192.0.2.7" in said.what
