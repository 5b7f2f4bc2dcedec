// The engine room: one stream of the engine's events while the page is looked at, and panels that draw what it says.

import { Api } from "./api.js";
import { Playground } from "./chat.js";
import { element, refreshStyles } from "./look.js";
import { Plots } from "./plots.js";
import { PoolMap } from "./pool.js";
import { RequestLanes } from "./requests.js";
import { EngineState } from "./state.js";
import { Timeline } from "./timeline.js";

const DRAW_EVERY_MS = 100;
const $ = (id) => document.getElementById(id);

const api = new Api(askKey);
const state = new EngineState();
const playground = new Playground(api, state, openStory);
const panels = [new PoolMap(state, openStory), new RequestLanes(state, openStory), new Timeline(state, openStory), new Plots(state), playground];

// the stream -----------------------------------------------------------------------------------------------------------

let connection = null;

// Nobody looks at a hidden tab: it lets go of the stream, and the engine tells it nothing any more.
async function connect() {
  if (connection || document.hidden) return;
  const mine = (connection = new AbortController());
  let pause = 500;
  while (!mine.signal.aborted) {
    try {
      for await (const message of api.stream("/engine/events", undefined, mine.signal)) {
        state.apply(message);
        pause = 500;
        setStatus(state.paused ? "paused" : "live");
        schedule();
      }
      if (!mine.signal.aborted) setStatus("connecting", "reconnecting");
    } catch (error) {
      if (mine.signal.aborted) return;
      setStatus("lost", error.status === 503 ? error.message : "no connection");
    }
    await new Promise((resolve) => setTimeout(resolve, (pause = Math.min(5000, pause * 1.5))));
  }
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden) {
    connection?.abort();
    connection = null;
  } else connect();
});

function setStatus(name, text = name) {
  const node = $("status");
  if (node.dataset.state === name && node.textContent === text) return;
  node.dataset.state = name;
  node.textContent = text;
}

// drawing --------------------------------------------------------------------------------------------------------------

let drawn = 0;
let scheduled = false;

function schedule() {
  if (scheduled) return;
  scheduled = true;
  setTimeout(() => requestAnimationFrame(draw), Math.max(0, drawn + DRAW_EVERY_MS - performance.now()));
}

function draw() {
  scheduled = false;
  drawn = performance.now();
  for (const panel of panels) panel.draw();
  const { hello, stats, numBlocks } = state;
  $("model").textContent = hello.model ?? "";
  $("v-running").textContent = stats.num_running ?? "–";
  $("v-waiting").textContent = stats.num_waiting ?? "–";
  $("v-rate").textContent = state.tokensPerSecond.toFixed(0);
  $("v-kv").textContent = numBlocks ? `${((100 * (numBlocks - (stats.num_free_blocks ?? numBlocks))) / numBlocks).toFixed(1)} %` : "–";
  $("control").hidden = !hello.control;
  $("pause").textContent = state.paused ? "Resume" : "Pause";
  $("single-step").disabled = !state.paused;
}

new ResizeObserver(schedule).observe($("engine"));
setInterval(() => { if (connection) { state.now = Math.max(state.now, Date.now() / 1000 + clockSkew()); schedule(); } }, 1000);

// How far the server's clock is ahead of this one's, as of its last message: the plots move on while it is silent.
let skew = 0;
const clockSkew = () => skew;
const apply = state.apply.bind(state);
state.apply = (message) => {
  if (message.now) skew = message.now - Date.now() / 1000;
  apply(message);
};

// the scheduler ----------------------------------------------------------------------------------------------------------

const control = (action) => api.json("/engine/control", { action }).catch((error) => setStatus("lost", error.message));
$("pause").addEventListener("click", () => control(state.paused ? "resume" : "pause"));
$("single-step").addEventListener("click", () => control("step"));

// stories ----------------------------------------------------------------------------------------------------------------

async function openStory(path) {
  const lines = $("story-lines");
  $("story-title").textContent = "…";
  lines.replaceChildren();
  if (!$("story").open) $("story").showModal();
  try {
    const story = await api.json(`/explain/${path}`);
    $("story-title").textContent = story.subject;
    const start = story.lines.find((line) => line.time !== null)?.time;
    lines.replaceChildren(...story.lines.map((line) => element("li", {}, element("time", { textContent: line.time === null ? "" : `+${Math.max(0, line.time - start).toFixed(3)} s` }), element("span", { textContent: line.text }))));
  } catch (error) {
    $("story-title").textContent = "No story";
    lines.replaceChildren(element("li", {}, element("span", { className: "error", textContent: error.message })));
  }
}

$("explain-cache").addEventListener("click", () => openStory("cache"));
$("story").addEventListener("click", (event) => { if (event.target === $("story")) $("story").close(); });

// the key, the theme, the views ------------------------------------------------------------------------------------------

function askKey(note) {
  const dialog = $("ask-key");
  if (note) $("key-note").textContent = note;
  dialog.showModal();
  dialog.addEventListener("cancel", (event) => event.preventDefault());
  return new Promise((resolve) => {
    dialog.querySelector("form").addEventListener("submit", () => resolve($("key").value.trim()), { once: true });
  });
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  refreshStyles();
  schedule();
}

const prefersDark = matchMedia("(prefers-color-scheme: dark)");
prefersDark.addEventListener("change", () => setTheme(localStorage.getItem("pellucid-theme")));
$("theme").addEventListener("click", () => {
  const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : prefersDark.matches;
  localStorage.setItem("pellucid-theme", dark ? "light" : "dark");
  setTheme(dark ? "light" : "dark");
});
setTheme(localStorage.getItem("pellucid-theme"));

for (const button of document.querySelectorAll(".views button")) {
  button.addEventListener("click", () => {
    document.body.dataset.view = button.dataset.view;
    for (const other of document.querySelectorAll(".views button")) other.toggleAttribute("aria-current", other === button);
    schedule();
  });
}

connect();
