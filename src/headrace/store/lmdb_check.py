"""Is an LMDB file sound? Asked before LMDB opens it, because LMDB trusts its pages blindly.

LMDB keeps no checksums: a damaged page can crash the process or, worse, have live pages reused.
This reads the newest meta page and walks every tree from it (free list, main, the named tables):
page numbers, flags, bounds of every node, order of keys, counts. No page may serve two ends: in a
tree, in an overflow run, or free. What values hold is checked by the checksums of
`headrace.store.records`.

page    pgno u64, pad u16, flags u16, lower u16, upper u16 (or overflow pages u32); node pointers
u16 node    size low u16, size high u16, flags u16, key size u16, key, data in a branch page the
first three are the child's page number meta    magic u32, version u32, address u64, map size u64,
free tree, main tree, last page u64, transaction u64 tree    pad u32 (page size in the first),
flags u16, depth u16, branch, leaf and overflow pages u64, entries u64, root u64

Numbers are those of a 64-bit little-endian machine; elsewhere the check is left out.

Imports: errors.
"""

from __future__ import annotations

import mmap
import struct
import sys
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Final

from headrace.errors import CorruptRecord, StoreVersion

if TYPE_CHECKING:
    from pathlib import Path

MAGIC: Final = 0xBEEFC0DE
VERSION: Final = 1
NO_PAGE: Final = 0xFFFF_FFFF_FFFF_FFFF
DEPTH_MAX: Final = 32
_PAGE: Final = Struct("<QHHHH")
_OVERFLOW: Final = Struct("<QHHI")
_META: Final = Struct("<IIQQ")
_TREE: Final = Struct("<IHHQQQQQ")
_TAIL: Final = Struct("<QQ")
_NODE: Final = Struct("<HHHH")
_BRANCH: Final = 0x01
_LEAF: Final = 0x02
_OVERFLOW_FLAG: Final = 0x04
_META_FLAG: Final = 0x08
_BIG_DATA: Final = 0x01
_SUB_TREE: Final = 0x02
_INTEGER_KEYS: Final = 0x08
_KNOWN_NODE_FLAGS: Final = _BIG_DATA | _SUB_TREE
_PAGE_SIZES: Final = frozenset(1 << bits for bits in range(9, 17))


@dataclass(frozen=True, slots=True)
class Tree:
    """The root of a tree and what it says of itself."""

    flags: int
    depth: int
    branch_pages: int
    leaf_pages: int
    overflow_pages: int
    entries: int
    root: int


@dataclass(frozen=True, slots=True)
class Meta:
    """A meta page."""

    page_size: int
    free: Tree
    main: Tree
    last_page: int
    transaction: int


@dataclass(slots=True)
class _Previous:
    """The key before, on the way through a tree."""

    key: bytes = b""
    is_branch: bool = False
    known: bool = False


def check_file(path: Path) -> None:
    """Return if the file is sound; else CorruptRecord, or StoreVersion for another format."""
    if sys.byteorder != "little" or struct.calcsize("P") != 8:
        return
    if path.stat().st_size == 0:
        raise CorruptRecord(f"{path} is empty", path=str(path))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        _Check(path, data).run()


class _Check:
    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._page_size = 0
        self._last = 0
        self._seen = bytearray()

    def _fail(self, page: int, reason: str) -> CorruptRecord:
        offset = page * self._page_size
        return CorruptRecord(
            f"{self._path} is damaged at page {page}: {reason}", path=str(self._path), offset=offset
        )

    def run(self) -> None:
        meta = self._newest_meta()
        self._page_size, self._last = meta.page_size, meta.last_page
        if (self._last + 1) * self._page_size > len(self._data):
            raise self._fail(self._last, f"the file ends at {len(self._data)} bytes")
        self._seen = bytearray(self._last + 1)
        self._seen[0:2] = b"\1\1"
        for number, content in self._walk_tree(meta.free, named=False, numbers=True):
            self._mark_free(number, content)
        for _ in self._walk_tree(meta.main, named=True, numbers=False):
            pass

    # -- meta pages -----------------------------------------------------------------------------

    def _newest_meta(self) -> Meta:
        first = self._meta(0, 0)
        second = self._meta(1, first.page_size)
        if first.page_size != second.page_size:
            raise self._fail(1, "the meta pages disagree on the page size")
        if not (first.transaction == second.transaction == 0):
            apart = abs(first.transaction - second.transaction)
            if apart != 1 or first.transaction % 2 != 0:
                raise self._fail(0, "the meta pages are not of two commits in a row")
        return max(second, first, key=lambda meta: meta.transaction)

    def _meta(self, number: int, page_size: int) -> Meta:
        start = number * page_size
        if start + 152 > len(self._data):
            raise self._fail(number, f"the file ends at {len(self._data)} bytes")
        pgno, _, flags, _, _ = _PAGE.unpack_from(self._data, start)
        magic, version, _, _ = _META.unpack_from(self._data, start + 16)
        if pgno != number or flags & 0x0F != _META_FLAG or magic != MAGIC:
            raise self._fail(number, "it is not a meta page")
        if version != VERSION:
            raise StoreVersion(f"{self._path} has LMDB format {version}, this release reads 1")
        free, size = self._tree(start + 40)
        main, _ = self._tree(start + 88)
        last_page, transaction = _TAIL.unpack_from(self._data, start + 136)
        if size not in _PAGE_SIZES or last_page < 1:
            raise self._fail(number, f"page size {size}, last page {last_page}")
        return Meta(size, free, main, last_page, transaction)

    def _tree(self, offset: int) -> tuple[Tree, int]:
        pad, *numbers = _TREE.unpack_from(self._data, offset)
        return Tree(*numbers), pad

    # -- trees ----------------------------------------------------------------------------------

    def _walk_tree(self, tree: Tree, *, named: bool, numbers: bool) -> list[tuple[int, bytes]]:
        """Check a tree; its entries' (page, value) if they are free-page lists."""
        if tree.flags != (_INTEGER_KEYS if numbers else 0):
            raise self._fail(0, f"a tree has flags {tree.flags:#x}")
        if tree.root == NO_PAGE:
            if tree.entries or tree.depth:
                raise self._fail(0, "an empty tree claims entries")
            return []
        counts = [0, 0, 0, 0]
        found: list[tuple[int, bytes]] = []
        previous = _Previous()
        if not 1 <= tree.depth <= DEPTH_MAX:
            raise self._fail(0, f"a tree claims depth {tree.depth}")
        self._walk_page(tree.root, tree.depth, counts, found, previous, named, numbers)
        if counts != [tree.branch_pages, tree.leaf_pages, tree.overflow_pages, tree.entries]:
            raise self._fail(tree.root, "a tree holds other counts than it claims")
        return found

    def _use(self, page: int) -> int:
        """Take a page into account; where it lies."""
        if not 2 <= page <= self._last:
            raise self._fail(0, f"page {page} is named, there are 2..{self._last}")
        if self._seen[page]:
            raise self._fail(page, "it is used twice")
        self._seen[page] = 1
        return page * self._page_size

    def _walk_page(
        self,
        page: int,
        levels: int,
        counts: list[int],
        found: list[tuple[int, bytes]],
        previous: _Previous,
        named: bool,
        numbers: bool,
    ) -> None:
        start = self._use(page)
        pgno, _, flags, lower, upper = _PAGE.unpack_from(self._data, start)
        kind = _LEAF if levels == 1 else _BRANCH
        if pgno != page or flags != kind:
            raise self._fail(page, f"it says page {pgno}, flags {flags:#x}")
        if not _PAGE.size <= lower <= upper <= self._page_size or lower % 2:
            raise self._fail(page, f"its bounds are {lower} and {upper}")
        count = (lower - _PAGE.size) // 2
        if count < (1 if kind == _LEAF else 2):
            raise self._fail(page, f"it holds {count} nodes")
        counts[1 if kind == _LEAF else 0] += 1
        taken = 0
        for index in range(count):
            (place,) = struct.unpack_from("<H", self._data, start + _PAGE.size + 2 * index)
            taken += self._node_room(page, start, place, upper, kind)
            low, high, node_flags, key_size = _NODE.unpack_from(self._data, start + place)
            key = self._data[start + place + 8 : start + place + 8 + key_size]
            if kind == _BRANCH:
                child = low | (high << 16) | (node_flags << 32)
                if index:  # the first key of a branch page means nothing
                    self._order(page, key, previous, numbers, branch=True)
                self._walk_page(child, levels - 1, counts, found, previous, named, numbers)
            else:
                self._order(page, key, previous, numbers, branch=False)
                counts[3] += 1
                size = low | (high << 16)
                content = start + place + 8 + key_size
                self._leaf(page, content, size, node_flags, counts, found, named, numbers)
        if taken != self._page_size - upper:
            raise self._fail(page, "its nodes overlap or leave gaps")

    def _node_room(self, page: int, start: int, place: int, upper: int, kind: int) -> int:
        """Bytes a node takes, after its bounds were checked."""
        if not upper <= place <= self._page_size - _NODE.size or place % 2:
            raise self._fail(page, f"a node lies at {place}")
        low, high, flags, key_size = _NODE.unpack_from(self._data, start + place)
        size = _NODE.size + key_size
        if kind == _LEAF:
            size += 8 if flags & _BIG_DATA else low | (high << 16)
        size += size % 2
        if place + size > self._page_size:
            raise self._fail(page, f"a node at {place} has {size} bytes")
        return int(size)

    def _order(
        self, page: int, key: bytes, previous: _Previous, numbers: bool, *, branch: bool
    ) -> None:
        """Keys rise; a branch's key may be that of the first leaf below it."""
        if numbers and len(key) != 8:
            raise self._fail(page, f"a free-list key has {len(key)} bytes")
        order = key[::-1] if numbers else key
        rises = order > previous.key or (order == previous.key and previous.is_branch)
        if previous.known and not rises:
            raise self._fail(page, "its keys are out of order")
        previous.key, previous.is_branch, previous.known = order, branch, True

    def _leaf(
        self,
        page: int,
        content: int,
        size: int,
        flags: int,
        counts: list[int],
        found: list[tuple[int, bytes]],
        named: bool,
        numbers: bool,
    ) -> None:
        if flags & ~_KNOWN_NODE_FLAGS or bool(flags & _SUB_TREE) != named:
            raise self._fail(page, f"a node has flags {flags:#x}")
        if flags & _SUB_TREE:
            if size != _TREE.size:
                raise self._fail(page, f"a table's record has {size} bytes")
            tree, _ = self._tree(content)
            self._walk_tree(tree, named=False, numbers=False)
            return
        if flags & _BIG_DATA:
            (overflow,) = struct.unpack_from("<Q", self._data, content)
            content = self._overflow(overflow, size, counts) + _PAGE.size
        if numbers:
            found.append((page, self._data[content : content + size]))

    def _overflow(self, page: int, size: int, counts: list[int]) -> int:
        start = self._use(page)
        pgno, _, flags, pages = _OVERFLOW.unpack_from(self._data, start)
        needed = -(-(size + _PAGE.size) // self._page_size)
        # A value that became shorter may keep the run it had.
        if pgno != page or flags != _OVERFLOW_FLAG or pages < needed:
            raise self._fail(page, f"an overflow run of {pages} pages for {size} bytes")
        for following in range(page + 1, page + pages):
            self._use(following)
        counts[2] += pages
        return int(start)

    def _mark_free(self, page: int, content: bytes) -> None:
        """Take the pages of one free list into account."""
        if len(content) < 8 or len(content) % 8:
            raise self._fail(page, f"a free list of {len(content)} bytes")
        count, *pages = struct.unpack(f"<{len(content) // 8}Q", content)
        # LMDB may leave room behind the list it wrote.
        if count > len(pages):
            raise self._fail(page, f"a free list of {count} pages in {len(content)} bytes")
        for free in pages[:count]:
            self._use(free)
