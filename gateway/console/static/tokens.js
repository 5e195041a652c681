// The token view: which token is chosen, and what is known of it. And: pages of running responses.

const liveIntervalMs = 1000;
const followIntervalMs = 150;
const view = document.querySelector("#tokens");
const facts = document.querySelector("#token-facts");
let chosen = null;

function tokenFacts(token) {
  const run = token.parentElement.dataset;
  const [id, entry, event, logprob] = token.dataset.t.split(" ");
  const at = Number(run.first) + [...token.parentElement.children].indexOf(token);
  const bytes = token.querySelector(".bytes")
    ? token.textContent
    : [...new TextEncoder().encode(token.textContent)].map((one) => one.toString(16).padStart(2, "0")).join(" ");
  return [
    ["Position", at], ["Id", id], ["Text", token.textContent], ["Bytes", bytes], ["Part", run.part.replace("_", " ")],
    ["Turn", run.turn], ["Item", run.item], ["Entry", entry], ["Event", event], ["Logprob", logprob],
    ["Taken back", run.rule], ["Prefilled", run.prefill && "by the gateway"], ["Seam", run.seam && `another ${run.seam} goes on`],
  ].filter(([, value]) => value !== undefined && value !== "");
}

function eventLink(number) {
  const link = document.createElement("a");
  link.href = `?tab=events&after=${number - 1}#event-${number}`;
  link.textContent = number;
  return link;
}

// Links of the panel lead to the chosen token, and to its item.
function pointLinks(token) {
  const run = token.parentElement.dataset;
  const at = Number(run.first) + [...token.parentElement.children].indexOf(token);
  for (const link of document.querySelectorAll(".token-acts [data-at]")) {
    link.href = link.dataset.at + at;
    link.textContent = `Go on from token ${at}`;
  }
  for (const link of document.querySelectorAll(".token-acts [data-item]")) {
    link.href = link.dataset.item + run.item;
    link.hidden = false;
  }
}

function choose(token) {
  if (!token || token === chosen) return;
  chosen?.classList.remove("chosen");
  chosen = token;
  token.classList.add("chosen");
  const item = token.parentElement.dataset.item;
  for (const run of view.querySelectorAll(".run")) run.classList.toggle("of-item", run.dataset.item === item);
  facts.replaceChildren(...tokenFacts(token).flatMap(([label, value]) => {
    const name = document.createElement("dt");
    const detail = document.createElement("dd");
    name.textContent = label;
    detail.textContent = value;
    if (label === "Event") detail.replaceChildren(eventLink(value));
    return [name, detail];
  }));
  pointLinks(token);
}

view?.addEventListener("pointerover", (event) => choose(event.target.closest("i")));
view?.addEventListener("keydown", (event) => {
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 12, ArrowUp: -12 }[event.key];
  if (!step) return;
  event.preventDefault();
  const all = [...view.querySelectorAll("i")];
  const at = chosen === null ? -Math.sign(step) : all.indexOf(chosen);
  const next = all[Math.max(0, Math.min(all.length - 1, at + step))];
  choose(next);
  next?.scrollIntoView({ block: "nearest" });
});

async function fetchPart(url, header, block) {
  const answer = await fetch(url, { headers: { [header]: block } });
  if (!answer.ok) return null;
  return new DOMParser().parseFromString(await answer.text(), "text/html").body;
}

// The prompt is read when it is opened, and more of it by its last link.
const prompt = document.querySelector("#prompt");

async function fillPrompt(url, replaced) {
  const part = await fetchPart(url, prompt.dataset.fragment, "prompt");
  if (part) replaced.replaceWith(...part.childNodes);
}

prompt?.addEventListener("toggle", () => fillPrompt(prompt.dataset.src, prompt.querySelector(".prompt > p")), { once: true });
prompt?.addEventListener("click", (event) => {
  const link = event.target.closest(".prompt-more a");
  if (!link) return;
  event.preventDefault();
  fillPrompt(link.href, link.parentElement);
});

// Pages of tokens near those that are seen are filled. All others are empty, and as tall as they were.
const pages = [];
let known = 0;
const nearby = view && new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    target.classList.toggle("is-near", isIntersecting);
    isIntersecting ? fill(target) : empty(target);
  }
}, { root: view, rootMargin: "1500px 0px" });

function addPages(count) {
  const { first, size } = view.dataset;
  const needed = Math.max(1, Math.ceil((count - Number(first)) / Number(size)));
  while (pages.length < needed) {
    const page = document.createElement("div");
    page.className = "token-page is-empty";
    page.style.height = `${pages[0].offsetHeight}px`;
    view.append(page);
    watchPage(page);
  }
}

function watchPage(page) {
  pages.push(page);
  nearby.observe(page);
}

// With `seen` the answer comes when there are more tokens than that.
async function fill(page, seen) {
  if (seen === undefined && !page.classList.contains("is-empty")) return;
  page.classList.remove("is-empty");
  const after = Number(view.dataset.first) + pages.indexOf(page) * Number(view.dataset.size) - 1;
  const more = seen === undefined ? "" : `&seen=${seen}`;
  const part = await fetchPart(view.dataset.src + after + more, view.dataset.fragment, "tokens");
  const made = part?.querySelector(".token-page");
  if (!made) return;
  known = Number(made.dataset.count);
  if (known) view.querySelector(".no-tokens")?.remove();
  page.replaceChildren(...made.childNodes);
  page.style.height = "";
  if (!page.classList.contains("is-near")) empty(page);
  addPages(known);
}

function empty(page) {
  if (page.classList.contains("is-empty") || !page.childNodes.length) return;
  page.style.height = `${page.offsetHeight}px`;
  page.classList.add("is-empty");
  page.replaceChildren();
}

if (view?.querySelector(".token-page")) {
  const page = view.querySelector(".token-page");
  view.querySelector(".token-more")?.remove();
  watchPage(page);
  known = Number(page.dataset.count);
  addPages(known);
}

async function refresh() {
  const state = document.querySelector("#state[data-live]");
  if (!state) {
    location.reload();
    return;
  }
  if (document.visibilityState === "visible") {
    const { live, fragment } = state.dataset;
    const part = await fetchPart(live, fragment, "execution");
    // What somebody has opened, focused or is about to click stays.
    if (part) await htmx.swap({ sourceElement: state, target: state, swap: "outerMorph", text: part.innerHTML });
  }
  setTimeout(refresh, liveIntervalMs);
}

async function follow() {
  if (!document.querySelector("#state[data-live]")) return;
  if (document.visibilityState === "visible") await fill(pages.at(-1), known);
  setTimeout(follow, followIntervalMs);
}

if (document.querySelector("#state[data-live]")) {
  setTimeout(refresh, liveIntervalMs);
  if (pages.length) follow();
}
document.querySelector("[data-print]")?.addEventListener("click", () => window.print());
