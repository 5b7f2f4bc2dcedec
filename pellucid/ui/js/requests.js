// The queue, the batch, and those that are gone: a row for each, which opens its story.

import { chip, colourOf, element } from "./look.js";

const MOST_ROWS = 40;

export class RequestLanes {
  constructor(state, openStory) {
    this.state = state;
    this.openStory = openStory;
    this.rows = new Map(); // by request id, kept while it lasts so that focus and clicks stay where they are
  }

  draw() {
    const { state } = this;
    const waiting = state.byStatus("preempted", "waiting");
    const gone = state.byStatus("gone").reverse();
    this.fill("waiting", waiting, "Nobody waits.");
    this.fill("running", state.byStatus("running"), "Nothing runs. Ask something in the chat.");
    this.fill("gone", gone, "What has finished shows here.");
    for (const id of this.rows.keys()) if (!state.requests.has(id)) this.rows.delete(id);
  }

  fill(lane, requests, empty) {
    document.getElementById(`n-${lane}`).textContent = requests.length || "";
    const list = document.getElementById(lane);
    const rows = requests.slice(0, MOST_ROWS).map((request) => this.row(request));
    if (!rows.length) rows.push(this.emptyRow(lane, empty));
    if (rows.length !== list.children.length || rows.some((row, index) => row !== list.children[index])) list.replaceChildren(...rows);
  }

  emptyRow(lane, text) {
    const key = `empty ${lane}`;
    this[key] ??= element("li", { className: "empty", textContent: text });
    return this[key];
  }

  row(request) {
    let row = this.rows.get(request.id);
    if (!row) {
      const button = element("button", { type: "button" }, chip(request), element("span", { className: "what" }), element("span", { className: "bar" }, element("i")));
      button.title = request.id;
      button.addEventListener("click", () => this.openStory(`requests/${encodeURIComponent(request.id)}`));
      row = element("li", {}, button);
      row.dataset.request = request.id;
      row.querySelector("i").style.background = colourOf(request);
      this.rows.set(request.id, row);
    }
    row.dataset.status = request.status;
    const text = this.describe(request);
    const what = row.querySelector(".what");
    if (what.textContent !== text) what.textContent = text;
    const done = request.status === "gone" ? request.tokens : request.computed;
    row.querySelector("i").style.width = `${Math.min(100, (100 * done) / (request.maxTokens || done || 1))}%`;
    return row;
  }

  describe(request) {
    const cached = request.cached ? `, ${request.cached} cached` : "";
    const generated = Math.max(0, request.tokens - request.promptTokens);
    if (request.status === "gone") {
      if (request.reason === "refused") return `refused: ${request.why}`;
      const work = request.pools ? `${request.promptTokens} tokens embedded${cached}` : `${request.promptTokens}${cached} → ${generated} tokens`;
      return `${work} · ${request.reason || "gone"}`;
    }
    if (request.status !== "running") return `${request.promptTokens} tokens${request.why ? ` · ${request.why}` : ""}`;
    if (request.computed < request.target) return `prefill ${request.computed} of ${request.target}${cached}`;
    const work = request.pools ? `${request.promptTokens}${cached} tokens` : `${request.promptTokens}${cached} → ${generated} tokens`;
    return `${work} · ${request.blocks.length} blocks`;
  }
}
