// Consumers: one row each, kept and changed in place; slow ones first, each with its reason.

import { $, ask, make, setAttribute, setText } from "./dom.js";
import { brief, bytes, plural, whole } from "./format.js";

const STREAMS_SHOWN_MAX = 12;
const HEADS = ["Consumer", "Condition", "Streams", "Lag", "Window in use", "Changes/s", "Bytes/s", ""];

export class Connections {
  constructor(model, openVBucket) {
    this.model = model;
    this.openVBucket = openVBucket;
    this.rows = new Map();
    this.prepare = null;
    this.body = make("tbody", {});
    this.table = make(
      "table",
      { class: "stack", role: "table" },
      make("caption", { class: "unseen" }, "Consumers, the slow ones first"),
      make("thead", { role: "rowgroup" }, make("tr", { role: "row" }, ...HEADS.map((word) => make("th", { scope: "col", role: "columnheader" }, word || make("span", { class: "unseen" }, "Actions"))))),
      this.body,
    );
    this.empty = make("p", { class: "empty" }, "No consumer is connected.");
    $("connections-body").append(this.table, this.empty);
  }

  update() {
    const list = this.model.connections;
    this.table.hidden = !list.length;
    this.empty.hidden = Boolean(list.length);
    const clients = this.model.totals.clients;
    setText($("clients"), clients ? `and ${plural(clients, "document client")}` : "");
    const kept = new Set(list.map((one) => one.key));
    for (const [key, row] of this.rows) {
      if (!kept.has(key)) {
        row.main.remove();
        row.more.remove();
        this.rows.delete(key);
      }
    }
    list.forEach((one, place) => {
      const row = this.rows.get(one.key) ?? this.makeRow(one);
      this.fillRow(row, one);
      // Rows change places only when the order does.
      if (this.body.children[2 * place] !== row.main) {
        this.body.insertBefore(row.main, this.body.children[2 * place] ?? null);
        row.main.after(row.more);
      }
    });
  }

  makeRow(one) {
    const cells = ["", "words", "", "", "words", "", "", "act"].map((kind, index) =>
      make(index ? "td" : "th", { role: index ? "cell" : "rowheader", scope: index ? null : "row", class: kind || null, "data-label": HEADS[index] }),
    );
    const name = make("span", { class: "who" });
    const peer = make("small", {});
    cells[0].append(name, peer);
    const sign = make("span", { class: "sign", "aria-hidden": "true" });
    const words = make("span", {});
    cells[1].append(sign, words);
    const fill = make("span", { class: "fill" });
    const meter = make("span", { class: "meter", role: "meter", "aria-valuemin": "0", "aria-label": "Flow-control window in use" }, fill);
    const used = make("small", {});
    cells[4].append(used, meter);
    const more = make("tr", { class: "more", role: "row", hidden: true }, make("td", { colspan: "8", role: "cell" }));
    const toggle = make("button", { type: "button", "aria-expanded": "false", "aria-label": `Streams of ${one.name || one.key}` }, "Streams");
    cells[7].append(toggle);
    const row = { cells, name, peer, sign, words, meter, fill, used, more, toggle, main: make("tr", { role: "row" }, ...cells) };
    toggle.addEventListener("click", () => this.toggle(row, one));
    this.rows.set(one.key, row);
    return row;
  }

  fillRow(row, one) {
    setText(row.name, one.name || `connection ${one.key}`);
    setText(row.peer, one.peer);
    setText(row.words, one.limit ? `${this.model.source.conditions[one.condition]}: ${bytes(one.limit)}/s` : this.model.source.conditions[one.condition]);
    setAttribute(row.main, "data-slow", String(one.slow));
    setText(row.sign, one.slow ? "▲" : "●");
    setText(row.cells[2], one.backfilling ? `${whole(one.streams)}, ${whole(one.backfilling)} from disk` : whole(one.streams));
    setText(row.cells[3], one.worst >= 0 && one.lag ? `${brief(one.lag)}` : "0");
    const share = one.window ? Math.min(1, one.outstanding / one.window) : 0;
    row.meter.hidden = !one.window;
    row.fill.style.transform = `scaleX(${share.toFixed(3)})`;
    setAttribute(row.meter, "aria-valuemax", one.window);
    setAttribute(row.meter, "aria-valuenow", Math.min(one.outstanding, one.window));
    const used = one.window ? `${bytes(one.outstanding)} of ${bytes(one.window)}` : "no flow control";
    setText(row.used, used);
    setAttribute(row.meter, "aria-valuetext", used);
    setText(row.cells[5], brief(Math.round(one.items_rate)));
    setText(row.cells[6], bytes(one.bytes_rate));
  }

  async toggle(row, one) {
    const open = row.toggle.getAttribute("aria-expanded") !== "true";
    row.toggle.setAttribute("aria-expanded", String(open));
    row.more.hidden = !open;
    if (!open) {
      return;
    }
    const cell = row.more.firstChild;
    try {
      const bucket = encodeURIComponent(this.model.source.bucket);
      const told = await ask(`/api/connection?bucket=${bucket}&key=${encodeURIComponent(one.key)}`);
      cell.replaceChildren(...[this.levers(one), this.streams(told)].filter(Boolean));
    } catch (error) {
      cell.replaceChildren(make("p", { class: "empty" }, error.message));
    }
  }

  streams(told) {
    const shown = told.streams.slice(0, STREAMS_SHOWN_MAX);
    const items = shown.map((one) =>
      make(
        "li",
        {},
        make("button", { type: "button", class: "link", onclick: () => this.openVBucket(one.vbucket) }, `vbucket ${one.vbucket}`),
        make("span", {}, `${one.state}, at ${whole(Math.max(one.sent, one.read))}, ${one.lag ? `${whole(one.lag)} behind` : "level"}`),
      ),
    );
    const more = told.stream_count - shown.length;
    return make(
      "div",
      {},
      make("p", { class: "hint" }, `${plural(told.stream_count, "stream")}${more > 0 ? "; the furthest behind" : ""}:`),
      make("ul", { class: "streams" }, ...items),
    );
  }

  /** Let open rows carry buttons for levers, or take them away. */
  offer(prepare) {
    this.prepare = prepare;
    for (const row of this.rows.values()) {
      row.toggle.setAttribute("aria-expanded", "false");
      row.more.hidden = true;
    }
  }

  levers(one) {
    if (!this.prepare) {
      return null;
    }
    const buttons = [
      ["Pause…", "pause", {}],
      ["Slow…", "slow", { rate: 1000 }],
      ["Cut…", "cut", {}],
      ["Resume…", "resume", {}],
    ];
    return make(
      "div",
      { class: "quick" },
      ...buttons.map(([words, lever, values]) => make("button", { type: "button", onclick: () => this.prepare(lever, { connection: one.key, ...values }) }, words)),
    );
  }
}
