// The grid of vbuckets: one canvas, and one real cell that the keyboard moves.
//
// A vbucket's lag is told twice, by colour and by how full its cell is; its state by colour and by
// pattern. For a screen reader this is a grid of which one cell is there at a time; two buttons take
// turns at being that cell, so that each move is a move of the focus and is read out.

import { $, colour, make, setAttribute, setText } from "./dom.js";
import { brief, whole } from "./format.js";
import { NOBODY } from "./model.js";

const GAP = 1;
const CELL_MIN = 8;
const CELL_MAX = 34;
const HEIGHT_MAX = 300;
const GUTTER = 38;
const COLUMN_CHOICES = [2, 4, 8, 16, 32, 64, 128];

export const LEVELS = [
  { least: 0, words: "0" },
  { least: 1, words: "1–9" },
  { least: 10, words: "10–99" },
  { least: 100, words: "100–999" },
  { least: 1000, words: "1,000 and more" },
];

export function levelOf(lag) {
  let level = 0;
  while (level + 1 < LEVELS.length && lag >= LEVELS[level + 1].least) {
    level += 1;
  }
  return level;
}

const COLOURS = ["lag-0", "lag-1", "lag-2", "lag-3", "lag-4", "nobody", "line", "surface", "mark", "state-absent"];
const STATE_COLOURS = ["absent", "active", "replica", "pending", "dead"];

export class Grid {
  constructor(model, opened) {
    this.model = model;
    this.opened = opened;
    this.mode = "lag";
    this.place = 0;
    this.selected = null;
    this.drawn = [];
    this.columns = 1;
    this.cell = CELL_MAX;
    this.box = $("grid");
    this.canvas = make("canvas", { "aria-hidden": "true" });
    this.ring = make("div", { class: "ring", hidden: true });
    this.tip = make("div", { class: "tip", hidden: true, "aria-hidden": "true" });
    this.cursors = [0, 1].map(() => this.makeCursor());
    this.turn = 0;
    this.box.append(this.canvas, this.ring, ...this.cursors.map((one) => one.parentNode), this.tip);
    this.listen();
    this.readColours();
  }

  makeCursor() {
    const button = make("button", { type: "button", role: "gridcell", class: "cursor", tabindex: "-1" });
    make("div", { role: "row", class: "cursor-row" }, button);
    button.addEventListener("keydown", (event) => this.key(event));
    button.addEventListener("click", () => this.open(this.place));
    return button;
  }

  listen() {
    this.canvas.addEventListener("click", (event) => {
      const place = this.placeAt(event);
      if (place !== null) {
        this.move(place, false);
        this.open(place);
      }
    });
    this.canvas.addEventListener("pointermove", (event) => this.hover(event));
    this.canvas.addEventListener("pointerleave", () => {
      this.tip.hidden = true;
    });
    new ResizeObserver(() => this.layout()).observe(this.box);
    document.addEventListener("headrace-theme", () => {
      this.readColours();
      this.redraw();
      this.legend();
    });
    for (const radio of document.querySelectorAll("input[name=mode]")) {
      radio.addEventListener("change", () => {
        this.mode = radio.value;
        this.redraw();
        this.legend();
      });
    }
  }

  readColours() {
    this.colours = Object.fromEntries(COLOURS.map((name) => [name, colour(`--${name}`)]));
    this.stateColours = STATE_COLOURS.map((name) => colour(`--state-${name}`));
  }

  // -- layout ------------------------------------------------------------------------------------

  layout() {
    const width = this.box.clientWidth;
    const size = this.model.size;
    if (!width || !size) {
      return;
    }
    const room = width - GUTTER;
    // The largest cells that fit both ways; of equals the widest grid.
    const choices = COLUMN_CHOICES.map((columns) => {
      const across = Math.floor(room / columns);
      const down = Math.max(CELL_MIN, Math.floor(HEIGHT_MAX / Math.ceil(size / columns)));
      return { columns: Math.min(columns, size), cell: Math.min(CELL_MAX, across, down) };
    });
    const chosen = choices.reduce((best, one) => (one.cell >= best.cell ? one : best));
    const columns = chosen.columns;
    const same = this.columns === columns && this.cell === chosen.cell && this.laidOut === size;
    if (same && this.width === width) {
      return;
    }
    Object.assign(this, { columns, cell: chosen.cell, laidOut: size, width });
    const rows = Math.ceil(size / columns);
    const ratio = window.devicePixelRatio || 1;
    const [wide, high] = [GUTTER + columns * this.cell, rows * this.cell];
    this.canvas.width = Math.round(wide * ratio);
    this.canvas.height = Math.round(high * ratio);
    this.canvas.style.width = `${wide}px`;
    this.canvas.style.height = `${high}px`;
    this.pen = this.canvas.getContext("2d");
    this.pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    setAttribute(this.box, "aria-rowcount", rows);
    setAttribute(this.box, "aria-colcount", columns);
    this.redraw();
    this.move(Math.min(this.place, size - 1), false);
    this.select(this.selected);
  }

  cornerOf(place) {
    return [GUTTER + (place % this.columns) * this.cell, Math.floor(place / this.columns) * this.cell];
  }

  placeAt(event) {
    const bounds = this.canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - bounds.left - GUTTER) / this.cell);
    const row = Math.floor((event.clientY - bounds.top) / this.cell);
    const place = row * this.columns + column;
    const inside = column >= 0 && column < this.columns && place >= 0 && place < this.model.size;
    return inside ? place : null;
  }

  // -- drawing -----------------------------------------------------------------------------------

  update(news) {
    if (news.all || this.laidOut !== this.model.size) {
      this.laidOut = 0;
      this.layout();
      this.legend();
      return;
    }
    for (const place of news.places) {
      this.paint(place);
    }
    for (const place of this.model.forgetFailovers()) {
      this.paint(place);
    }
    const label = this.describe(this.place);
    if (document.activeElement !== this.cursors[this.turn]) {
      setAttribute(this.cursors[this.turn], "aria-label", label);
    }
  }

  redraw() {
    if (!this.pen) {
      return;
    }
    this.drawn = [];
    this.pen.clearRect(0, 0, this.canvas.width, this.canvas.height);
    this.pen.fillStyle = colour("--muted");
    this.pen.font = "11px Inter, system-ui, sans-serif";
    this.pen.textAlign = "right";
    this.pen.textBaseline = "middle";
    const every = Math.max(1, Math.ceil(16 / this.cell));
    for (let row = 0; row * this.columns < this.model.size; row += every) {
      this.pen.fillText(String(row * this.columns), GUTTER - 7, row * this.cell + this.cell / 2);
    }
    for (let place = 0; place < this.model.size; place += 1) {
      this.paint(place);
    }
  }

  /** What a cell looks like, in a few characters; the same look is not drawn again. */
  lookOf(place) {
    const mark = this.model.failedOver.has(place) ? "!" : "";
    const state = this.model.columns.state[place];
    if (this.mode === "state" || state === 0) {
      return `s${state}${mark}`;
    }
    const lag = this.model.columns.lag[place];
    return lag === NOBODY ? `n${mark}` : `l${levelOf(lag)}${mark}`;
  }

  paint(place) {
    const look = this.lookOf(place);
    if (this.drawn[place] === look || !this.pen) {
      return;
    }
    this.drawn[place] = look;
    const [x, y] = this.cornerOf(place);
    const size = this.cell - GAP;
    this.pen.clearRect(x, y, this.cell, this.cell);
    if (look[0] === "s") {
      paintState(this.pen, x, y, size, Number(look[1]), this.stateColours, this.colours);
    } else if (look[0] === "n") {
      paintNobody(this.pen, x, y, size, this.colours);
    } else {
      paintLag(this.pen, x, y, size, Number(look[1]), this.colours);
    }
    if (look.endsWith("!")) {
      paintMark(this.pen, x, y, size, this.colours);
    }
  }

  legend() {
    const entries =
      this.mode === "state"
        ? this.model.source.states.slice(1).map((word, index) => [word, (pen, size) =>
            paintState(pen, 0, 0, size, index + 1, this.stateColours, this.colours)])
        : [
            ...LEVELS.map((level, index) => [level.words, (pen, size) => paintLag(pen, 0, 0, size, index, this.colours)]),
            ["nobody reads it", (pen, size) => paintNobody(pen, 0, 0, size, this.colours)],
          ];
    entries.push(["failed over within a minute", (pen, size) => {
      paintLag(pen, 0, 0, size, 0, this.colours);
      paintMark(pen, 0, 0, size, this.colours);
    }]);
    const title = this.mode === "state" ? "State" : "Seqnos behind";
    $("legend").replaceChildren(
      make("b", {}, title),
      ...entries.map(([words, paint]) => make("span", { class: "entry" }, swatch(paint), words)),
    );
  }

  // -- keyboard and pointer ----------------------------------------------------------------------

  key(event) {
    const last = this.model.size - 1;
    const row = this.place - (this.place % this.columns);
    const steps = {
      ArrowRight: this.place + 1,
      ArrowLeft: this.place - 1,
      ArrowDown: this.place + this.columns,
      ArrowUp: this.place - this.columns,
      PageDown: this.place + 4 * this.columns,
      PageUp: this.place - 4 * this.columns,
      Home: event.ctrlKey ? 0 : row,
      End: event.ctrlKey ? last : Math.min(last, row + this.columns - 1),
    };
    if (event.key in steps) {
      event.preventDefault();
      const wanted = steps[event.key];
      const vertical = event.key.startsWith("Page");
      if (vertical || (wanted >= 0 && wanted <= last)) {
        this.move(Math.max(0, Math.min(last, wanted)), true);
      }
    }
  }

  move(place, focus) {
    const next = focus ? 1 - this.turn : this.turn;
    const cursor = this.cursors[next];
    const [x, y] = this.cornerOf(place);
    this.place = place;
    cursor.style.transform = `translate(${x}px, ${y}px)`;
    cursor.style.width = cursor.style.height = `${this.cell - GAP}px`;
    setAttribute(cursor, "aria-label", this.describe(place));
    setAttribute(cursor, "aria-colindex", (place % this.columns) + 1);
    setAttribute(cursor.parentNode, "aria-rowindex", Math.floor(place / this.columns) + 1);
    setAttribute(cursor, "aria-selected", String(place === this.selected));
    cursor.parentNode.hidden = false;
    cursor.tabIndex = 0;
    if (focus) {
      cursor.focus();
    }
    this.turn = next;
    this.cursors[1 - next].tabIndex = -1;
    this.cursors[1 - next].parentNode.hidden = true;
  }

  open(place) {
    this.select(place);
    this.opened(place);
  }

  select(place) {
    this.selected = place;
    this.ring.hidden = place === null || place >= this.model.size;
    if (!this.ring.hidden) {
      const [x, y] = this.cornerOf(place);
      this.ring.style.transform = `translate(${x}px, ${y}px)`;
      this.ring.style.width = this.ring.style.height = `${this.cell - GAP}px`;
    }
  }

  describe(place) {
    const { lag, high } = this.model.columns;
    if (!lag || place >= this.model.size) {
      return "no vbucket";
    }
    const behind = lag[place] === NOBODY ? "nobody reads it" : `lag ${whole(lag[place])}`;
    const mark = this.model.failedOver.has(place) ? ", failed over within a minute" : "";
    return `vbucket ${place}, ${this.model.stateOf(place)}, ${behind}, high seqno ${whole(high[place])}${mark}`;
  }

  hover(event) {
    const place = this.placeAt(event);
    this.tip.hidden = place === null;
    if (place === null) {
      return;
    }
    const { lag, high } = this.model.columns;
    const behind = lag[place] === NOBODY ? "nobody reads it" : `${brief(lag[place])} behind`;
    setText(this.tip, `${place} · ${this.model.stateOf(place)} · ${behind} · high ${brief(high[place])}`);
    const [x, y] = this.cornerOf(place);
    const shift = Math.min(x, Math.max(0, this.box.clientWidth - this.tip.offsetWidth - 4));
    this.tip.style.transform = `translate(${shift}px, ${y + this.cell + 6}px)`;
  }
}

// -- cells -----------------------------------------------------------------------------------------

function paintLag(pen, x, y, size, level, colours) {
  pen.fillStyle = colours["lag-0"];
  pen.fillRect(x, y, size, size);
  if (level) {
    const high = Math.max(2, Math.round((size * level) / (LEVELS.length - 1)));
    pen.fillStyle = colours[`lag-${level}`];
    pen.fillRect(x, y + size - high, size, high);
  }
}

function paintNobody(pen, x, y, size, colours) {
  pen.fillStyle = colours.nobody;
  pen.fillRect(x, y, size, size);
  stripes(pen, x, y, size, colours["state-absent"], 1);
}

function paintState(pen, x, y, size, state, fills, colours) {
  const fill = fills[state];
  pen.fillStyle = fill;
  pen.strokeStyle = fill;
  if (state === 0) {
    pen.lineWidth = 1;
    pen.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
  } else if (state === 1) {
    pen.fillRect(x, y, size, size);
  } else if (state === 2) {
    pen.lineWidth = Math.max(2, size / 5);
    const inset = pen.lineWidth / 2;
    pen.strokeRect(x + inset, y + inset, size - 2 * inset, size - 2 * inset);
  } else if (state === 3) {
    stripes(pen, x, y, size, fill, Math.max(2, size / 6));
  } else {
    pen.fillRect(x, y, size, size);
    pen.strokeStyle = colours.surface;
    pen.lineWidth = Math.max(1, size / 8);
    pen.beginPath();
    pen.moveTo(x + size * 0.2, y + size * 0.2);
    pen.lineTo(x + size * 0.8, y + size * 0.8);
    pen.moveTo(x + size * 0.8, y + size * 0.2);
    pen.lineTo(x + size * 0.2, y + size * 0.8);
    pen.stroke();
  }
}

function stripes(pen, x, y, size, stroke, width) {
  pen.save();
  pen.beginPath();
  pen.rect(x, y, size, size);
  pen.clip();
  pen.strokeStyle = stroke;
  pen.lineWidth = width;
  const step = Math.max(4, width * 2.5);
  pen.beginPath();
  for (let shift = -size; shift < size; shift += step) {
    pen.moveTo(x + shift, y + size);
    pen.lineTo(x + shift + size, y);
  }
  pen.stroke();
  pen.restore();
}

function paintMark(pen, x, y, size, colours) {
  const half = Math.max(5, size * 0.55);
  pen.fillStyle = colours.mark;
  pen.beginPath();
  pen.moveTo(x + size, y);
  pen.lineTo(x + size - half, y);
  pen.lineTo(x + size, y + half);
  pen.fill();
  pen.strokeStyle = colours.mark;
  pen.lineWidth = 1.5;
  pen.strokeRect(x + 0.75, y + 0.75, size - 1.5, size - 1.5);
}

function swatch(paint) {
  const size = 14;
  const ratio = window.devicePixelRatio || 1;
  const canvas = make("canvas", { width: size * ratio, height: size * ratio, class: "swatch", "aria-hidden": "true" });
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  paint(pen, size);
  return canvas;
}
