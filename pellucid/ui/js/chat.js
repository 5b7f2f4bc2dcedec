// The playground: several chats at a time, which stream side by side and share what they have in common.

import { chip, element, plural } from "./look.js";
import { renderMarkdown } from "./markdown.js";
import { TokenTrail, walkTokens } from "./tokens.js";

const TOP_LOGPROBS = 5;
const DEFAULT_MAX_TOKENS = 256;
const $ = (id) => document.getElementById(id);

export class Playground {
  constructor(api, state, openStory) {
    Object.assign(this, { api, state, openStory, chats: [], shown: null });
    this.settings = $("settings");
    this.restoreSettings();
    $("new-chat").addEventListener("click", () => this.open());
    $("settings-toggle").addEventListener("click", () => {
      this.settings.hidden = !this.settings.hidden;
      $("settings-toggle").setAttribute("aria-expanded", String(!this.settings.hidden));
    });
    this.settings.addEventListener("submit", (event) => event.preventDefault());
    this.settings.addEventListener("change", () => {
      localStorage.setItem("pellucid-settings", JSON.stringify(Object.fromEntries(new FormData(this.settings))));
      $("messages").classList.toggle("doubts", this.settings.probabilities.checked);
    });
    $("messages").classList.toggle("doubts", this.settings.probabilities.checked);
    $("composer").addEventListener("submit", (event) => { event.preventDefault(); this.submit(); });
    $("prompt").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); this.submit(); }
    });
    walkTokens($("messages"), (node) => this.shown.answers.get(node.closest(".message"))?.trail);
    this.open();
  }

  restoreSettings() {
    try {
      const kept = JSON.parse(localStorage.getItem("pellucid-settings") ?? "null");
      for (const field of kept ? this.settings.elements : []) {
        if (field.type === "checkbox") field.checked = field.name in kept;
        else if (field.name) field.value = kept[field.name] ?? "";
      }
    } catch { /* what was kept is of another version: begin anew */ }
  }

  open() {
    const chat = { number: this.chats.length + 1, messages: [], answers: new Map(), nodes: [], stop: null, request: null, draft: "" };
    chat.tab = element("button", { type: "button", role: "tab", textContent: `Chat ${chat.number}` });
    chat.tab.addEventListener("click", () => this.show(chat));
    chat.tab.addEventListener("keydown", (event) => {
      const move = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const next = this.chats[this.chats.indexOf(chat) + (move ?? 0)];
      if (move && next) { this.show(next); next.tab.focus(); }
    });
    this.chats.push(chat);
    $("chat-tabs").append(chat.tab);
    this.show(chat);
  }

  show(chat) {
    if (this.shown) this.shown.draft = $("prompt").value;
    this.shown = chat;
    for (const other of this.chats) {
      other.tab.setAttribute("aria-selected", String(other === chat));
      other.tab.tabIndex = other === chat ? 0 : -1;
    }
    $("messages").replaceChildren(...(chat.nodes.length ? chat.nodes : [this.welcome()]));
    $("prompt").value = chat.draft;
    this.showSending();
    $("messages").scrollTop = $("messages").scrollHeight;
    if (matchMedia("(hover: hover)").matches) $("prompt").focus();
  }

  welcome() {
    return element("div", { className: "welcome" },
      element("h3", { textContent: "Ask, and watch it being computed" }),
      element("p", { textContent: "Point at a word of the answer to see how sure the model was and what else it considered. Open a second chat while the first still answers: both run in one batch, and what they begin with alike is kept only once. Look for the framed blocks in the KV pool." }));
  }

  submit() {
    const chat = this.shown;
    if (chat.stop) return chat.stop.abort();
    const text = $("prompt").value.trim();
    if (!text) return;
    $("prompt").value = "";
    this.say(chat, { role: "user", content: text }, element("div", { className: "text plain", textContent: text }));
    this.answer(chat);
  }

  say(chat, message, ...content) {
    chat.messages.push(message);
    this.append(chat, element("article", { className: `message ${message.role}` }, ...content));
  }

  append(chat, node) {
    chat.nodes.push(node);
    if (chat === this.shown) {
      $("messages").querySelector(".welcome")?.remove();
      $("messages").append(node);
      $("messages").scrollTop = $("messages").scrollHeight;
    }
  }

  // Throws with words for a person where a setting can't be sent.
  body(chat) {
    const data = new FormData(this.settings);
    const system = data.get("system").trim();
    const body = {
      model: this.state.hello.model, stream: true, stream_options: { include_usage: true }, max_tokens: DEFAULT_MAX_TOKENS,
      messages: [...(system ? [{ role: "system", content: system }] : []), ...chat.messages],
    };
    for (const name of ["temperature", "top_p", "top_k", "min_p", "max_tokens", "seed"]) if (data.get(name) !== "") body[name] = Number(data.get(name));
    if (data.get("thinking")) body.chat_template_kwargs = { enable_thinking: data.get("thinking") === "on" };
    if (data.has("probabilities")) Object.assign(body, { logprobs: true, top_logprobs: TOP_LOGPROBS });
    if (data.get("tools").trim()) {
      try {
        body.tools = JSON.parse(data.get("tools"));
      } catch (error) {
        throw new Error(`The tools in the settings are no JSON: ${error.message}`);
      }
    }
    return body;
  }

  async answer(chat) {
    const answer = new Answer(chat, this);
    chat.answers.set(answer.node, answer);
    this.append(chat, answer.node);
    chat.stop = new AbortController();
    chat.tab.classList.add("busy");
    this.showSending();
    try {
      for await (const chunk of this.api.stream("/v1/chat/completions", this.body(chat), chat.stop.signal)) {
        if (chunk.error) throw new Error(chunk.error.message);
        answer.take(chunk);
      }
    } catch (error) {
      answer.fail(error.name === "AbortError" ? "Stopped." : error.message);
    } finally {
      chat.stop = null;
      chat.tab.classList.remove("busy");
      answer.finish();
      this.showSending();
    }
  }

  showSending() {
    const busy = Boolean(this.shown.stop);
    $("send").textContent = busy ? "Stop" : "Send";
    $("send").classList.toggle("stop", busy);
  }

  // Chips tie an answer to its request; known once the engine's events name it.
  draw() {
    for (const chat of this.chats) for (const answer of chat.answers.values()) answer.tie();
  }
}

class Answer {
  constructor(chat, playground) {
    Object.assign(this, { chat, playground, trail: new TokenTrail(), content: "", reasoning: "", calls: [], usage: null, error: "", finish_reason: "", scheduled: false });
    this.thoughts = element("details", { className: "thoughts", open: true, hidden: true }, element("summary", { textContent: "Reasoning" }), element("div", { className: "text plain" }));
    this.text = element("div", { className: "text" });
    this.tools = element("div", { className: "tools" });
    this.foot = element("footer", {}, element("span", { className: "note", textContent: "waiting…" }));
    this.node = element("article", { className: "message assistant" }, this.thoughts, this.text, this.tools, this.foot);
  }

  take(chunk) {
    this.id ??= chunk.id;
    if (chunk.usage) this.usage = chunk.usage;
    const choice = chunk.choices?.[0];
    if (choice) {
      const delta = choice.delta ?? {};
      this.content += delta.content ?? "";
      this.reasoning += delta.reasoning_content ?? delta.reasoning ?? "";
      for (const call of delta.tool_calls ?? []) {
        const known = (this.calls[call.index] ??= { id: "", type: "function", function: { name: "", arguments: "" } });
        known.id = call.id ?? known.id;
        known.function.name += call.function?.name ?? "";
        known.function.arguments += call.function?.arguments ?? "";
      }
      this.trail.add(choice.logprobs?.content ?? []);
      this.finish_reason = choice.finish_reason ?? this.finish_reason;
    }
    if (!this.scheduled) {
      this.scheduled = true;
      requestAnimationFrame(() => { this.scheduled = false; this.draw(); });
    }
  }

  draw() {
    const log = $("messages");
    const follow = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    this.text.replaceChildren();
    if (this.content) renderMarkdown(this.text, this.content, this.trail.emitter(this.content));
    this.thoughts.hidden = !this.reasoning;
    this.thoughts.lastChild.textContent = this.reasoning;
    if (this.content && !this.folded) this.folded = !(this.thoughts.open = false);
    this.tools.replaceChildren(...this.calls.filter(Boolean).map((call) => element("div", { className: "tool" }, element("b", { textContent: call.function.name }), element("pre", { textContent: pretty(call.function.arguments) }))));
    if (follow) log.scrollTop = log.scrollHeight;
  }

  fail(message) {
    this.error = message;
  }

  finish() {
    this.draw();
    const { messages } = this.chat;
    const calls = this.calls.filter(Boolean);
    if (this.content || calls.length) messages.push({ role: "assistant", content: this.content || null, ...(calls.length && { tool_calls: calls }) });
    else if (this.error) messages.pop(); // an unanswered question is not asked again
    const usage = this.usage && `${plural(this.usage.completion_tokens, "token")}, ${this.usage.prompt_tokens_details?.cached_tokens ?? 0} of ${this.usage.prompt_tokens} prompt tokens cached`;
    const parts = [usage, this.finish_reason === "length" ? "cut off at the most tokens" : ""].filter(Boolean);
    this.foot.querySelector(".note").textContent = parts.join(" · ");
    if (this.error) this.foot.append(element("span", { className: "error", role: "alert", textContent: this.error }));
    if (calls.length) this.askResults(calls);
  }

  // A person plays the tools: what they return goes back to the model.
  askResults(calls) {
    const form = element("form", { className: "results" }, ...calls.map((call) => element("label", {}, `What ${call.function.name} returns `, element("textarea", { rows: 2, required: true }))), element("button", { type: "submit", textContent: "Return to the model" }));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.chat.stop) return;
      const results = [...form.querySelectorAll("textarea")].map((field) => field.value);
      form.remove();
      calls.forEach((call, index) => this.playground.say(this.chat, { role: "tool", tool_call_id: call.id, content: results[index] }, element("div", { className: "text plain", textContent: results[index] })));
      this.playground.answer(this.chat);
    });
    this.tools.append(form);
  }

  tie() {
    const request = this.id && this.playground.state.requests.get(this.id);
    if (!request || this.tied === request) return;
    this.tied = request;
    this.foot.querySelector("button")?.remove();
    const button = element("button", { type: "button", className: "quiet why", title: "Read its story" }, chip(request), " why?");
    button.addEventListener("click", () => this.playground.openStory(`requests/${encodeURIComponent(this.id)}`));
    this.foot.prepend(button);
    if (this.foot.querySelector(".note").textContent === "waiting…") this.foot.querySelector(".note").textContent = "";
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // it is still being written
  }
}
