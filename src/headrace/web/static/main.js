// The page: joins the stream of events with what shows them.

import { Connections } from "./connections.js";
import { $, make, setAttribute, setText } from "./dom.js";
import { brief, bytes, clock, plural, whole } from "./format.js";
import { Grid } from "./grid.js";
import { Levers } from "./levers.js";
import { Model } from "./model.js";
import { Plot } from "./plot.js";
import { Stream } from "./stream.js";
import { Tables } from "./tables.js";
import { Detail } from "./vbucket.js";

const HAPPENINGS_SHOWN_MAX = 40;
const FURTHEST_SHOWN = 5;
const RENDER_MILLISECONDS = 950;
const LINKS = { live: "live", waiting: "connecting", lost: "lost" };

const model = new Model();
const detail = new Detail(model, () => grid.select(null));
const grid = new Grid(model, (vbucket) => openVBucket(vbucket, false));
const connections = new Connections(model, (vbucket) => openVBucket(vbucket, true));
const tables = new Tables(model);
const rates = new Plot(
  $("plot-rate"),
  [
    { name: "written", column: 1, spoken: "written" },
    { name: "sent", column: 2, spoken: "sent" },
  ],
  "Throughput in changes per second",
);
const lags = new Plot($("plot-lag"), [{ name: "lag", column: 3, area: true, spoken: "lag" }], "Lag in seqnos");
const levers = new Levers(
  () => model.source.bucket,
  (session) => {
    const prepare = session.levers ? (lever, values) => levers.prepare(lever, values) : null;
    detail.prepare = prepare;
    connections.offer(prepare);
    if (detail.told) {
      detail.render();
    }
    begin(session);
  },
);
const stream = new Stream({
  state: (message) => show(model.applyState(message)),
  change: (message) => {
    const news = model.applyChange(message);
    if (news) {
      show(news);
    }
    return news !== null;
  },
  lost: (sentence) => banner(`The source does not answer: ${sentence}. Trying again.`),
  link,
});

let shownBucket = null;
let waiting = null;
let renderedAt = 0;

function begin(session) {
  setText($("where"), session.source);
  const pick = $("bucket");
  if (session.guarded && session.user === null) {
    stream.close();
    shownBucket = null;
    link("waiting");
    levers.openLogin();
    return;
  }
  pick.replaceChildren(...session.buckets.map((name) => make("option", { value: name }, name)));
  $("bucket-pick").hidden = session.buckets.length < 2;
  tables.start(session.tables);
  const wanted = new URLSearchParams(location.search).get("bucket");
  const bucket = shownBucket ?? (session.buckets.includes(wanted) ? wanted : session.buckets[0]);
  if (bucket !== undefined && bucket !== shownBucket) {
    watch(bucket);
  }
}

function watch(bucket) {
  shownBucket = bucket;
  $("bucket").value = bucket;
  detail.close();
  stream.open(bucket);
}

function link(word) {
  setAttribute($("live"), "data-state", word);
  setText($("live-text"), LINKS[word]);
  if (word === "lost") {
    banner("The page lost its connection to headrace. It connects again by itself; the numbers below are the last it heard.");
  } else if (word === "live") {
    banner("");
  }
}

function banner(sentence) {
  setText($("banner"), sentence);
  $("banner").hidden = !sentence;
  document.body.classList.toggle("stale", Boolean(sentence));
}

function openVBucket(vbucket, focus) {
  grid.select(vbucket);
  detail.open(vbucket, focus);
}

// -- showing ---------------------------------------------------------------------------------------

/** Take news; what is not urgent is shown once a second, which is as fast as people read numbers. */
function show(news) {
  announce(news.happenings);
  waiting = merge(waiting, news);
  const urgent = news.all || news.happenings.length > 0;
  if (!document.hidden && (urgent || performance.now() - renderedAt >= RENDER_MILLISECONDS)) {
    render();
  }
}

function merge(before, news) {
  return {
    all: Boolean(before?.all) || news.all,
    places: new Set([...(before?.places ?? []), ...news.places]),
    happenings: [...(before?.happenings ?? []), ...news.happenings],
    sampled: Boolean(before?.sampled) || news.sampled,
  };
}

function render() {
  const news = waiting;
  waiting = null;
  renderedAt = performance.now();
  tiles();
  grid.update(news);
  furthest();
  connections.update();
  detail.update(news);
  if (news.sampled) {
    rates.show(model.history, model.time);
    lags.show(model.history, model.time);
  }
  if (news.all || news.happenings.length) {
    happenings();
  }
  setText($("notes"), model.notes.join(" "));
}

document.addEventListener("visibilitychange", () => {
  if (!document.hidden && waiting) {
    render();
  }
});

function tiles() {
  const totals = model.totals;
  const slow = model.connections.filter((one) => one.slow).length;
  const texts = {
    written: brief(Math.round(totals.written)),
    sent: brief(Math.round(totals.sent)),
    lag: brief(totals.lag),
    connections: whole(totals.connections),
    slow: slow ? `${whole(slow)} slow` : totals.connections ? "none slow" : "",
    items: brief(totals.items),
    memory: bytes(totals.memory),
    quota: totals.quota ? `of ${bytes(totals.quota)}` : "",
  };
  for (const tile of document.querySelectorAll("[data-tile]")) {
    setText(tile, texts[tile.dataset.tile]);
  }
  document.body.dataset.kind = model.source.kind;
  setText($("where"), `${model.source.title} · ${model.source.bucket}`);
  setText($("grid-count"), `${whole(model.size)} in bucket ${model.source.bucket}`);
  document.title = `${model.source.bucket} · headrace`;
  $("goto-number").max = String(model.size - 1);
}

function furthest() {
  const found = model.furthest(FURTHEST_SHOWN);
  const key = found.map(([vbucket, lag]) => `${vbucket}:${lag}`).join();
  const place = $("furthest");
  if (place.dataset.key === key) {
    return;
  }
  place.dataset.key = key;
  if (!found.length) {
    place.replaceChildren("Every vbucket that is read is level.");
    return;
  }
  const buttons = place.querySelectorAll("button");
  if (buttons.length === found.length) {
    found.forEach(([vbucket, lag], index) => {
      buttons[index].dataset.vbucket = vbucket;
      setText(buttons[index], `${vbucket} (${brief(lag)})`);
    });
    return;
  }
  place.replaceChildren(
    make("span", {}, "Furthest behind: "),
    ...found.map(([vbucket, lag]) =>
      make(
        "button",
        { type: "button", class: "link", "data-vbucket": vbucket, onclick: (event) => openVBucket(Number(event.target.dataset.vbucket), true) },
        `${vbucket} (${brief(lag)})`,
      ),
    ),
  );
}

const KIND_WORDS = { failover: "failover", state: "state", purge: "purge", joined: "joined", left: "left", lever: "lever", lost: "lost", found: "found" };

function happenings() {
  const newest = model.happenings.slice(-HAPPENINGS_SHOWN_MAX).reverse();
  if (!newest.length) {
    $("happenings").replaceChildren(make("li", { class: "empty" }, "Nothing yet. Failovers, state changes and connections appear here."));
    return;
  }
  $("happenings").replaceChildren(
    ...newest.map((one) =>
      make(
        "li",
        { "data-kind": one.kind },
        make("time", { datetime: new Date(one.time * 1000).toISOString() }, clock(one.time)),
        make("span", { class: "tag" }, KIND_WORDS[one.kind] ?? one.kind),
        one.vbucket === null
          ? make("span", { class: "text" }, one.text)
          : make("button", { type: "button", class: "link text", onclick: () => openVBucket(one.vbucket, true) }, one.text),
      ),
    ),
  );
}

function announce(list) {
  const told = list.filter((one) => ["failover", "state", "lost", "found"].includes(one.kind));
  if (told.length) {
    setText($("announce"), told.length > 3 ? `${plural(told.length, "event")}; the last: ${told.at(-1).text}` : told.map((one) => one.text).join(". "));
  }
}

// -- the rest --------------------------------------------------------------------------------------

$("bucket").addEventListener("change", (event) => watch(event.target.value));
$("goto").addEventListener("submit", (event) => {
  event.preventDefault();
  const vbucket = Number($("goto-number").value || 0);
  if (Number.isInteger(vbucket) && vbucket >= 0 && vbucket < model.size) {
    grid.move(vbucket, false);
    openVBucket(vbucket, true);
  }
});

levers.start().catch((error) => banner(`The page cannot start: ${error.message}.`));
