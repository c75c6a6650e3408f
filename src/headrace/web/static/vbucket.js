// One vbucket: its numbers, who reads it, the snapshots as they pass, its branches.

import { $, ask, make, setText } from "./dom.js";
import { branchTable, drawBranches } from "./branches.js";
import { clock, whole } from "./format.js";
import { NOBODY } from "./model.js";

const SNAPSHOTS_MAX = 6;
const STREAMS_SHOWN_MAX = 8;
const REFRESH_MILLISECONDS = 900;

export class Detail {
  /** pull(lever, values): prepare a lever, null while nobody may. */
  constructor(model, closed) {
    this.model = model;
    this.closed = closed;
    this.vbucket = null;
    this.told = null;
    this.snapshots = [];
    this.asking = false;
    this.again = false;
    this.askedAt = 0;
    this.prepare = null;
    $("detail-close").addEventListener("click", () => this.close());
    this.showEmpty();
  }

  async open(vbucket, focus = false) {
    if (vbucket !== this.vbucket) {
      this.snapshots = [];
      this.told = null;
    }
    this.vbucket = vbucket;
    setText($("detail-title"), `Vbucket ${vbucket}`);
    $("detail-close").hidden = false;
    const held = document.activeElement;
    await this.refresh(true);
    // Whoever went on meanwhile is not called back.
    if (focus && [held, document.body].includes(document.activeElement)) {
      $("detail").focus({ preventScroll: true });
      $("detail-title").scrollIntoView({ block: "nearest" });
    }
  }

  close() {
    this.vbucket = null;
    this.told = null;
    this.showEmpty();
    this.closed();
  }

  showEmpty() {
    setText($("detail-title"), "Vbucket");
    setText($("detail-state"), "");
    $("detail-close").hidden = true;
    $("detail-body").replaceChildren(
      make("p", { class: "empty" }, "Choose a vbucket to see its seqnos, who reads it, and the branches of its history."),
    );
  }

  /** Called with every event: asks again when this vbucket moved, at most once a second. */
  update(news) {
    if (this.vbucket !== null && (news.all || news.places.has(this.vbucket))) {
      this.refresh(news.happenings.some((one) => one.vbucket === this.vbucket));
    }
  }

  async refresh(now) {
    const late = performance.now() - this.askedAt >= REFRESH_MILLISECONDS;
    if (this.asking || !(now || late)) {
      this.again ||= this.asking && now;
      return;
    }
    this.asking = true;
    this.askedAt = performance.now();
    const vbucket = this.vbucket;
    try {
      const bucket = encodeURIComponent(this.model.source.bucket);
      const told = await ask(`/api/vbucket?bucket=${bucket}&vbucket=${vbucket}`);
      if (vbucket === this.vbucket) {
        this.told = told;
        this.note(told);
        this.render();
      }
    } catch (error) {
      if (vbucket === this.vbucket) {
        $("detail-body").replaceChildren(make("p", { class: "empty" }, error.message));
      }
    } finally {
      this.asking = false;
      if (this.again) {
        this.again = false;
        this.refresh(true);
      }
    }
  }

  /** Keep the snapshots that streams stand in, as they are seen. */
  note(told) {
    for (const stream of told.streams) {
      const range = stream.snapshot ?? (stream.snapshot_end ? [null, stream.snapshot_end] : null);
      if (!range) {
        continue;
      }
      const key = `${stream.connection} ${range[1]}`;
      const known = this.snapshots.find((one) => one.key === key);
      if (known) {
        known.open = stream.snapshot !== null;
        known.start = known.start ?? range[0];
      } else {
        this.snapshots.unshift({
          key,
          name: stream.name || stream.connection,
          start: range[0],
          end: range[1],
          open: stream.snapshot !== null,
          from: stream.state === "backfilling" ? "disk" : "memory",
          time: this.model.time,
        });
      }
    }
    this.snapshots.length = Math.min(this.snapshots.length, SNAPSHOTS_MAX);
  }

  render() {
    const told = this.told;
    setText($("detail-state"), told.state);
    const width = Math.max(260, Math.min(620, $("detail-body").clientWidth || 360));
    $("detail-body").replaceChildren(
      ...[
        numbers(told, this.model),
        this.levers(),
        section("Branches", drawBranches(told, width), branchTable(told), told.log.length > 1 ? hint() : null),
        section("Streams", streams(told)),
        section("Snapshots as they passed", this.snapshotList()),
      ].filter(Boolean),
    );
  }

  levers() {
    if (!this.prepare) {
      return null;
    }
    const vbucket = this.vbucket;
    const buttons = [
      ["Fail over…", "failover", { vbucket, lose: 20 }],
      ["Force a rollback…", "rollback", { vbucket, seqno: Math.floor(this.told.high / 2) }],
      ["Purge…", "purge", { vbucket }],
      ["Drop cursors…", "drop-cursor", { vbucket }],
    ];
    return make(
      "div",
      { class: "quick" },
      ...buttons.map(([words, lever, values]) => make("button", { type: "button", onclick: () => this.prepare(lever, values) }, words)),
    );
  }

  snapshotList() {
    if (!this.snapshots.length) {
      return make("p", { class: "empty" }, "None seen since you opened this vbucket.");
    }
    return make(
      "ol",
      { class: "snapshots" },
      ...this.snapshots.map((one) =>
        make(
          "li",
          {},
          make("time", {}, clock(one.time)),
          make("b", {}, one.start === null ? `up to ${whole(one.end)}` : `${whole(one.start)} – ${whole(one.end)}`),
          make("span", {}, `${one.open ? "being sent" : "sent"} to ${one.name}, from ${one.from}`),
        ),
      ),
    );
  }
}

function hint() {
  return make("p", { class: "hint" }, "A consumer that saw more than a ringed seqno is rolled back to it. Dashed: history that was lost.");
}

function section(title, ...parts) {
  return make("section", { class: "part" }, make("h3", {}, title), ...parts.filter(Boolean));
}

function numbers(told, model) {
  const lag = model.columns.lag[told.vbucket];
  const facts = [
    ["High seqno", whole(told.high)],
    ["Persisted", told.persisted === null ? "in memory" : whole(told.persisted)],
    ["Purged up to", told.purge ? whole(told.purge) : "nothing"],
    ["Lag", lag === NOBODY ? "no reader" : whole(lag)],
  ];
  if (told.items !== null) {
    facts.push(["Documents", whole(told.items)], ["Tombstones", whole(told.tombstones)]);
  }
  if (told.own) {
    facts.push(["This page's consumer", `${whole(told.own.seqno)}, ${told.own.state}`]);
    facts.push(["Its snapshot", told.own.snapshot]);
  }
  return make("dl", { class: "facts" }, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

function streams(told) {
  if (!told.stream_count) {
    return make("p", { class: "empty" }, "Nobody reads this vbucket.");
  }
  const shown = told.streams.slice(0, STREAMS_SHOWN_MAX);
  const rows = shown.map((one) =>
    make(
      "tr",
      {},
      make("th", { scope: "row" }, one.name || `connection ${one.connection}`),
      make("td", { class: "words" }, one.state),
      make("td", {}, whole(Math.max(one.sent, one.read))),
      make("td", {}, whole(one.lag)),
    ),
  );
  const more = told.stream_count - shown.length;
  return make(
    "div",
    {},
    make(
      "table",
      { class: "plain" },
      make("caption", { class: "unseen" }, "Streams of this vbucket"),
      make("thead", {}, make("tr", {}, ...["Consumer", "state", "seqno", "lag"].map((word) => make("th", { scope: "col", class: word === "state" ? "words" : null }, word)))),
      make("tbody", {}, ...rows),
    ),
    more > 0 ? make("p", { class: "hint" }, `and ${more} more`) : null,
  );
}
