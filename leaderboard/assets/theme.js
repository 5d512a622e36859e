// Light or dark, as the system has it unless the reader chose; before the page is drawn.
"use strict";
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const key = "parenvs-theme";
  root.classList.add("js");
  try {
    const kept = localStorage.getItem(key);
    if (kept === "light" || kept === "dark") root.dataset.theme = kept;
  } catch { /* no storage: the choice lasts for this page */ }

  document.addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const now = () => root.dataset.theme || (dark.matches ? "dark" : "light");
    const other = () => (now() === "dark" ? "light" : "dark");
    const show = () => { button.textContent = other() === "dark" ? "Dark theme" : "Light theme"; };
    button.hidden = false;
    show();
    dark.addEventListener("change", show);
    button.addEventListener("click", () => {
      root.dataset.theme = other();
      try { localStorage.setItem(key, root.dataset.theme); } catch { /* as above */ }
      show();
    });
  });
})();
