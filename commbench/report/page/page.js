"use strict";

// Tables: a heading sorts by its column, up, down, and back to the order of the files; cells without a value come last.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  const heads = [...table.tHead.rows[0].cells];
  const order = { none: "ascending", ascending: "descending", descending: "none" };
  const keyOf = (row, column, numeric) => {
    const cell = row.cells[column];
    return numeric ? (cell.dataset.value === undefined ? NaN : Number(cell.dataset.value)) : cell.textContent.trim();
  };
  const sortBy = (column, direction) => {
    const numeric = heads[column].classList.contains("number");
    const sign = direction === "descending" ? -1 : 1;
    const isEmpty = (key) => (numeric ? Number.isNaN(key) : key === "");
    const keyed = original.map((row) => [keyOf(row, column, numeric), row]);
    keyed.sort(([a], [b]) => {
      if (isEmpty(a) || isEmpty(b)) return isEmpty(a) - isEmpty(b);
      return sign * (numeric ? a - b : a.localeCompare(b, "en", { numeric: true }));
    });
    body.append(...(direction === "none" ? original : keyed.map(([, row]) => row)));
  };
  if (original.length < 2) continue;
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const direction = order[head.getAttribute("aria-sort")];
      heads.forEach((other) => other.setAttribute("aria-sort", "none"));
      head.setAttribute("aria-sort", direction);
      sortBy(column, direction);
    });
  });
}

// Code: a button that copies it; where the browser allows no clipboard, it selects the text instead.
for (const figure of document.querySelectorAll("figure.code")) {
  const code = figure.querySelector("code");
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = "Copy";
  const select = () => {
    getSelection().selectAllChildren(code);
    button.textContent = "Selected";
  };
  button.addEventListener("click", () => {
    if (!navigator.clipboard) return select();
    navigator.clipboard.writeText(code.textContent).then(() => { button.textContent = "Copied"; }, select);
  });
  figure.querySelector("figcaption").append(button);
}

// Contents: the section in view is marked.
const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
const watcher = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (!entry.isIntersecting) continue;
    for (const link of links.values()) link.removeAttribute("aria-current");
    links.get(entry.target.id).setAttribute("aria-current", "true");
  }
}, { rootMargin: "-10% 0px -80% 0px" });
for (const id of links.keys()) watcher.observe(document.getElementById(id));

// Paper has nothing to unfold.
addEventListener("beforeprint", () => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
