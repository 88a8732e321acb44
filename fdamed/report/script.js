"use strict";
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const make = (name, attributes = {}, text = "") => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.textContent = text;
    return element;
  };

  // Light, dark or as the machine says; remembered where the browser lets a file remember.
  const root = document.documentElement;
  const theme = document.getElementById("theme");
  const themes = ["automatic", "light", "dark"];
  const remember = { get: () => { try { return localStorage.getItem("fdamed-theme"); } catch { return null; } },
    set: (name) => { try { localStorage.setItem("fdamed-theme", name); } catch { /* a private window forgets */ } } };
  const dress = (name) => {
    if (name === "automatic") delete root.dataset.theme; else root.dataset.theme = name;
    theme.textContent = `Theme: ${name}`;
    theme.dataset.now = name;
  };
  dress(themes.includes(remember.get()) ? remember.get() : "automatic");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    dress(themes[(themes.indexOf(theme.dataset.now) + 1) % themes.length]);
    remember.set(theme.dataset.now);
  });

  // The list of contents: beside the page where there is room, else folded away; it shows where the reader is.
  const list = document.querySelector("nav details");
  const wide = matchMedia("(min-width: 1180px)");
  const fold = () => { list.open = wide.matches; };
  fold();
  wide.addEventListener("change", fold);
  const links = new Map(all("a", list).map((a) => [a.hash.slice(1), a]));
  list.addEventListener("click", (event) => { if (event.target.closest("a") && !wide.matches) list.open = false; });
  document.addEventListener("click", (event) => { if (!wide.matches && !list.contains(event.target)) list.open = false; });
  const here = new IntersectionObserver((entries) => {
    for (const entry of entries)
      if (entry.isIntersecting) {
        links.forEach((a) => a.removeAttribute("aria-current"));
        links.get(entry.target.id)?.setAttribute("aria-current", "true");
      }
  }, { rootMargin: "-20% 0px -75% 0px" });
  all("main > section").forEach((section) => here.observe(section));

  // What scrolls sideways can be reached with the keyboard; looked at when it comes into sight, for looking costs time.
  const sight = new IntersectionObserver((entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      sight.unobserve(target);
      if (target.scrollWidth <= target.clientWidth) continue;
      target.tabIndex = 0;
      if (target.tagName !== "FIGURE") target.setAttribute("role", "region");
      target.setAttribute("aria-label", "Scrolls sideways");
    }
  });
  all(".scroll").forEach((element) => sight.observe(element));

  // A table that is too wide shows its first columns; a button shows the others, and then it scrolls.
  const narrow = (table, shown) => {
    for (const row of table.rows) {
      let at = 0;
      for (const cell of row.cells) {
        const spans = Number(cell.dataset.spans ??= cell.colSpan);
        cell.hidden = at >= shown;
        if (spans > 1) cell.colSpan = Math.max(1, Math.min(spans, shown - at));
        at += spans;
      }
    }
  };
  const fit = (box) => {
    const table = box.querySelector(":scope > table");
    if (!table?.tHead || !box.clientWidth || box.dataset.room === String(box.clientWidth)) return;
    box.dataset.room = box.clientWidth;
    narrow(table, Infinity);
    const bar = box.previousElementSibling?.matches(".columns") ? box.previousElementSibling : null;
    bar?.remove();
    const heads = [...table.tHead.rows[0].cells];
    const seen = heads.map((head) => head.offsetWidth > 0);
    let shown = heads.length;
    while (shown > 2 && table.offsetWidth > box.clientWidth + 1) narrow(table, --shown);
    if (shown === heads.length) return;
    const names = heads.slice(shown).filter((_, i) => seen[shown + i]).map((head) => head.textContent.trim());
    const all_of = make("button", { type: "button" }, `${names.length} more column${names.length > 1 ? "s" : ""}: ${names.slice(0, 3).join(", ")}${names.length > 3 ? " …" : ""}`);
    const line = make("p", { class: "columns" });
    line.append(all_of);
    box.before(line);
    all_of.addEventListener("click", () => { narrow(table, Infinity); line.remove(); box.tabIndex = 0; });
  };
  const room = new ResizeObserver((entries) => entries.forEach(({ target }) => fit(target)));
  all("div.scroll").forEach((box) => room.observe(box));

  // Runs on and off, in every drawing at once.
  const drawn = new Map();
  for (const g of all(".view g[data-run]")) drawn.set(g.dataset.run, [...(drawn.get(g.dataset.run) ?? []), g]);
  const show = (button, on) => {
    button.setAttribute("aria-pressed", String(on));
    drawn.get(button.dataset.toggle)?.forEach((g) => g.classList.toggle("off", !on));
  };
  const light = (index) => drawn.forEach((groups, run) => groups.forEach((g) => {
    g.classList.toggle("dim", index !== null && run !== index);
    g.classList.toggle("lit", run === index);
  }));
  const toggles = all("[data-toggle]");
  for (const button of toggles) {
    const on = () => button.getAttribute("aria-pressed") === "true";
    show(button, on());
    button.addEventListener("click", () => { show(button, !on()); light(null); });
    for (const event of ["mouseenter", "focus"]) button.addEventListener(event, () => on() && light(button.dataset.toggle));
    for (const event of ["mouseleave", "blur"]) button.addEventListener(event, () => light(null));
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

  // Tables sort by their headings; what has no value stays last. Long ones are cut short and can be searched.
  const FEW = 25, MANY = 40;
  const figure = /^[+−-]?[\d,]*\.?\d+(?:e[+-]?\d+)?/i;
  const value = (row, column) => {
    const cell = row.cells[column];
    const text = cell ? cell.dataset.value ?? cell.textContent.trim() : "";
    const number = cell?.dataset.value === undefined ? text.match(figure)?.[0].replaceAll(",", "").replace("−", "-") : text;
    return text === "" || text === "–" ? [1, NaN, ""] : [0, Number(number ?? NaN), text];
  };
  const before = (a, b, sign) => {
    if (a[0] || b[0]) return a[0] - b[0];
    return sign * (Number.isNaN(a[1]) || Number.isNaN(b[1]) ? a[2].localeCompare(b[2], "en", { numeric: true }) : a[1] - b[1]);
  };
  const sortable = (table) => {
    const heads = [...table.tHead.rows[0].cells];
    const body = table.tBodies[0];
    const cut = long(table, body);
    heads.forEach((head, column) => {
      let button = head.querySelector("button");
      if (!button && !head.classList.contains("graphic")) {
        button = make("button", { type: "button" });
        button.append(...head.childNodes);
        head.append(button);
      }
      button?.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const next = now ? (now === "ascending" ? "descending" : "ascending") : head.classList.contains("num") ? "descending" : "ascending";
        heads.forEach((h) => h.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", next);
        const keyed = [...body.rows].map((row) => [value(row, column), row]);
        keyed.sort(([a], [b]) => before(a, b, next === "ascending" ? 1 : -1));
        body.append(...keyed.map(([, row]) => row));
        cut();
      });
    });
  };
  const long = (table, body) => {
    const count = body.rows.length;
    if (count <= MANY) return () => {};
    const bar = make("p", { class: "search" });
    const box = make("input", { type: "search", placeholder: "Filter rows", "aria-label": "Filter the rows of this table" });
    const status = make("span", { role: "status" });
    const more = make("button", { type: "button", class: "plain" });
    let whole = false;
    const cut = () => {
      const wish = box.value.trim().toLowerCase();
      let found = 0, shown = 0;
      for (const row of body.rows) {
        const fits = !wish || row.textContent.toLowerCase().includes(wish);
        found += fits;
        row.hidden = !fits || (!whole && found > FEW);
        shown += !row.hidden;
      }
      status.textContent = shown === count ? `${count} rows` : `${shown} of ${wish ? `${found} that match` : `${count} rows`}`;
      more.hidden = !whole && shown === found;
      more.textContent = whole ? "Show fewer" : "Show all";
    };
    box.addEventListener("input", cut);
    more.addEventListener("click", () => { whole = !whole; cut(); });
    bar.append(box, status, more);
    table.parentElement.before(bar);
    cut();
    return cut;
  };
  all("table.sortable").forEach(sortable);

  // A figure enlarged: wheel, pinch, buttons and keys zoom, dragging and arrows move.
  const lens = document.getElementById("lens");
  const stage = document.getElementById("stage");
  let whole = null, box = null, picture = null, from = null;
  const look = (x, y, w, h) => { box = [x, y, w, h]; picture.setAttribute("viewBox", box.map((v) => v.toFixed(2)).join(" ")); };
  const zoom = (factor, px = 0.5, py = 0.5) => {
    const w = Math.min(whole[2] * 1.5, Math.max(whole[2] / 40, box[2] / factor)), h = box[3] * w / box[2];
    look(box[0] + (box[2] - w) * px, box[1] + (box[3] - h) * py, w, h);
  };
  const move = (x, y) => look(box[0] + box[2] * x, box[1] + box[3] * y, box[2], box[3]);
  const enlarge = (svg, opener) => {
    picture = svg.cloneNode(true);
    picture.removeAttribute("tabindex");
    whole = svg.getAttribute("viewBox").split(" ").map(Number);
    document.getElementById("lens-title").textContent = svg.getAttribute("aria-label");
    stage.replaceChildren(picture);
    look(...whole);
    from = opener;
    lens.showModal();
    stage.focus();
  };
  const acts = { in: () => zoom(1.4), out: () => zoom(1 / 1.4), whole: () => look(...whole), close: () => lens.close() };
  const keys = { "+": acts.in, "=": acts.in, "-": acts.out, 0: acts.whole,
    ArrowLeft: () => move(-0.1, 0), ArrowRight: () => move(0.1, 0), ArrowUp: () => move(0, -0.1), ArrowDown: () => move(0, 0.1) };
  all("[data-zoom]").forEach((b) => b.addEventListener("click", acts[b.dataset.zoom]));
  lens.addEventListener("keydown", (event) => { if (keys[event.key]) { keys[event.key](); event.preventDefault(); } });
  lens.addEventListener("close", () => { stage.replaceChildren(); from?.focus({ preventScroll: true }); });
  stage.addEventListener("wheel", (event) => {
    const r = picture.getBoundingClientRect();
    zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15, (event.clientX - r.x) / r.width, (event.clientY - r.y) / r.height);
    event.preventDefault();
  }, { passive: false });
  const fingers = new Map();
  const apart = () => { const [a, b] = [...fingers.values()]; return Math.hypot(a.x - b.x, a.y - b.y); };
  stage.addEventListener("pointerdown", (event) => { fingers.set(event.pointerId, { x: event.clientX, y: event.clientY }); stage.setPointerCapture(event.pointerId); });
  stage.addEventListener("pointermove", (event) => {
    const last = fingers.get(event.pointerId);
    if (!last) return;
    const r = picture.getBoundingClientRect(), wasApart = fingers.size === 2 ? apart() : 0;
    fingers.set(event.pointerId, { x: event.clientX, y: event.clientY });
    if (fingers.size === 2) zoom(apart() / wasApart);
    else move((last.x - event.clientX) / r.width, (last.y - event.clientY) / r.height);
  });
  for (const end of ["pointerup", "pointercancel"]) stage.addEventListener(end, (event) => fingers.delete(event.pointerId));
  for (const svg of all("figure svg.chart")) {
    const button = make("button", { type: "button", class: "enlarge", "aria-label": `Enlarge: ${svg.getAttribute("aria-label")}` }, "⤢");
    svg.before(button);
    button.addEventListener("click", () => enlarge(svg, button));
    svg.addEventListener("click", () => enlarge(svg, button));
  }

  // On paper nothing is folded and no row is left out.
  let closed = [];
  addEventListener("beforeprint", () => { closed = all("main details:not([open])"); closed.forEach((d) => { d.open = true; }); all("div.scroll > table").forEach((table) => narrow(table, Infinity)); });
  addEventListener("afterprint", () => { closed.forEach((d) => { d.open = false; }); all("div.scroll").forEach((box) => { delete box.dataset.room; fit(box); }); });
})();
