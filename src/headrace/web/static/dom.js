// Small helpers. Text only ever goes through textContent: what a source calls itself is data.

export const $ = (id) => document.getElementById(id);

/** An element with attributes, properties (prefixed with a dot), listeners (on...) and children. */
export function make(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

const SVG = "http://www.w3.org/2000/svg";

export function draw(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) {
      continue;
    }
    if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (name.startsWith(".")) {
      element[name.slice(1)] = value;
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** Set a text only if it differs: an untouched node costs no layout. */
export function setText(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) {
    element.textContent = wanted;
  }
}

export function setAttribute(element, name, value) {
  if (element.getAttribute(name) !== String(value)) {
    element.setAttribute(name, value);
  }
}

/** A colour of the style sheet as the browser resolves it now, for a canvas. */
export function colour(name) {
  const probe = colour.probe ?? (colour.probe = document.body.appendChild(make("i", { class: "unseen" })));
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

export async function ask(path) {
  const reply = await fetch(path, { headers: { Accept: "application/json" }, cache: "no-store" });
  return told(reply);
}

export async function post(path, body, token = "") {
  const reply = await fetch(path, {
    method: "POST",
    headers: { "Content-Type": "application/json", "X-CSRF-Token": token },
    body: JSON.stringify(body),
  });
  return told(reply);
}

async function told(reply) {
  const value = await reply.json();
  if (!reply.ok) {
    throw Object.assign(new Error(value.error ?? reply.statusText), { status: reply.status });
  }
  return value;
}
