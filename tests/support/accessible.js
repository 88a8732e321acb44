// What a screen reader, a keyboard and weak eyes need of a page: gives back a list of complaints.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const wrong = [];
  const seen = (element) => element.checkVisibility({ visibilityProperty: true, opacityProperty: true });
  const named = (element) => (element.getAttribute("aria-label") || element.getAttribute("aria-labeledby") || element.textContent).trim();

  // Landmarks, language, title, headings that go down one level at a time.
  for (const mark of ["header", "nav", "main", "footer", "h1"]) if (all(mark).length !== 1) wrong.push(`${all(mark).length} of ${mark}`);
  if (!document.documentElement.lang || !document.title) wrong.push("no language or title");
  let level = 0;
  for (const heading of all("h1, h2, h3, h4")) {
    const now = Number(heading.tagName[1]);
    if (now > level + 1) wrong.push(`${heading.tagName} "${heading.textContent}" after H${level}`);
    if (!heading.textContent.trim()) wrong.push("an empty heading");
    level = now;
  }
  const ids = all("[id]").map((e) => e.id);
  if (new Set(ids).size !== ids.length) wrong.push("an id stands twice");
  for (const link of all('a[href^="#"]')) if (!document.getElementById(link.hash.slice(1))) wrong.push(`${link.hash} leads nowhere`);

  // Names of what can be worked, words for what is drawn.
  for (const element of all("button, a, summary, input")) if (!named(element)) wrong.push(`no name: ${element.outerHTML.slice(0, 80)}`);
  for (const svg of all("svg")) {
    if (svg.getAttribute("aria-hidden") === "true") continue;
    if (svg.getAttribute("role") !== "img" || !svg.getAttribute("aria-label")) wrong.push(`a drawing without a name: ${svg.outerHTML.slice(0, 80)}`);
  }
  for (const table of all("table")) {
    if (!table.caption?.textContent.trim()) wrong.push("a table without a caption");
    for (const head of all("th", table)) if (!head.getAttribute("scope")) wrong.push(`a heading without a scope: ${head.textContent}`);
    for (const head of all("thead th", table)) if (!head.textContent.trim()) wrong.push("an empty heading of a column");
  }

  // Contrast of every visible text with what lies behind it: 4.5 to 1.
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = color;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data].map((v) => v / 255);
  };
  const over = (top, under) => [0, 1, 2].map((i) => top[i] * top[3] + under[i] * (1 - top[3]));
  const behind = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(rgba(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((under, top) => over(top, under), [1, 1, 1]);
  };
  const bright = (color) => {
    const [r, g, b] = color.map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const checked = new Set();
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const element = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || element.closest("script, style, .skip, title, desc") || !seen(element)) continue;
    const style = getComputedStyle(element), drawn = element instanceof SVGElement;
    const key = [drawn ? style.fill : style.color, element.tagName, element.className?.baseVal ?? element.className, element.parentElement.className].join("|");
    if (checked.has(key)) continue;
    checked.add(key);
    if (drawn && element.closest(".map")) continue; // names on a map stand on painted ground, with a halo
    const ground = behind(drawn ? element.closest("svg").parentElement : element);
    const [a, b] = [bright(over(rgba(drawn ? style.fill : style.color), ground)), bright(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) wrong.push(`contrast ${ratio.toFixed(2)}: "${walk.currentNode.data.trim().slice(0, 30)}" in ${element.tagName}.${key.split("|")[2]}`);
  }
  return wrong;
})();
