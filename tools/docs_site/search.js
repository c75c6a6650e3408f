// Search over sections of all pages. The index is a script, not a request: it works from a file, too.
"use strict";
(() => {
  const SHOWN_MAX = 12;
  const AROUND = 70;
  const input = document.querySelector("#search");
  const list = document.querySelector("#found");
  const up = document.documentElement.dataset.up;
  let sections = null;
  let loading = null;

  function load() {
    loading ??= new Promise((done) => {
      const script = document.createElement("script");
      script.src = `${up}assets/search-index.js`;
      script.addEventListener("load", () => {
        sections = window.HEADRACE_SECTIONS.map(([page, title, anchor, text]) => ({
          page, title, anchor, text, low: text.toLowerCase(), name: title.toLowerCase(),
        }));
        done();
      });
      document.head.append(script);
    });
    return loading;
  }

  function score(section, words) {
    let sum = 0;
    for (const word of words) {
      const inName = section.name.indexOf(word);
      const inText = section.low.indexOf(word);
      if (inName < 0 && inText < 0) return 0;
      if (inName >= 0) sum += section.name === word ? 40 : 12;
      if (inText >= 0) sum += 1 + Math.min(4, section.low.split(word).length - 1);
    }
    return sum + 5 / (1 + section.text.length / 400);
  }

  function excerpt(section, words) {
    const at = Math.max(0, section.low.indexOf(words[0]) - AROUND);
    const text = section.text.slice(at, at + 3 * AROUND);
    const line = document.createElement("small");
    const places = words.map((word) => [text.toLowerCase().indexOf(word), word.length])
      .filter(([place]) => place >= 0).sort((a, b) => a[0] - b[0]);
    let done = 0;
    for (const [place, size] of places) {
      if (place < done) continue;
      const mark = document.createElement("mark");
      mark.textContent = text.slice(place, place + size);
      line.append(text.slice(done, place), mark);
      done = place + size;
    }
    line.append(text.slice(done));
    return line;
  }

  async function find() {
    const words = input.value.toLowerCase().split(/\s+/).filter((word) => word.length > 1);
    if (!words.length) { list.replaceChildren(); return; }
    await load();
    const found = sections.map((section) => [score(section, words), section])
      .filter(([points]) => points > 0).sort((a, b) => b[0] - a[0]).slice(0, SHOWN_MAX);
    list.replaceChildren(...found.map(([, section]) => {
      const item = document.createElement("li");
      const link = document.createElement("a");
      link.href = `${up}${section.page}${section.anchor ? `#${section.anchor}` : ""}`;
      link.append(section.title, excerpt(section, words));
      item.append(link);
      return item;
    }));
    if (!found.length) {
      const item = document.createElement("li");
      const text = document.createElement("p");
      text.textContent = "Nothing found.";
      item.append(text);
      list.append(item);
    }
  }

  function step(by) {
    const links = [...list.querySelectorAll("a")];
    if (!links.length) return;
    const at = links.indexOf(document.activeElement) + by;
    (at < 0 ? input : links[Math.min(at, links.length - 1)]).focus();
  }

  input.addEventListener("focus", load);
  input.addEventListener("input", find);
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") list.querySelector("a")?.click();
  });
  document.addEventListener("keydown", (event) => {
    const inside = event.target === input || list.contains(event.target);
    if (event.key === "/" && !inside) { event.preventDefault(); input.focus(); }
    if (event.key === "Escape" && inside) { input.value = ""; list.replaceChildren(); input.blur(); }
    if (inside && event.key === "ArrowDown") { event.preventDefault(); step(1); }
    if (inside && event.key === "ArrowUp") { event.preventDefault(); step(-1); }
  });
  document.addEventListener("click", (event) => {
    if (!list.contains(event.target) && event.target !== input) list.replaceChildren();
  });
})();
