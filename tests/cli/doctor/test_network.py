"""What the doctor makes of addresses and of the kernel's table of sockets."""

from pathlib import Path

from stoker.adapters.entropy import SystemEntropy
from stoker.cli.doctor.finding import Level
from stoker.cli.doctor.network import listening, node_address, other_clusters
from stoker.live.settings.control import ControlSettings, OtherClusterSettings, WebSettings
from stoker.wire.token import fresh_token

TOKEN = fresh_token(SystemEntropy())
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


def test_a_token_of_another_cluster_that_others_may_read_and_an_address_of_its_own_are_told(tmp_path: Path) -> None:
    good, open_to_all, odd = tmp_path / "good", tmp_path / "open", tmp_path / "odd"
    for path, text, mode in ((good, TOKEN, 0o640), (open_to_all, TOKEN, 0o644), (odd, "x" * 70, 0o600)):
        path.write_text(f"{text}\n")
        path.chmod(mode)
    others = {
        "rome": OtherClusterSettings(servers=("https://rome.example.org",), token_file=str(good)),
        "paris": OtherClusterSettings(servers=("https://paris.example.org",), token_file=str(open_to_all)),
        "lab": OtherClusterSettings(servers=("http://127.0.0.1:8080",), token_file=str(odd)),
        "gone": OtherClusterSettings(
            servers=("https://g.example.org",), token_file=str(tmp_path / "no"), ca_file="/no"
        ),
    }
    said = [(each.level, each.what) for each in other_clusters(ControlSettings(web=WebSettings(clusters=others)))]
    assert [level for level, _ in said] == [Level.OK, *[Level.ERROR] * 5]
    words = "\n".join(what for _, what in said)
    for part in (
        *("paris: its token_file is open to every account (mode 0644)", "lab: its token_file holds no token"),
        *(
            "lab: http://127.0.0.1:8080 is this control plane's own address",
            "gone: its token_file can't be read: No such",
        ),
        "gone: its ca_file /no can't be read",
    ):
        assert part in words, words
    assert TOKEN not in words
    assert "xxx" not in words
