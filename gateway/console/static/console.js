// What HTML cannot do: keys, confirmations, copying. Everything else is a link, a form or a fragment.

const prefixTimeoutMs = 1500;
let afterG = 0;

const isTyping = (target) => target.closest("input, textarea, select, [contenteditable]") !== null;

function rows() {
  return [...document.querySelectorAll("main tbody tr:not(.older)")];
}

function moveRow(step) {
  const all = rows();
  const current = all.findIndex((row) => row.classList.contains("current"));
  const next = all[Math.max(0, Math.min(all.length - 1, current + step))];
  if (!next) return;
  all[current]?.classList.remove("current");
  next.classList.add("current");
  const link = next.querySelector("a");
  (link ?? next).focus({ preventScroll: true });
  next.scrollIntoView({ block: "nearest" });
}

function goTo(key) {
  const link = [...document.querySelectorAll("[data-shortcut]")].find((one) => one.dataset.shortcut === key);
  link?.click();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
  if (Date.now() - afterG < prefixTimeoutMs) {
    afterG = 0;
    goTo(event.key);
    return;
  }
  const acts = {
    "/": () => document.querySelector("#search")?.focus(),
    j: () => moveRow(1),
    k: () => moveRow(-1),
    g: () => { afterG = Date.now(); },
    "?": () => document.querySelector("#keys")?.showModal(),
  };
  if (acts[event.key]) {
    event.preventDefault();
    acts[event.key]();
  }
});

// Destructive acts: the name has to be typed.
document.addEventListener("submit", (event) => {
  const name = event.submitter?.dataset.confirm ?? event.target.dataset.confirm;
  if (name && window.prompt(`Type ${name} to go on.`) !== name) event.preventDefault();
});

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) {
    const menu = document.querySelector("details.menu[open]");
    if (menu && !menu.contains(event.target)) menu.open = false;
    return;
  }
  const text = document.querySelector(button.dataset.copy)?.textContent ?? "";
  await navigator.clipboard.writeText(text);
  button.textContent = "Copied";
});

// The dot beside the account: whether the stream of a live page goes on.
const markLive = (isLost) => {
  document.querySelector(".live")?.classList.toggle("lost", isLost);
  if (isLost) document.querySelector("#state").textContent = "not live, connecting";
};
for (const name of ["htmx:sse:error", "htmx:sse:close"]) {
  document.addEventListener(name, () => markLive(true));
}
document.addEventListener("htmx:sse:after:message", () => markLive(false));

// What a list does not have yet is announced, not inserted.
const newsEveryMs = 5000;
const news = document.querySelector("[data-news]");

async function announce() {
  if (document.hidden) return;
  const answer = await fetch(news.dataset.news, { headers: { [news.dataset.fragment]: "news" } }).catch(() => null);
  if (!answer?.ok) return;
  const template = document.createElement("template");
  template.innerHTML = await answer.text();
  // An unchanged number is not announced again.
  if (template.content.textContent.trim() !== news.textContent.trim()) news.replaceChildren(template.content);
}

if (news) setInterval(announce, newsEveryMs);
