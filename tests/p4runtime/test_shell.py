"""p4runtime-shell, unmodified, against the softswitch: the session of a person who types at it.

In a process of its own, because the shell ends the process when something goes wrong and leaves threads behind.
"""

import subprocess
import sys

from switchsum.softswitch.daemon import SoftSwitch
from tests.p4runtime.raw_client import FOLDER

SESSION = """
import sys
import p4runtime_sh.shell as sh
from p4runtime_sh.p4runtime import P4RuntimeWriteException

address, info, config = sys.argv[1:]
sh.setup(device_id=1, grpc_addr=address, election_id=(0, 1), config=sh.FwdPipeConfig(info, config))
print("tables", *sorted(table.name for table in sh.P4Objects(sh.P4Type.table)))

entry = sh.TableEntry("Serve.op")(action="Serve.forward")
entry.match["hdr.request.op"] = "9"
entry.action["port"] = "2"
entry.action["address"] = "127.0.0.1"
entry.action["udp_port"] = "8080"
entry.insert()
ternary = sh.TableEntry("Serve.class")(action="Serve.classify_as")
ternary.match["hdr.ethernet.src"] = "02:00:00:00:00:00&&&ff:00:00:00:00:00"
ternary.match["hdr.udp.sport"] = "1000..2000"
ternary.match["hdr.request.op"] = "1"
ternary.action["kind"] = "5"
ternary.priority = 3
ternary.insert()
for table in ("Serve.op", "Serve.class", "Serve.fixed"):
    for found in sh.TableEntry(table).read():
        print("entry", table, found.action.action_name, found.priority, dict(found.action._params) and "params")
try:
    entry.insert()
except P4RuntimeWriteException as error:
    print("refused", "ALREADY_EXISTS" in str(error))
entry.delete()
print("left", len(list(sh.TableEntry("Serve.op").read())))

sh.MulticastGroupEntry(1).add(1, 1).add(2, 1).insert()
sh.MulticastGroupEntry().read(lambda group: print("group", group.group_id, len(group.replicas)))
cell = sh.CounterEntry("Serve.tags")
cell.index = 3
cell.packet_count = 7
cell.modify()
print("count", next(iter(cell.read())).packet_count)
print("version", sh.client.api_version())
sh.teardown()
"""


def test_a_shell_session(switch: SoftSwitch) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            SESSION,
            switch.grpc_address,
            str(FOLDER / "entries.p4info.txtpb"),
            str(FOLDER / "entries.json"),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [line for line in done.stdout.splitlines() if line.split(" ")[0] in KEYWORDS]
    assert lines == [
        "tables Deliver.member Serve.class Serve.fixed Serve.op Serve.route Serve.setting",
        "entry Serve.op Serve.forward 0 params",
        "entry Serve.class Serve.classify_as 3 params",
        "entry Serve.fixed Serve.classify_as 0 params",
        "entry Serve.fixed Serve.classify_as 0 params",
        "refused True",
        "left 0",
        "group 1 2",
        "count 7",
        "version 1.4.1",
    ]


KEYWORDS = ("tables", "entry", "refused", "left", "group", "count", "version")
