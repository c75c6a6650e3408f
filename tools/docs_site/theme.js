// Before the page is drawn: the theme that was chosen here, else the system's.
"use strict";
(() => {
  const root = document.documentElement;
  let chosen = null;
  try { chosen = localStorage.getItem("theme"); } catch { /* storage may be refused */ }
  if (chosen === "light" || chosen === "dark") root.dataset.theme = chosen;

  document.addEventListener("DOMContentLoaded", () => {
    const dark = () => root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    const button = document.querySelector("#theme");
    const name = () => { button.textContent = dark() ? "Light" : "Dark"; };
    name();
    button.addEventListener("click", () => {
      root.dataset.theme = dark() ? "light" : "dark";
      try { localStorage.setItem("theme", root.dataset.theme); } catch { /* the page forgets */ }
      name();
    });
    const menu = document.querySelector("#menu");
    const pages = document.querySelector("nav.pages");
    menu.addEventListener("click", () => {
      menu.setAttribute("aria-expanded", String(pages.classList.toggle("open")));
    });
    const current = pages.querySelector("[aria-current]");
    // Not scrollIntoView: that would move the page as well.
    if (current) pages.scrollTop = Math.max(0, current.offsetTop - pages.clientHeight / 2);
  });
})();
