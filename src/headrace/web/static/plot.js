// A plot of the last five minutes: lines or an area over an axis, drawn anew once a second.

import { draw, setAttribute } from "./dom.js";
import { brief } from "./format.js";

const HEIGHT = 150;
const LEFT = 52;
const RIGHT = 14;
const TOP = 10;
const BOTTOM = 22;
const SECONDS = 300;
const TICKS = 4;

/** The first of 1, 2, 2.5, 5, 10 times a power of ten that is at least so large. */
function nice(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(value, 1e-9)));
  return [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((one) => one >= value - 1e-9);
}

export class Plot {
  /** series: [{ name, column, area }] with the column of a sample. */
  constructor(svg, series, words) {
    this.svg = svg;
    this.series = series;
    this.words = words;
    this.top = 1;
    this.axis = draw("g", { class: "axis" });
    this.empty = draw("text", { class: "empty", "text-anchor": "middle" }, "the first samples are on their way");
    this.paths = series.map((one) => draw("path", { class: `line ${one.name}`, "data-line": one.name }));
    this.areas = series.map((one) => (one.area ? draw("path", { class: `area ${one.name}` }) : null));
    svg.append(this.axis, ...this.areas.filter(Boolean), ...this.paths, this.empty);
    this.history = [];
    this.now = 0;
    this.wide = 0;
    new ResizeObserver(([entry]) => {
      this.wide = Math.round(entry.contentRect.width);
      this.render(true);
    }).observe(svg);
  }

  show(history, now) {
    this.history = history;
    this.now = now;
    this.render(false);
  }

  render(resized) {
    const width = this.wide;
    if (!width) {
      return;
    }
    const highest = Math.max(1, ...this.history.map((one) => Math.max(...this.series.map(({ column }) => one[column]))));
    const step = Math.max(1, nice(highest / TICKS));
    const top = step * Math.ceil(highest / step);
    if (resized || top !== this.top || !this.axis.childNodes.length) {
      this.top = top;
      this.width = width;
      setAttribute(this.svg, "viewBox", `0 0 ${width} ${HEIGHT}`);
      this.renderAxis(width, top, step);
    }
    const few = this.history.length < 2;
    this.empty.setAttribute("visibility", few ? "visible" : "hidden");
    const points = (column) =>
      this.history
        .filter((one) => one[0] >= this.now - SECONDS)
        .map((one) => `${this.x(one[0]).toFixed(1)} ${this.y(one[column]).toFixed(1)}`);
    this.series.forEach(({ column }, index) => {
      const places = few ? [] : points(column);
      const line = places.length ? `M${places.join("L")}` : "";
      this.paths[index].setAttribute("d", line);
      if (this.areas[index]) {
        const floor = this.y(0);
        const ends = places.length ? `L${places.at(-1).split(" ")[0]} ${floor}L${places[0].split(" ")[0]} ${floor}Z` : "";
        this.areas[index].setAttribute("d", line + ends);
      }
    });
    this.label();
  }

  renderAxis(width, top, step) {
    const lines = [];
    for (let value = 0; value <= top; value += step) {
      const y = this.y(value);
      lines.push(
        draw("line", { x1: LEFT, x2: width - RIGHT, y1: y, y2: y, class: value ? "rule" : "floor" }),
        draw("text", { x: LEFT - 8, y: y + 4, "text-anchor": "end" }, brief(value)),
      );
    }
    const every = width < 420 ? 2 : 1;
    for (let minute = 0; minute <= 5; minute += every) {
      const x = this.x(-minute * 60, 0);
      const words = minute === 0 ? "now" : `${minute} min ago`;
      const anchor = minute === 0 ? "end" : minute === 5 ? "start" : "middle";
      lines.push(draw("text", { x, y: HEIGHT - 5, "text-anchor": anchor }, words));
    }
    this.axis.replaceChildren(...lines);
    this.empty.setAttribute("x", LEFT + (width - LEFT - RIGHT) / 2);
    this.empty.setAttribute("y", HEIGHT / 2);
  }

  x(time, now = this.now) {
    return LEFT + ((time - now + SECONDS) / SECONDS) * (this.width - LEFT - RIGHT);
  }

  y(value) {
    return TOP + (1 - value / this.top) * (HEIGHT - TOP - BOTTOM);
  }

  /** A sentence for who does not see the lines. */
  label() {
    const newest = this.history.at(-1);
    if (!newest) {
      return;
    }
    const parts = this.series.map(({ column, spoken }) => {
      const highest = Math.max(...this.history.map((one) => one[column]));
      return `${spoken} now ${brief(newest[column])}, at most ${brief(highest)}`;
    });
    setAttribute(this.svg, "aria-label", `${this.words}: ${parts.join("; ")}`);
  }
}
