"""System events of a vbucket: which of them a later one makes superfluous.

The end of a collection (or scope) supersedes its beginning and its modifications; a new beginning
supersedes the end; a modification supersedes only an earlier modification, because the beginning
must still precede the collection's first item.

Imports: wire.opcodes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.wire.opcodes import SystemEventId

if TYPE_CHECKING:
    from headrace.store.prepares import Supersede

_OF_SCOPES: Final = frozenset((int(SystemEventId.CREATE_SCOPE), int(SystemEventId.DROP_SCOPE)))
_MODIFY: Final = int(SystemEventId.MODIFY_COLLECTION)


class Events:
    """The living system events of one vbucket."""

    def __init__(self, supersede: Supersede) -> None:
        self._supersede = supersede
        self._living: dict[tuple[bool, int], list[tuple[int, int, int]]] = {}

    def happened(self, event: int, subject: int, seqno: int, ordinal: int) -> None:
        """An event was accepted."""
        living = self._living.setdefault((event in _OF_SCOPES, subject), [])
        gone = [old for old in living if event != _MODIFY or old[0] == _MODIFY]
        for old in gone:
            self._supersede(old[1], old[2], seqno)
            living.remove(old)
        living.append((event, seqno, ordinal))

    def clear(self) -> None:
        """Forget everything."""
        self._living.clear()
