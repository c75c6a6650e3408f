// Light, dark, or as the system says. A classic script in the head: it runs before the first paint,
// so that nobody who chose sees the other one flash by.
(() => {
  const KEY = "headrace-theme";
  const WORDS = { auto: "automatic", light: "light", dark: "dark" };
  const ORDER = ["auto", "light", "dark"];
  const root = document.documentElement;

  function kept() {
    try {
      const word = localStorage.getItem(KEY);
      return ORDER.includes(word) ? word : "auto";
    } catch {
      return "auto";
    }
  }

  function apply(word) {
    root.dataset.theme = word;
    const button = document.getElementById("theme");
    if (button) {
      button.textContent = `Theme: ${WORDS[word]}`;
    }
    document.dispatchEvent(new CustomEvent("headrace-theme"));
  }

  apply(kept());
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => apply(kept()));
  document.addEventListener("DOMContentLoaded", () => {
    apply(kept());
    document.getElementById("theme").addEventListener("click", () => {
      const next = ORDER[(ORDER.indexOf(kept()) + 1) % ORDER.length];
      try {
        localStorage.setItem(KEY, next);
      } catch {
        // A browser that keeps nothing: it lasts as long as the page.
      }
      apply(next);
    });
  });
})();
