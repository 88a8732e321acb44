"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Runs on and off, in every drawing at once.
  const toggles = all("[data-toggle]");
  const groups = (index) => all(`.view g[data-run="${index}"]`);
  const show = (button, on) => {
    button.setAttribute("aria-pressed", String(on));
    groups(button.dataset.toggle).forEach((g) => g.classList.toggle("off", !on));
  };
  const lit = (index) => all("#rounds g[data-run]").forEach((g) => g.classList.toggle("dim", index !== null && g.dataset.run !== index));
  for (const button of toggles) {
    show(button, button.getAttribute("aria-pressed") === "true");
    button.addEventListener("click", () => show(button, button.getAttribute("aria-pressed") !== "true"));
    button.addEventListener("mouseenter", () => button.getAttribute("aria-pressed") === "true" && lit(button.dataset.toggle));
    button.addEventListener("mouseleave", () => lit(null));
  }
  for (const button of all("[data-all]"))
    button.addEventListener("click", () => toggles.forEach((t) => show(t, button.dataset.all === "true")));

  // One target at a time.
  const tabs = all(".tabs button");
  const open = (view) => {
    tabs.forEach((t) => t.setAttribute("aria-pressed", String(t.dataset.view === view)));
    all(".view").forEach((v) => { v.hidden = v.dataset.view !== view; });
  };
  tabs.forEach((t) => t.addEventListener("click", () => open(t.dataset.view)));
  if (tabs.length) open("0");

  // Tables sort by their headings; what has no value stays last.
  const compare = (a, b, sign) => {
    if (a === "" || b === "") return (a === "") - (b === "");
    const [x, y] = [Number(a), Number(b)];
    return sign * (Number.isNaN(x) || Number.isNaN(y) ? a.localeCompare(b, "en", { numeric: true }) : x - y);
  };
  for (const table of all("table.sortable")) {
    const heads = all("thead th", table);
    heads.forEach((head, column) => {
      const button = head.querySelector("button");
      if (!button) return;
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = now ? (now === "ascending" ? "descending" : "ascending") : head.classList.contains("num") ? "descending" : "ascending";
        heads.forEach((h) => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", next);
        const value = (row) => row.cells[column].dataset.value ?? "";
        const sign = next === "ascending" ? 1 : -1;
        const body = table.tBodies[0];
        [...body.rows].sort((a, b) => compare(value(a), value(b), sign)).forEach((row) => body.append(row));
      });
    });
  }
})();
