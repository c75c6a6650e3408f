// A failover log as a drawing: one lane per branch, seqnos to the right, a step down where a newer
// branch began. What a failover took away is dashed; the place it began at is where a consumer that
// saw more is rolled back to. The scale keeps the order and stretches short distances.

import { draw, make } from "./dom.js";
import { whole } from "./format.js";

const LANE = 50;
const LEFT = 12;
const RIGHT = 62;
const TOP = 30;
const BRANCHES_MAX = 7;

/** Oldest first: where each branch began, how far it was kept, how far it was seen. */
export function branchesOf(detail) {
  const log = [...detail.log].reverse();
  return log.map((entry, index) => {
    const next = log[index + 1];
    const ended = next ? next.seqno : detail.high;
    return {
      branch: entry.branch,
      began: entry.seqno,
      ended,
      seen: next ? (detail.reached?.[next.branch] ?? null) : detail.high,
      newest: !next,
    };
  });
}

function scale(values, width) {
  const places = [...new Set(values)].sort((a, b) => a - b);
  const [low, high] = [places[0], places.at(-1)];
  const span = Math.max(1, high - low);
  const steps = Math.max(1, places.length - 1);
  const room = width - LEFT - RIGHT;
  return (value) => {
    const rank = places.indexOf(value) / steps;
    const linear = (value - low) / span;
    return LEFT + room * (0.45 * linear + 0.55 * rank);
  };
}

export function drawBranches(detail, width) {
  const all = branchesOf(detail);
  const shown = all.slice(-BRANCHES_MAX);
  const values = shown.flatMap((one) => [one.began, one.ended, one.seen ?? one.ended]);
  const x = scale([0, ...values, detail.high], width);
  const height = TOP + (shown.length - 1) * LANE + (shown.length > 1 ? 14 : 26);
  const y = (lane) => TOP + lane * LANE;
  const parts = shown.flatMap((one, lane) => drawLane(one, lane, x, y, lane > 0));
  const rollbacks = shown.filter((one) => !one.newest).map((one) => whole(one.ended));
  const words = rollbacks.length
    ? `${shown.length} branches; rollback points at seqno ${rollbacks.join(", ")}; the newest reaches ${whole(detail.high)}`
    : `one branch, up to seqno ${whole(detail.high)}`;
  return draw(
    "svg",
    { class: "branches", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Branches: ${words}` },
    ...parts,
  );
}

function drawLane(one, lane, x, y, forks) {
  const [from, to, level] = [x(one.began), x(one.ended), y(lane)];
  const parts = [];
  if (forks) {
    const above = y(lane - 1);
    const bend = LANE / 2;
    parts.push(
      draw("path", {
        class: "branch fork",
        d: `M${from} ${above}C${from} ${above + bend} ${from} ${level - bend} ${from + 12} ${level}`,
      }),
    );
  }
  const start = forks ? Math.min(from + 12, to) : from;
  parts.push(draw("line", { class: `branch${one.newest ? " newest" : ""}`, x1: start, x2: Math.max(start, to), y1: level, y2: level }));
  if (!one.newest) {
    parts.push(...lost(one, x, level), ...rollbackPoint(one, to, level));
  } else {
    parts.push(
      draw("circle", { class: "head", cx: Math.max(start, to), cy: level, r: 5 }),
      draw("text", { class: "number", x: Math.max(start, to) + 10, y: level + 4 }, whole(one.ended)),
    );
  }
  // Left of the step down there is never a line.
  const place = forks ? { x: from - 12, y: level + 4, "text-anchor": "end" } : { x: from, y: level + 18 };
  parts.push(draw("text", { class: "name", ...place }, one.branch.slice(0, 8)));
  return parts;
}

function lost(one, x, level) {
  if (one.seen !== null && one.seen > one.ended) {
    const end = x(one.seen);
    return [
      draw("line", { class: "lost", x1: x(one.ended), x2: end, y1: level, y2: level }),
      draw("path", { class: "cross", d: `M${end - 4} ${level - 4}l8 8m0-8l-8 8` }),
      draw("text", { class: "number lost-number", x: end + 9, y: level + 4 }, whole(one.seen)),
    ];
  }
  return [];
}

function rollbackPoint(one, at, level) {
  return [
    draw("circle", { class: "rollback", cx: at, cy: level, r: 5.5 }),
    draw("text", { class: "number", x: at - 4, y: level - 11, "text-anchor": "end" }, whole(one.ended)),
  ];
}

export function branchTable(detail) {
  const rows = branchesOf(detail).reverse().map((one) => {
    const gone = one.newest || one.seen === null ? null : Math.max(0, one.seen - one.ended);
    return make(
      "tr",
      {},
      make("th", { scope: "row", class: "uuid" }, one.branch),
      make("td", {}, whole(one.began)),
      make("td", {}, one.newest ? "–" : whole(one.ended)),
      make("td", {}, one.newest ? "–" : gone === null ? "not seen" : whole(gone)),
    );
  });
  return make(
    "table",
    { class: "plain" },
    make("caption", { class: "unseen" }, "Failover log, newest branch first"),
    make("thead", {}, make("tr", {}, ...["Branch", "began after", "roll back to", "lost"].map((word) => make("th", { scope: "col" }, word)))),
    make("tbody", {}, ...rows),
  );
}
