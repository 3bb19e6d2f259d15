"use strict";
// One completion is drawn at a time, so that a page of thousands stays fast. Text is inserted as text, never as HTML.

const $ = (id) => document.getElementById(id);
const parsed = (id) => JSON.parse($(id).textContent);
const texts = parsed("texts"), lines = parsed("lines");
const VERDICTS = { correct: "✓", incorrect: "✗", unparsed: "?", timeout: "⏱", error: "!" };

// ------------------------------------------------------------------ quantities: value → level 0 … 4

const RARE = [0.9, 0.5, 0.2, 0.05];
const rarity = (p) => RARE.filter((edge) => p < edge).length;
const above = (edges) => (value) => edges.filter((edge) => value >= edge).length;
const QUANTITIES = {
  probability: {
    name: "probability π(y)", value: (t, i) => t.logprob[i] === null ? null : Math.exp(t.logprob[i]), level: rarity,
    edges: ["≥ 0.9", "< 0.9", "< 0.5", "< 0.2", "< 0.05"],
  },
  reference: {
    name: "reference π_ref(y)", value: (t, i) => t.ref_logprob[i] === null ? null : Math.exp(t.ref_logprob[i]),
    level: rarity, edges: ["≥ 0.9", "< 0.9", "< 0.5", "< 0.2", "< 0.05"],
  },
  entropy: {
    name: "entropy [nats]", value: (t, i) => t.entropy[i], level: above([0.1, 0.5, 1, 2]),
    edges: ["< 0.1", "≥ 0.1", "≥ 0.5", "≥ 1", "≥ 2"],
  },
  r_anchor: {
    name: "r_anchor", value: (t, i) => t.anchor_ratio[i],
    level: (r) => above([1.1, 1.5, 2.5, 5])(r >= 1 ? r : 1 / Math.max(r, 1e-9)), up: (r) => r >= 1.1,
    edges: ["about 1", "× or ÷ 1.1", "× or ÷ 1.5", "× or ÷ 2.5", "× or ÷ 5"],
  },
  advantage: {
    name: "advantage", value: (t, i) => t.advantage[i], level: (a) => above([0.01, 0.5, 1, 2])(Math.abs(a)),
    up: (a) => a > 0, edges: ["about 0", "±0.01", "±0.5", "±1", "±2"],
  },
};

// ------------------------------------------------------------------ state

let shown = [];      // indices into lines, as filtered
let place = -1;      // index into shown
let tokens = null;   // token values of the shown completion; null: none were recorded
let token = -1;      // index of the inspected token

const element = (name, attributes = {}, ...children) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const number = (value, digits = 3) => value === null || value === undefined ? "–" : value.toPrecision(digits);
const probability = (logprob) => logprob === null ? null : Math.exp(logprob);
const visible = (text) => JSON.stringify(text).slice(1, -1).replaceAll(" ", "␣");

// ------------------------------------------------------------------ the list

const rows = lines.map((line, index) => {
  const row = element("li", { role: "option", id: `row-${index}`, "aria-selected": "false" },
    element("span", { class: "mark", title: line.status }, VERDICTS[line.status] ?? "?"),
    element("span", { class: "where" }, `step ${line.step} · ${line.prompt_id} · ${line.sample}`),
    element("span", { class: "what" }, line.completion.trim().slice(0, 120) || "(empty)"));
  row.addEventListener("click", () => { select(shown.indexOf(index)); $("list").focus(); });
  return row;
});
$("list").append(...rows);
const haystacks = lines.map((line) => `${line.problem}\n${line.prompt}\n${line.prompt_id}`.toLowerCase());

function filter() {
  const wanted = $("search").value.trim().toLowerCase(), verdict = $("verdict").value, step = $("step").value;
  const kept = shown[place];
  shown = [];
  lines.forEach((line, index) => {
    const fits = (!verdict || line.status === verdict) && (!step || String(line.step) === step)
      && haystacks[index].includes(wanted);
    rows[index].hidden = !fits;
    if (fits) shown.push(index);
  });
  $("count").textContent = `${shown.length} of ${lines.length} shown`;
  select(Math.max(0, shown.indexOf(kept)));
}

function select(next) {
  for (const row of $("list").querySelectorAll("[aria-selected=true]")) row.setAttribute("aria-selected", "false");
  place = shown.length ? Math.min(Math.max(next, 0), shown.length - 1) : -1;
  token = -1;
  if (place >= 0) {
    const row = rows[shown[place]];
    row.setAttribute("aria-selected", "true");
    $("list").setAttribute("aria-activedescendant", row.id);
    row.scrollIntoView({ block: "nearest" });
  } else {
    $("list").removeAttribute("aria-activedescendant");
  }
  draw();
}

// ------------------------------------------------------------------ one completion

function draw() {
  $("inspector").replaceChildren(element("p", { class: "quiet" }, "Point at a token, or move to one with h and l."));
  if (place < 0) {
    $("facts").textContent = "No completion matches the filters.";
    $("prompt").textContent = "";
    $("tokens").replaceChildren();
    tokens = null;
    return;
  }
  const line = lines[shown[place]];
  tokens = parsed(`tokens-${shown[place]}`);
  const facts = {
    verdict: `${VERDICTS[line.status] ?? "?"} ${line.status}`, step: line.step, sample: line.sample,
    "gold answer": line.answer, extracted: line.extracted ?? "nothing", reward: number(line.reward),
    advantage: number(line.advantage), tokens: `${line.num_tokens}, ${line.finish_reason}`, scored: line.scored,
    "mean entropy": number(line.mean_entropy),
  };
  $("facts").replaceChildren(...Object.entries(facts).map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
  $("prompt").textContent = line.prompt;
  $("tokens").replaceChildren(...(tokens ? tokens.token_ids.map(drawn) : [line.completion]));
  $("untold").hidden = tokens !== null;
}

function drawn(id, i) {
  const text = texts[id] ?? "�", quantity = QUANTITIES[$("quantity").value];
  const span = element("span", { "data-token": i }, text.replaceAll("\n", "↵\n") || "∅");
  const value = quantity ? quantity.value(tokens, i) : null;
  if (quantity && value === null) span.className = "unknown";
  else if (quantity) span.className = `v${quantity.level(value)}${quantity.up?.(value) ? " up" : ""}`;
  return span;
}

function inspect(i) {
  if (!tokens) return;
  token = Math.min(Math.max(i, 0), tokens.token_ids.length - 1);
  for (const span of $("tokens").querySelectorAll(".here")) span.classList.remove("here");
  const span = $("tokens").children[token];
  span.classList.add("here");
  const id = tokens.token_ids[token];
  const values = {
    token: `“${visible(texts[id] ?? "�")}”`, place: `${token + 1} of ${tokens.token_ids.length}`, id,
    "π(y)": number(probability(tokens.logprob[token])), "π_ref(y)": number(probability(tokens.ref_logprob[token])),
    entropy: number(tokens.entropy[token]), "max-prob": number(tokens.max_prob[token]),
    r_anchor: number(tokens.anchor_ratio[token]), advantage: number(tokens.advantage[token]),
  };
  const head = element("dl", { class: "facts" }, ...Object.entries(values).map(([name, value]) =>
    element("div", {}, element("dt", {}, name), element("dd", {}, String(value)))));
  const body = tokens.anchors[token].map(([other, ref, own], rank) => {
    const row = element("tr", other === id ? { class: "sampled" } : {},
      element("td", {}, String(rank + 1)),
      element("td", { class: "text" }, `“${visible(texts[other] ?? "�")}”${other === id ? " ◀ sampled" : ""}`),
      element("td", {}, number(probability(ref))), bar(probability(ref), "ref"),
      element("td", {}, number(probability(own))), bar(probability(own), "own"));
    return row;
  });
  const table = element("table", {},
    element("caption", {}, `The reference's ${body.length} most likely tokens here`),
    element("thead", {}, element("tr", {}, ...["", "token", "π_ref", "", "π", ""].map((name) =>
      element("th", { scope: "col" }, name)))),
    element("tbody", {}, ...body));
  $("inspector").replaceChildren(head, body.length ? table : element("p", { class: "quiet" }, "No anchors here."));
}

function walk(by) {
  inspect(token + by);
  $("tokens").children[token]?.scrollIntoView({ block: "center" });
}

function bar(share, kind) {
  const fill = element("span", { class: `bar ${kind}` });
  fill.style.width = `${Math.round(100 * (share ?? 0))}%`;
  return element("td", { class: "bars", "aria-hidden": "true" }, fill);
}

function legend() {
  const quantity = QUANTITIES[$("quantity").value];
  $("legend").replaceChildren(...(quantity ? quantity.edges.map((edge, level) =>
    element("span", { class: `v${level}` }, edge)) : []));
  if (quantity?.up) $("legend").append(element("span", { class: "v3 up" }, "dotted: above"));
}

// ------------------------------------------------------------------ input

$("tokens").addEventListener("mouseover", (event) => {
  const span = event.target.closest("[data-token]");
  if (span) inspect(Number(span.dataset.token));
});
for (const id of ["search", "verdict", "step"]) $(id).addEventListener("input", filter);
$("quantity").addEventListener("input", () => { legend(); const kept = token; draw(); if (kept >= 0) inspect(kept); });
$("help-button").addEventListener("click", () => $("help").showModal());

const KEYS = {
  j: () => select(place + 1), ArrowDown: () => select(place + 1),
  k: () => select(place - 1), ArrowUp: () => select(place - 1),
  l: () => walk(1), ArrowRight: () => walk(1),
  h: () => walk(-1), ArrowLeft: () => walk(-1),
  Home: () => select(0), End: () => select(shown.length - 1),
  "/": () => { $("search").focus(); $("search").select(); },
  "?": () => $("help").showModal(),
  c: () => {
    const choice = $("quantity");
    choice.selectedIndex = (choice.selectedIndex + 1) % choice.options.length;
    choice.dispatchEvent(new Event("input"));
  },
};
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || $("help").open) return;
  if (event.target.closest("input, select")) {
    if (event.key === "Escape" || (event.key === "Enter" && event.target.id === "search")) $("list").focus();
    return;
  }
  const act = KEYS[event.key];
  if (act) { event.preventDefault(); act(); }
});

for (const name of [...new Set(lines.map((line) => line.status))].sort()) {
  $("verdict").append(element("option", { value: name }, `${VERDICTS[name] ?? "?"} ${name}`));
}
for (const step of [...new Set(lines.map((line) => line.step))]) {
  $("step").append(element("option", { value: step }, String(step)));
}
if (Object.keys(texts).length) {
  $("quantity").append(...Object.entries(QUANTITIES).map(([key, { name }]) => element("option", { value: key }, name)));
}
$("quantity").append(element("option", { value: "" }, "nothing"));
legend();
filter();
