// The one stream of events: connects, connects again, and says when nothing comes any more.

const SILENCE_SECONDS = 6;
const RETRY_MILLISECONDS = 2000;

export class Stream {
  /** handlers: state(message), change(message) -> whether it fitted, lost(sentence), link(word). */
  constructor(handlers) {
    this.handlers = handlers;
    this.source = null;
    this.heardAt = 0;
    this.timer = 0;
    setInterval(() => this.watch(), 1000);
  }

  open(bucket) {
    this.bucket = bucket;
    this.close();
    this.handlers.link("waiting");
    const source = new EventSource(`/events?bucket=${encodeURIComponent(bucket)}`);
    this.source = source;
    this.heardAt = performance.now();
    source.addEventListener("state", (event) => this.heard(() => this.handlers.state(JSON.parse(event.data))));
    source.addEventListener("change", (event) =>
      this.heard(() => {
        if (!this.handlers.change(JSON.parse(event.data))) {
          this.open(bucket);
        }
      }),
    );
    source.addEventListener("lost", (event) => {
      this.heardAt = performance.now();
      this.handlers.lost(JSON.parse(event.data).error);
    });
    source.addEventListener("error", () => {
      this.handlers.link("lost");
      // A browser tries again by itself, unless the answer was no stream at all.
      if (source.readyState === EventSource.CLOSED && this.source === source) {
        clearTimeout(this.timer);
        this.timer = setTimeout(() => this.open(bucket), RETRY_MILLISECONDS);
      }
    });
  }

  close() {
    clearTimeout(this.timer);
    this.source?.close();
    this.source = null;
  }

  heard(work) {
    this.heardAt = performance.now();
    this.handlers.link("live");
    work();
  }

  watch() {
    if (this.source && performance.now() - this.heardAt > SILENCE_SECONDS * 1000) {
      this.handlers.link("lost");
      if (performance.now() - this.heardAt > 3 * SILENCE_SECONDS * 1000) {
        this.open(this.bucket);
      }
    }
  }
}
