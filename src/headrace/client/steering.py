"""Steering: what the blocking and the asyncio skin do alike, without a socket.

A skin carries bytes and waits; everything it decides is here: which nodes to connect to and when,
what to ask them, what their events mean for maps and seqnos, when a link counts as lost, what the
application must be told.

Imports: errors, client.*, protocol, wire.
"""

from __future__ import annotations

import math
import random
import secrets
from typing import TYPE_CHECKING, Final

from headrace.client.bulk import BulkRoad
from headrace.client.changes import Trouble, vbucket_names
from headrace.client.dial import handshake_sentence
from headrace.client.gate import ASK_SECONDS
from headrace.client.topology import read_map
from headrace.errors import CannotConnect, ConnectionLost, HeadraceError, StatusError
from headrace.protocol import events as e
from headrace.protocol.consumer import ConsumerConnection
from headrace.wire.opcodes import Opcode, VBucketState

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from headrace.client.access import Access
    from headrace.client.address import NodeAddress
    from headrace.client.bulk import Taken
    from headrace.client.intake import Intake
    from headrace.protocol.handshake import ConsumerSettings

WAIT_SECONDS_MAX: Final = 0.5
"""Longest sleep of a skin."""
WAIT_SECONDS_MIN: Final = 0.001
SEQNOS_SECONDS: Final = 1.0
"""How often each node is asked for high seqnos, while somebody looks at the health or an end is in
doubt."""
ADVICE_SECONDS: Final = 1.0
"""How often, at most, a node that has nothing for us is asked where everything is."""
LOGIN_REFUSALS_MAX: Final = 3
"""Refused logins in a row, on one node, after which waiting is hopeless."""
_STEERING: Final = frozenset({e.StreamOpened, e.ClusterMapTold, e.NotMyVBucket, e.SeqnosTold})
"""Events that steering follows; all others are the intake's alone."""
_LOGINS: Final = frozenset({Opcode.SASL_AUTH, Opcode.SASL_STEP})


class Steering:
    """One session's decisions."""

    def __init__(
        self,
        intake: Intake,
        access: Access,
        settings: ConsumerSettings,
        *,
        bulk: bool,
        inflate: bool = True,
        on_trouble: Callable[[Trouble], None] | None = None,
    ) -> None:
        """``bulk`` chooses rows of batches or single changes."""
        self.intake = intake
        self.courses = intake.courses
        self.access = access
        self.high_seqnos: dict[int, int] = {}
        self.wants_seqnos = False
        self._settings = settings
        self._bulk = bulk
        self._inflate = inflate
        self._on_trouble = on_trouble
        self._open_at: dict[NodeAddress, float] = {}
        self._seqnos_at: dict[NodeAddress, float] = {}
        self._unasked: set[NodeAddress] = set()
        self._advice_at = -math.inf
        self._advisers = -1
        self._doubts_ends = False
        self._refused: dict[NodeAddress, int] = {}
        self._refusal: StatusError | None = None

    # -- links ----------------------------------------------------------------------------------

    def nodes_to_open(self, known: Collection[NodeAddress], *, now: float) -> list[NodeAddress]:
        """The nodes that need a link now and have none."""
        if not self.courses.nodes_changed:
            return []
        missing = self.courses.nodes() - set(known)
        found = [node for node in missing if self._open_at.get(node, now) <= now]
        # A node that is no longer wanted must not be waited for, nor wake anybody.
        waiting = missing.difference(found)
        self._open_at = {node: at for node, at in self._open_at.items() if node in waiting}
        self.courses.nodes_changed = len(found) < len(missing)
        if waiting and not known and not found:
            found += self._adviser(missing, now)
        return found

    def _adviser(self, missing: set[NodeAddress], now: float) -> list[NodeAddress]:
        """One more node to ask where the vbuckets of nodes that do not answer are now.

        Without it a consumer whose only node failed over would wait for that node for ever.
        """
        others = [node for node in self.courses.cluster_map.nodes if node not in missing]
        if not others or now < self._advice_at:
            return []
        self._advice_at = now + ADVICE_SECONDS
        self._advisers += 1
        return [others[self._advisers % len(others)]]

    def road(self, *, now: float) -> BulkRoad:
        """A new connection and the road to it."""
        connection = ConsumerConnection(self._settings, now=now, nonce=secrets.token_urlsafe(24))
        return BulkRoad(connection, inflate=self._inflate or not self._bulk, objects=not self._bulk)

    def lost(
        self,
        node: NodeAddress,
        connection: ConsumerConnection | None,
        error: HeadraceError,
        *,
        now: float,
    ) -> None:
        """A link is gone, or did not come about."""
        if isinstance(error, StatusError) and error.opcode in _LOGINS:
            self._refused[node] = self._refused.get(node, 0) + 1
            if self._refused[node] >= LOGIN_REFUSALS_MAX:
                self._refusal = error
        elif connection is not None and connection.connected is not None:
            self._refused.pop(node, None)
        self._open_at[node] = self.courses.lost(node, connection, str(error), now=now)

    def watch(
        self, node: NodeAddress, connection: ConsumerConnection, *, opened_at: float, now: float
    ) -> HeadraceError | None:
        """What only time tells: the reason why a link counts as lost, or None."""
        due = connection.next_at()
        if due is not None and due <= now:
            try:
                told = connection.tick(now=now)
            except HeadraceError as error:
                return error
            for event in told:
                if isinstance(event, e.ProducerSilent):
                    return ConnectionLost(f"{node} was silent for {event.seconds:.0f} s")
        seconds = self.access.connect_seconds
        if connection.connected is None and now - opened_at > seconds:
            return CannotConnect(
                handshake_sentence(
                    node,
                    said=b"",
                    encrypted=self.access.tls is not None,
                    what=f"did not finish the handshake within {seconds:g} s",
                    probe=False,
                )
            )
        return None

    # -- conversation ---------------------------------------------------------------------------

    def ask(self, node: NodeAddress, connection: ConsumerConnection, *, now: float) -> None:
        """Ask a connected node for what is due."""
        if connection.connected is None:
            return
        self.courses.ask(node, connection, now=now)
        if self.courses.wants_map:
            self.courses.wants_map = False
            connection.ask_cluster_map()
        if self.wants_seqnos:
            self.wants_seqnos, self._unasked = False, self.courses.nodes()
        if not (self._doubts_ends or self._unasked):
            return
        if now - self._seqnos_at.get(node, -math.inf) >= SEQNOS_SECONDS:
            # Only the courses know whether a doubt is left; they are asked once per interval.
            self._doubts_ends = self._doubts_ends and self.courses.wants_seqnos
            if self._doubts_ends or node in self._unasked:
                self._unasked.discard(node)
                self._seqnos_at[node] = now
                connection.ask_seqnos(int(VBucketState.ACTIVE))

    def take(
        self, taken: Taken, node: NodeAddress, connection: ConsumerConnection, *, now: float
    ) -> None:
        """Take what came of one buffer; RemoteProtocolError for a map that cannot be read."""
        self.intake.take(taken, connection, now=now)
        for piece in taken.pieces:
            if type(piece) not in _STEERING:
                continue
            if isinstance(piece, e.StreamOpened):
                self._doubts_ends = True
            elif isinstance(piece, e.ClusterMapTold | e.NotMyVBucket):
                self._take_map(piece.cluster_map, node)
            elif isinstance(piece, e.SeqnosTold):
                told = {one.vbucket: one.seqno for one in piece.seqnos}
                self.high_seqnos.update(told)
                self.courses.take_seqnos(told, connection)

    def _take_map(self, data: bytes, node: NodeAddress) -> None:
        if not data:
            return
        self.courses.take_map(
            read_map(
                data,
                connected=node,
                tls=self.access.tls is not None,
                network=self.access.network,
            )
        )

    # -- the application ------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether the application has got everything there will be."""
        return self.courses.is_over and not self.intake.held_back

    def gate_question(self) -> dict[int, int]:
        """The branches the gate must ask about before anything can be handed out."""
        if self.intake.gate is None:
            return {}
        return {
            vbucket: self.courses.by_vbucket[vbucket].position.token.branch
            for vbucket in self.intake.held_back
        }

    def gate_failed(self, error: HeadraceError) -> None:
        """The question could not be put; it is put again."""
        vbuckets = tuple(self.intake.held_back)
        self.courses.troubles.append(
            Trouble(vbuckets=vbuckets, reason=str(error), attempts=1, retry_seconds=ASK_SECONDS)
        )

    def wait_seconds(self, connections: Collection[ConsumerConnection], *, now: float) -> float:
        """How long a skin may sleep when nothing comes."""
        moments = [self.courses.next_at(now=now), *self._open_at.values()]
        moments += [connection.next_at() for connection in connections]
        if self.intake.held_back:
            moments.append(now + ASK_SECONDS)
        nearest = min((one for one in moments if one is not None), default=now + WAIT_SECONDS_MAX)
        return min(max(nearest - now, WAIT_SECONDS_MIN), WAIT_SECONDS_MAX)

    def tell_troubles(self) -> None:
        """Tell whoever listens what keeps vbuckets from streaming."""
        if not self.courses.troubles:
            return
        troubles, self.courses.troubles = self.courses.troubles, []
        if self._on_trouble is not None:
            for trouble in troubles:
                self._on_trouble(trouble)

    def raise_if_stuck(self) -> None:
        """Raise for what was given up, vbuckets or a login; the rest has been handed out."""
        if self._refusal is not None:
            raise self._refusal
        if self.courses.is_stuck:
            stuck = self.courses.stuck
            names = vbucket_names([course.vbucket for course in stuck])
            raise ConnectionLost(f"vbucket {names}: {stuck[0].reason}")


def jitter() -> float:
    """A number in 0..1 for delays; no secret."""
    return random.random()  # noqa: S311 - spreads reconnections, protects nothing
