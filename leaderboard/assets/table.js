// Sorting by the headers, filters, folding. The pages are whole without it.
"use strict";
(() => {
  const ORDERS = { ascending: 1, descending: -1 };

  // --- sorting -------------------------------------------------------------------------------
  function keyOf(row, place, number) {
    const data = row.cells[place].dataset;
    if (number) return data.n === "" ? null : Number(data.n);
    return (data.sort ?? row.cells[place].textContent.trim()) || null;
  }

  function compare(a, b) {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  }

  function sort(table, header, place) {
    const first = header.dataset.first;
    const before = header.getAttribute("aria-sort");
    const order = !before ? first : before === "ascending" ? "descending" : "ascending";
    for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
    header.setAttribute("aria-sort", order);
    const number = header.dataset.kind === "number";
    const rows = [...table.tBodies[0].rows].map((row) => [keyOf(row, place, number), row]);
    rows.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null); // nothing comes last
      return ORDERS[order] * compare(a, b);
    });
    table.tBodies[0].append(...rows.map(([, row]) => row));
  }

  function sortable(table) {
    [...table.tHead.rows[0].cells].forEach((header, place) => {
      const button = document.createElement("button");
      button.type = "button";
      button.className = "sort";
      const linked = header.querySelector("a");
      if (linked) button.setAttribute("aria-label", `Sort by ${header.textContent.trim()}`);
      else button.append(...header.childNodes);
      const arrow = document.createElement("span");
      arrow.className = "arrow";
      arrow.setAttribute("aria-hidden", "true");
      button.append(arrow);
      header.prepend(button);
      button.addEventListener("click", () => sort(table, header, place));
    });
  }

  // --- filters -------------------------------------------------------------------------------
  function filters(form) {
    const [task, learned, text, status] = ["task", "learned", "text", "status"].map((name) =>
      document.getElementById(`filter-${name}`));
    const sections = [...document.querySelectorAll("section[data-task]")];

    function apply() {
      const words = text.value.trim().toLowerCase().split(/\s+/).filter(Boolean);
      const asked = words.length > 0 || learned.value !== "";
      let shown = 0, all = 0;
      for (const section of sections) {
        const wanted = task.value === "" || task.value === section.dataset.task;
        let left = 0;
        for (const row of section.querySelectorAll("tbody tr")) {
          const fits = wanted
            && (learned.value === "" || learned.value === row.dataset.learned)
            && words.every((word) => row.dataset.words.includes(word));
          row.hidden = !fits;
          left += fits;
          all += 1;
        }
        section.hidden = !wanted || (asked && left === 0);
        shown += left;
      }
      status.textContent = shown === all ? `All ${all} entries.`
        : shown === 0 ? "No entry is like that." : `${shown} of ${all} entries.`;
    }

    form.hidden = false;
    form.addEventListener("input", apply);
    form.addEventListener("submit", (event) => event.preventDefault());
    apply();
  }

  // --- plans that fold, frames that scroll ---------------------------------------------------
  function folding(button) {
    const plans = [...document.querySelectorAll("details[id]")];
    const show = () => {
      button.textContent = plans.some((plan) => plan.open) ? "Close all" : "Open all";
    };
    const open = () => {
      const plan = document.getElementById(decodeURIComponent(location.hash.slice(1)));
      if (plan instanceof HTMLDetailsElement) plan.open = true;
    };
    button.hidden = false;
    show();
    button.addEventListener("click", () => {
      const close = plans.some((plan) => plan.open);
      for (const plan of plans) plan.open = !close;
    });
    for (const plan of plans) plan.addEventListener("toggle", show);
    window.addEventListener("hashchange", open);
    open();
  }

  function reachable() { // only what scrolls takes the keyboard's focus
    for (const frame of document.querySelectorAll(".scroll")) {
      if (frame.scrollWidth > frame.clientWidth) frame.tabIndex = 0;
      else frame.removeAttribute("tabindex");
    }
  }

  document.querySelectorAll("table.sortable").forEach(sortable);
  const form = document.getElementById("filters");
  if (form) filters(form);
  const button = document.getElementById("fold");
  if (button) folding(button);
  reachable();
  window.addEventListener("resize", reachable);
})();
