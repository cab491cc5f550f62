"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const find = (id) => document.getElementById(id);
  const lowered = data.sentences.map((text) => text.toLowerCase());
  const shownAtMost = 100;
  let chosen = 0;

  // base64 of int8 rows, and the length of each row
  const runs = data.runs.map((run) => {
    const bytes = atob(run.embeddings);
    const rows = new Int8Array(bytes.length);
    for (let i = 0; i < bytes.length; i++) rows[i] = bytes.charCodeAt(i);
    const lengths = new Float64Array(data.sentences.length);
    for (let i = 0; i < lengths.length; i++) {
      let sum = 0;
      for (let j = i * run.size; j < (i + 1) * run.size; j++) sum += rows[j] * rows[j];
      lengths[i] = Math.sqrt(sum) || 1;
    }
    return { ...run, rows, lengths };
  });

  function nearest(run, query, count) {
    const found = [];
    const start = query * run.size;
    for (let i = 0; i < run.lengths.length; i++) {
      if (i === query) continue;
      let dot = 0;
      for (let j = 0, at = i * run.size; j < run.size; j++) dot += run.rows[start + j] * run.rows[at + j];
      found.push({ i, cosine: dot / (run.lengths[query] * run.lengths[i]) });
    }
    return found.sort((a, b) => b.cosine - a.cosine || a.i - b.i).slice(0, count);
  }

  function element(name, text, className) {
    const node = document.createElement(name);
    if (text !== undefined) node.textContent = text;
    if (className) node.className = className;
    return node;
  }

  function answer() {
    const count = Number(find("count").value);
    const sides = runs.map((run) => nearest(run, chosen, count));
    const agreed = new Set(sides[0].map((row) => row.i).filter((i) => sides.every((side) => side.some((r) => r.i === i))));
    find("query").textContent = data.sentences[chosen];
    find("answers").replaceChildren(...runs.map((run, r) => {
      const box = element("div");
      const head = element("h3");
      const swatch = document.querySelector(`.swatch[data-run="${run.index}"]`).cloneNode(true);
      head.append(swatch, element("span", run.label));
      const list = element("ol");
      for (const { i, cosine } of sides[r]) {
        const item = element("li", undefined, runs.length > 1 && agreed.has(i) ? "shared" : "");
        item.append(element("span", cosine.toFixed(3), "cosine"), element("span", data.sentences[i]));
        list.append(item);
      }
      box.append(head, list);
      return box;
    }));
    for (const button of find("sentences").querySelectorAll("button")) {
      button.setAttribute("aria-pressed", String(Number(button.dataset.row) === chosen));
    }
  }

  function list() {
    const part = find("filter").value.trim().toLowerCase();
    const rows = [];
    let matches = 0;
    lowered.forEach((text, i) => {
      if (!text.includes(part)) return;
      matches++;
      if (rows.length < shownAtMost) rows.push(i);
    });
    find("matches").textContent = matches > rows.length ? `${matches} match, the first ${rows.length} are shown` : `${matches} match`;
    find("sentences").replaceChildren(...rows.map((i) => {
      const item = element("li");
      const button = element("button", data.sentences[i]);
      button.type = "button";
      button.dataset.row = i;
      button.setAttribute("aria-pressed", String(i === chosen));
      item.append(button);
      return item;
    }));
    return rows;
  }

  find("sentences").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    chosen = Number(button.dataset.row);
    answer();
  });
  find("filter").addEventListener("input", () => {
    const rows = list();
    if (rows.length && !rows.includes(chosen)) {
      chosen = rows[0];
      answer();
    }
  });
  find("count").addEventListener("change", answer);
  find("random").addEventListener("click", () => {
    chosen = Math.floor(Math.random() * data.sentences.length);
    find("filter").value = "";
    list();
    answer();
    const button = find("sentences").querySelector('[aria-pressed="true"]');
    if (button) button.scrollIntoView({ block: "nearest" });
  });
  find("search").hidden = false;
  list();
  answer();
})();
