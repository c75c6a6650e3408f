// What the page knows: the newest state, changed in place by each event.

export const NOBODY = -1;
export const FAILOVER_SHOWN_SECONDS = 60;
const HISTORY_MAX = 300;
const HAPPENINGS_MAX = 100;

export class Model {
  constructor() {
    this.version = -1;
    this.known = false;
    this.columns = {};
    this.size = 0;
    this.totals = {};
    this.connections = [];
    this.notes = [];
    this.history = [];
    this.happenings = [];
    this.source = { states: [], conditions: {}, title: "", kind: "", bucket: "" };
    this.time = 0;
    this.failedOver = new Map();
  }

  /** Everything anew. */
  applyState(message) {
    this.known = true;
    this.version = message.version;
    this.source = message.source;
    for (const [name, change] of Object.entries(message.columns)) {
      this.columns[name] = change.all;
    }
    this.size = this.columns.state.length;
    this.history = message.history;
    this.happenings = [];
    this.failedOver.clear();
    this.take(message);
    this.happened(message.happenings);
    return { all: true, places: new Set(), happenings: [], sampled: true };
  }

  /** What changed; null when something in between was missed. */
  applyChange(message) {
    if (!this.known || message.version !== this.version + 1) {
      return null;
    }
    this.version = message.version;
    const news = { all: false, places: new Set(), happenings: message.happenings ?? [], sampled: false };
    for (const [name, change] of Object.entries(message.columns)) {
      this.applyColumn(name, change, news);
    }
    this.size = this.columns.state.length;
    this.take(message);
    if (message.sample) {
      this.history.push(message.sample);
      if (this.history.length > HISTORY_MAX) {
        this.history.shift();
      }
      news.sampled = true;
    }
    this.happened(news.happenings, news);
    return news;
  }

  applyColumn(name, change, news) {
    const column = this.columns[name];
    if (change.all) {
      if (change.all.length !== column.length) {
        news.all = true;
      }
      change.all.forEach((value, place) => {
        if (column[place] !== value) {
          news.places.add(place);
        }
      });
      this.columns[name] = change.all;
      return;
    }
    change.at.forEach((place, index) => {
      column[place] = change.to[index];
      news.places.add(place);
    });
  }

  take(message) {
    this.time = message.time ?? this.time;
    this.totals = message.totals ?? this.totals;
    this.connections = message.connections ?? this.connections;
    this.notes = message.notes ?? this.notes;
  }

  happened(list, news = null) {
    for (const one of list) {
      this.happenings.push(one);
      if (one.kind === "failover" && one.vbucket !== null) {
        this.failedOver.set(one.vbucket, one.time);
        news?.places.add(one.vbucket);
      }
    }
    this.happenings.splice(0, Math.max(0, this.happenings.length - HAPPENINGS_MAX));
  }

  /** Vbuckets whose mark of a failover is over. */
  forgetFailovers() {
    const over = [];
    for (const [vbucket, time] of this.failedOver) {
      if (this.time - time > FAILOVER_SHOWN_SECONDS) {
        this.failedOver.delete(vbucket);
        over.push(vbucket);
      }
    }
    return over;
  }

  stateOf(vbucket) {
    return this.source.states[this.columns.state[vbucket]] ?? "absent";
  }

  /** The vbuckets furthest behind, as [vbucket, lag]. */
  furthest(count) {
    const found = [];
    this.columns.lag.forEach((lag, vbucket) => {
      if (lag > 0 && (found.length < count || lag > found.at(-1)[1])) {
        found.push([vbucket, lag]);
        found.sort((a, b) => b[1] - a[1] || a[0] - b[0]);
        found.length = Math.min(found.length, count);
      }
    });
    return found;
  }
}
