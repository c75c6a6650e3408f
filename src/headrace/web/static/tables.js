// The pipeline's tables: what each has published, and how far that is behind the source.

import { $, ask, make } from "./dom.js";
import { brief, plural, whole } from "./format.js";

const ASK_MILLISECONDS = 5000;

export class Tables {
  constructor(model) {
    this.model = model;
    this.timer = 0;
  }

  start(given) {
    clearInterval(this.timer);
    if (!given) {
      $("tables-body").replaceChildren(
        make("p", { class: "empty" }, "No tables are watched. Name the directory of a ", make("code", {}, "headrace sync"), " with ", make("code", {}, "--tables DIR"), " to see what it has published."),
      );
      return;
    }
    this.refresh();
    this.timer = setInterval(() => document.hidden || this.refresh(), ASK_MILLISECONDS);
  }

  async refresh() {
    try {
      const told = await ask("/api/tables");
      $("tables-body").replaceChildren(
        ...(told.error ? [make("p", { class: "empty" }, told.error)] : told.tables.map((one) => this.table(one))),
      );
    } catch (error) {
      $("tables-body").replaceChildren(make("p", { class: "empty" }, error.message));
    }
  }

  table(one) {
    const head = make("h3", {}, one.name, make("small", {}, one.path));
    if (one.error) {
      return make("article", { class: "table" }, head, make("p", { class: "empty" }, one.error));
    }
    const highs = this.model.columns.high ?? [];
    const fits = highs.length === one.vector.length;
    const behind = one.vector
      .map((seqno, vbucket) => [vbucket, fits ? Math.max(0, highs[vbucket] - seqno) : 0])
      .filter(([, lag]) => lag > 0)
      .sort((a, b) => b[1] - a[1]);
    const total = behind.reduce((sum, [, lag]) => sum + lag, 0);
    const facts = [
      ["Turn", whole(one.turn)],
      ["Version", whole(one.version)],
      ["Rows of history", brief(one.rows)],
      ["Published seqnos", brief(one.vector.reduce((sum, seqno) => sum + seqno, 0))],
      ["Behind the source", fits ? `${brief(total)} in ${plural(behind.length, "vbucket")}` : "another bucket"],
    ];
    const worst = behind.slice(0, 5).map(([vbucket, lag]) => `vbucket ${vbucket}: ${whole(lag)}`);
    return make(
      "article",
      { class: "table" },
      head,
      make("dl", { class: "facts" }, ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value)))),
      worst.length ? make("p", { class: "hint" }, `Furthest behind: ${worst.join(", ")}.`) : null,
      make(
        "details",
        {},
        make("summary", {}, "Published vector"),
        make("pre", { class: "vector", tabindex: "0", "aria-label": `Published vector of ${one.name}` }, one.vector.map((seqno, vbucket) => `${vbucket}: ${seqno}`).join("  ")),
      ),
    );
  }
}
