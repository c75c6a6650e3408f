"""The side channel: tasks tell the planner which positions they honestly reached.

Two roads, both optional: a listener in the planner's process, whose address and secret travel in
the partitions, and a directory that all executors can write to. A report that is lost costs a
repeated tail and, after a failover, a longer way back; it never costs a row.

Rules.
- A task says that it begins before it reads. From then on earlier reports of the same partition are
  void: a second attempt may stop before the place where a first one stopped. A task whose beginning
  is not acknowledged reads to where the producer is now, which no earlier attempt can have passed.
- A report is believed when its seal (HMAC with the secret) is right and its plan is the one asked
  about.
- Messages are one line each way; sizes, times and the number of partitions kept are limited.

Imports: history, spark.positions.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import os
import secrets
import socket
import threading
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Final

from headrace.history import Seqno, VBucketId
from headrace.spark.positions import Position, Reached

if TYPE_CHECKING:
    from collections.abc import Mapping

MESSAGE_SIZE_MAX: Final = 64 << 20
ANSWER_SECONDS: Final = 5.0
PLANS_KEPT: Final = 4
BEGIN: Final = "begin"
REPORT: Final = "report"


@dataclass(frozen=True, slots=True)
class Report:
    """What one partition reached, and what it cost."""

    reached: dict[VBucketId, Reached]
    rows: int = 0
    bytes: int = 0

    def to_json(self) -> dict[str, object]:
        """As a JSON object."""
        return {
            "reached": {
                str(vb): [one.position.to_json(), str(one.seqno)]
                for vb, one in self.reached.items()
            },
            "rows": self.rows,
            "bytes": self.bytes,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, object]) -> Report:
        """What `to_json` wrote; anything else is a ValueError."""
        reached = value.get("reached")
        if not isinstance(reached, dict):
            raise ValueError("a report that reached nothing")
        return cls(
            {
                VBucketId(int(vb)): Reached(Position.from_json(position), Seqno(int(seqno)))
                for vb, (position, seqno) in reached.items()
            },
            int(str(value.get("rows", 0))),
            int(str(value.get("bytes", 0))),
        )


@dataclass(frozen=True, slots=True)
class Address:
    """How a task reaches its planner; the secret is shown nowhere."""

    host: str | None = None
    port: int = 0
    directory: str | None = None
    secret: bytes = field(default=b"", repr=False)


# -- the planner's side ----------------------------------------------------------------------------


class Mailbox:
    """Reports by plan and partition, in memory; safe between threads."""

    def __init__(self) -> None:
        """Start empty."""
        self._lock = threading.Lock()
        self._plans: dict[int, dict[int, Report]] = {}

    def begin(self, plan: int, partition: int) -> None:
        """Void what was reported for the partition."""
        with self._lock:
            self._plans.setdefault(plan, {}).pop(partition, None)
            for old in sorted(self._plans)[:-PLANS_KEPT]:
                del self._plans[old]

    def report(self, plan: int, partition: int, report: Report) -> None:
        """Keep a report; one for a plan nobody began is dropped."""
        with self._lock:
            if plan in self._plans:
                self._plans[plan][partition] = report

    def reports(self, plan: int) -> list[Report]:
        """Everything reported for a plan."""
        with self._lock:
            return list(self._plans.get(plan, {}).values())

    def forget(self, plan: int) -> None:
        """Void everything of a plan: it is about to be read again."""
        with self._lock:
            self._plans.pop(plan, None)


class Listener:
    """A socket in the planner's process, served by one thread."""

    def __init__(self, host: str) -> None:
        """Listen on a free port."""
        self.mailbox = Mailbox()
        self.secret = secrets.token_bytes(32)
        self._socket = socket.create_server((host, 0), backlog=64)
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name="headrace reports", daemon=True)
        self._thread.start()

    def address(self, host: str, directory: str | None) -> Address:
        """What tasks need to know."""
        return Address(host, self._socket.getsockname()[1], directory, self.secret)

    def close(self) -> None:
        """Stop listening."""
        self._closed = True
        with contextlib.suppress(OSError):
            # Wakes accept(); close alone does not on every system.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._thread.join(timeout=ANSWER_SECONDS)

    def _serve(self) -> None:
        while not self._closed:
            try:
                link, _ = self._socket.accept()
            except OSError:
                return
            with link, contextlib.suppress(OSError, ValueError):
                link.settimeout(ANSWER_SECONDS)
                line = _read_line(link)
                answer = b"ok\n" if self._take(line) else b"no\n"
                link.sendall(answer)

    def _take(self, line: bytes) -> bool:
        message = _opened(line, self.secret)
        if message is None:
            return False
        plan, partition = int(str(message["plan"])), int(str(message["partition"]))
        if message["kind"] == BEGIN:
            self.mailbox.begin(plan, partition)
        else:
            self.mailbox.report(plan, partition, Report.from_json(message))
        return True


def read_directory(directory: str, plan: int) -> list[Report]:
    """The reports of a plan in a directory; one that cannot be read is as if lost."""
    found = []
    for path in sorted(Path(directory).glob(f"plan-{plan}-*.json")):
        with contextlib.suppress(OSError, ValueError):
            found.append(Report.from_json(json.loads(path.read_text(encoding="utf-8"))))
    return found


def clear_directory(directory: str, plan: int) -> None:
    """Void what a directory holds of a plan, and of all that are long past."""
    for path in Path(directory).glob("plan-*.json"):
        with contextlib.suppress(OSError, ValueError):
            number = int(path.name.split("-")[1])
            if number == plan or number < plan - PLANS_KEPT:
                path.unlink()


# -- a task's side ---------------------------------------------------------------------------------


def begin(address: Address, plan: int, partition: int) -> bool:
    """Void earlier reports of the partition; False if they may still stand somewhere."""
    done = True
    if address.directory is not None:
        try:
            _report_path(address.directory, plan, partition).unlink(missing_ok=True)
        except OSError:
            done = False
    if address.host is not None:
        done &= _tell(address, {"kind": BEGIN, "plan": plan, "partition": partition})
    return done


def report(address: Address, plan: int, partition: int, told: Report) -> bool:
    """Tell what was reached, by every road there is; False if none worked."""
    done = False
    if address.directory is not None:
        path = _report_path(address.directory, plan, partition)
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(json.dumps(told.to_json()), encoding="utf-8")
            draft.replace(path)
            done = True
    if address.host is not None:
        message = {"kind": REPORT, "plan": plan, "partition": partition, **told.to_json()}
        done |= _tell(address, message)
    return done


def _report_path(directory: str, plan: int, partition: int) -> Path:
    return Path(directory) / f"plan-{plan}-{partition}.json"


def _tell(address: Address, message: Mapping[str, object]) -> bool:
    text = json.dumps(message).encode()
    try:
        with socket.create_connection(
            (str(address.host), address.port), timeout=ANSWER_SECONDS
        ) as link:
            link.sendall(_seal(text, address.secret) + b" " + text + b"\n")
            return _read_line(link) == b"ok"
    except (OSError, ValueError):
        return False


def _seal(text: bytes, secret: bytes) -> bytes:
    return hmac.new(secret, text, sha256).hexdigest().encode()


def _opened(line: bytes, secret: bytes) -> dict[str, object] | None:
    seal, mark, text = line.partition(b" ")
    if not mark or not hmac.compare_digest(seal, _seal(text, secret)):
        return None
    found = json.loads(text)
    return found if isinstance(found, dict) else None


def _read_line(link: socket.socket) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        part = link.recv(1 << 16)
        if not part:
            raise ValueError("the link closed in the middle of a message")
        parts.append(part)
        size += len(part)
        if size > MESSAGE_SIZE_MAX:
            raise ValueError(f"message over {MESSAGE_SIZE_MAX} bytes")
        if part.endswith(b"\n"):
            return b"".join(parts)[:-1]
