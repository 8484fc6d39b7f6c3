"""Hostile programs in real sandboxes: each is contained, and what comes out is data."""

import io
import secrets
import tarfile
import time
from collections.abc import Iterator

import pytest

from pipeline.containers.base_image import BaseImage
from pipeline.containers.engine import Client
from pipeline.containers.sandbox import Sandbox, SandboxLimits, read_archive
from pipeline.errors import InfrastructureError
from tests.docker.conftest import LIMITS

pytestmark = [pytest.mark.docker, pytest.mark.timeout(120)]


@pytest.fixture
def sandbox(client: Client, base: BaseImage) -> Iterator[Sandbox]:
    with Sandbox.start(client, base.ref, limits=LIMITS) as running:
        yield running


def test_files_and_output_come_back_as_they_were(sandbox: Sandbox) -> None:
    tree = {"a/b.py": b"print('loom')\n", "with space.txt": b"\xff\x00", "empty": b""}
    sandbox.write_tree(tree, "/testbed", uid=1000)
    ran = sandbox.execute("python3 a/b.py; whoami; echo oops >&2; exit 3", timeout_sec=10)
    assert (ran.exit_code, ran.output, ran.is_timeout) == (3, "loom\nagent\noops\n", False)
    assert sandbox.read_tree("/testbed") == tree


def test_arguments_reach_a_program_unchanged(sandbox: Sandbox) -> None:
    ran = sandbox.execute(["printf", "%s|", "a b", "$HOME", "*"], timeout_sec=10, environment={"X": "1"})
    assert ran.output == "a b|$HOME|*|"


def test_bad_utf8_is_replaced(sandbox: Sandbox) -> None:
    assert sandbox.execute(r"printf 'a\xff\xfeb'", timeout_sec=10).output == "a\ufffd\ufffdb"


@pytest.mark.parametrize(
    "command",
    ["sleep 60", "trap '' TERM; while :; do sleep 1; done"],
    ids=["a sleeper", "one that ignores the signal"],
)
def test_timeout_kills_and_the_sandbox_stays_usable(sandbox: Sandbox, command: str) -> None:
    ran = sandbox.execute(command, timeout_sec=1)
    assert ran.is_timeout and ran.exit_code in (124, 137) and ran.seconds < 9
    left = sandbox.execute("ps -eo args | grep -c '[s]leep 60\\|[t]rap'", timeout_sec=10)
    assert left.output.strip() == "0"


def test_a_background_process_does_not_hold_the_command(sandbox: Sandbox) -> None:
    ran = sandbox.execute("setsid sleep 60 & echo started", timeout_sec=20)
    assert (ran.output, ran.is_timeout) == ("started\n", False) and ran.seconds < 10


def test_no_container_is_left_behind(client: Client, base: BaseImage) -> None:
    labels = {"treadle.run": secrets.token_hex(8)}
    with Sandbox.start(client, base.ref, limits=LIMITS, labels=labels) as sandbox:
        filters = {"label": f"treadle.run={labels['treadle.run']}"}
        assert [found["Id"] for found in client.api.containers(all=True, filters=filters)] == [sandbox.container_id]
        sandbox.execute("trap '' TERM; setsid sleep 60 & sleep 60", timeout_sec=1)
    assert client.api.containers(all=True, filters=filters) == []
    sandbox.close()


def test_output_flood_is_cut_and_killed(sandbox: Sandbox) -> None:
    ran = sandbox.execute("yes", timeout_sec=30)
    assert ran.is_truncated and len(ran.output) == LIMITS.output_bytes and ran.seconds < 10
    after = sandbox.execute("ps -e | grep -c yes", timeout_sec=10)
    assert after.output.strip() == "0" and after.seconds < 5


def test_fork_bomb_is_contained(sandbox: Sandbox) -> None:
    ran = sandbox.execute("bomb() { bomb | bomb & }; bomb; sleep 2; echo end", timeout_sec=5)
    assert "Resource temporarily unavailable" in ran.output and ran.seconds < 20
    assert sandbox.read_tree("/testbed") == {}


def test_memory_hog_is_killed(sandbox: Sandbox) -> None:
    ran = sandbox.execute(["python3", "-c", "x = bytearray(2 * 10**9); print('survived')"], timeout_sec=30)
    assert ran.exit_code == 137 and "survived" not in ran.output
    assert sandbox.execute("echo alive", timeout_sec=10).output == "alive\n"


def test_kill_all_does_not_end_the_sandbox(sandbox: Sandbox) -> None:
    sandbox.execute("kill -9 -1", timeout_sec=10)
    assert sandbox.execute("echo alive", timeout_sec=10).output == "alive\n"


@pytest.mark.parametrize("address", ["1.1.1.1:80", "172.17.0.1:22", "169.254.169.254:80", "[2606:4700:4700::1111]:80"])
def test_no_address_can_be_reached(sandbox: Sandbox, address: str) -> None:
    host, _, port = address.strip("[").replace("]", "").rpartition(":")
    code = f"import socket; socket.create_connection(({host!r}, {port}), timeout=3)"
    ran = sandbox.execute(["python3", "-c", code], timeout_sec=10)
    assert ran.exit_code == 1 and ("unreachable" in ran.output or "Cannot assign" in ran.output)


def test_no_name_can_be_resolved(sandbox: Sandbox) -> None:
    ran = sandbox.execute(["python3", "-c", "import socket; socket.gethostbyname('example.org')"], timeout_sec=20)
    assert ran.exit_code == 1 and "gaierror" in ran.output


def test_no_privilege_is_left(sandbox: Sandbox) -> None:
    status = sandbox.execute("cat /proc/self/status", timeout_sec=10).output
    found = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    wanted = {"CapEff": "0000000000000000", "CapBnd": "0000000000000000", "NoNewPrivs": "1", "Seccomp": "2"}
    assert {key: found[key] for key in wanted} == wanted
    ran = sandbox.execute(
        "touch /usr/x; touch /opt/x; ls /var/run/docker.sock; mount -t tmpfs x /testbed", timeout_sec=10
    )
    assert ran.output.count("Read-only file system") == 2 and "No such file" in ran.output
    assert "permitted" in ran.output or "denied" in ran.output or "superuser" in ran.output


def test_disk_use_is_bounded(sandbox: Sandbox) -> None:
    ran = sandbox.execute("for n in 1 2 3 4; do head -c 30M /dev/zero > $n; done; du -sm .", timeout_sec=30)
    assert "No space left on device" in ran.output and int(ran.output.split()[-2]) <= LIMITS.testbed_mb


def test_limits_are_those_of_the_configuration(client: Client, base: BaseImage) -> None:
    limits = SandboxLimits(
        memory_mb=200, cpus=0.5, pids=40, open_files=99, file_size_mb=2, testbed_mb=8, tmp_mb=4, num_files=300
    )
    command = (
        "ulimit -n; ulimit -f; df -m --output=size /testbed /tmp | grep -v M; df --output=itotal /testbed | tail -1;"
        "head -c 3M /dev/zero > big; stat -c %s big; for n in $(seq 400); do touch f$n || break; done 2>&1 | tail -1"
    )
    with Sandbox.start(client, base.ref, limits=limits) as sandbox:
        words = sandbox.execute(command, timeout_sec=10).output.split()
        state = client.api.inspect_container(sandbox.container_id)["HostConfig"]
    assert words[:5] == ["99", "2048", "8", "4", "300"]
    assert "2097152" in words and words[-4:] == ["space", "left", "on", "device"]
    wanted = {"Memory": 200 * 2**20, "MemorySwap": 200 * 2**20, "NanoCpus": 5 * 10**8, "PidsLimit": 40}
    assert {key: state[key] for key in wanted} == wanted
    assert (state["NetworkMode"], state["ReadonlyRootfs"], state["CapDrop"]) == ("none", True, ["ALL"])
    assert (state["LogConfig"]["Type"], state["Init"]) == ("none", True)


def test_a_sandbox_ends_by_itself(client: Client, base: BaseImage) -> None:
    with Sandbox.start(client, base.ref, limits=SandboxLimits(lifetime_sec=1)) as sandbox:
        time.sleep(2.5)
        with pytest.raises(InfrastructureError, match="not running"):
            sandbox.execute("true", timeout_sec=5)


def test_a_missing_image_or_runtime_is_an_infrastructure_fault(client: Client, base: BaseImage) -> None:
    with pytest.raises(InfrastructureError, match="treadle-repo:none"):
        Sandbox.start(client, "treadle-repo:none", limits=LIMITS)
    with pytest.raises(InfrastructureError, match="runtime"):
        Sandbox.start(client, base.ref, limits=SandboxLimits(runtime="nosuch"))


def test_links_devices_and_odd_names_stay_inside(sandbox: Sandbox) -> None:
    ran = sandbox.execute(
        "echo real > real; ln -s /etc/passwd link; ln -s /etc folder; ln -s real near; mkfifo pipe; ln real hard;"
        "mkdir -p .git/hooks __pycache__; touch .git/hooks/x __pycache__/x; touch $'line\\nbreak' $'bad\\xff';"
        "truncate -s 20M sparse; truncate -s 1M hole; python3 -c \"import socket; socket.socket(1).bind('socket')\"",
        timeout_sec=10,
    )
    assert ran.exit_code == 0, ran.output
    assert sandbox.read_tree("/testbed") == {"real": b"real\n", "hard": b"real\n", "hole": b"\0" * 2**20}


def test_a_folder_too_large_is_read_up_to_the_cap(sandbox: Sandbox) -> None:
    sandbox.execute("for n in 1 2 3 4 5 6 7 8; do head -c 1M /dev/urandom > $n; done", timeout_sec=10)
    found = sandbox.read_tree("/testbed", max_bytes=3 * 2**20)
    assert set(found) == {"1", "2"} and all(len(content) == 2**20 for content in found.values())


def test_the_working_folder_can_belong_to_another_user(client: Client, base: BaseImage) -> None:
    with Sandbox.start(client, base.ref, limits=LIMITS, testbed_uid=0) as sandbox:
        sandbox.write_tree({"tests/test_a.py": b"1"}, "/testbed", uid=0)
        ran = sandbox.execute("echo 2 > tests/test_a.py; rm -rf tests; touch x; cat tests/test_a.py", timeout_sec=10)
    assert ran.output.endswith("1") and ran.output.count("ermission denied") == 3


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as written:
        for member, content in members:
            member.size = len(content)
            written.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


def typed(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member


def test_only_safe_regular_members_of_a_hostile_archive_are_kept() -> None:
    data = archive(
        (typed("./good.py"), b"good"),
        (typed("/etc/passwd"), b"absolute"),
        (typed("a/../../up"), b"up"),
        (typed("link", tarfile.SYMTYPE, "/etc/passwd"), b""),
        (typed("hard", tarfile.LNKTYPE, "good.py"), b""),
        (typed("fifo", tarfile.FIFOTYPE), b""),
        (typed("device", tarfile.CHRTYPE), b""),
        (typed("a\nb"), b"newline"),
        (typed("x/.git/config"), b"git"),
        (typed("n" * 1100), b"long"),
        (typed("last.py"), b"last"),
    )
    assert read_archive(data) == {"good.py": b"good", "last.py": b"last"}


def test_a_cut_or_senseless_archive_gives_what_can_be_read() -> None:
    data = archive((typed("a"), b"1" * 1000), (typed("b"), b"2" * 3000))
    assert read_archive(data[:3000]) == {"a": b"1" * 1000}
    assert read_archive(b"nonsense" * 200) == {}
    assert read_archive(b"") == {}
    negative = bytearray(data)
    negative[124:136] = b"\xff" * 12
    assert read_archive(bytes(negative)) == {}
